"""How an agent is run: adapters as data, presets, keys, the prompt, and all that is made ready before a spawn."""

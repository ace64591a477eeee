"""Is a tool sound, and if not, why? `validate` and `debug`."""

"""Pipe agents: prompts in `pipe.md`, run on a schedule, an event or by hand, every execution a
row of the ledger.
"""

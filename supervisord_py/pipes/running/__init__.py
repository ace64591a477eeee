"""Executions at work: spawned, followed, stopped, written down; adopted or closed after a restart."""

"""Warm HTTP tools: what a tool is, which one is meant, and keeping the right ones warm.

A tool is declared (`manifest`, `plain`, `pixie`), found (`catalog`), given an environment and an interpreter, started,
kept warm within bounds (`warm_set`) and asked (`proxy`). The declarative half never starts a process by itself.
"""

"""Warm HTTP tools: what a tool is, which one is meant, and keeping the right ones warm."""

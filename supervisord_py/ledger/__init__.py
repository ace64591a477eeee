"""REMEMBERS: the SQLite schema and its migrations, and typed queries, one noun a module; one
writer.
"""

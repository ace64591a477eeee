"""REMEMBERS: the SQLite schema, its migrations, and typed queries, one noun a module; one writer."""

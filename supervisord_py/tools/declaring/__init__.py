"""What a tool is to be, read from its files: manifests, schemas, the catalog, its environment."""

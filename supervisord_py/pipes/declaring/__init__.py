"""What a pipe is to be, read from its folder: front matter, edits, catalog, installation."""

"""Reading of what users write: files and request bodies, with the place of every mistake."""

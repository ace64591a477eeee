"""The commands of `pxctl`, a file a noun, imported when called."""

"""One kernel's life, from its launch until nothing of it is left, and one cell on it, to the end of the ladder."""

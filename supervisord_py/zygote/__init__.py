"""The fork server: runs in the interpreter of what it forks, with the standard library alone."""

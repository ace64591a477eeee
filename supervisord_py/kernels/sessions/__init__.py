"""The set of sessions, which decides: who has a place, whose turn it is, who must go. Pure throughout."""

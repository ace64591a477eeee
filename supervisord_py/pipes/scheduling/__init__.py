"""When a pipe is due: the grammar, the pure calendar, events and their claims, the loop that asks."""

"""Shell cells: one process a cell, under the same limits, deadlines and output rules."""

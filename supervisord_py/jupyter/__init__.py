"""What runs inside Jupyter's own processes: clients of the daemon, not parts of it."""

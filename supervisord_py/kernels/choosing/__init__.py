"""Which interpreter and which environment a kernel gets, and why."""

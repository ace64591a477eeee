"""Sessions at work: what each is started from, its kernel, its place in the set, what is known of it later."""

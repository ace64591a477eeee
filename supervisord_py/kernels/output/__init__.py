"""What cells gave: their files, what is shown of them, and notebooks."""

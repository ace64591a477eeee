"""Warm tools at work: starting, watching, running, stopping, and who must go."""

"""Who runs next: groups with slots, one running execution a pipe, positions; pure."""

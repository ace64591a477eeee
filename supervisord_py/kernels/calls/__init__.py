"""Calls and their cells: asked for, sent, followed, judged, written down, taken over."""

"""WIRES: settings, paths, logging, the start of the keeper and the composition root of the
control plane.
"""

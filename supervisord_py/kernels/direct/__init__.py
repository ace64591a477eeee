"""Kernels of our own: children of the keeper, spoken to over ZMQ on Unix sockets."""

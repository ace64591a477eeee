"""Jupyter kernels as supervised children: sessions, calls, backends, output that is complete."""

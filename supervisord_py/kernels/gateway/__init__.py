"""Kernels behind Jupyter's REST and WebSocket API: somebody else's, or a gateway that we run and share."""

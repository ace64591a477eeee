"""supervisord_py: one daemon that holds warm tools, kernels and pipe agents.

This module stays free of imports: the keeper loads it, and the keeper is small.
"""

__version__ = "0.2.0.dev0"

"""Another name of process/logs.py, for as long as the rooms use it."""

from supervisord_py.process.logs import segment_starts

__all__ = ["segment_starts"]

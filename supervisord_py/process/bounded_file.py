"""Another name of process/host.py, for as long as the rooms use it."""

from supervisord_py.process.host import MAX_FILE_BYTES, read_bounded

__all__ = ["MAX_FILE_BYTES", "read_bounded"]

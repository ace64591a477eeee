"""Another name of process/logs.py, for as long as the rooms use it."""

from supervisord_py.process.logs import Batch, Chunk, Cursor, Gap, Output, Stream
from supervisord_py.process.logs import LogReader as OutputReader

__all__ = ["Batch", "Chunk", "Cursor", "Gap", "Output", "OutputReader", "Stream"]

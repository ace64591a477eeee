"""Another name of process/model.py, for as long as the rooms use it."""

from supervisord_py.process.keeper_client import marked
from supervisord_py.process.model import ControlEvent, LogTrouble

__all__ = ["ControlEvent", "LogTrouble", "marked"]

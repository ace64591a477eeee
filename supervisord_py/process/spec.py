"""Another name of process/model.py, for as long as the rooms use it."""

from supervisord_py.process.model import *  # noqa: F403

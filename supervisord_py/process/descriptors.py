"""Another name of process/host.py, for as long as the rooms use it."""

from supervisord_py.process.host import RESERVE, SHORT, check_room, descriptors_left, shortage

__all__ = ["RESERVE", "SHORT", "check_room", "descriptors_left", "shortage"]

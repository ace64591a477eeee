"""The name under which the rooms get processes."""

from supervisord_py.process.local import LocalPlacement as Placement

__all__ = ["Placement"]

"""Another name of process/keeper_client.py, for as long as the rooms use it."""

from supervisord_py.process.keeper_client import KeeperClient as Placement

__all__ = ["Placement"]

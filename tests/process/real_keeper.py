"""The real keeper for rooms above it: its control planes lend their channel to the test, which is the control plane."""

from __future__ import annotations

import socket
from pathlib import Path

from keeper.keeper_rig import PATIENCE, PLAIN_ARGV, Rig, alive

__all__ = ["PATIENCE", "RealKeeper", "alive"]


class RealKeeper(Rig):
    """A keeper that is started at once, in a folder that is short: a socket lies in it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder, self.log_dir = folder, str(folder / "logs")
        self.argv = PLAIN_ARGV
        self.start()

    def channel(self) -> socket.socket:
        """Wait for the next control plane, and return the channel that it lends."""
        return self.connect().channel.dup()

    def end_control(self) -> None:
        """Let the present control plane end as one that failed."""
        self.links[-1].end(1)

"""The real keeper for rooms above it: its control planes lend their channel to the test, which is the control plane."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
from pathlib import Path

from keeper.keeper_rig import PATIENCE, PLAIN_ARGV, Rig, alive


class RealKeeper:
    """A keeper's process and the channels of its control planes. `folder` is short: a socket lies in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._rig = Rig(folder)
        self._rig.argv = PLAIN_ARGV
        self.daemon_id = hashlib.sha256(os.path.realpath(folder / "state").encode()).hexdigest()[:8]
        self._rig.boot["daemon_id"] = self._rig.daemon_id = self.daemon_id
        self._rig.start()

    @property
    def log_dir(self) -> str:
        return str(self.folder / "logs")

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._rig.process is not None
        return self._rig.process

    def channel(self) -> socket.socket:
        """Wait for the next control plane, and return the channel that it lends."""
        return self._rig.connect().channel.dup()

    def end_control(self) -> None:
        """Let the present control plane end as one that failed."""
        self._rig.links[-1].end(1)

    def close(self) -> None:
        """End everything, in order where the keeper still lives, and see that nothing was left."""
        self._rig.close()


__all__ = ["PATIENCE", "RealKeeper", "alive"]

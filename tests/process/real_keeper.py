"""The real keeper, for contract tests: started in a directory of its own, its control planes lend their channel here.

The keeper starts its control plane itself; ours is a few lines that send descriptor 3 to the test and exit when told.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

MAIN = Path(__file__).parents[2] / "supervisord_py" / "keeper" / "__main__.py"
PATIENCE = 60.0
LEND_CHANNEL = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as sock:
    try:
        sock.connect(sys.argv[1])
    except OSError:
        os._exit(78)
    socket.send_fds(sock, [b"x"], [3])
    os.close(3)
    word = sock.recv(1)
os._exit(word[0] if word else 0)
"""


def alive(pid: int) -> bool:
    """Say whether a process exists and is no zombie."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    return False


class RealKeeper:
    """A keeper's process and the channels of its control planes. `folder` is short: a socket lies in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("run", "state", "logs"):
            (folder / name).mkdir(mode=0o700)
        self.daemon_id = hashlib.sha256(os.path.realpath(folder / "state").encode()).hexdigest()[:8]
        self._meeting = socket.socket(socket.AF_UNIX)
        self._meeting.bind(str(folder / "meet"))
        self._meeting.listen(4)
        self._meeting.settimeout(PATIENCE)
        self._lent: list[socket.socket] = []
        self.process = self._start()

    @property
    def log_dir(self) -> str:
        return str(self.folder / "logs")

    def _start(self) -> subprocess.Popen[bytes]:
        boot = {
            "daemon_id": self.daemon_id,
            "run_dir": str(self.folder / "run"),
            "state_dir": str(self.folder / "state"),
            "log_dir": self.log_dir,
            "socket_path": "",
            "listen_fd": None,
            "lock_fd": None,
            "control_argv": [sys.executable, "-I", "-S", "-c", LEND_CHANNEL, str(self.folder / "meet")],
            "pxd_argv": [],
            "log_segment_bytes": 1 << 20,
            "log_total_bytes": 8 << 20,
            "log_spill_bytes": 64 << 10,
            "stop_seconds": 30,
            "watchdog_seconds": 0,
            "control_hang_seconds": 60,
            "backoff_initial_seconds": 0.01,
            "backoff_max_seconds": 0.05,
            "cgroup": "auto",
            "platform": "auto",
        }
        read, write = os.pipe()
        os.write(write, json.dumps(boot).encode())
        os.close(write)
        argv = [sys.executable, "-I", "-S", str(MAIN), "--boot-fd", str(read)]
        with (self.folder / "stderr").open("ab") as stderr:
            process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, pass_fds=(read,))
        os.close(read)
        return process

    def channel(self) -> socket.socket:
        """Wait for the next control plane, and return the channel that it lends."""
        try:
            lender, _ = self._meeting.accept()
        except TimeoutError:
            said = (self.folder / "stderr").read_text(errors="replace")[-4000:]
            raise AssertionError(f"no control plane came within {PATIENCE} s; the keeper said: {said}") from None
        self._lent.append(lender)
        lender.settimeout(PATIENCE)
        _, fds, _, _ = socket.recv_fds(lender, 1, 1)
        return socket.socket(fileno=fds[0])

    def end_control(self) -> None:
        """Let the present control plane end as one that failed; the keeper may have ended it for its closed channel."""
        with contextlib.suppress(BrokenPipeError):
            self._lent[-1].send(b"\x01")

    def close(self) -> None:
        """End everything, in order where the keeper still lives."""
        self.process.send_signal(signal.SIGTERM)
        for lender in self._lent:
            lender.close()
        self._meeting.close()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self.process.wait()

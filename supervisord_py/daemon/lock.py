"""One daemon a directory: an flock that lives exactly as long as the daemon does, across exec.

The file says who holds it (pid and kernel start time), for the one who is refused. A lock that is held though its
holder is dead belongs to the clean-up after a killed keeper, which ends by itself: then we wait.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING

from supervisord_py.errors import ConflictError
from supervisord_py.keeper import procfs

if TYPE_CHECKING:
    from pathlib import Path

CLEANUP_SECONDS = 15.0  # how long the clean-up after a killed keeper may take before we give up
_POLL_SECONDS = 0.05


class AlreadyRunningError(ConflictError):
    """Another daemon holds these directories; `pid` is its keeper's, where known."""

    def __init__(self, folder: Path, pid: int | None) -> None:
        who = f"pid {pid}" if pid else "a process that did not say who it is"
        super().__init__(
            f"another daemon ({who}) already holds {folder}",
            hint="`pxctl daemon status` shows it, `pxctl daemon stop` stops it; PX_HOME gives a second one its place",
            pid=pid,
        )


def take_lock(path: Path) -> int:
    """Lock `path` and return the descriptor that holds it (close-on-exec; not yet signed by `sign_lock`).

    Raises AlreadyRunningError: A living daemon holds it, or a clean-up did not end in time.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + CLEANUP_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            pid = holder(path)
            if pid is not None or time.monotonic() >= deadline:
                os.close(fd)
                raise AlreadyRunningError(path.parent, pid) from None
            time.sleep(_POLL_SECONDS)
        else:
            os.fchmod(fd, 0o600)
            return fd


def sign_lock(fd: int) -> None:
    """Write into a lock we hold who we are. The pid stays true over exec."""
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()} {_start_time(os.getpid())}\n".encode(), 0)


def holder(path: Path) -> int | None:
    """Return the pid of the living process that signed the lock file; a later one with the same pid does not count."""
    try:
        pid, started = map(int, path.read_text("ascii").split()[:2])
    except (OSError, ValueError):
        return None
    return pid if started == _start_time(pid) else None


def _start_time(pid: int) -> int | None:
    row = procfs.look(pid)
    return row.start_time if row is not None and row.alive else None

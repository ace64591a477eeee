"""One daemon a directory: an flock that lives exactly as long as the daemon does, across exec.

The file says who holds it (pid and kernel start time), for the one who is refused. A lock that is held though its
holder is dead belongs to the clean-up after a killed keeper, which ends by itself: then we wait.
"""

from __future__ import annotations

import fcntl
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from supervisord_py.errors import ConflictError
from supervisord_py.keeper import procfs

if TYPE_CHECKING:
    from pathlib import Path

CLEANUP_SECONDS = 15.0  # how long the clean-up after a killed keeper may take before we give up
_POLL_SECONDS = 0.05


class Holder(NamedTuple):
    """Who wrote the lock file last. `start_time` is in clock ticks since boot, 0 where the platform has none."""

    pid: int
    start_time: int

    @property
    def alive(self) -> bool:
        """True while that very process lives; a later process with the same pid does not count."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return self.start_time in {0, start_time(self.pid)}


class AlreadyRunningError(ConflictError):
    """Another daemon holds these directories; `pid` is its keeper's, where known."""

    def __init__(self, folder: Path, pid: int | None) -> None:
        who = f"pid {pid}" if pid else "a process that did not say who it is"
        super().__init__(
            f"another daemon ({who}) already holds {folder}",
            hint="`pxctl daemon status` shows it, `pxctl daemon stop` stops it; PX_HOME gives a second one its place",
            pid=pid,
        )


def take_lock(path: Path, *, patience: float = CLEANUP_SECONDS) -> int:
    """Lock `path` and return the descriptor that holds it (close-on-exec; not yet signed by `sign_lock`).

    Raises AlreadyRunningError: A living daemon holds it, or a clean-up did not end within `patience` seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Only the file that the path names now counts: it may have been unlinked or replaced meanwhile.
            if os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False)):
                os.fchmod(fd, 0o600)
                return fd
        except FileNotFoundError:
            pass
        except (BlockingIOError, PermissionError):
            holder = read_holder(path)
            if holder is not None and holder.alive:
                os.close(fd)
                raise AlreadyRunningError(path.parent, holder.pid) from None
            if time.monotonic() >= deadline:
                os.close(fd)
                raise AlreadyRunningError(path.parent, None) from None
            time.sleep(_POLL_SECONDS)
        os.close(fd)


def sign_lock(fd: int) -> None:
    """Write into a lock we hold who we are. The pid stays true over exec."""
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()} {start_time(os.getpid())}\n".encode(), 0)


def read_holder(path: Path) -> Holder | None:
    """Return who signed the lock file, or None when nobody has (yet)."""
    try:
        pid, started = path.read_text("ascii").split()[:2]
        return Holder(int(pid), int(started))
    except (OSError, ValueError):
        return None


def start_time(pid: int) -> int:
    """Return when a process began, in clock ticks since boot; 0 where that cannot be seen."""
    row = procfs.look(pid)
    return row.start_time if row is not None else 0

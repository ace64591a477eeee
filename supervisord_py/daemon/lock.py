"""One daemon a directory: an flock that lives exactly as long as the daemon does, across exec.

The file says who holds it (pid and kernel start time), for the one who is refused. A lock that is held though its
holder is dead belongs to the clean-up after a killed keeper, which ends by itself: then we wait.
"""

from __future__ import annotations

import errno
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
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


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


def take_lock(path: Path, *, patience: float = CLEANUP_SECONDS) -> int:
    """Lock `path` and return the descriptor that holds it (close-on-exec; not yet signed by `sign_lock`).

    Raises AlreadyRunningError: A living daemon holds it, or a clean-up did not end within `patience` seconds.
    """
    deadline = time.monotonic() + patience
    while True:
        fd = _try_lock(path)
        if fd is not None:
            return fd
        holder = read_holder(path)
        if holder is not None and holder.alive:
            raise already_running(path.parent, holder.pid)
        if time.monotonic() >= deadline:
            raise already_running(path.parent, None)
        time.sleep(_POLL_SECONDS)


def sign_lock(fd: int) -> None:
    """Write into a lock we hold who we are. The pid stays true over exec."""
    text = f"{os.getpid()} {start_time(os.getpid())}\n".encode()
    os.ftruncate(fd, 0)
    os.pwrite(fd, text, 0)


def read_holder(path: Path) -> Holder | None:
    """Return who signed the lock file, or None when nobody has (yet)."""
    try:
        words = path.read_text("ascii").split()
        return Holder(int(words[0]), int(words[1]))
    except (OSError, ValueError, IndexError):
        return None


def start_time(pid: int) -> int:
    """Return when a process began, in clock ticks since boot; 0 where that cannot be seen."""
    row = procfs.look(pid)
    return row.start_time if row is not None else 0


def already_running(folder: Path, pid: int | None) -> AlreadyRunningError:
    """Say that another daemon is there."""
    who = f"pid {pid}" if pid else "a process that did not say who it is"
    return AlreadyRunningError(
        f"another daemon ({who}) already holds {folder}",
        hint="`pxctl daemon status` shows it, `pxctl daemon stop` stops it; PX_HOME gives a second one its own place",
        pid=pid,
    )


def _try_lock(path: Path) -> int | None:
    """Lock the file that `path` names now: one that was unlinked or replaced meanwhile is let go again."""
    while True:
        fd = os.open(path, _OPEN, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held, named = os.fstat(fd), os.stat(path, follow_symlinks=False)
            if (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino):
                os.fchmod(fd, 0o600)
                return fd
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(fd)
            if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
                return None
            raise
        os.close(fd)

"""What this process can say about its machine: whether a process lives, and how many descriptors are left."""

from __future__ import annotations

import errno
import os
import resource

from supervisord_py.errors import StartFailedError
from supervisord_py.keeper import procfs
from supervisord_py.process.model import Identity, Reason

RESERVE = 16  # a start needs this many free descriptors, or it is refused
SHORT = frozenset({errno.EMFILE, errno.ENFILE})  # what the system says when there are none left


def is_dead(identity: Identity) -> bool:
    """Say whether exactly this process of the present boot is gone, whatever has its pid now; a zombie is."""
    row = procfs.look(identity.pid)
    return row is None or not row.alive or row.start_time != identity.start_time


def shortage(unit: str, left: int | None = None) -> StartFailedError:
    """Return the error of a start for which there are too few descriptors."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = "no" if not left else f"only {left}"
    return StartFailedError(
        f"{unit} was not started: pxd has {count} file descriptors left of {limit}, and a start needs {RESERVE}.",
        hint="Stop what is not needed, or raise the limit on open files (`ulimit -n`, LimitNOFILE=); see pxctl doctor.",
        unit=unit,
        reason=Reason.SPAWN_FAILED.value,
        stage="fds",
        errno=errno.EMFILE,
    )


def check_room(unit: str) -> None:
    """Refuse a start for which too few descriptors are left, while that can be told. Raises StartFailedError."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return
    try:
        left = limit - len(os.listdir("/dev/fd"))
    except OSError as error:
        left = 0 if error.errno in SHORT else RESERVE
    if left < RESERVE:
        raise shortage(unit, left)

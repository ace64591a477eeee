"""How many file descriptors the control plane has left: a start is refused while the truth can still be told.

A start takes about ten (notification socket, listener, probes, log files, its requests), each at another place. Running
out half-way would be told as whatever failed first, so what is left is counted before.
"""

from __future__ import annotations

import errno
import os
import resource

from supervisord_py.errors import StartFailedError
from supervisord_py.process.spec import Reason

RESERVE = 16
"""A start needs this many free, or it is refused."""
SHORT = frozenset({errno.EMFILE, errno.ENFILE})
"""What the system says when there are none left."""
_FOLDERS = ("/proc/self/fd", "/dev/fd")


def descriptors_left() -> int | None:
    """Return how many descriptors this process may still open; None where that cannot be counted."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return None
    for folder in _FOLDERS:
        try:
            return max(0, limit - len(os.listdir(folder)))
        except OSError as error:
            if error.errno in SHORT:
                return 0
    return None


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
    """Refuse a start for which too few descriptors are left.

    Raises:
        StartFailedError: reason spawn_failed, stage fds, errno EMFILE.
    """
    left = descriptors_left()
    if left is not None and left < RESERVE:
        raise shortage(unit, left)

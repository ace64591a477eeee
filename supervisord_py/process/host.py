"""What this process can say about its machine: who a process is, and how many descriptors are left.

Law (DESIGN §4.1): in doubt, do not act. A process that cannot be looked at is not dead; only an absent pid, a zombie,
another start time or another boot is.
"""

from __future__ import annotations

import errno
import os
import resource
import secrets
import sys
import time
from functools import cache

from supervisord_py.errors import StartFailedError
from supervisord_py.keeper import procfs
from supervisord_py.process.model import Identity, Reason

_ALPHABET = "0123456789abcdefghijklmnopqrstuv"  # base 32 in the order of ASCII, so that keys of one daemon sort by age
_HALF_KEY_DIGITS = 6
RESERVE = 16  # a start needs this many free descriptors, or it is refused
SHORT = frozenset({errno.EMFILE, errno.ENFILE})  # what the system says when there are none left


boot_id = cache(procfs.boot_id)


def is_dead(identity: Identity) -> bool:
    """Say whether exactly this process is gone, whatever has its pid now; False in doubt."""
    if identity.pid <= 0 or (identity.boot_id and boot_id() and identity.boot_id != boot_id()):
        return True
    row = procfs.look(identity.pid)
    if row is not None:
        return not row.alive or row.start_time != identity.start_time
    try:
        os.kill(identity.pid, 0)  # with hidepid (proc(5)) a process has no entry although it lives
    except OSError as error:
        return error.errno == errno.ESRCH
    return False


def new_key(daemon: str) -> str:
    """Return a fresh instance id: the daemon's id, a dot, six characters of time and six of chance."""
    bits = 5 * _HALF_KEY_DIGITS
    number = (int(time.time()) & ((1 << bits) - 1)) << bits | secrets.randbits(bits)
    digits = (_ALPHABET[(number >> shift) & 31] for shift in range(2 * bits - 5, -1, -5))
    return f"{daemon}.{''.join(digits)}"


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
    """Refuse a start for which too few descriptors are left, while the truth can still be told.

    Raises StartFailedError: reason spawn_failed, stage fds, errno EMFILE.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return
    folder = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
    try:
        opened = os.stat(folder).st_size if sys.platform == "linux" else 0  # their number, since Linux 6.2
        left = limit - (opened or len(os.listdir(folder)))
    except OSError as error:
        left = 0 if error.errno in SHORT else RESERVE
    if left < RESERVE:
        raise shortage(unit, left)

"""Who a process is, beyond reuse of its pid: pid, kernel start time and boot id together.

Law (DESIGN §4.1): in doubt, do not act. A process that cannot be looked at is *unknown*, never *dead*; only an absent
pid, a zombie, another start time or another boot is *dead*.
"""

from __future__ import annotations

import secrets
import sys
import time
from functools import cache
from pathlib import Path

import psutil

from supervisord_py.process.spec import Identity, Liveness

_ALPHABET = "0123456789abcdefghijklmnopqrstuv"
"""Base 32 in the order of ASCII, so that keys of one daemon sort by age."""
_HALF_KEY_BITS = 30
_DIGIT_BITS = 5
_PROC = "/proc"
_STAT_STATE = 0
_STAT_START_TIME = 19
"""Indices after the command name of /proc/PID/stat, proc(5): fields 3 and 22."""
_DEAD_STATES = frozenset(("Z", "X", "x"))


@cache
def boot_id() -> str:
    """Return the kernel's id of this boot; "" where the platform has none, as the keeper says it."""
    try:
        return Path(f"{_PROC}/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def start_time(pid: int) -> int | None:
    """Return when a process began, in clock ticks since boot; None when it cannot be seen or is a zombie."""
    found = _look(pid)
    return found if isinstance(found, int) else None


def identity_of(pid: int) -> Identity | None:
    """Return who the process with this pid is now; None when it cannot be seen or is a zombie."""
    started = start_time(pid)
    return None if started is None else Identity(pid, started, boot_id())


def liveness(identity: Identity) -> Liveness:
    """Say whether exactly this process lives, not merely some process with its pid."""
    if identity.boot_id and boot_id() and identity.boot_id != boot_id():
        return Liveness.DEAD
    found = _look(identity.pid)
    if isinstance(found, Liveness):
        return found
    return Liveness.ALIVE if found == identity.start_time else Liveness.DEAD


def new_key(daemon: str) -> str:
    """Return a fresh instance id: the daemon's id, a dot, six characters of time and six of chance."""
    seconds = int(time.time()) & ((1 << _HALF_KEY_BITS) - 1)
    return f"{daemon}.{_digits(seconds)}{_digits(secrets.randbits(_HALF_KEY_BITS))}"


def _digits(number: int) -> str:
    shifts = range(_HALF_KEY_BITS - _DIGIT_BITS, -1, -_DIGIT_BITS)
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in shifts)


def _look(pid: int) -> int | Liveness:
    """Return the start time, or DEAD or UNKNOWN when there is none to be had."""
    if pid <= 0:
        return Liveness.DEAD
    return _look_in_proc(pid) if sys.platform == "linux" else look_by_psutil(pid)


def _look_in_proc(pid: int) -> int | Liveness:
    try:
        text = Path(f"{_PROC}/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        # With hidepid (proc(5)) a process of another user has no entry although it lives.
        return Liveness.UNKNOWN if psutil.pid_exists(pid) else Liveness.DEAD
    except OSError:
        return Liveness.UNKNOWN
    fields = text.rpartition(b")")[2].split()
    try:
        state, started = fields[_STAT_STATE].decode("ascii"), int(fields[_STAT_START_TIME])
    except (IndexError, ValueError):
        return Liveness.UNKNOWN
    return Liveness.DEAD if state in _DEAD_STATES else started


def look_by_psutil(pid: int) -> int | Liveness:
    """Return start time in hundredths of a second, or DEAD or UNKNOWN: the rung of systems without /proc."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return Liveness.DEAD
        return round(process.create_time() * 100)
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return Liveness.DEAD
    except (psutil.Error, OSError):
        return Liveness.UNKNOWN

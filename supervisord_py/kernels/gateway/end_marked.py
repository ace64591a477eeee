"""Run as a child: kills the processes that bear a mark. `python -I -S end_marked.py MARK`; stdlib only, Linux.

Law: a process is killed only through a descriptor of itself (pidfd), opened before its mark is read, so that the reuse
of a pid hits nobody. It goes on until none is found: what is being killed may fork once more.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ROUNDS = 100
LOOKS = 200
PAUSE_SECONDS = 0.005
_KERNEL_THREAD = 0x00200000
"""PF_KTHREAD of <linux/sched.h>, among the flags of proc_pid_stat(5)."""


def end(mark: bytes) -> int:
    """Kill every process whose environment holds the mark; returns how many were found in the last look."""
    found = 0
    for _ in range(ROUNDS):
        found = sum(_end_one(int(name), mark) for name in os.listdir("/proc") if name.isdecimal())
        if not found:
            break
    return found


def _end_one(pid: int, mark: bytes) -> bool:
    """Kill one process if it bears the mark; a zombie bears none."""
    if pid == os.getpid():
        return False
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if mark not in settled(pid, partial(_read, pid, "environ")).split(b"\0"):
            return False
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def settled(pid: int, environment: Callable[[], Any]) -> Any:
    """Return the environment of a process; one in the middle of its exec shows none, and is waited for."""
    for _ in range(LOOKS):
        found = environment()
        if found or not _is_in_exec(pid):
            break
        time.sleep(PAUSE_SECONDS)
    return found


def _is_in_exec(pid: int) -> bool:
    """Say whether a process whose environment was read, and was empty, may have another one in a moment.

    It lies between `env_start` and `env_end` of proc_pid_stat(5), which an exec sets behind each other, at its end. One
    that is there and empty begins and ends at the same address; kernel threads and zombies have none.
    """
    try:
        fields = _read(pid, "stat").rpartition(b")")[2].split()  # from the third one on, `state`
    except OSError:
        return False
    if fields[0] in (b"Z", b"X") or int(fields[6]) & _KERNEL_THREAD:
        return False
    start, end = int(fields[47]), int(fields[48])
    return end == 0 or start != end


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()


if __name__ == "__main__":
    sys.exit(1 if end(os.fsencode(sys.argv[1])) else 0)

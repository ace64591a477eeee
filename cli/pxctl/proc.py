"""Is that process still the one we saw? A pid alone is not an answer; with its start time it is.

Law: in doubt a process counts as gone from here (nothing is ever signalled by the client, so a wrong answer harms
nobody but the message).
"""

from __future__ import annotations

import os
import subprocess
import sys

_START_FIELD = 22 - 3
"""Field 22 of /proc/PID/stat, counted from the first one after the name, which is field 3 (proc(5))."""


def start_mark(pid: int) -> str | None:
    """Return what tells this process from a later one with the same pid; None when there is none, or only a zombie."""
    return _mark_from_ps(pid) if sys.platform == "darwin" else _mark_from_proc(pid)


def _mark_from_proc(pid: int) -> str | None:
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except OSError:
        return None
    try:
        fields = os.read(fd, 4096).rpartition(b")")[2].split()
    except OSError:
        return None
    finally:
        os.close(fd)
    return None if not fields or fields[0] in {b"Z", b"X"} else fields[_START_FIELD].decode()


def _mark_from_ps(pid: int) -> str | None:
    shown = subprocess.run(["ps", "-o", "lstart=,stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    mark = shown.stdout.strip()
    return None if not mark or mark.split()[-1].startswith("Z") else mark


class Sighting:
    """A process as it was seen."""

    __slots__ = ("_mark", "name", "pid")

    def __init__(self, pid: int, name: str) -> None:
        self.pid = pid
        self.name = name
        self._mark = start_mark(pid)

    @property
    def alive(self) -> bool:
        """Whether exactly that process still lives."""
        return self._mark is not None and start_mark(self.pid) == self._mark

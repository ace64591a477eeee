"""Run as a child: kills the processes that bear a mark. `python -I -S end_marked.py NAME=VALUE`; stdlib only, Linux.

What the cells of a kernel in the shared gateway put into sessions of their own bears the kernel's PX_INSTANCE. A
process is killed only through a descriptor of itself (pidfd), opened before its mark is read, so that the reuse of a
pid hits nobody. It goes on until none is found: what is being killed may fork once more.
"""

from __future__ import annotations

import os
import signal
import sys

ROUNDS = 100


def marked(mark: bytes) -> list[int]:
    """Return the pids of living processes whose environment holds the mark; a zombie has none."""
    names = os.listdir("/proc") if os.path.isdir("/proc/self") else []
    return [int(name) for name in names if name.isdecimal() and int(name) != os.getpid() and _bears(name, mark)]


def _bears(pid: str, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


def end(mark: bytes) -> bool:
    """Kill every process that bears the mark; returns whether none was left in the last look."""
    for _ in range(ROUNDS):
        found = marked(mark)
        for pid in found:
            try:
                fd = os.pidfd_open(pid)
            except OSError:
                continue
            try:
                if _bears(str(pid), mark):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
            except OSError:
                continue
            finally:
                os.close(fd)
        if not found:
            return True
    return False


if __name__ == "__main__":
    sys.exit(0 if end(os.fsencode(sys.argv[1])) else 1)

"""Run as a child: kills the processes that bear a mark. `python -I -S end_marked.py MARK`; stdlib only, Linux.

Law: a process is killed only through a descriptor of itself (pidfd), opened before its mark is read, so that the reuse
of a pid hits nobody. It goes on until none is found: what is being killed may fork once more.
"""

import os
import signal
import sys

ROUNDS = 100


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
        with open(f"/proc/{pid}/environ", "rb") as file:
            if mark not in file.read().split(b"\0"):
                return False
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


if __name__ == "__main__":
    sys.exit(1 if end(os.fsencode(sys.argv[1])) else 0)

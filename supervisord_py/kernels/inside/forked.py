"""What a forked child of the kernel prints, until its line is whole.

Law: a line that one thread of the child prints goes to the pipe with one write(2), as with the line-buffered stdout of
any program: lines of several children do not run into each other (up to what a pipe takes whole, pipe(7): PIPE_BUF).
What waits here is the child's alone: its own children begin with nothing, so that nothing is written twice, and with a
lock that nobody holds. As with any such stdout, what was never flushed is lost at `os._exit`; multiprocessing flushes.
"""

from __future__ import annotations

import os
import threading

LONGEST = 8192
"""Bytes that wait for the end of their line, as in Python's own streams."""


class Lines:
    """One stream of this process, once it is a forked child.

    Args:
        number: Descriptor that is written to.
    """

    def __init__(self, number: int) -> None:
        self._number = number
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._lock = threading.RLock()  # a signal handler of the user's may print in the middle of a print
        self._waiting: list[bytes] = []
        self._size = 0

    def write(self, data: bytes) -> None:
        """Take bytes; they are written when a line of them has ended."""
        with self._lock:
            self._waiting.append(data)
            self._size += len(data)
            if b"\n" in data or b"\r" in data or self._size >= LONGEST:
                self.flush()

    def flush(self) -> None:
        """Write what waits."""
        with self._lock:
            waiting, self._waiting, self._size = self._waiting, [], 0
            _write_all(self._number, b"".join(waiting))


def _write_all(number: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(number, data) :]
    except BrokenPipeError:
        pass  # the kernel is gone

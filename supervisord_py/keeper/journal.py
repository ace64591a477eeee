"""What the keeper says about itself: one line a fact on stderr, JSON unless a person reads it on a terminal.

A line never blocks: when stderr is a full pipe the line is dropped and counted, because the keeper's loop is worth
more than its log.
"""

from __future__ import annotations

import json
import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STDERR_FD = 2
LINE_LIMIT = 4000
"""Bytes of one line, below PIPE_BUF (pipe(7)): a pipe that polls writable takes it whole, at once."""


class Journal:
    """Writes facts to a descriptor, by default stderr."""

    __slots__ = ("_dropped", "_fd", "_human", "_poll")

    def __init__(self, fd: int = STDERR_FD) -> None:
        self._fd = fd
        self._dropped = 0
        self._human = os.isatty(fd)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)

    def info(self, event: str, **facts: Any) -> None:
        """State a fact."""
        self._line("info", event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        """State a fact that somebody should look at."""
        self._line("warning", event, facts)

    def error(self, event: str, **facts: Any) -> None:
        """State a failure."""
        self._line("error", event, facts)

    def _line(self, level: str, event: str, facts: dict[str, Any]) -> None:
        if self._dropped:
            facts["dropped_lines"] = self._dropped
        text = self._person(level, event, facts) if self._human else self._machine(level, event, facts)
        try:
            ready = self._poll.poll(0)
            if not ready or not ready[0][1] & select.POLLOUT:
                self._dropped += 1
                return
            os.write(self._fd, text.encode("utf-8", "backslashreplace")[:LINE_LIMIT].rstrip(b"\n") + b"\n")
            self._dropped = 0
        except OSError:
            self._dropped += 1

    @staticmethod
    def _machine(level: str, event: str, facts: dict[str, Any]) -> str:
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"
        return json.dumps({"time": stamp, "level": level, "event": event, "source": "keeper", **facts}, default=str)

    @staticmethod
    def _person(level: str, event: str, facts: dict[str, Any]) -> str:
        words = " ".join(f"{name}={value}" for name, value in facts.items())
        return f"{time.strftime('%H:%M:%S')} {level:7} keeper: {event.replace('_', ' ')} {words}"

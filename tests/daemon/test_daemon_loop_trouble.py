"""The loop's complaints are told once in a while, and counted meanwhile."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.daemon.loop_trouble import QUIET_SECONDS, LoopTrouble

if TYPE_CHECKING:
    import asyncio


class Loop:
    """A loop that has only a clock."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now


def test_a_burst_of_one_complaint_is_one_line_and_the_next_says_how_many_there_were() -> None:
    clock = Loop()
    loop: Any = clock
    typed: asyncio.AbstractEventLoop = loop
    trouble = LoopTrouble()
    burst = {"message": "socket.accept() out of system resource", "exception": OSError(errno.EMFILE, "too many")}
    with structlog.testing.capture_logs() as lines:
        for _ in range(128):
            trouble(typed, burst)
        trouble(typed, {"message": "something else"})
        clock.now = QUIET_SECONDS + 1
        trouble(typed, burst)
    assert [(line["detail"].split("(")[0], line["unsaid"]) for line in lines] == [
        ("socket.accept", 0),
        ("something else", 0),
        ("socket.accept", 127),
    ]

"""Follows a cell while it runs: bytes and records in their true order, each follower at its own speed.

What is not taken waits in the files, not in memory. A ring of the bell is a hint, the files are the truth.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from supervisord_py.kernels.cell_files import READ_BYTES, Reading, Record, StreamSpan

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from supervisord_py.kernels.cell_files import CellLog

LOOK_SECONDS = 0.1  # how long a follower that found nothing waits for the bell: not all that is written rings it
_ITEMS = 256


class Piece(NamedTuple):
    """Bytes of one stream as they came, at most 64 KiB, from `offset` of the complete output on."""

    stream: str
    offset: int
    data: bytes


class Bell:
    """Tells followers of a running cell that there is news; rings are counted, not queued. For one event loop."""

    def __init__(self, *, is_closed: bool = False) -> None:
        self.rings = 0
        self.is_closed = is_closed
        self._next = asyncio.Event()

    def ring(self) -> None:
        self.rings += 1
        self._next.set()
        self._next = asyncio.Event()

    def close(self) -> None:
        self.is_closed = True
        self.ring()

    async def after(self, rings: int) -> None:
        """Wait until it rang more often than `rings` times, or is closed."""
        while self.rings <= rings and not self.is_closed:
            await self._next.wait()


class Position(NamedTuple):
    """How far a follower is: bytes of stdout and of stderr, and the offset of the last record; -1 for none."""

    out: int = 0
    err: int = 0
    record: int = -1


async def follow(log: CellLog, bell: Bell, begin: Position = Position()) -> AsyncGenerator[Piece | Record, None]:  # noqa: B008
    """Yield pieces and records in their true order, up to the end record, or until the bell is closed without one.

    What is before `begin` was told already, but the end is always given. Raises OutputGoneError: retention took the
    files, or the bell was closed already and there are none.
    """
    reading = Reading(log, begin.out, begin.err, span_bytes=READ_BYTES)
    may_begin = not bell.is_closed

    def look() -> list[Piece | Record]:
        """Return the next few things, about one piece of bytes; [] when there is nothing new."""
        found: list[Piece | Record] = []
        if may_begin and not reading.line and not log.exists():
            return found
        size = 0
        for item in reading.news():
            if isinstance(item, StreamSpan):
                data = log.read(item.stream, item.start, item.end - item.start)
                if data:  # else it was cut off since
                    found.append(Piece(item.stream, sum(reading.told.values()) - (item.end - item.start), data))
                size += len(data)
            elif item.offset > begin.record or item.kind == "end":
                found.append(item)
            if size >= READ_BYTES or len(found) >= _ITEMS or (isinstance(item, Record) and item.kind == "end"):
                break
        return found

    while True:
        rings, over = bell.rings, bell.is_closed
        found = await asyncio.to_thread(look)
        for item in found:
            yield item
        if (over and not found) or (found and isinstance(found[-1], Record) and found[-1].kind == "end"):
            return
        if not found:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await bell.after(rings)

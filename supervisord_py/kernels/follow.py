"""Follows a cell while it runs: bytes and records in their true order, each follower at its own speed.

What is not taken waits in the files, not in memory. A ring of the bell is a hint, the files are the truth.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from supervisord_py.kernels.cell_files import READ_BYTES, Record
from supervisord_py.kernels.inside.cell_writer import STREAMS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from supervisord_py.kernels.cell_files import CellLog

LOOK_SECONDS = (0.05, 0.2)  # how long a follower that found nothing waits: at first, and at most
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
    may_begin, pause = not bell.is_closed, LOOK_SECONDS[0]
    at, next_line = {"stdout": begin.out, "stderr": begin.err}, 0
    waiting: deque[Record] = deque()

    def take(stream: str, end: int) -> list[Piece]:
        """Read the next bytes of a stream up to its end; what a record counts and was cut off since is passed over."""
        length = min(READ_BYTES, end - at[stream])
        data = log.read(stream, at[stream], length) if length > 0 else b""
        piece = Piece(stream, sum(at.values()), data)
        at[stream] += len(data)
        return [piece] if data else []

    def look() -> list[Piece | Record]:
        """Return the next few things, [] when there is nothing new; about one piece of bytes.

        The sizes are seen first, stdout's before stderr's, and then the records: whatever tells the order of those
        bytes is among them. Up to the next record that is stderr and then stdout: see `in_order`.
        """
        nonlocal next_line
        found: list[Piece | Record] = []
        if may_begin and not next_line and not log.exists():
            return found
        while len(found) < _ITEMS and sum(len(item.data) for item in found if isinstance(item, Piece)) < READ_BYTES:
            sizes = {stream: log.size(stream) for stream in STREAMS}
            if not waiting:
                records, next_line = log.records_from(next_line)
                waiting.extend(records)
            record = waiting[0] if waiting else None
            if record is not None:
                sizes = {"stdout": record.at, "stderr": record.err_at}
            if pieces := take("stderr", sizes["stderr"]) or take("stdout", sizes["stdout"]):
                found += pieces
                continue
            if record is None:
                break
            waiting.popleft()
            if record.offset > begin.record or record.kind == "end":
                found.append(record)
            if record.kind == "end":
                break
        return found

    while True:
        rings, over = bell.rings, bell.is_closed
        found = await asyncio.to_thread(look)
        for item in found:
            yield item
        if (over and not found) or (found and isinstance(found[-1], Record) and found[-1].kind == "end"):
            return
        pause = LOOK_SECONDS[0] if found else min(2 * pause, LOOK_SECONDS[1])
        if not found:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await bell.after(rings)

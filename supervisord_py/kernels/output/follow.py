"""Follows a cell while it runs: bytes and records in their true order, each follower at its own speed.

Law: the order of a look is size first, records second, bytes last. The writer puts a record down before the bytes that
come after it, so every record that belongs before the size that was seen is among those read, and no byte is given
under the wrong stream or ahead of a display that came before it. What is not taken waits in the files, not in memory.

A ring is a hint, the files are the truth: while none comes, a follower looks by itself. A kernel whose code holds the
interpreter in one long C call has its bytes on disk and no thread that could send a message about them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.kernels.output.cell_log import READ_BYTES
from supervisord_py.kernels.output.records import End, StreamChange

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from supervisord_py.kernels.output.cell_log import CellLog
    from supervisord_py.kernels.output.records import Record

FIRST_LOOK_SECONDS = 0.05
"""How long after the last news a follower that hears nothing looks into the files; then twice as long each time."""
LOOK_SECONDS = 1.0
"""The longest pause between two such looks: each opens one file, for every follower of a cell that is silent."""
_ITEMS = 256


class Bell:
    """Tells the followers of a running cell that there is news. To be used on one event loop.

    Rings are counted, not queued: a follower that was away hears one ring for all that it missed.
    """

    def __init__(self) -> None:
        self.rings = 0
        self.is_closed = False
        self._next: asyncio.Future[None] | None = None

    @classmethod
    def closed(cls) -> Bell:
        """Return the bell of a cell that is over."""
        bell = cls()
        bell.close()
        return bell

    def ring(self) -> None:
        """There is something new in the files."""
        self.rings += 1
        if self._next is not None and not self._next.done():
            self._next.set_result(None)
        self._next = None

    def close(self) -> None:
        """The cell is over, everything is in its files. May be called twice."""
        self.is_closed = True
        self.ring()

    async def after(self, rings: int) -> None:
        """Wait until it rang more often than `rings` times, or is closed."""
        while self.rings <= rings and not self.is_closed:
            if self._next is None:
                self._next = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._next)


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one stream as they came.

    Attributes:
        stream: `stdout` or `stderr`.
        offset: Of the first byte in the complete output.
        data: At most 64 KiB.
    """

    stream: str
    offset: int
    data: bytes


async def follow(log: CellLog, bell: Bell, offset: int = 0, *, told: int = -1) -> AsyncGenerator[Piece | Record, None]:
    """Yield pieces and records in their true order, up to the end of the cell.

    Ends after the End record, or, where the writer was killed before it, when the bell is closed and everything was
    given; a cell that never begins ends so, too. Close it (`contextlib.aclosing`) when leaving early.

    Args:
        log: The cell.
        bell: Rung when there is news in its files; what nobody rings for is found within LOOK_SECONDS.
        offset: Byte from which on pieces are wanted.
        told: After which record (`place.offset`) records are wanted; the end is always given.

    Raises:
        OutputGoneError: Retention took the files, or the bell was closed already and there are none.
    """
    reading, pause = _Reading(log, offset, told, may_begin=not bell.is_closed), FIRST_LOOK_SECONDS
    while True:
        rings, over = bell.rings, bell.is_closed
        found = await asyncio.to_thread(reading.look)
        pause = FIRST_LOOK_SECONDS if found else pause
        for item in found:
            yield item
            if isinstance(item, End):
                return
        if not found and over:
            return
        if not found:
            pause = await _news(bell, rings, pause)


async def _news(bell: Bell, rings: int, pause: float) -> float:
    """Wait until the bell has rung, `pause` seconds at most; return how long to wait next time if nothing is found."""
    with suppress(TimeoutError):
        async with asyncio.timeout(pause):
            await bell.after(rings)
    return min(2 * pause, LOOK_SECONDS)


class _Reading:
    """Where one follower is in the two files."""

    def __init__(self, log: CellLog, offset: int, told: int, *, may_begin: bool) -> None:
        self._log = log
        self._told = told
        self._may_begin = may_begin
        self._position = offset
        self._stream = "stdout"
        self._records_offset = 0
        self._waiting: deque[Record] = deque()

    def look(self) -> list[Piece | Record]:
        """Return the next few things, in order, [] when there is nothing new; about one piece of bytes."""
        if self._may_begin and not self._records_offset and not self._log.exists():
            return []
        found: list[Piece | Record] = []
        while len(found) < _ITEMS and sum(len(item.data) for item in found if isinstance(item, Piece)) < READ_BYTES:
            size = self._log.size()
            if not self._waiting:
                records, self._records_offset = self._log.records_from(self._records_offset)
                self._waiting.extend(records)
            taken = self._take_due(found)
            if found and isinstance(found[-1], End):
                return found
            if not taken and not self._take_piece(found, size):
                return found
        return found

    def _take_due(self, found: list[Piece | Record]) -> bool:
        """Take out the records that come before the next byte; say whether there was any."""
        taken = False
        while self._waiting and self._waiting[0].at <= self._position:
            taken, record = True, self._waiting.popleft()
            if isinstance(record, StreamChange):
                self._stream = record.stream
            if record.place.offset > self._told or isinstance(record, End):
                found.append(record)
            if isinstance(record, End):
                break
        return taken

    def _take_piece(self, found: list[Piece | Record], size: int) -> bool:
        """Read the next bytes, up to the next record; where none waits, all up to `size` are known."""
        end = min(size, self._waiting[0].at) if self._waiting else size
        length = min(READ_BYTES, end - self._position)
        data = self._log.read(self._position, length) if length > 0 else b""
        if data:
            found.append(Piece(self._stream, self._position, data))
            self._position += len(data)
            return True
        if self._waiting and self._log.size() <= self._position:
            self._position = self._waiting[0].at  # the file was cut: what the record counts is not there any more
            return True
        return False

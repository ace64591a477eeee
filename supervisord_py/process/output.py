"""What a unit printed, by position: read, tail, since, follow. Bytes are given as they came; nobody decodes here.

A cursor is a position: the number of bytes the unit ever printed before it. Law: following yields every byte that
rotation left, once and in order; what is missing (rotated away, lost on a full disk, damaged) is said by a `Gap`,
never skipped in silence. Memory is bounded by the limits passed in, whatever the files hold.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING

from supervisord_py.keeper.protocol import STDERR, STDOUT
from supervisord_py.process.segment_files import Segment, segment_starts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from supervisord_py.process.segment_files import Record

READ_BYTES = 64 * 1024
TAIL_BYTES = 4 * 1024 * 1024
_SCAN_RECORDS = 4096
"""Records one read looks at: bounds the work where one stream is wanted and the other one floods."""
_RECORDS_A_BLOCK = 512
_POLL_MIN_SECONDS = 0.02
_POLL_MAX_SECONDS = 0.5
_POLL_GROWTH = 1.5


class Stream(IntEnum):
    """Where a child wrote to."""

    STDOUT = STDOUT
    STDERR = STDERR


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes as they came.

    Attributes:
        time: Unix seconds of arrival.
        stream: Which of the two.
        position: Of the first byte.
        data: The bytes.
        instance: Number of the instance within the unit (1..65535, wrapping).
        recovered: True when a crash took the record: time and stream are a best guess.
    """

    time: float
    stream: Stream
    position: int
    data: bytes
    instance: int
    recovered: bool = False

    @property
    def end(self) -> int:
        """Position after the last byte: the cursor to go on from."""
        return self.position + len(self.data)


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes that are not there: `lost_bytes` of them at `position`; reading goes on at `end`."""

    position: int
    lost_bytes: int
    end: int
    time: float | None = None


Output = Chunk | Gap


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place to read on from.

    `segment` and `record` are the exact place in the files, -1 when only the position is known; they keep a gap, which
    covers no positions, from being told twice.
    """

    position: int
    segment: int = -1
    record: int = -1


@dataclass(frozen=True, slots=True)
class Batch:
    """What one read found. `at_end`: there was nothing more at that moment."""

    items: tuple[Output, ...]
    cursor: Cursor
    at_end: bool


class OutputReader:
    """Reads one unit's output. The methods without `async` do file I/O: call them in a thread.

    Args:
        folder: `log_dir/<kind>/<name>`; an output that does not exist yet is empty.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, log_dir: str | Path, unit: str) -> OutputReader:
        """Return the reader of a unit `kind:name`.

        Raises:
            ValueError: The name would lead out of the log directory.
        """
        kind, _, name = unit.partition(":")
        if any(part in {"", ".", ".."} or "/" in part or "\0" in part for part in (kind, name)):
            raise ValueError(f"unit {unit!r} does not name a kind and a name")
        return cls(Path(log_dir) / kind / name)

    def start(self) -> int:
        """Return the oldest position that is kept."""
        starts = segment_starts(self.folder)
        return starts[0] if starts else 0

    def end(self) -> int:
        """Return the position after the newest byte that has a record."""
        for start in reversed(segment_starts(self.folder)):
            segment = Segment.open(self.folder, start)
            if segment is not None:
                with segment:
                    return next((record.end for record in segment.backwards()), start)
        return 0

    def since(self, when: float) -> int:
        """Return the position of the first byte that arrived at or after `when` (Unix seconds), else the end.

        Where the wall clock was set back, times are not in order and the answer is one of the fitting places.
        """
        for start in reversed(segment_starts(self.folder)):
            segment = Segment.open(self.folder, start)
            if segment is None:
                continue
            with segment:
                first = segment.record(0)
                if first is not None and first.time < when:
                    found = segment.record(segment.find_time(when))
                    return self._after(start) if found is None else found.position
        return self.start()

    def _after(self, start: int) -> int:
        """Return where the segment after the one at `start` begins, else the end."""
        later = [it for it in segment_starts(self.folder) if it > start]
        return later[0] if later else self.end()

    def read(self, at: int | Cursor, limit: int = READ_BYTES, stream: Stream | None = None) -> Batch:
        """Read forward.

        Args:
            at: A position, or the cursor of the batch before (exact: tells no gap twice).
            limit: Most bytes of one batch.
            stream: Only this one; gaps are told in any case.
        """
        scan = _Scan(self.folder, at if isinstance(at, Cursor) else Cursor(max(0, at)), limit, stream)
        at_end = scan.run()
        return Batch(tuple(scan.items), scan.cursor, at_end)

    def tail_lines(self, count: int, stream: Stream | None = None, limit: int = TAIL_BYTES) -> list[Output]:
        """Return the last `count` lines, oldest first; the newest may be unfinished.

        Args:
            count: Of lines.
            stream: Only this one.
            limit: Most bytes, however few lines they hold.
        """
        found: list[Output] = []
        breaks = size = 0
        for item in self._backwards(stream) if count > 0 else ():
            if isinstance(item, Gap):
                found.append(item)
                continue
            data = item.data[-(max(1, limit) - size) :]
            # The newline that ends the newest line does not begin another one.
            ends = 1 if size == 0 and data.endswith(b"\n") else 0
            here = data.count(b"\n") - ends
            if breaks + here >= count:
                data = _after_newline(data, count - breaks + ends)
                here = count  # enough
            breaks, size = breaks + here, size + len(data)
            if data:
                found.append(_last_of(item, data))
            if breaks >= count or size >= limit:
                break
        return found[::-1]

    def tail_bytes(
        self, start: int, end: int | None = None, stream: Stream | None = None, limit: int = 64 * 1024
    ) -> bytes:
        """Return the last bytes of a range of positions.

        Args:
            start: Of the range; what an instance printed begins at its log position.
            end: Of the range; None for the end of all.
            stream: Only this one.
            limit: Most bytes.
        """
        parts: list[bytes] = []
        size = 0
        for item in self._backwards(stream, end):
            if item.end <= start:
                if isinstance(item, Chunk):
                    break
                continue
            if isinstance(item, Chunk):
                data = item.data[max(0, start - item.position) :][-(max(1, limit) - size) :]
                parts.append(data)
                size += len(data)
            if size >= limit:
                break
        return b"".join(reversed(parts))

    async def follow(self, position: int, stream: Stream | None = None) -> AsyncIterator[Output]:
        """Yield what there is from a position on and what comes, endlessly.

        Goes on across rotation and restarts, and waits for an output that does not exist yet. End it by cancelling,
        or by closing the generator.
        """
        cursor, pause = Cursor(max(0, position)), _POLL_MIN_SECONDS
        while True:
            batch = await asyncio.to_thread(self.read, cursor, READ_BYTES, stream)
            for item in batch.items:
                yield item
            cursor = batch.cursor
            if batch.items:
                pause = _POLL_MIN_SECONDS
            if batch.at_end:
                await asyncio.sleep(pause)
                pause = min(_POLL_MAX_SECONDS, pause * _POLL_GROWTH)

    def _backwards(self, stream: Stream | None, end: int | None = None) -> Iterator[Output]:
        """Yield from the newest to the oldest, in pieces of at most READ_BYTES."""
        for start in reversed(segment_starts(self.folder)):
            if end is not None and start >= end:
                continue
            segment = Segment.open(self.folder, start)
            if segment is None:
                continue
            with segment:
                for record in segment.backwards():
                    if record.is_gap or stream is None or record.stream == stream:
                        yield from _pieces_backwards(segment, record, end)


class _Scan:
    """One forward read: walks segments and records until the limit, the end, or the bound of its work."""

    def __init__(self, folder: Path, cursor: Cursor, limit: int, stream: Stream | None) -> None:
        self.folder = folder
        self.cursor = cursor
        self.room = max(1, limit)
        self.stream = stream
        self.items: list[Output] = []
        self.steps = _SCAN_RECORDS

    def run(self) -> bool:
        """Read; return whether the end was reached.

        The segments are listed before one is read: where a later one was listed, this one had its last byte already.
        """
        while self.room > 0 and self.steps > 0:
            starts = segment_starts(self.folder)
            if not self._enter(starts):
                return True
            before = self.cursor
            self._segment()
            if self.cursor != before:
                continue
            later = [start for start in starts if start > self.cursor.segment]
            if not later:
                return True
            self._skip_to(later[0])
        return False

    def _enter(self, starts: list[int]) -> bool:
        """Put the cursor into a segment that is there; False when there is none."""
        if not starts:
            return False
        if self.cursor.segment in starts:
            return True
        index = bisect_right(starts, self.cursor.position) - 1
        if index < 0:
            self._skip_to(starts[0])
        else:
            self.cursor = Cursor(self.cursor.position, starts[index])
        return True

    def _skip_to(self, start: int) -> None:
        missing = start - self.cursor.position
        if missing > 0:
            self.items.append(Gap(self.cursor.position, missing, start))
        self.cursor = Cursor(max(start, self.cursor.position), start, 0)

    def _segment(self) -> None:
        segment = Segment.open(self.folder, self.cursor.segment)
        if segment is None:
            return
        with segment:
            index = self.cursor.record if self.cursor.record >= 0 else segment.find(self.cursor.position)
            while self.room > 0 and self.steps > 0:
                block = list(segment.records(index, min(_RECORDS_A_BLOCK, self.steps)))
                for record in block:
                    if not self._record(segment, record, index):
                        return
                    index += 1
                if not block:
                    return

    def _record(self, segment: Segment, record: Record, index: int) -> bool:
        """Take one record; False when reading cannot go on behind it."""
        self.steps -= 1
        here = self.cursor.position
        if record.is_gap:
            self.items.append(Gap(record.position, record.length, record.end, record.time))
            self.cursor = Cursor(here, segment.start, index + 1)
            return True
        if record.position > here:
            return False  # does not follow from what came before: damaged from here on
        length = min(record.end - here, self.room)
        if self.stream is None or record.stream == self.stream:
            data = segment.bytes_at(here, length)
            if data:
                self.items.append(_chunk(record, here, data))
            length = len(data)
            self.room -= length
        else:
            length = record.end - here
        done = here + length >= record.end
        self.cursor = Cursor(here + max(0, length), segment.start, index + 1 if done else index)
        return done


def _chunk(record: Record, position: int, data: bytes) -> Chunk:
    return Chunk(record.time, Stream(record.stream), position, data, record.instance, record.recovered)


def _pieces_backwards(segment: Segment, record: Record, end: int | None) -> Iterator[Output]:
    if record.is_gap:
        if end is None or record.position < end:
            yield Gap(record.position, record.length, record.end, record.time)
        return
    high = record.end if end is None else min(record.end, end)
    while high > record.position:
        low = max(record.position, high - READ_BYTES)
        data = segment.bytes_at(low, high - low)
        if data:
            yield _chunk(record, low, data)
        high = low


def _after_newline(data: bytes, nth: int) -> bytes:
    """Return what follows the nth newline from the end."""
    at = len(data)
    for _ in range(nth):
        at = data.rfind(b"\n", 0, at)
    return data[at + 1 :]


def _last_of(item: Chunk, data: bytes) -> Chunk:
    return Chunk(item.time, item.stream, item.end - len(data), data, item.instance, item.recovered)

"""What a unit printed, by position: read, tail, since, follow. Bytes are given as they came; nobody decodes here.

A position is the number of bytes the unit ever printed before it. The keeper alone writes the files (format:
keeper/protocol.py). Law: following yields every byte that rotation left, once and in order; what is missing (rotated
away, lost on a full disk) is said by a `Gap`, never skipped in silence. What is half written, cut short or deleted
while it is read is a fact about the file, never an error: bytes whose records are torn or missing come with the stream
and time of those before them, else as STDOUT of the file's last write. Memory is bounded by the limits passed in.
"""

from __future__ import annotations

import asyncio
import os
import re
import struct
from bisect import bisect_left, bisect_right
from collections import deque
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from supervisord_py.keeper.protocol import (
    GAP,
    INDEX_RECORD,
    INDEX_RECORD_SIZE,
    SEGMENT_DIGITS,
    STDERR,
    STDOUT,
    unit_directory,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from types import TracebackType
    from typing import Self

READ_BYTES = 64 * 1024
TAIL_BYTES = 4 * 1024 * 1024
_SCAN_RECORDS = 4096  # records one read looks at: bounds the work where one stream is wanted and the other one floods
_BLOCK_RECORDS = 512
_POLL_MIN_SECONDS = 0.02
_POLL_MAX_SECONDS = 0.5
_POLL_GROWTH = 1.5
_NAME = re.compile(rf"(\d{{{SEGMENT_DIGITS}}})\.log")
_RECORD = struct.Struct(INDEX_RECORD)


class Stream(IntEnum):
    """Where a child wrote to."""

    STDOUT = STDOUT
    STDERR = STDERR


class Chunk(Struct, frozen=True):
    """Bytes as they came: Unix seconds of arrival, position of the first one, number of the instance in the unit."""

    time: float
    stream: Stream
    position: int
    data: bytes
    instance: int

    @property
    def end(self) -> int:
        """Position after the last byte: where to go on from."""
        return self.position + len(self.data)


class Gap(Struct, frozen=True):
    """Bytes that are not there: `lost_bytes` of them at `position`; reading goes on at `end`."""

    position: int
    lost_bytes: int
    end: int
    time: float | None = None


Output = Chunk | Gap


class Cursor(Struct, frozen=True):
    """A place to read on from.

    `segment` and `record` (how many of its records were met) are the exact place in the files, -1 when only the
    position is known; they keep a gap, which covers no positions, from being told twice.
    """

    position: int
    segment: int = -1
    record: int = -1


class Batch(Struct, frozen=True):
    """What one read found. `at_end`: there was nothing more at that moment."""

    items: tuple[Output, ...]
    cursor: Cursor
    at_end: bool


class Span(NamedTuple):
    """A record and the bytes that are its own, from `position` to `end`. `lost` is 0 but for a gap."""

    number: int
    position: int
    end: int
    time: float
    stream: int
    instance: int
    lost: int


def segment_starts(folder: Path) -> list[int]:
    """Return the positions at which the segments begin, ascending; none when there is no folder."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))


class Segment:
    """One segment as it is at this moment. A context manager; raises FileNotFoundError when it was rotated away."""

    def __init__(self, folder: Path, start: int) -> None:
        stem = f"{folder}/{start:0{SEGMENT_DIGITS}d}"
        self.start = start
        self._log = os.open(f"{stem}.log", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._idx = os.open(f"{stem}.idx", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._idx = -1
        status = os.fstat(self._log)
        self._written = status.st_mtime
        self.end = start + status.st_size
        # A record is written before its bytes: all bytes up to the end seen above have theirs among those counted now.
        self.count = 0 if self._idx < 0 else os.fstat(self._idx).st_size // INDEX_RECORD_SIZE

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._log)
        if self._idx >= 0:
            os.close(self._idx)

    def time_of(self, index: int) -> float:
        return next((span.time for span in self._records(index, index + 1)), self._written)

    def position_of(self, index: int) -> int:
        return next((span.position for span in self._records(index, index + 1)), self.start)

    def spans(self, first: int) -> Iterator[Span]:
        """Yield the bytes of the records from one on, with whatever bytes before them have none."""
        held = Span(first - 1, self.start, self.start, self._written, STDOUT, 0, 0)
        for index in range(first, self.count, _BLOCK_RECORDS):
            for found in self._records(index, index + _BLOCK_RECORDS):
                if held.position <= found.position <= self.end:
                    yield held._replace(end=found.position)
                    held = found
        yield held._replace(end=self.end)

    def _records(self, first: int, end: int) -> Iterator[Span]:
        """Yield the records of a range, those of no such format left out; `end` of each is still to be said."""
        end = min(end, self.count)
        text = os.pread(self._idx, (end - first) * INDEX_RECORD_SIZE, first * INDEX_RECORD_SIZE) if end > first else b""
        text = text[: len(text) - len(text) % INDEX_RECORD_SIZE]
        for index, record in enumerate(_RECORD.iter_unpack(text), start=first):
            position, when, length, instance, stream, _ = record
            if stream in (STDOUT, STDERR, GAP):
                yield Span(index, position, position, when, stream, instance, length if stream == GAP else 0)

    def bytes_at(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes from a position on: fewer where they are not there."""
        found = b""
        while len(found) < length:
            part = os.pread(self._log, length - len(found), position - self.start + len(found))
            if not part:
                break
            found += part
        return found


class LogReader:
    """Reads one unit's output. The methods without `async` do file I/O: call them in a thread.

    Args:
        folder: `log_dir/<kind>/<name>`; an output that does not exist yet is empty.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, log_dir: str | Path, unit: str) -> LogReader:
        """Return the reader of a unit `kind:name`. Raises ValueError: the name would lead out of the log directory."""
        return cls(Path(unit_directory(str(log_dir), unit)))

    def start(self) -> int:
        return next(iter(segment_starts(self.folder)), 0)

    def end(self) -> int:
        """Return the position after the newest byte."""
        return next((segment.end for segment in self._newest_first()), 0)

    def since(self, when: float) -> int:
        """Return the position of the first byte that arrived at or after `when` (Unix seconds), else the end.

        Where the wall clock was set back, times are not in order and the answer is one of the fitting places.
        """
        for segment in self._newest_first():
            if segment.count and segment.time_of(0) < when:
                index = bisect_left(range(segment.count), when, key=segment.time_of)
                return segment.position_of(index) if index < segment.count else segment.end
        return self.start()

    def read(self, at: int | Cursor, limit: int = READ_BYTES, stream: Stream | None = None) -> Batch:
        """Read forward.

        Args:
            at: A position, or the cursor of the batch before (exact: tells no gap twice).
            limit: Most bytes of one batch.
            stream: Only this one; gaps are told in any case.
        """
        cursor = at if isinstance(at, Cursor) else Cursor(max(0, at))
        items: list[Output] = []
        room = [max(1, limit), _SCAN_RECORDS]
        while min(room) > 0:
            # Listed before one is read: where a later one was listed, this one had its last byte already.
            starts = segment_starts(self.folder)
            if not starts:
                return Batch(tuple(items), cursor, at_end=True)
            before = cursor
            if cursor.segment not in starts:
                index = bisect_right(starts, cursor.position) - 1
                if index < 0:
                    items.append(Gap(cursor.position, starts[0] - cursor.position, starts[0]))
                cursor = Cursor(max(starts[0], cursor.position), starts[max(0, index)])
            try:
                with Segment(self.folder, cursor.segment) as segment:
                    cursor = _read_on(segment, cursor, room, stream, items)
            except FileNotFoundError:
                cursor = Cursor(cursor.position)
                continue
            if cursor == before:
                later = [start for start in starts if start > cursor.segment]
                if not later:
                    return Batch(tuple(items), cursor, at_end=True)
                if later[0] > cursor.position:
                    items.append(Gap(cursor.position, later[0] - cursor.position, later[0]))
                cursor = Cursor(max(later[0], cursor.position), later[0], 0)
        return Batch(tuple(items), cursor, at_end=False)

    def tail_lines(self, count: int, stream: Stream | None = None, limit: int = TAIL_BYTES) -> list[Output]:
        """Return the last `count` lines, oldest first, of about `limit` bytes; the newest may be unfinished."""
        found: list[Output] = []
        left = -1  # how many newlines there are still to come; -1: not known before the newest byte is seen
        for item in reversed(self._last(0, None, stream, limit)) if count > 0 else ():
            if isinstance(item, Gap):
                found.append(item)
                continue
            if left < 0:  # the newline that ends the newest line does not begin another one
                left = count + item.data.endswith(b"\n")
            at = len(item.data)
            while left and (at := item.data.rfind(b"\n", 0, at)) >= 0:
                left -= 1
            found.append(_part(item, at + 1))
            if not left:
                break
        return [item for item in reversed(found) if isinstance(item, Gap) or item.data]

    def tail_bytes(
        self, start: int, end: int | None = None, stream: Stream | None = None, limit: int = 64 * 1024
    ) -> bytes:
        """Return the last bytes, at most `limit`, between two positions; `end` None is the end of all."""
        items = self._last(start, end, stream, limit)
        return b"".join(item.data for item in items if isinstance(item, Chunk))[-limit:]

    def _last(self, start: int, end: int | None, stream: Stream | None, limit: int) -> list[Output]:
        """Return what lies between two positions, of a stream at least the last `limit` bytes and little more."""
        end = self.end() if end is None else end
        at, at_end = Cursor(max(start, self.start(), end - limit if stream is None else 0)), False
        kept: deque[tuple[Output, int]] = deque()
        size = 0
        while at.position < end and not at_end:
            batch = self.read(at, READ_BYTES, stream)
            at, at_end = batch.cursor, batch.at_end
            for item in batch.items:
                part = _part(item, 0, max(0, end - item.position)) if isinstance(item, Chunk) else item
                kept.append((part, len(part.data) if isinstance(part, Chunk) else 0))
                size += kept[-1][1]
            while kept and size - kept[0][1] >= limit:
                size -= kept.popleft()[1]
        return [item for item, _ in kept]

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

    def _newest_first(self) -> Iterator[Segment]:
        for start in reversed(segment_starts(self.folder)):
            try:
                segment = Segment(self.folder, start)
            except FileNotFoundError:
                continue
            with segment:
                yield segment


def _part(chunk: Chunk, begin: int, end: int | None = None) -> Chunk:
    return Chunk(chunk.time, chunk.stream, chunk.position + begin, chunk.data[begin:end], chunk.instance)


def _read_on(segment: Segment, cursor: Cursor, room: list[int], stream: Stream | None, items: list[Output]) -> Cursor:
    """Take what follows in one segment; return where it ended. `room` is what bytes and records are left to take."""
    here, met = cursor.position, cursor.record
    if met < 0:
        met = bisect_left(range(segment.count), here, key=segment.position_of)
    met = min(met, segment.count)
    for span in segment.spans(max(0, met - 1)):
        if min(room) <= 0:
            break
        room[1] -= 1
        if span.lost and span.number >= met:
            items.append(Gap(span.position, span.lost, span.position, span.time))
        if span.end > here:
            if stream is None or _stream(span) == stream:
                data = segment.bytes_at(here, min(span.end - here, room[0]))
                items += [Chunk(span.time, _stream(span), here, data, span.instance)] if data else []
                here, room[0] = here + len(data), room[0] - len(data)
            else:
                here = span.end
        met = max(met, span.number + 1)
        if here < span.end:
            break
    return Cursor(here, segment.start, min(met, segment.count))


def _stream(span: Span) -> Stream:
    """Return the stream of a span's bytes; behind a gap only a torn index leaves any."""
    return Stream.STDERR if span.stream == STDERR else Stream.STDOUT

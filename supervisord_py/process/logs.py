"""What a unit printed, by position: read, tail, since, follow. Bytes are given as they came; nobody
decodes here.

A position is the number of bytes the unit ever printed before it. The keeper alone writes the files
(format: keeper/protocol.py). Law: following yields every byte that rotation left, once and in
order; what is missing (rotated away, lost on a full disk) is said by a `Gap`, never skipped in
silence. What is half written, cut short or deleted while it is read is a fact about the file, never
an error: bytes whose records are torn or missing come with the stream and time of those before
them, else as STDOUT of the file's last write. Memory is bounded by the limits passed in.
"""

from __future__ import annotations

import asyncio
import os
import struct
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from supervisord_py.keeper import protocol
from supervisord_py.keeper.protocol import GAP, INDEX_RECORD_SIZE, STDERR, STDOUT, segment_paths

READ_BYTES = 64 * 1024
TAIL_BYTES = 4 * 1024 * 1024
# of one read: bounds the work where one stream is wanted and the other one floods
_READ_RECORDS = 4096
_POLL_MIN_SECONDS = 0.02
_POLL_MAX_SECONDS = 0.5
_POLL_GROWTH = 1.5
_RECORD = struct.Struct(protocol.INDEX_RECORD)


class Stream(IntEnum):
    STDOUT = STDOUT
    STDERR = STDERR


class Chunk(Struct, frozen=True):
    """Bytes as they came: Unix seconds of arrival, position of the first one, number of the
    instance in the unit.
    """

    time: float
    stream: Stream
    position: int
    data: bytes
    instance: int

    @property
    def end(self) -> int:
        return self.position + len(self.data)


class Gap(Struct, frozen=True):
    """Bytes that are not there: `lost_bytes` of them at `position`; reading goes on at `end`."""

    position: int
    lost_bytes: int
    end: int
    time: float | None = None


Output = Chunk | Gap


class Cursor(Struct, frozen=True):
    """A place to read on from; segment and record keep a gap, which covers no positions, from
    being told twice.
    """

    position: int
    segment: int = -1  # where it begins; -1 when only the position is known
    record: int = -1  # how many of its records were met


class IndexEntry(NamedTuple):
    """An entry of an index. `length` counts lost bytes where `stream` is GAP."""

    number: int
    position: int
    time: float
    length: int
    instance: int
    stream: int


class Segment:
    def __init__(self, start: int, log: int, idx: int | None) -> None:
        self.start, self._log, self._idx = start, log, idx
        status = os.fstat(log)
        self.written, self.end = status.st_mtime, start + status.st_size
        # A record is written before its bytes: all bytes up to the end seen above have theirs among
        # those counted now.
        self.count = 0 if idx is None else os.fstat(idx).st_size // INDEX_RECORD_SIZE

    def records(self, first: int, most: int) -> list[IndexEntry]:
        most = min(most, self.count - first)
        text = (
            b""
            if self._idx is None or most <= 0
            else os.pread(self._idx, most * INDEX_RECORD_SIZE, first * INDEX_RECORD_SIZE)
        )
        entries = _RECORD.iter_unpack(text[: len(text) - len(text) % INDEX_RECORD_SIZE])
        found = (
            IndexEntry(number, *fields[:5]) for number, fields in enumerate(entries, start=first)
        )
        return [
            one
            for one in found
            if one.stream in (STDOUT, STDERR, GAP) and self.start <= one.position <= self.end
        ]

    def record(self, number: int) -> IndexEntry:
        return next(
            iter(self.records(number, 1)),
            IndexEntry(number, self.start, self.written, 0, 0, STDOUT),
        )

    def find(self, field: str, value: float) -> int:
        return bisect_left(
            range(self.count), value, key=lambda number: getattr(self.record(number), field)
        )

    def read(
        self, cursor: Cursor, limit: int, stream: Stream | None
    ) -> tuple[list[Output], Cursor]:
        """Return what follows there, at most `limit` bytes of one stream or both, and how far
        that went.
        """
        items: list[Output] = []
        here = cursor.position
        met = self.find("position", here) if cursor.record < 0 else min(self.count, cursor.record)
        first = max(0, met - 1)
        held = IndexEntry(first - 1, self.start, self.written, 0, 0, STDOUT)
        records = self.records(first, _READ_RECORDS)
        if not records or first + _READ_RECORDS >= self.count:
            records.append(IndexEntry(self.count, self.end, 0.0, 0, 0, STDOUT))
        for after in records:
            if after.position < held.position:
                continue
            if held.stream == GAP and held.number >= met:
                items.append(Gap(held.position, held.length, held.position, held.time))
            if after.position > here:
                # behind a gap the index was torn
                kind = Stream.STDERR if held.stream == STDERR else Stream.STDOUT
                data = b""
                if stream in (None, kind):
                    data = os.pread(self._log, min(after.position - here, limit), here - self.start)
                    items += [Chunk(held.time, kind, here, data, held.instance)] if data else []
                    limit -= len(data)
                here = here + len(data) if stream in (None, kind) else after.position
            met = max(met, held.number + 1)
            if here < after.position or limit <= 0:
                break
            held = after
        return items, Cursor(here, self.start, min(met, self.count))


class LogReader:
    """Reads one unit's output. The methods without `async` do file I/O: call them in a thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder  # `log_dir/<kind>/<name>`; an output that does not exist yet is empty

    @classmethod
    def of(cls, log_dir: str | Path, unit: str) -> LogReader:
        """Return the reader of a unit `kind:name`.

        Raises ValueError: the name would lead out of the log directory.
        """
        return cls(Path(protocol.unit_directory(str(log_dir), unit)))

    def _starts(self) -> list[int]:
        try:
            return protocol.segment_starts(str(self.folder))
        except (FileNotFoundError, NotADirectoryError):
            return []

    @contextmanager
    def _segment(self, start: int) -> Iterator[Segment]:
        """Open a segment. Raises FileNotFoundError: rotation took it."""
        paths, idx = segment_paths(str(self.folder), start), None
        with ExitStack() as files:
            log = files.enter_context(open(paths[0], "rb", buffering=0)).fileno()
            with suppress(FileNotFoundError):
                idx = files.enter_context(open(paths[1], "rb", buffering=0)).fileno()
            yield Segment(start, log, idx)

    def start(self) -> int:
        return next(iter(self._starts()), 0)

    def end(self) -> int:
        for start in reversed(self._starts()):
            try:
                return start + os.stat(segment_paths(str(self.folder), start)[0]).st_size
            except FileNotFoundError:
                continue
        return 0

    def since(self, when: float) -> int:
        """Return the position of the first byte that arrived at or after `when` (Unix seconds),
        else the end.

        Where the wall clock was set back, times are not in order and the answer is one of the
        fitting places.
        """
        for start in reversed(self._starts()):
            try:
                with self._segment(start) as segment:
                    if segment.count and segment.record(0).time < when:
                        found = segment.find("time", when)
                        return (
                            segment.record(found).position if found < segment.count else segment.end
                        )
            except FileNotFoundError:
                continue
        return self.start()

    def read(
        self, at: Cursor, limit: int = READ_BYTES, stream: Stream | None = None
    ) -> tuple[list[Output], Cursor]:
        """Return what follows a cursor, at most `limit` bytes, and where to read on: there too,
        when that was all.

        `stream`: only this one; gaps are told in any case.
        """
        # before one is read: where a later one was listed, this one had its last byte already
        starts = self._starts()
        if not starts:
            return [], at
        items: list[Output] = []
        position = at.position
        if at.segment not in starts:
            if position < starts[0]:
                items.append(Gap(position, starts[0] - position, starts[0]))
                position = starts[0]
            at = Cursor(position, starts[bisect_right(starts, position) - 1])
        try:
            with self._segment(at.segment) as segment:
                found, cursor = segment.read(at, limit, stream)
        except FileNotFoundError:
            return items, Cursor(position)
        later = [start for start in starts if start > at.segment]
        if cursor == at and later:
            if later[0] > position:
                items.append(Gap(position, later[0] - position, later[0]))
            cursor = Cursor(later[0], later[0], 0)
        return items + found, cursor

    def between(self, start: int, end: int, stream: Stream | None = None) -> Iterator[Output]:
        cursor, before = Cursor(max(start, 0)), None
        while cursor.position < end and cursor != before:
            before = cursor
            items, cursor = self.read(before, READ_BYTES, stream)
            for item in items:
                if item.position < end or isinstance(item, Gap):
                    yield _part(item, 0, end - item.position) if isinstance(item, Chunk) else item

    def tail_lines(
        self, count: int, stream: Stream | None = None, limit: int = TAIL_BYTES
    ) -> list[Output]:
        """Return the last `count` lines, oldest first, of about `limit` bytes; the newest may be
        unfinished.
        """
        found: list[Output] = []
        # how many newlines there are still to come; -1: not known before the newest byte is seen
        left = -1
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
        # the other stream, or long lines, had most of it
        if left > 0 and self.end() - self.start() > limit:
            return self.tail_lines(count, stream, 4 * limit)
        return [item for item in reversed(found) if isinstance(item, Gap) or item.data]

    def tail_bytes(
        self,
        start: int,
        end: int | None = None,
        stream: Stream | None = None,
        limit: int = 64 * 1024,
    ) -> bytes:
        """Return the last bytes, at most `limit`, between two positions; `end` None is the end
        of all.
        """
        items = self._last(start, end, stream, limit)
        return b"".join(item.data for item in items if isinstance(item, Chunk))[-limit:]

    def _last(self, start: int, end: int | None, stream: Stream | None, limit: int) -> list[Output]:
        """Return what lies between two positions, of a stream at least the last `limit` bytes
        and little more.
        """
        end = self.end() if end is None else end
        start = max(start, self.start(), end - limit if stream is None else 0)
        kept: deque[tuple[Output, int]] = deque()
        size = 0
        for item in self.between(start, end, stream):
            kept.append((item, len(item.data) if isinstance(item, Chunk) else 0))
            size += kept[-1][1]
            while size - kept[0][1] >= limit:
                size -= kept.popleft()[1]
        return [item for item, _ in kept]

    async def follow(self, position: int, stream: Stream | None = None) -> AsyncIterator[Output]:
        """Yield what there is from a position on and what comes, endlessly.

        Goes on across rotation and restarts, and waits for an output that does not exist yet. End
        it by cancelling, or by closing the generator.
        """
        cursor, pause = Cursor(max(0, position)), _POLL_MIN_SECONDS
        while True:
            before = cursor
            items, cursor = await asyncio.to_thread(self.read, before, READ_BYTES, stream)
            for item in items:
                yield item
            if cursor != before:
                pause = _POLL_MIN_SECONDS
            else:
                await asyncio.sleep(pause)
                pause = min(_POLL_MAX_SECONDS, pause * _POLL_GROWTH)


def _part(chunk: Chunk, begin: int, end: int | None = None) -> Chunk:
    return Chunk(
        chunk.time, chunk.stream, chunk.position + begin, chunk.data[begin:end], chunk.instance
    )

"""The files of one unit's output, read: which segments there are, their records, the bytes of a record.

The keeper alone writes them (format: keeper/protocol.py). Law: whatever is half written, cut short or deleted while
it is read is a fact about the file, never an error: a record counts when it follows from those before it and its
bytes are there; a segment that vanishes was rotated away.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from supervisord_py.keeper.protocol import GAP, INDEX_RECORD, INDEX_RECORD_SIZE, RECOVERED, STDERR, STDOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import TracebackType

_NAME = re.compile(r"(\d{20})\.log")
_RECORD = struct.Struct(INDEX_RECORD)
_STREAMS = frozenset((STDOUT, STDERR, GAP))
_BLOCK_RECORDS = 1024


@dataclass(frozen=True, slots=True)
class Record:
    """One chunk of a segment. A gap has a `length` (of what is lost) but covers no positions."""

    position: int
    time: float
    length: int
    instance: int
    stream: int
    recovered: bool

    @property
    def is_gap(self) -> bool:
        """Whether this stands for lost bytes."""
        return self.stream == GAP

    @property
    def end(self) -> int:
        """Position after the last byte."""
        return self.position if self.is_gap else self.position + self.length


def segment_starts(folder: Path) -> list[int]:
    """Return the positions at which the segments begin, ascending; none when there is no folder."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(found[1]) for name in names if (found := _NAME.fullmatch(name)))


class Segment:
    """One segment, open for reading. A context manager; `Segment.open` returns None when it is gone."""

    __slots__ = ("_idx", "_log", "start")

    def __init__(self, start: int, log: int, idx: int) -> None:
        self.start = start
        self._log = log
        self._idx = idx

    @classmethod
    def open(cls, folder: Path, start: int) -> Segment | None:
        """Open both files of a segment.

        Returns:
            None when either is not there: rotated away, or just being made.
        """
        stem = f"{folder}/{start:020d}"
        try:
            log = os.open(f"{stem}.log", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            idx = os.open(f"{stem}.idx", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            os.close(log)
            return None
        except OSError:
            os.close(log)
            raise
        return cls(start, log, idx)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._log)
        os.close(self._idx)

    def count(self) -> int:
        """Return how many whole records there are at this moment."""
        return os.fstat(self._idx).st_size // INDEX_RECORD_SIZE

    def record(self, index: int) -> Record | None:
        """Return one record, None when it is not there or is nonsense."""
        return next(self.records(index, 1), None)

    def records(self, index: int, most: int) -> Iterator[Record]:
        """Yield up to `most` records from one index on, for as long as they are whole and of the format."""
        text = os.pread(self._idx, most * INDEX_RECORD_SIZE, index * INDEX_RECORD_SIZE)
        for offset in range(0, len(text) - INDEX_RECORD_SIZE + 1, INDEX_RECORD_SIZE):
            position, when, length, instance, stream, flags = _RECORD.unpack_from(text, offset)
            if stream not in _STREAMS or position < self.start:
                return
            yield Record(position, when, length, instance, stream, bool(flags & RECOVERED))

    def backwards(self) -> Iterator[Record]:
        """Yield the records from the newest to the oldest."""
        end = self.count()
        while end > 0:
            begin = max(0, end - _BLOCK_RECORDS)
            yield from reversed(list(self.records(begin, end - begin)))
            end = begin

    def find(self, position: int) -> int:
        """Return the index of the first record that is not wholly before `position`; gaps at it count as not before."""
        return self._first(lambda record: record.position >= position or record.end > position)

    def find_time(self, when: float) -> int:
        """Return the index of the first record that is not older than `when` (Unix seconds)."""
        return self._first(lambda record: record.time >= when)

    def _first(self, fits: Callable[[Record], bool]) -> int:
        low, high = 0, self.count()
        while low < high:
            middle = (low + high) // 2
            record = self.record(middle)
            if record is None or fits(record):
                high = middle
            else:
                low = middle + 1
        return low

    def bytes_at(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes from a position on: fewer where they are not there."""
        found = bytearray()
        while len(found) < length:
            part = os.pread(self._log, length - len(found), position - self.start + len(found))
            if not part:
                break
            found += part
        return bytes(found)

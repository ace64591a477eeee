"""Takes keys out of the keeper's log of a pipe, where they lie: as many asterisks take their place. Blocking.

Law: only what an execution's notes say is safe is touched, so that nothing changes under who has still to read it.
Positions, records and the keeper's appending stay as they are. To blot twice is to blot once: who goes on after another
begins again where the run began.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING

from supervisord_py.pipes.secrets import LINE_BYTES, OVERLAP_BYTES, printed_forms
from supervisord_py.process.logs import Chunk, Cursor, Stream, segment_starts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from supervisord_py.process.logs import LogReader


RECORD_BYTES = 16 * 1024
"""A record with a piece of a text is smaller by far."""
MOST_KEYS = 64
_PAIR = re.compile(rb'"([A-Za-z_]\w{0,63})"\s*:\s*"((?:[^"\\]|\\.)+)"')
"""A key and its string. Within a string it cannot be found: quotes are escaped there."""


class CutValues:
    """Searches one stream.

    Args:
        secrets: Values.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        forms = sorted(printed_forms(secrets), key=len, reverse=True)
        self._any = re.compile(b"|".join(map(re.escape, forms))) if forms else None
        self._longest = len(forms[0]) if forms else 0
        self._record = Trail()
        self._is_long = False
        """The record at hand is too long to be looked at."""
        self._texts: dict[bytes, Trail] = {}

    def feed(self, position: int, data: bytes) -> Iterator[Place]:
        """Take the next piece of the stream; yield what is found with it."""
        if self._any is None:
            return
        self._record.add(position, data)
        text, begin = self._record.text, 0
        while (end := text.find(b"\n", begin)) >= 0:
            if not self._is_long and end - begin <= RECORD_BYTES:
                yield from self._in_record(begin, end)
            self._is_long, begin = False, end + 1
        self._record.drop(begin)
        if len(self._record.text) > RECORD_BYTES:
            self._is_long = True
            self._record.drop(len(self._record.text))

    def _in_record(self, begin: int, end: int) -> Iterator[Place]:
        record = self._record
        if not record.text.startswith(b"{", begin, end):
            return
        for found in _PAIR.finditer(record.text, begin, end):
            text = self._texts.get(found[1])
            if text is None:
                if len(self._texts) >= MOST_KEYS:
                    continue
                text = self._texts[found[1]] = Trail()
            at = found.start(2)
            for place, length in record.places(*found.span(2)):
                text.add(place, record.text[at : at + length])
                at += length
            yield from self._in_text(text)

    def _in_text(self, text: Trail) -> Iterator[Place]:
        assert self._any is not None
        for found in self._any.finditer(text.text):
            yield from text.places(*found.span())
        text.drop(len(text.text) - self._longest + 1)


Place = tuple[int, int]
"""Position in the log, and length."""


class Trail:
    """Text that was put together of pieces of a log."""

    def __init__(self) -> None:
        self.text = b""
        self._pieces: list[tuple[int, int, int]] = []
        """Begin and end in the text, position in the log."""

    def add(self, position: int, data: bytes) -> None:
        """Take a piece."""
        begin = len(self.text)
        self.text += data
        self._pieces.append((begin, len(self.text), position))

    def drop(self, count: int) -> None:
        """Forget the first bytes; nothing where there are none."""
        if count <= 0:
            return
        self.text = self.text[count:]
        kept = [(max(0, begin - count), end - count, at + max(0, count - begin)) for begin, end, at in self._pieces]
        self._pieces = [piece for piece in kept if piece[1] > 0]

    def places(self, begin: int, end: int) -> Iterator[Place]:
        """Yield where in the log a part of the text lies."""
        for first, last, position in self._pieces:
            low, high = max(begin, first), min(end, last)
            if low < high:
                yield position + low - first, high - low


READ_BYTES = 256 * 1024


class LogBlots:
    """Blots one execution's part of a log.

    Args:
        reader: Of its unit.
        start: Where in the log its output begins.
        secrets: Values.
        patterns: Regular expressions, matched line by line.
    """

    def __init__(self, reader: LogReader, start: int, secrets: Sequence[str], patterns: Sequence[str]) -> None:
        self._reader = reader
        self._cursor = Cursor(start)
        self._is_wanted = bool(secrets or patterns)
        self._searches = {stream: Search(secrets, patterns) for stream in Stream}
        self._cut = CutValues(secrets)

    def advance(self, upto: int) -> None:
        """Blot what lies before a position."""
        while self._is_wanted and self._cursor.position < upto:
            batch = self._reader.read(self._cursor, min(READ_BYTES, upto - self._cursor.position))
            for item in batch.items:
                if isinstance(item, Chunk):
                    self._blot(self._searches[item.stream].feed(item.position, item.data))
                    if item.stream is Stream.STDOUT:
                        self._blot(self._cut.feed(item.position, item.data))
            if batch.cursor == self._cursor:
                return  # rotated away, or not there yet
            self._cursor = batch.cursor

    def finish(self, upto: int) -> None:
        """Blot what lies before a position, where nothing comes after it."""
        self.advance(upto)
        for search in self._searches.values():
            self._blot(search.end())

    def _blot(self, places: Iterator[Place]) -> None:
        starts: list[int] | None = None
        for position, length in places:
            starts = segment_starts(self._reader.folder) if starts is None else starts
            index = bisect_right(starts, position) - 1
            if index >= 0:
                with suppress(OSError):  # rotated away meanwhile
                    _overwrite(f"{self._reader.folder}/{starts[index]:020d}.log", position - starts[index], length)


def _overwrite(path: str, offset: int, length: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.pwrite(fd, b"*" * length, offset)
    finally:
        os.close(fd)


def blot_the_rest(reader: LogReader, after: int, secrets: Sequence[str], patterns: Sequence[str]) -> None:
    """Blot the end of a log that nobody will read on from; what lies before `after` was blotted by another.

    A value may begin before it: that much is looked at again. Blocking.
    """
    LogBlots(reader, max(after - OVERLAP_BYTES, reader.start()), secrets, patterns).finish(reader.end())


class Search:
    """Finds in one stream what is to be blotted, however it was cut into pieces. Pure."""

    def __init__(self, secrets: Sequence[str], patterns: Sequence[str]) -> None:
        forms = sorted(printed_forms(secrets), key=len, reverse=True)
        self._any = re.compile(b"|".join(map(re.escape, forms))) if forms else None
        self._longest = len(forms[0]) if forms else 0
        self._patterns = [re.compile(pattern.encode()) for pattern in patterns]
        self._values, self._lines = Trail(), Trail()

    def feed(self, position: int, data: bytes) -> Iterator[Place]:
        """Take the next piece; yield what is found with it."""
        if self._any is not None:
            self._values.add(position, data)
            for found in self._any.finditer(self._values.text):
                yield from self._values.places(*found.span())
            self._values.drop(len(self._values.text) - self._longest + 1)
        if self._patterns:
            self._lines.add(position, data)
            text = self._lines.text
            whole = text.rfind(b"\n") + 1
            yield from self._in_lines(whole if len(text) - whole <= LINE_BYTES else len(text) - OVERLAP_BYTES)

    def end(self) -> Iterator[Place]:
        """Yield what the last line holds."""
        yield from self._in_lines(len(self._lines.text))

    def _in_lines(self, end: int) -> Iterator[Place]:
        text, at = self._lines.text[:end], 0
        for line in text.split(b"\n"):
            for pattern in self._patterns:
                for found in pattern.finditer(line):
                    yield from self._lines.places(at + found.start(), at + found.end())
            at += len(line) + 1
        self._lines.drop(end)

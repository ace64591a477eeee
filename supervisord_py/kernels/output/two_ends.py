"""The two ends of something long: a head and a tail under a bound, and account of what lies between. Pure.

A cell's output is a row of parts: stretches of the stream file, of which only the place is known here, and words of
rich outputs. Law: every byte added is in the head, in the tail, or counted as omitted; what is omitted of the stream is
one unbroken range.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_PARTS = 20_000
_CLOSED = -1
"""Room of a head to which nothing is added any more, not even a part without bytes."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes `start` up to `end` of the stream file, written to `stream`."""

    start: int
    end: int
    stream: str

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start

    def split(self, size: int) -> tuple[Span, Span]:
        """Return the first `size` bytes and the rest."""
        return replace(self, end=self.start + size), replace(self, start=self.start + size)


@dataclass(frozen=True, slots=True)
class Words:
    """Text of the rich output number `ordinal`, in UTF-8; empty for a picture, which still has its place."""

    data: bytes
    ordinal: int

    @property
    def size(self) -> int:
        """Bytes."""
        return len(self.data)

    def split(self, size: int) -> tuple[Words, Words]:
        """Return the first `size` bytes and the rest."""
        return Words(self.data[:size], self.ordinal), Words(self.data[size:], self.ordinal)


Part = Span | Words


@dataclass(frozen=True, slots=True)
class Omitted:
    """What lies between head and tail: a range of the stream file, and words of rich outputs.

    Attributes:
        start, end: Of the stream; equal where nothing of it is omitted.
        word_bytes, word_lines: Of rich outputs.
    """

    start: int = 0
    end: int = 0
    word_bytes: int = 0
    word_lines: int = 0

    @property
    def size(self) -> int:
        """Bytes of both."""
        return self.end - self.start + self.word_bytes

    def with_part(self, part: Part) -> Omitted:
        """Return the account with one more part, which follows or precedes the others."""
        if isinstance(part, Words):
            lines = part.data.count(b"\n")
            return replace(self, word_bytes=self.word_bytes + part.size, word_lines=self.word_lines + lines)
        if part.size == 0:
            return self
        if self.start == self.end:
            return replace(self, start=part.start, end=part.end)
        return replace(self, start=min(self.start, part.start), end=max(self.end, part.end))


@dataclass(frozen=True, slots=True)
class Ends:
    """What was kept: `head`, what is omitted, `tail`. Where nothing is omitted, all of it is in the head."""

    head: tuple[Part, ...]
    tail: tuple[Part, ...]
    omitted: Omitted


class TwoEnds:
    """Takes parts in order, keeps the two ends.

    Args:
        head_bytes: Of the beginning.
        tail_bytes: Of the end.
    """

    def __init__(self, head_bytes: int, tail_bytes: int) -> None:
        self._room = head_bytes
        self._tail_bytes = tail_bytes
        self._head: list[Part] = []
        self._tail: deque[Part] = deque()
        self._tail_size = 0
        self._omitted = Omitted()

    def add(self, part: Part) -> None:
        """Take the next part."""
        if self._room >= part.size:
            self._room -= part.size
            self._head.append(part)
            return
        first, rest = part.split(max(0, self._room))
        self._room = _CLOSED
        if first.size:
            self._head.append(first)
        self._tail.append(rest)
        self._tail_size += rest.size
        while self._tail and self._is_spare(self._tail[0]):
            self._drop(self._tail.popleft())

    def _is_spare(self, oldest: Part) -> bool:
        is_over = self._tail_size > self._tail_bytes and self._tail_size - oldest.size >= self._tail_bytes
        return is_over or len(self._tail) > MAX_PARTS

    def _drop(self, part: Part) -> None:
        self._tail_size -= part.size
        self._omitted = self._omitted.with_part(part)

    def finish(self) -> Ends:
        """Return the ends; nothing may be added any more."""
        over = self._tail_size - self._tail_bytes
        if over > 0:
            first, kept = self._tail.popleft().split(over)
            self._drop(first)
            self._tail_size -= kept.size
            self._tail.appendleft(kept)
        if not self._omitted.size:
            return Ends(tuple(_merged([*self._head, *self._tail])), (), self._omitted)
        return Ends(tuple(_merged(self._head)), tuple(_merged(self._tail)), self._omitted)


def _merged(parts: Iterable[Part]) -> list[Part]:
    """Join neighbouring stretches of one stream, and words that were split."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, Span) and isinstance(last, Span) and (last.end, last.stream) == (part.start, part.stream):
            merged[-1] = replace(last, end=part.end)
        elif isinstance(part, Words) and isinstance(last, Words) and last.ordinal == part.ordinal:
            merged[-1] = Words(last.data + part.data, part.ordinal)
        else:
            merged.append(part)
    return merged

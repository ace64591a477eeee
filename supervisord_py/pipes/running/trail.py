"""The end of a stream that is still looked at, and where in the log each piece of it lies. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

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

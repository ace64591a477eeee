"""Which line is this? Indexes of a text turned into places for people; line ends are LF, CRLF or CR. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right

from supervisord_py.pipes.declaring.nodes import Place

BOM = "\ufeff"

_LINE_END = re.compile(r"\r\n|\n|\r")


class Lines:
    """The lines of one text. A byte order mark counts for nothing."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = [len(BOM) if text.startswith(BOM) else 0]
        self._starts += [each.end() for each in _LINE_END.finditer(text)]

    def place(self, index: int) -> Place:
        """Return line and column of an index."""
        line = max(bisect_right(self._starts, index), 1)
        return Place(line, max(index - self._starts[line - 1], 0) + 1)

    def line(self, number: int) -> str:
        """Return a line, counted from 1, without its end."""
        begin = self._starts[number - 1]
        end = _LINE_END.search(self._text, begin)
        return self._text[begin : end.start() if end else len(self._text)]

    def rest(self, index: int) -> str:
        """Return what follows in the line of an index."""
        return self._text[index : self.end(index)]

    def start(self, index: int) -> int:
        """Return where the line of an index begins."""
        return self._starts[max(bisect_right(self._starts, index), 1) - 1]

    def end(self, index: int) -> int:
        """Return where the line of an index ends, before its line end."""
        found = _LINE_END.search(self._text, index)
        return found.start() if found else len(self._text)

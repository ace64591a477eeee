"""Text that a program printed, as a terminal may get it: nothing that steers it, and long output collapsed."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

LINE_CHARACTERS = 4000  # what is kept of a line that is held back
SHOWN_LINES, TAIL_LINES = 20, 5  # output of more lines is collapsed to so many, of which so many are its last ones


_RESET = "\x1b[0m"
_SEQUENCE = re.compile(
    r"(\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]"  # CSI
    r"|\x1b[\]P_^X][^\x07\x1b\x9c\n]{0,1024}(?:\x07|\x1b\\)"  # OSC and the other strings
    r"|\x1b[ -/]{1,4}[0-~]|\x1b[0-OQ-WYZ\\`-~])"  # two characters and more (ECMA-48)
)
_BEGUN = re.compile(r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[\]P_^X][^\x07\x1b\x9c\n]{0,1024}\x1b?|[ -/]{0,4})?\Z")
"""What may become an escape sequence with the next piece."""
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 but tab, newline, return; DEL, C1, overrides of direction, halves of characters."""


def harmless(text: str, *, colour: bool) -> str:
    """Return a complete text without what steers a terminal; colours stay where `colour` wants them."""
    pieces = _SEQUENCE.split(text)
    for at, piece in enumerate(pieces):
        if at % 2 == 0:
            pieces[at] = _CONTROLS.sub("�", piece)
        elif not (colour and _COLOUR.fullmatch(piece)):
            pieces[at] = ""
    return "".join(pieces)


class Shaper:
    """Shapes what one cell prints: harmless and collapsed; the same however the text is cut into pieces.

    `full`: all lines are shown; else the first ones as they come, and at the end the last ones.
    """

    def __init__(self, *, colour: bool, full: bool) -> None:
        self._colour = colour
        self._room: float = float("inf") if full else SHOWN_LINES - TAIL_LINES  # lines that are shown as they come
        self._held = ""  # the beginning of an escape sequence
        self._in_line = self._is_painted = False
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._open = ""  # the hidden line without an end
        self.hidden_lines = 0

    @property
    def hides(self) -> bool:
        """Whether what comes now is not shown as it comes."""
        return self._room <= 0

    def feed(self, text: str) -> str:
        """Return what to write for some more of the output; may be empty."""
        written, text, self._held = "", self._held + text, ""
        if begun := _BEGUN.search(text):
            text, self._held = text[: begun.start()], begun[0]
        for line in re.findall(r"[^\n]*\n|[^\n]+", harmless(text, colour=self._colour)):
            if not self.hides:
                written += self._put(line)
                continue
            self._open = (self._open + line)[:LINE_CHARACTERS]
            if line.endswith("\n"):
                self._close()
        return written

    def block(self, text: str) -> str:
        """Return what to write for text that has lines of its own: a result behind a print without a newline."""
        return self.fresh() + self.feed(text if text.endswith("\n") else f"{text}\n")

    def fresh(self) -> str:
        """Return what ends a line that is begun; empty where none is."""
        self._held = ""
        written = self._put("\n") if self._in_line else ""
        if self._open:
            self._close()
        was_painted, self._is_painted = self._is_painted, False
        return written + (_RESET if was_painted else "")

    def end(self, note: Callable[[int], str]) -> str:
        """Return what is left to write: how many lines were hidden, in the words of `note`, and the last ones."""
        written = self.fresh()
        if (left_out := self.hidden_lines - len(self._tail)) > 0:
            written += note(left_out) + "\n"
        written += "".join(line + (_RESET if _COLOUR.search(line) else "") + "\n" for line in self._tail)
        self._tail.clear()
        self.hidden_lines = 0
        return written

    def _put(self, line: str) -> str:
        self._in_line = not line.endswith("\n")
        self._room -= not self._in_line
        if colours := _COLOUR.findall(line):
            self._is_painted = colours[-1] not in {_RESET, "\x1b[m"}
        return line

    def _close(self) -> None:
        line = self._open.rstrip("\r\n")
        self._tail.append(line + "…" if len(line) == LINE_CHARACTERS else line)
        self._open = ""
        self.hidden_lines += 1


def shaped(text: str, *, colour: bool) -> str:
    """Return a complete text in clamped, harmless lines, each with its end."""
    return Shaper(colour=colour, full=True).block(text)

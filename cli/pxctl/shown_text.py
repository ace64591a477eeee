"""What a cell printed, as a terminal may show it: harmless, clamped, collapsed. Pure: text in, text out.

Laws: however the text is cut into pieces, what is shown is the same. Nothing that a cell prints can steer the terminal:
colours stay where they are wanted, a carriage return writes over its own line, any other control is taken out or made
visible. What is left out is counted.
"""

from __future__ import annotations

import re
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

LINE_CHARACTERS = 4000
"""A line is clamped to this many."""
SHOWN_LINES = 20
"""Output of more lines is collapsed to this many."""
TAIL_LINES = 5
"""How many of them are its last ones."""
RESET = "\x1b[0m"
_HELD_CHARACTERS = 65536
"""What is kept of a hidden line that has no end."""

_SEQUENCE = re.compile(
    r"(\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]"  # CSI
    r"|\x1b[\]P_^X][^\x07\x1b\x9c\n]{0,1024}(?:\x07|\x1b\\)"  # OSC and the other strings
    r"|\x1b[ -/]{1,4}[0-~]|\x1b[0-OQ-WYZ\\`-~])"  # two characters and more
)
"""A complete escape sequence (ECMA-48)."""
_BEGUN = re.compile(
    r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[\]P_^X][^\x07\x1b\x9c\n]{0,1024}\x1b?|[ -/]{0,4})?\Z",
)
"""What may become one with the next piece."""
_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What may not reach a terminal: C0 but tab, newline, return; DEL, C1, overrides of direction, halves of characters."""
_PARTS = re.compile(r"(\x1b\[[0-9;:]*m|\r)")


def harmless(text: str, *, colour: bool) -> str:
    """Return a complete text without what steers a terminal; colours stay where `colour` wants them."""
    if "\x1b" not in text:
        return _CONTROLS.sub("�", text)
    pieces = _SEQUENCE.split(text)
    for at, piece in enumerate(pieces):
        if at % 2 == 0:
            pieces[at] = _CONTROLS.sub("�", piece)
        elif not (colour and _COLOUR.fullmatch(piece)):
            pieces[at] = ""
    return "".join(pieces)


class _Line:
    """One line on its way to the terminal, clamped; a carriage return begins it anew."""

    __slots__ = ("column", "omitted", "painted", "returned")

    def __init__(self) -> None:
        self.column = 0
        self.omitted = 0
        self.painted = False
        self.returned = False

    @property
    def is_empty(self) -> bool:
        return self.column == 0

    def put(self, text: str) -> str:
        """Return what to write for some more of the line; `text` is harmless and has no newline."""
        written = []
        for part in _PARTS.split(text):
            if part == "\r":
                self.returned = True
            elif part.startswith("\x1b"):
                written.append(part)
                self.painted = part not in {RESET, "\x1b[m"}
            elif part:
                written.append(self._visible(part))
        return "".join(written)

    def _visible(self, text: str) -> str:
        over = "\r\x1b[K" if self.returned and self.column else ""
        if self.returned:
            self.column, self.omitted, self.returned = 0, 0, False
        taken = text[: LINE_CHARACTERS - self.column]
        self.column += len(taken)
        self.omitted += len(text) - len(taken)
        return over + taken

    def end(self) -> str:
        """Return what ends the line, and forget it."""
        note = f"… [{self.omitted} characters omitted]" if self.omitted else ""
        self.column, self.omitted, self.returned = 0, 0, False
        return f"{RESET if note and self.painted else ''}{note}\n"


class Shaper:
    """Shapes what one cell prints.

    Args:
        colour: Whether colours are kept.
        full: Show all lines; else the first ones as they come, and at the end the last ones.
    """

    def __init__(self, *, colour: bool, full: bool) -> None:
        self._colour = colour
        self._head: float = float("inf") if full else SHOWN_LINES - TAIL_LINES
        self._line = _Line()
        self._done = 0
        self._held = ""
        self._tail: deque[tuple[str, int]] = deque(maxlen=TAIL_LINES)
        self._open = ""
        self._open_omitted = 0
        self._hidden = 0

    @property
    def hides(self) -> bool:
        """Whether what comes now is not shown as it comes."""
        return self._done >= self._head

    @property
    def hidden_lines(self) -> int:
        """How many lines came since nothing is shown any more."""
        return self._hidden

    def feed(self, text: str) -> str:
        """Return what to write for some more of the output; may be empty."""
        written = ""
        text = self._held + text
        self._held = ""
        while text and not self.hides:
            line, newline, text = text.partition("\n")
            if newline:
                written += self._line.put(harmless(line, colour=self._colour)) + self._line.end()
                self._done += 1
            else:
                begun = _BEGUN.search(line)
                self._held = begun[0] if begun else ""
                line = line[: begun.start()] if begun else line
                written += self._line.put(harmless(line, colour=self._colour))
        if text:
            self._hide(text)
        return written

    def block(self, text: str) -> str:
        """Return what to write for text that has lines of its own: a result behind a print without a newline."""
        return self.fresh() + self.feed(text if text.endswith("\n") else f"{text}\n")

    def fresh(self) -> str:
        """Return what ends a line that is begun; empty where none is."""
        written = ""
        if self._held:
            written, self._held = self._line.put(harmless(self._held, colour=self._colour)), ""
        if not self._line.is_empty:
            self._done += 1
            written += self._line.end()
        if self._open or self._open_omitted:
            self._close()
        if self._line.painted:
            self._line.painted = False
            written += RESET
        return written

    def end(self, note: Callable[[int], str]) -> str:
        """Return what is left to write: how many lines were hidden, in the words of `note`, and the last ones."""
        written = self.fresh()
        left_out = self._hidden - len(self._tail)
        if left_out > 0:
            written += note(left_out) + "\n"
        for text, omitted in self._tail:
            line = _Line()
            written += line.put(harmless(text, colour=self._colour))
            line.omitted += omitted
            written += line.end() + (RESET if line.painted else "")
        self._tail.clear()
        self._hidden = 0
        return written

    def _hide(self, text: str) -> None:
        first, *rest = text.split("\n")
        self._lengthen(first)
        if not rest:
            return
        self._close()
        *between, last = rest
        self._hidden += max(0, len(between) - TAIL_LINES)
        for line in between[-TAIL_LINES:]:
            self._lengthen(line)
            self._close()
        self._lengthen(last)

    def _lengthen(self, text: str) -> None:
        taken = text[: _HELD_CHARACTERS - len(self._open)]
        self._open += taken
        self._open_omitted += len(text) - len(taken)

    def _close(self) -> None:
        self._tail.append((self._open, self._open_omitted))
        self._open, self._open_omitted = "", 0
        self._hidden += 1


def shaped(text: str, *, colour: bool) -> str:
    """Return a complete text in clamped, harmless lines, each with its end."""
    return Shaper(colour=colour, full=True).block(text)

"""Where the front matter ends and the prompt begins. Pure.

The first line that is not blank is `---`; the next line that begins with `---` closes; everything after it is the
prompt, where `---` is a rule as anywhere in Markdown. Line ends may be LF, CRLF or CR; a byte order mark is passed
over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from supervisord_py.pipes.declaring.lines import BOM
from supervisord_py.pipes.declaring.problems import shown

FENCE = "---"
CURE = "begin the file with a line ---, then lines of key: value, then another line ---, then the prompt"

_OPENING = re.compile(r"\s*---[ \t]*(\r\n|\n|\r|$)")
_CLOSING = re.compile(r"(?:(?<=\n)|(?<=\r)(?!\n))---([^\r\n]*)(?:\r\n|\n|\r|$)")
_BLANK_LINES = re.compile(r"(?:[^\S\r\n]*(?:\r\n|\n|\r))*")


@dataclass(frozen=True, slots=True)
class Sections:
    """Indexes into the text.

    Attributes:
        header_start, header_end: Between the two fences, its last line end included.
        body_start: After the line end of the closing fence.
        newline: Line end of the opening fence, for lines that are added.
    """

    header_start: int
    header_end: int
    body_start: int
    newline: str


class FenceError(ValueError):
    """There is no front matter, or it has no end; `index` is where."""

    def __init__(self, detail: str, hint: str, index: int) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint
        self.index = index


def divide(text: str) -> Sections:
    """Find the front matter of a file.

    Raises:
        FenceError: There is none.
    """
    start = len(BOM) if text.startswith(BOM) else 0
    opening = _OPENING.match(text, start)
    if opening is None:
        raise _missing(text, start)
    closing = _CLOSING.search(text, opening.end())
    if closing is None:
        fence = text.index(FENCE, start)
        hint = "put a line --- between the keys and the prompt"
        raise FenceError("the front matter that begins here is never closed", hint, fence)
    rest = closing.group(1).strip("- \t")
    if rest:
        hint = "put the closing --- on a line of its own"
        raise FenceError(f"{shown(rest)} follows the closing ---", hint, closing.start())
    return Sections(opening.end(), closing.start(), closing.end(), opening.group(1) or "\n")


def body_of(text: str, sections: Sections) -> str:
    """Return the prompt: no blank lines before or after it, the rest as it is."""
    body = text[sections.body_start :].rstrip()
    blank = _BLANK_LINES.match(body)
    return body[blank.end() :] if blank else body


def _missing(text: str, start: int) -> FenceError:
    words = text[start:].strip()
    if not words:
        return FenceError("the file is empty", CURE, start)
    first = shown(words.splitlines()[0])
    index = text.index(words[0], start)
    if words.startswith(FENCE):
        detail = f"the first line is {first}; the line that opens the front matter is --- and nothing else"
        return FenceError(detail, CURE, index)
    return FenceError(f"there is no front matter: the file begins with {first}", CURE, index)

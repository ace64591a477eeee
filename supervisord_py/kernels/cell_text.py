"""Text of a cell as people read it: where to cut it, what a terminal would show, the words for a rich output."""

from __future__ import annotations

import codecs
import importlib
import re
from typing import TYPE_CHECKING, Any

from supervisord_py.kernels.artifacts import joined

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.cell import CellError

NEAR_BYTES = 1024
"""A cut moves this far to fall between lines; further away it only keeps characters whole."""
MARKDOWN, PLAIN, HTML = "text/markdown", "text/plain", "text/html"
_CHARACTER_BYTES = 4
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def cut_end(data: bytes) -> int:
    """Return where to end a head that goes on: behind its last line, if that is near, else behind a character."""
    newline = data.rfind(b"\n", max(0, len(data) - NEAR_BYTES))
    return newline + 1 if newline >= 0 else whole_characters(data)


def cut_start(data: bytes) -> int:
    """Return where to begin a tail that something came before: at a line's beginning, if near, else at a character."""
    newline = data.find(b"\n", 0, NEAR_BYTES)
    if 0 <= newline < len(data) - 1:
        return newline + 1
    starts = (place for place, byte in enumerate(data[:_CHARACTER_BYTES]) if byte & 0xC0 != 0x80)
    return next(starts, len(data) if len(data) < _CHARACTER_BYTES else 0)


def whole_characters(data: bytes) -> int:
    """Return how many bytes lie before a UTF-8 character that is cut by the end; all of them where none is."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-_CHARACTER_BYTES:])
    return len(data) - len(decoder.getstate()[0])


def as_on_a_terminal(text: str) -> str:
    """Return the text with carriage returns resolved: each line as the last writing over it left it."""
    if "\r" not in text:
        return text
    return "\n".join(_line(line) for line in text.replace("\r\n", "\n").split("\n"))


def _line(line: str) -> str:
    seen = ""
    for over in filter(None, line.split("\r")):
        escaped = "\x1b" in over or "\x1b" in seen  # columns cannot be counted: the later writing stands alone
        seen = over if escaped else over + seen[len(over) :]
    return seen


def text_of(data: Mapping[str, Any]) -> str:
    """Return the words that stand for a bundle, ending with a line end: markdown, else plain text, else HTML; or ""."""
    for mime in (MARKDOWN, PLAIN, HTML):
        if mime not in data:
            continue
        text = joined(data[mime])
        if mime == HTML:
            text = html_to_markdown(text).strip("\n")
        return text if not text or text.endswith("\n") else f"{text}\n"
    return ""


def html_to_markdown(html: str) -> str:
    """Return HTML as markdown. The first call imports the library, a tenth of a second: not on an event loop."""
    text: str = importlib.import_module("markdownify").markdownify(html, heading_style="ATX")
    return text


def traceback_text(error: CellError) -> str:
    """Return a traceback without its colours, else the name and value."""
    text = "\n".join(error.traceback) or f"{error.name}: {error.value}"
    return _ESCAPES.sub("", text).rstrip("\n") + "\n"

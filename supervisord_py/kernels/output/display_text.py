"""Bytes as people see them: where to cut, what a carriage return does. Pure; never applied to what is stored."""

from __future__ import annotations

import codecs

NEAR_BYTES = 1024
"""A cut moves this far to fall between lines; further away it only keeps characters whole."""
_CONTINUATION = 0x80
"""10xxxxxx goes on with a character."""
_CHARACTER_BYTES = 4


def cut_end(data: bytes) -> int:
    """Return where to end a head that goes on: behind its last line, if that is near, else behind a character."""
    newline = data.rfind(b"\n", max(0, len(data) - NEAR_BYTES))
    if newline >= 0:
        return newline + 1
    return whole_characters(data)


def cut_start(data: bytes) -> int:
    """Return where to begin a tail that something came before: at a line's beginning, if near, else at a character."""
    newline = data.find(b"\n", 0, NEAR_BYTES)
    if 0 <= newline < len(data) - 1:
        return newline + 1
    start = next((place for place, byte in enumerate(data[:_CHARACTER_BYTES]) if byte & 0xC0 != _CONTINUATION), None)
    if start is not None:
        return start
    return len(data) if len(data) < _CHARACTER_BYTES else 0  # the rest of a character, or no UTF-8 at all


def whole_characters(data: bytes) -> int:
    """Return how many bytes lie before a UTF-8 character that is cut by the end; all of them where none is."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-_CHARACTER_BYTES:] if len(data) > _CHARACTER_BYTES else data)
    pending, _ = decoder.getstate()
    return len(data) - len(pending)


def as_on_a_terminal(text: str) -> str:
    """Return the text with carriage returns resolved: each line as the last writing over it left it."""
    if "\r" not in text:
        return text
    return "\n".join(_line(line) for line in text.replace("\r\n", "\n").split("\n"))


def _line(line: str) -> str:
    if "\r" not in line:
        return line
    seen = ""
    for over in line.split("\r"):
        if not over:
            continue
        escaped = "\x1b" in over or "\x1b" in seen  # columns cannot be counted: the later writing stands alone
        seen = over if escaped else over + seen[len(over) :]
    return seen

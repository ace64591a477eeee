"""Takes secrets out of output before it is stored, however the output is cut into pieces. Pure.

Law: what comes out does not depend on where the pieces were cut. Bytes that may be the beginning of a known value are
held back until it is certain; with patterns, so is a line until it is whole. A line longer than LINE_BYTES is let go in
pieces, and a match of a pattern is found in it as long as it is not longer than OVERLAP_BYTES.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MARK = b"[redacted]"
SHORTEST_VALUE = 6
"""Shorter values are left alone: `test` as a key would black out half of an answer."""
LINE_BYTES = 64 * 1024
OVERLAP_BYTES = 4096


class Redactor:
    """One stream's redaction.

    Args:
        values: Known secrets.
        patterns: Regular expressions, matched line by line against the UTF-8 bytes; all of them must compile.
        held: What a redactor before this one had not given out yet.
    """

    def __init__(self, values: Iterable[str], patterns: Iterable[str] = (), held: bytes = b"") -> None:
        self._values = _Values(printed_forms(values))
        self._lines = _Lines([re.compile(pattern.encode()) for pattern in patterns])
        if held:
            self._lines.held = self._values.feed(held)

    @property
    def held(self) -> bytes:
        """What was fed and not given out yet; another redactor goes on from it."""
        return self._lines.held + self._values.held

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; return those that are certain."""
        return self._lines.feed(self._values.feed(data))

    def end(self) -> bytes:
        """Return the rest; once, at the end of the stream."""
        return self._lines.feed(self._values.end()) + self._lines.end()


def redact(text: str, values: Iterable[str], patterns: Iterable[str] = ()) -> str:
    """Return a whole text without secrets."""
    redactor = Redactor(values, patterns)
    done = redactor.feed(text.encode("utf-8", "surrogatepass")) + redactor.end()
    return done.decode("utf-8", "surrogatepass")


def pattern_trouble(pattern: str) -> str | None:
    """Say why a text is no pattern; None when it is one."""
    try:
        re.compile(pattern.encode())
    except (re.error, UnicodeEncodeError) as error:
        return str(error)
    return None


def printed_forms(values: Iterable[str]) -> set[bytes]:
    """Return every form in which a value may be printed: as it is, and as a JSON string holds it."""
    forms = set()
    for value in {each.strip() for each in values}:
        if len(value) >= SHORTEST_VALUE:
            forms |= {value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    return {form.encode("utf-8", "surrogatepass") for form in forms}


class _Values:
    """Replaces known values; holds back what may become one."""

    def __init__(self, values: set[bytes]) -> None:
        self._known = sorted(values, key=len, reverse=True)
        self._any = re.compile(b"|".join(map(re.escape, self._known))) if values else None
        self.held = b""

    def feed(self, data: bytes) -> bytes:
        if self._any is None:
            return data
        text = self.held + data
        open_at = self._may_begin(text)
        done, at = [], 0
        while True:
            hold = next((place for place in open_at if place >= at), len(text))
            found = self._any.search(text, at)
            if found is None or found.start() >= hold:
                break
            done += [text[at : found.start()], MARK]
            at = found.end()
        self.held = text[hold:]
        return b"".join([*done, text[at:hold]])

    def end(self) -> bytes:
        rest, self.held = self.held, b""
        return self._any.sub(MARK, rest) if self._any else rest

    def _may_begin(self, text: bytes) -> list[int]:
        """Return the places from which the rest of the text is a true beginning of a value."""
        first = max(0, len(text) - len(self._known[0]) + 1)
        return [place for place in range(first, len(text)) if self._is_beginning(text[place:])]

    def _is_beginning(self, rest: bytes) -> bool:
        return any(len(rest) < len(value) and value.startswith(rest) for value in self._known)


class _Lines:
    """Replaces what patterns match, line by line; holds back a line until it is whole."""

    def __init__(self, patterns: Sequence[re.Pattern[bytes]]) -> None:
        self._patterns = patterns
        self.held = b""

    def feed(self, data: bytes) -> bytes:
        if not self._patterns:
            return data
        whole, newline, rest = (self.held + data).rpartition(b"\n")
        done = [self._clean(line) + newline for line in whole.split(b"\n")] if newline else []
        while len(rest) > LINE_BYTES:
            cut = self._cut(rest, LINE_BYTES - OVERLAP_BYTES)
            done.append(self._clean(rest[:cut]))
            rest = rest[cut:]
        self.held = rest
        return b"".join(done)

    def end(self) -> bytes:
        rest, self.held = self.held, b""
        return self._clean(rest)

    def _clean(self, line: bytes) -> bytes:
        for pattern in self._patterns:
            line = pattern.sub(lambda found: MARK if found[0] else b"", line)
        return line

    def _cut(self, line: bytes, wanted: int) -> int:
        """Return where a long line may be cut: at `wanted`, or behind a match that lies across it."""
        return max([wanted, *(end for pattern in self._patterns for end in _across(pattern, line, wanted))])


def _across(pattern: re.Pattern[bytes], line: bytes, place: int) -> Iterator[int]:
    for found in pattern.finditer(line, max(0, place - OVERLAP_BYTES), place + OVERLAP_BYTES):
        if found.start() < place < found.end():
            yield found.end()

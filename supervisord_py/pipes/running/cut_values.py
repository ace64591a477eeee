"""Finds keys that an agent's JSON stream cuts into pieces: `{"delta": "sk-a"}`, `{"delta": "bc"}`. Pure.

Law: strings of one key of the records are one text, in the order in which they come; what is found in it lies where its
pieces lie. It is a search beside the plain one: records that are not small (they hold whole texts), and streams that
mix several texts under one key, are not put together.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from supervisord_py.pipes.agents.redaction import printed_forms
from supervisord_py.pipes.running.trail import Trail

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from supervisord_py.pipes.running.trail import Place

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

"""How far the stream of a call was told: what a client that was cut off comes back with. Pure.

Law: a place says everything that is needed to go on there, so that nothing is told twice and nothing is left out,
however the output is cut into pieces the second time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_STREAMS = {"o": "stdout", "e": "stderr"}
_LETTERS = {name: letter for letter, name in _STREAMS.items()}
_NUMBER = "[0-9]{1,18}"
_TEXT = re.compile(f"({_NUMBER})-({_NUMBER})-(-1|{_NUMBER})((?:-[oe]{_NUMBER}[.](?:[0-9a-f]{{2}}){{1,3}})*)")


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """A place in the course of a call.

    Attributes:
        events: How many of the call's events were told.
        offset: Of the cell that runs: how many bytes of its output were told or are held.
        record: Which of its records was told last: where its line begins; -1 for none.
        held: Of its output, the beginnings of characters whose rest has not come: stream, where, what there is.
    """

    events: int = 0
    offset: int = 0
    record: int = -1
    held: tuple[tuple[str, int, bytes], ...] = ()

    def __str__(self) -> str:
        held = (f"-{_LETTERS[stream]}{at}.{data.hex()}" for stream, at, data in self.held)
        return f"{self.events}-{self.offset}-{self.record}{''.join(held)}"


START = StreamPlace()


def read_place(text: str) -> StreamPlace | None:
    """Return the place that a text says, None where it says none."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    events, offset, record, rest = found.groups()
    held = tuple(_held(piece) for piece in rest.split("-") if piece)
    return StreamPlace(int(events), int(offset), int(record), held)


def _held(text: str) -> tuple[str, int, bytes]:
    at, _, data = text[1:].partition(".")
    return _STREAMS[text[0]], int(at), bytes.fromhex(data)

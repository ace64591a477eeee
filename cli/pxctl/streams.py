"""Lines and server-sent events out of a body that comes in pieces. Pure: bytes in, values out.

Law: however the bytes are cut into pieces, the lines and events are the same. (WHATWG HTML, 9.2: server-sent events.)
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines without their ends as soon as each is complete; a last line without an end counts."""
    held: list[bytes] = []
    for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        held.append(first)
        for piece in rest:
            yield b"".join(held).removesuffix(b"\r")
            held = [piece]
    if last := b"".join(held):
        yield last.removesuffix(b"\r")


class Event:
    """One server-sent event: its name ("message" by default), its id as it stands, its payload."""

    __slots__ = ("id", "name", "payload")

    def __init__(self, name: str, payload: bytes, event_id: str | None) -> None:
        self.name = name
        self.payload = payload
        self.id = event_id


def split_events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events of a `text/event-stream`; comments and events without payload are dropped."""
    name, payload, last_id = "message", list[bytes](), None
    for line in split_lines(chunks):
        if not line:
            if payload:
                yield Event(name, b"\n".join(payload), last_id)
            name, payload = "message", []
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            payload.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
        elif field == b"id":
            last_id = value.decode("utf-8", "replace")
    if payload:
        yield Event(name, b"\n".join(payload), last_id)

"""A bounded copy of an answer that is written piece by piece. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Copy:
    """Keeps what goes to the client, up to a limit. Given to whoever writes the answer piece by piece."""

    limit: int
    status: int = 0
    content_type: str = ""
    body: bytearray = field(default_factory=bytearray)
    too_long: bool = False

    def begin(self, status: int, content_type: str) -> None:
        """Note the head of the answer."""
        self.status, self.content_type = status, content_type

    def chunk(self, piece: bytes) -> None:
        """Note a piece of the body; nothing is kept of an answer over the limit."""
        if len(self.body) + len(piece) > self.limit:
            self.too_long = True
            self.body.clear()
        if not self.too_long:
            self.body += piece

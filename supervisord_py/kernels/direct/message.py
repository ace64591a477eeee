"""A Jupyter message as it came: the header is read at once, the content only where somebody wants it. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

HEADER, PARENT, METADATA, CONTENT, BUFFERS = range(5)
"""Places in the parts of a message behind delimiter and signature (Jupyter messaging, the wire protocol)."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        type: As in its header.
        parent_id: Id of the request that it belongs to; "" for none.
        parent_session: Session of whoever asked that request.
        parts: Header, parent header, metadata, content, buffers, as bytes.
    """

    type: str
    parent_id: str
    parent_session: str
    parts: list[bytes]

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(len(part) for part in self.parts)

    def content(self) -> dict[str, Any]:
        """Return the content; {} where it is no JSON object."""
        return load(self.parts[CONTENT])

    def is_status(self, state: str) -> bool:
        """Say whether it tells of this execution state."""
        return self.type == "status" and self.content().get("execution_state") == state


def read(parts: list[bytes]) -> Message | None:
    """Read the parts behind delimiter and signature; None when they are no message."""
    if len(parts) < BUFFERS:
        return None
    header, parent = load(parts[HEADER]), load(parts[PARENT])
    kind = header.get("msg_type")
    if not isinstance(kind, str):
        return None
    return Message(kind, str(parent.get("msg_id") or ""), str(parent.get("session") or ""), parts)


def load(text: bytes) -> dict[str, Any]:
    """Return a JSON object; {} for everything else.

    Kernels write what is left of an undecodable file name as its byte: no UTF-8, and no reason to lose a reply.
    """
    try:
        found = json.loads(text.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

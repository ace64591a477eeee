"""Jupyter's messages as they travel: what they are made of, signatures, and the two framings of
websockets. Pure.

A message is four JSON texts (header, parent header, metadata, content) and binary buffers. ZMQ and
the v1 subprotocol of websockets carry these parts side by side, so what is only passed on is never
parsed. The older framing of websockets is one JSON text, here without buffers. The formats are
those of jupyter_client's and jupyter_server's documentation.
"""

from __future__ import annotations

import hmac
import json
import struct
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

V1 = "v1.kernel.websocket.jupyter.org"
PROTOCOL = "5.3"
DELIMITER = b"<IDS|MSG>"
PARTS = ("header", "parent_header", "metadata", "content")
BUFFERS = len(PARTS)  # where they begin
EXECUTE: Mapping[str, Any] = {
    "silent": False,
    "store_history": False,
    "user_expressions": {},
    "allow_stdin": False,
    "stop_on_error": False,  # one cell at a time; ipykernel 6 would abort the next one, too
}
"""The content of an execute_request, but for its `code`."""


class Message:
    """One message on `shell`, `control`, `stdin` or `iopub`, of these parts; the content is
    parsed when it is read.
    """

    def __init__(self, channel: str, parts: Sequence[bytes]) -> None:
        self.channel = channel
        self.parts = parts
        self.header, parent = load(parts[0]), load(parts[1])
        self.type = str(self.header.get("msg_type") or "")
        self.id = str(self.header.get("msg_id") or "")
        self.parent_id = str(parent.get("msg_id") or "")
        self.parent_session = str(parent.get("session") or "")
        self.parent_type = str(parent.get("msg_type") or "")

    @cached_property
    def content(self) -> dict[str, Any]:
        return load(self.parts[3])

    @property
    def size(self) -> int:
        return sum(map(len, self.parts))

    @property
    def state(self) -> str | None:
        return str(self.content.get("execution_state")) if self.type == "status" else None


def load(text: bytes) -> dict[str, Any]:
    """Return a JSON object; {} for everything else.

    Kernels write what is left of an undecodable file name as its byte: no UTF-8, and no reason to
    lose a reply.
    """
    try:
        found = json.loads(text.decode("utf-8", "surrogateescape"), parse_constant=lambda _: None)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def dump(value: Mapping[str, Any]) -> bytes:
    # in ASCII: half of a surrogate pair leaves as its escape
    return json.dumps(value, separators=(",", ":")).encode()


def make(
    kind: str,
    content: Mapping[str, Any],
    session: str,
    channel: str = "shell",
    *,
    msg_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    parent: Mapping[str, Any] | None = None,
) -> Message:
    about = {
        "msg_id": msg_id or uuid.uuid4().hex,
        "msg_type": kind,
        "session": session,
        "username": "pxd",
    }
    header = {**about, "date": datetime.now(UTC).isoformat(), "version": PROTOCOL}
    return Message(
        channel, [dump(part) for part in (header, parent or {}, metadata or {}, content)]
    )


def sign(key: bytes, parts: Sequence[bytes]) -> bytes:
    return hmac.digest(key, b"".join(parts[:BUFFERS]), "sha256").hex().encode()


def from_frames(key: bytes, channel: str, frames: list[bytes]) -> Message | None:
    """Return the message in what came over ZMQ; None where the signature does not fit, or it is
    none.
    """
    try:
        at = frames.index(DELIMITER)
        signature, parts = frames[at + 1], frames[at + 2 :]
    except (ValueError, IndexError):
        return None
    if len(parts) < BUFFERS or not hmac.compare_digest(signature, sign(key, parts)):
        return None
    message = Message(channel, parts)
    return message if message.type else None


def pack(message: Message, protocol: str | None) -> str | bytes:
    """Return the frame of a message for a websocket that agreed on this subprotocol, V1 or none."""
    if protocol == V1:
        parts = [message.channel.encode(), *message.parts]
        offsets = list(accumulate(map(len, parts), initial=8 * (len(parts) + 2)))
        return struct.pack(f"<{len(offsets) + 1}Q", len(offsets), *offsets) + b"".join(parts)
    objects = dict(zip(PARTS, map(load, message.parts), strict=False))
    about = {
        "channel": message.channel,
        "msg_id": message.header.get("msg_id"),
        "msg_type": message.type,
    }
    return dump({**objects, **about, "buffers": []}).decode()


def unpack(frame: str | bytes, protocol: str | None, channel: str = "iopub") -> Message:
    """Read a frame from such a websocket; `channel` is that of a message that names none.

    Raises ValueError.
    """
    if protocol != V1:
        try:
            members = json.loads(frame)
            parts = [dump(dict(members.get(name) or {})) for name in PARTS]
            return Message(str(members.get("channel") or channel), parts)
        except (AttributeError, TypeError, RecursionError) as error:
            raise ValueError(f"no message in JSON: {error}") from None
    frame = frame.encode() if isinstance(frame, str) else frame
    count = int(struct.unpack_from("<Q", frame)[0]) if len(frame) >= 8 else 0
    if not BUFFERS + 2 <= count < len(frame) // 8:
        raise ValueError(f"a frame of {len(frame)} bytes with {count} offsets")
    offsets = struct.unpack_from(f"<{count}Q", frame, 8)
    if (
        offsets[0] != 8 * (count + 1)
        or offsets[-1] != len(frame)
        or list(offsets) != sorted(offsets)
    ):
        raise ValueError("a frame whose offsets lie outside of it")
    parts = [frame[start:end] for start, end in pairwise(offsets)]
    return Message(parts[0].decode("utf-8"), parts[1:])

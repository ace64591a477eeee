"""Jupyter messages as they travel on a WebSocket: JSON, JSON with binary buffers, and the v1 subprotocol. Pure.

Source: jupyter_server's documentation of its WebSocket protocols. Without a subprotocol a message is one JSON text,
or, with buffers, `u32 n, n * u32 offset` (big endian) and then the JSON and the buffers.
`v1.kernel.websocket.jupyter.org` is `u64 n, n * u64 offset` (little endian), the channel, header, parent_header,
metadata, content, and the buffers; the last offset is the length of the whole.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from supervisord_py.api.json_text import json_bytes, json_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

V1 = "v1.kernel.websocket.jupyter.org"
PARTS = ("header", "parent_header", "metadata", "content")
_U32 = 4
_U64 = 8
_MOST_OFFSETS = 1 << 16


class WireError(ValueError):
    """What came is no message of this protocol."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `parts` has header, parent_header, metadata and content."""

    channel: str
    parts: Mapping[str, Any]
    buffers: Sequence[bytes] = field(default=())


def encode(message: Message, protocol: str | None) -> str | bytes:
    """Return what is sent: a text, or bytes."""
    if protocol == V1:
        return _encode_v1(message)
    header = message.parts["header"]
    document = {
        **{name: message.parts[name] for name in PARTS},
        "channel": message.channel,
        "msg_id": header.get("msg_id"),
        "msg_type": header.get("msg_type"),
        "buffers": [],
    }
    text = json_text(document)
    return _with_buffers(text.encode(), message.buffers) if message.buffers else text


def decode(data: str | bytes, protocol: str | None) -> Message:
    """Return the message that came.

    Raises:
        WireError: It is none.
    """
    try:
        if protocol == V1:
            return _decode_v1(data.encode() if isinstance(data, str) else data)
        document, buffers = (json.loads(data), ()) if isinstance(data, str) else _without_buffers(data)
        return _message(str(document.get("channel") or "shell"), document, buffers)
    except (ValueError, AttributeError, KeyError, TypeError, struct.error, RecursionError) as error:
        raise WireError(f"this is no Jupyter message: {error}") from error


def _message(channel: str, document: Mapping[str, Any], buffers: Sequence[bytes]) -> Message:
    parts = {name: document.get(name) or {} for name in PARTS}
    if not all(isinstance(part, dict) for part in parts.values()) or not parts["header"].get("msg_type"):
        raise WireError("the message has no header with a msg_type, or a part that is no object")
    return Message(channel, parts, tuple(buffers))


def _with_buffers(text: bytes, buffers: Sequence[bytes]) -> bytes:
    pieces = [text, *buffers]
    offsets = [_U32 * (len(pieces) + 1)]
    for piece in pieces[:-1]:
        offsets.append(offsets[-1] + len(piece))
    return struct.pack(f"!{len(pieces) + 1}I", len(pieces), *offsets) + b"".join(pieces)


def _without_buffers(data: bytes) -> tuple[Any, list[bytes]]:
    (count,) = struct.unpack_from("!I", data)
    offsets = [*struct.unpack_from(f"!{_counted(count)}I", data, _U32), len(data)]
    text, *buffers = _cut(data, offsets)
    return json.loads(text), buffers


def _encode_v1(message: Message) -> bytes:
    pieces = [message.channel.encode()]
    pieces += [json_bytes(message.parts[name]) for name in PARTS]
    pieces += message.buffers
    offsets = [_U64 * (len(pieces) + 2)]
    for piece in pieces:
        offsets.append(offsets[-1] + len(piece))
    return struct.pack(f"<{len(offsets) + 1}Q", len(offsets), *offsets) + b"".join(pieces)


def _decode_v1(data: bytes) -> Message:
    (count,) = struct.unpack_from("<Q", data)
    offsets = list(struct.unpack_from(f"<{_counted(count)}Q", data, _U64))
    channel, *pieces = _cut(data, offsets)
    if len(pieces) < len(PARTS):
        raise WireError("the message lacks parts")
    parts = dict(zip(PARTS, map(json.loads, pieces), strict=False))
    return _message(channel.decode(), parts, pieces[len(PARTS) :])


def _counted(count: int) -> int:
    if not 1 <= count <= _MOST_OFFSETS:
        raise WireError(f"the message says that it has {count} pieces")
    return count


def _cut(data: bytes, offsets: Sequence[int]) -> list[bytes]:
    """Return the pieces between neighbouring offsets."""
    if sorted(offsets) != list(offsets) or offsets[-1] > len(data):
        raise WireError("the offsets of the message are out of order or beyond its end")
    return [data[start:end] for start, end in pairwise(offsets)]

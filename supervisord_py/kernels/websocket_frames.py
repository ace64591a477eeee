"""Jupyter's messages as they travel over a kernel's websocket: the two framings, and new requests. Pure.

For both sides: we are a client of gateways, and a server for JupyterLab. What does not parse is a `ValueError`,
whatever the bytes; nothing else is ever raised for what a peer sent.
The v1 subprotocol carries the parts of a message side by side, each found by an offset (64 bit, little endian); the
older framing is one JSON text, or, with binary buffers, a table of offsets (32 bit, big endian) before JSON and
buffers. The formats are those of jupyter_server's websocket documentation.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Write = Callable[[Mapping[str, Any]], bytes]

V1 = "v1.kernel.websocket.jupyter.org"
PROTOCOL = "5.3"
_OFFSET = 8
_SHORT = 4
_NAMES = ("header", "parent_header", "metadata", "content")
_PARTS = len(_NAMES)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of the kernel protocol on `shell`, `control`, `stdin` or `iopub`."""

    channel: str
    header: Mapping[str, Any]
    parent: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    content: Mapping[str, Any] = field(default_factory=dict)
    buffers: tuple[bytes, ...] = ()

    @property
    def type(self) -> str:
        """`msg_type` of the header, "" where there is none."""
        return str(self.header.get("msg_type", ""))

    @property
    def parent_id(self) -> str:
        """Id of the request that it belongs to, "" where there is none."""
        return str(self.parent.get("msg_id", ""))


def request(
    kind: str, content: Mapping[str, Any], *, msg_id: str, session: str, date: str, channel: str = "shell"
) -> Message:
    """Return a new request. `date` is RFC 3339 in UTC; `session` is the one that the websocket was opened with."""
    about = {"msg_id": msg_id, "msg_type": kind, "session": session, "date": date}
    return Message(channel, {**about, "username": "pxd", "version": PROTOCOL}, content=content)


# -- the v1 subprotocol ------------------------------------------------------------------------------------------------


def pack_v1(message: Message, write: Write | None = None) -> bytes:
    """Return the frame of the v1 subprotocol; `write` makes JSON of an object."""
    write = write or _json
    parts = [message.channel.encode(), *(write(each) for each in _objects(message)), *message.buffers]
    at = _OFFSET * (len(parts) + 2)
    offsets = [at]
    for part in parts:
        at += len(part)
        offsets.append(at)
    head = [len(offsets), *offsets]
    return struct.pack(f"<{len(head)}Q", *head) + b"".join(parts)


def unpack_v1(frame: bytes) -> Message:
    """Read a frame of the v1 subprotocol.

    Raises:
        ValueError: It is none.
    """
    count = _number(frame, 0, "<Q", _OFFSET)
    if count < _PARTS + 2 or count > len(frame) // _OFFSET:
        raise ValueError(f"a frame with {count} offsets")
    offsets = struct.unpack_from(f"<{count}Q", frame, _OFFSET) if _OFFSET * (count + 1) <= len(frame) else ()
    parts = _cut(frame, offsets, first=_OFFSET * (count + 1))
    header, parent, metadata, content = [_object(part) for part in parts[1 : _PARTS + 1]]
    return Message(parts[0].decode("utf-8"), header, parent, metadata, content, tuple(parts[_PARTS + 1 :]))


# -- the older framing -------------------------------------------------------------------------------------------------


def pack_json(message: Message, write: Write | None = None) -> str | bytes:
    """Return the text of the older framing; bytes where there are buffers. `write` makes JSON of an object."""
    told: dict[str, Any] = {
        "channel": message.channel,
        "msg_id": message.header.get("msg_id"),
        "msg_type": message.type,
        "buffers": [],
    }
    text = (write or _json)({**dict(zip(_NAMES, _objects(message), strict=True)), **told})
    if not message.buffers:
        return text.decode()
    parts = [text, *message.buffers]
    offsets, at = [], _SHORT * (len(parts) + 1)
    for part in parts:
        offsets.append(at)
        at += len(part)
    return struct.pack(f"!{len(parts) + 1}I", len(parts), *offsets) + b"".join(parts)


def unpack_json(frame: str | bytes, channel: str = "iopub") -> Message:
    """Read a frame of the older framing; `channel` is that of a message that names none.

    Raises:
        ValueError: It is none.
    """
    buffers: tuple[bytes, ...] = ()
    text: str | bytes = frame
    if isinstance(frame, bytes):
        count = _number(frame, 0, "!I", _SHORT)
        if count < 1 or count > len(frame) // _SHORT - 1:
            raise ValueError(f"a frame with {count} parts")
        starts = struct.unpack_from(f"!{count}I", frame, _SHORT)
        text, *rest = _cut(frame, (*starts, len(frame)), first=_SHORT * (count + 1))
        buffers = tuple(rest)
    members = _object(text)
    header, parent, metadata, content = [_checked(members.get(name) or {}) for name in _NAMES]
    return Message(str(members.get("channel") or channel), header, parent, metadata, content, buffers)


# -- parts -------------------------------------------------------------------------------------------------------------


def _objects(message: Message) -> tuple[Mapping[str, Any], ...]:
    return message.header, message.parent, message.metadata, message.content


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _number(frame: bytes, at: int, form: str, size: int) -> int:
    if len(frame) < at + size:
        raise ValueError("a frame that is too short")
    return int(struct.unpack_from(form, frame, at)[0])


def _cut(frame: bytes, offsets: Sequence[int], *, first: int) -> list[bytes]:
    """Cut the parts between offsets, which must begin at `first`, rise, and end where the frame ends."""
    if not offsets or offsets[0] != first or offsets[-1] != len(frame) or list(offsets) != sorted(offsets):
        raise ValueError("a frame whose offsets lie outside of it")
    return [frame[start:end] for start, end in pairwise(offsets)]


def _object(text: str | bytes) -> Mapping[str, Any]:
    try:
        return _checked(json.loads(text))
    except (UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"a part that is no JSON: {error}") from None


def _checked(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("a part that is no JSON object")
    return value

"""Jupyter's messages: how a cell is asked for, who else uses a kernel, and the two framings of websockets. Pure.

We are a client of gateways, and a server for JupyterLab. What does not parse is a `ValueError`. The v1 subprotocol
carries the parts of a message side by side, each found by an offset (64 bit, little endian); the older framing is one
JSON text, here without binary buffers. The formats are those of jupyter_server's websocket documentation.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from supervisord_py.kernels.backend import ExecuteRequest

V1 = "v1.kernel.websocket.jupyter.org"
PROTOCOL = "5.3"
_PARTS = ("header", "parent_header", "metadata", "content")


class Message(msgspec.Struct, frozen=True):
    """One message of the kernel protocol on `shell`, `control`, `stdin` or `iopub`."""

    channel: str
    header: Mapping[str, Any]
    parent: Mapping[str, Any] = {}
    metadata: Mapping[str, Any] = {}
    content: Mapping[str, Any] = {}
    buffers: tuple[bytes, ...] = ()

    @property
    def type(self) -> str:
        """`msg_type` of the header, "" where there is none."""
        return str(self.header.get("msg_type", ""))

    @property
    def parent_id(self) -> str:
        """Id of the request that it belongs to, "" where there is none."""
        return str(self.parent.get("msg_id", ""))


def request(kind: str, content: Mapping[str, Any], msg_id: str, session: str, channel: str = "shell") -> Message:
    """Return a new request; `session` is the one that the websocket was opened with."""
    date = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    about = {"msg_id": msg_id, "msg_type": kind, "session": session, "date": date}
    return Message(channel, {**about, "username": "pxd", "version": PROTOCOL}, content=content)


def pack(message: Message, protocol: str | None) -> str | bytes:
    """Return the frame of a message for a websocket that agreed on this subprotocol, V1 or none."""
    objects = (message.header, message.parent, message.metadata, message.content)
    if protocol == V1:
        parts = [message.channel.encode(), *map(_json, objects), *message.buffers]
        offsets = list(accumulate(map(len, parts), initial=8 * (len(parts) + 2)))
        return struct.pack(f"<{len(offsets) + 1}Q", len(offsets), *offsets) + b"".join(parts)
    about = {"channel": message.channel, "msg_id": message.header.get("msg_id"), "msg_type": message.type}
    return _json({**dict(zip(_PARTS, objects, strict=True)), **about, "buffers": []}).decode()


def unpack(frame: str | bytes, protocol: str | None, channel: str = "iopub") -> Message:
    """Read a frame from such a websocket; `channel` is that of a message that names none. Raises ValueError."""
    if protocol != V1:
        members = _object(frame)
        header, parent, metadata, content = found = [members.get(name) or {} for name in _PARTS]
        if not all(isinstance(part, dict) for part in found):
            raise ValueError("a part that is no JSON object")
        return Message(str(members.get("channel") or channel), header, parent, metadata, content)
    frame = frame.encode() if isinstance(frame, str) else frame
    count = int(struct.unpack_from("<Q", frame)[0]) if len(frame) >= 8 else 0
    if not len(_PARTS) + 2 <= count < len(frame) // 8:
        raise ValueError(f"a frame of {len(frame)} bytes with {count} offsets")
    offsets = struct.unpack_from(f"<{count}Q", frame, 8)
    if offsets[0] != 8 * (count + 1) or offsets[-1] != len(frame) or list(offsets) != sorted(offsets):
        raise ValueError("a frame whose offsets lie outside of it")
    parts = [frame[start:end] for start, end in pairwise(offsets)]
    header, parent, metadata, content = map(_object, parts[1:5])
    return Message(parts[0].decode("utf-8"), header, parent, metadata, content, tuple(parts[5:]))


def _json(value: Mapping[str, Any]) -> bytes:
    """Return JSON in ASCII: half of a surrogate pair leaves as its escape; what is not a number leaves as null."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    except ValueError:
        return json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None)).encode()


def _object(text: str | bytes) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"a part that is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("a part that is no JSON object")
    return value


# -- cells, and whose they are -----------------------------------------------------------------------------------------


def execute_content(code: str, **members: Any) -> dict[str, Any]:
    """Return the content of an execute_request; `members` replace what is usual."""
    return {
        "code": code,
        "silent": False,
        "store_history": False,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": False,  # one cell at a time; ipykernel 6 would abort the next one, too
        **members,
    }


def cell_mark(request: ExecuteRequest) -> dict[str, Any]:
    """Return the metadata by which our launcher knows a cell of ours, and writes its files."""
    place = {"cell": request.cell_id, "dir": str(request.cells_dir)}
    return {"px": {**place, "preview": request.preview_bytes, "cap": request.cell_bytes}}


class ForeignRequests:
    """What iopub tells of requests that are not ours. `used_at`: when one last began or ended, Unix seconds.

    A kernel is in foreign use from the first `busy` of such a request to its `idle`. Where an `idle` was lost, the end
    of a later request of our own settles it: shell requests are worked off one after the other.
    """

    def __init__(self) -> None:
        self.used_at: float | None = None
        self._under_way: set[str] = set()

    @property
    def busy(self) -> bool:
        return bool(self._under_way)

    def note(self, state: str, request: str, now: float) -> None:
        """A status message of a foreign request came: its execution state, its message id, Unix seconds."""
        self.used_at = now
        if state == "busy":
            self._under_way.add(request)
        elif state == "idle":
            self._under_way.discard(request)

    def settle(self) -> None:
        """A shell request of our own has ended: earlier ones have too."""
        self._under_way.clear()

"""A keeper that only talks: the other end of the channel, in a thread, with framing written a second time.

The framing is on purpose not that of `process/wire.py`: the two must agree on keeper/protocol.py, not on each other.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Reply = tuple[dict[str, Any], list[int]] | dict[str, Any] | None
    Verb = Callable[[dict[str, Any], list[int]], Reply]

DAEMON = "0badc0de"
HELLO = {
    "protocol": 1,
    "pid": 4242,
    "started_at": 1000.0,
    "start_time": 77,
    "boot_id": "boot",
    "kill_rung": "subreaper",
    "memory_rung": "sampled",
    "children": [],
    "fds": [],
    "control_restarts": 0,
    "interrupted": [],
}


def child_message(key: str, unit: str = "tool:x", **changes: Any) -> dict[str, Any]:
    """Return CHILD of the protocol."""
    base = {
        "key": key,
        "unit": unit,
        "pid": 99,
        "start_time": 12345,
        "boot_id": "boot",
        "started_at": 2000.0,
        "state": "running",
        "tag": "",
        "log_position": 0,
        "stopping": False,
        "exit": None,
    }
    return {**base, **changes}


def exit_message(key: str, unit: str = "tool:x", **changes: Any) -> dict[str, Any]:
    """Return EXIT of the protocol."""
    base = {
        "key": key,
        "unit": unit,
        "pid": 99,
        "start_time": 12345,
        "boot_id": "boot",
        "started_at": 2000.0,
        "ended_at": 2007.0,
        "code": 0,
        "signal": None,
        "user_seconds": 0.5,
        "system_seconds": 0.25,
        "max_rss_bytes": 1 << 20,
        "log_position": 0,
        "log_end": 10,
        "verdict": None,
        "orphans": 0,
    }
    return {**base, **changes}


def refusal(kind: str, **members: Any) -> dict[str, Any]:
    """Return a reply that says no."""
    return {"ok": False, "error": {"kind": kind, "detail": f"refused: {kind}", **members}}


class FakeKeeper:
    """Answers by a table of verbs; what is not in it is answered with an empty yes. `None` means: never answer."""

    def __init__(self) -> None:
        self.control, self._mine = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.asked: list[dict[str, Any]] = []
        self.verbs: dict[str, Verb] = {"hello": lambda _message, _fds: dict(HELLO)}
        self.heard = threading.Condition()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def emit(self, event: str, **members: Any) -> None:
        """Send an event."""
        self.send({"event": event, **members})

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send one frame; the descriptors stay open here."""
        self.send_raw(frame(message), fds)

    def send_raw(self, data: bytes, fds: list[int] | None = None) -> None:
        """Send bytes as they are."""
        with self._lock:
            sent = socket.send_fds(self._mine, [data], fds) if fds else 0
            self._mine.sendall(data[sent:])

    def verbs_asked(self) -> list[str]:
        """Return the verbs in the order in which they came."""
        with self.heard:
            return [str(message["verb"]) for message in self.asked]

    def hang_up(self) -> None:
        """Close this end, as a keeper does that dies."""
        self._mine.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)
        self._mine.close()

    def _serve(self) -> None:
        buffer, fds = b"", list[int]()
        while True:
            try:
                data, received, _, _ = socket.recv_fds(self._mine, 65536, 16)
            except OSError:
                return
            if not data:
                return
            buffer, fds = buffer + data, fds + list(received)
            while len(buffer) >= 4 and len(buffer) >= 4 + struct.unpack(">I", buffer[:4])[0]:
                length = struct.unpack(">I", buffer[:4])[0]
                message, buffer = json.loads(buffer[4 : 4 + length]), buffer[4 + length :]
                count = message.get("fds", 0)
                mine, fds = fds[:count], fds[count:]
                self._answer(message, mine)

    def _answer(self, message: dict[str, Any], fds: list[int]) -> None:
        with self.heard:
            self.asked.append(message)
            self.heard.notify_all()
        verb = self.verbs.get(str(message["verb"]), lambda _message, _fds: {})
        reply = verb(message, fds)
        for fd in fds:
            os.close(fd)
        if reply is None:
            return
        members, carried = reply if isinstance(reply, tuple) else (reply, [])
        if carried:
            members = {**members, "fds": len(carried)}
        self.send({"ok": True, **members, "id": message["id"]}, carried)


def frame(message: object) -> bytes:
    """Return the bytes of one frame."""
    body = json.dumps(message).encode()
    return struct.pack(">I", len(body)) + body

"""A keeper that only talks: the other end of the channel, in a thread."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from typing import Any

from supervisord_py.keeper.protocol import FrameSocket, close_fds

Reply = tuple[dict[str, Any], list[int]] | dict[str, Any] | None
Verb = Callable[[dict[str, Any], list[int]], Reply]

DAEMON = "0badc0de"
HELLO: dict[str, Any] = {
    "protocol": 1, "revision": 6, "pid": 4242, "started_at": 1000.0, "boot_id": "boot", "kill_rung": "subreaper",
    "memory_rung": "sampled", "children": [], "control_restarts": 0, "interrupted": [],
}  # fmt: skip
_BOTH = {"unit": "tool:x", "pid": 99, "start_time": 12345, "boot_id": "boot", "started_at": 2000.0, "log_position": 0}
_CHILD = {**_BOTH, "state": "running", "tag": "", "stopping": False, "exit": None}
_EXIT = {
    **_BOTH, "ended_at": 2007.0, "code": 0, "signal": None, "user_seconds": 0.5, "system_seconds": 0.25,
    "max_rss_bytes": 1 << 20, "log_end": 10, "verdict": None, "orphans": 0,
}  # fmt: skip


def child_message(key: str, **changes: Any) -> dict[str, Any]:
    """Return CHILD of the protocol."""
    return {**_CHILD, "key": key, **changes}


def exit_message(key: str, **changes: Any) -> dict[str, Any]:
    """Return EXIT of the protocol."""
    return {**_EXIT, "key": key, **changes}


def refusal(kind: str, **members: Any) -> dict[str, Any]:
    """Return a reply that says no."""
    return {"ok": False, "error": {"kind": kind, "detail": f"refused: {kind}", **members}}


class FakeKeeper:
    """Answers by a table of verbs; what is not in it is answered with an empty yes. `None` means: never answer."""

    def __init__(self) -> None:
        self.control, self._mine = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._frames = FrameSocket(self._mine)
        self.asked: list[dict[str, Any]] = []
        self.verbs: dict[str, Verb] = {"hello": lambda _message, _fds: dict(HELLO)}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def emit(self, event: str, **members: Any) -> None:
        """Send an event."""
        self.send({"event": event, **members})

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """Send one frame; the descriptors stay open here."""
        with self._lock:
            self._frames.push(message, fds or ())
            while not self._frames.flush():
                select.select([], [self._mine], [])

    def verbs_asked(self) -> list[str]:
        """Return the verbs in the order in which they came."""
        return [str(message["verb"]) for message in list(self.asked)]

    def hang_up(self) -> None:
        """Close this end, as a keeper does that dies."""
        self._mine.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)
        self._frames.close()

    def _serve(self) -> None:
        while select.select([self._mine], [], []) and self._frames.receive():
            while (frame := self._frames.next_frame()) is not None:
                message, fds = frame
                self.asked.append(message)
                reply = self.verbs.get(str(message["verb"]), lambda _message, _fds: {})(message, fds)
                close_fds(fds)
                if reply is not None and "id" in message:
                    members, carried = reply if isinstance(reply, tuple) else (reply, [])
                    self.send({"ok": True, **members, "id": message["id"]}, carried)

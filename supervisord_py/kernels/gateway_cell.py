"""A kernel at a server as it is written down, and a cell of it as far as messages tell. Pure.

A cell is over when its reply and its `idle` were both seen; the reply alone is enough where the `idle` is lost, and
then the result says that output may be missing. A server that holds output back says so in a text of its own, which is
no output of the cell.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from supervisord_py.kernels.cell_files import reply_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisord_py.kernels.backend import Reply
    from supervisord_py.kernels.cell_files import CellRecorder
    from supervisord_py.kernels.websocket_frames import Message

BROKEN = "The connection to the gateway broke while the cell ran: output may be missing."
_STATE_LOST = frozenset(("restarting", "autorestarting", "dead"))
_HELD_BACK = re.compile(r"\s*IOPub (data|message) rate exceeded")


class RemoteKernel(msgspec.Struct, frozen=True):
    """One kernel at a server, as it is written down; no token is in it."""

    instance: str  # key of its life; begins with the daemon's id and a dot
    session_id: str  # whose it is: unit `kernel:<session id>`
    kernel: str  # its id at the server
    url: str  # the server's address, without credentials
    session: str  # of the websocket: the server replays what it kept only to the same one
    started_at: float  # Unix seconds
    tag: str = ""  # note of the room
    facts: tuple[str, ...] = ()  # how the kernel named its process: pid, mark, folder


class RemoteCell:
    """A cell on its way. `sent_after`: how many breaks there had been; -1 when another control plane sent it."""

    def __init__(self, wake: Callable[[], None], recorder: CellRecorder | None) -> None:
        self.wake = wake
        self.recorder = recorder
        self.changed = asyncio.Event()
        self.sent_after: int | None = None
        self.reply: Mapping[str, Any] | None = None
        self.idle = False
        self.is_unheard = False
        self.held_back: str | None = None
        self.is_altered = False

    def take(self, message: Message) -> bool:
        """Note a message of this cell; True when it is output, to be recorded."""
        if message.channel == "shell" and message.type == "execute_reply":
            self.reply = self.reply or message.content
        if message.channel != "iopub":
            return False
        if message.type == "status":
            self.idle = self.idle or message.content.get("execution_state") == "idle"
            return False
        if message.type == "stream":
            text = str(message.content.get("text"))
            if message.content.get("name") == "stderr" and _HELD_BACK.match(text):
                self.held_back = text.strip().splitlines()[0].rstrip(".")
                return False
            self.is_altered = self.is_altered or "\ufffd" in text
        return True

    def outcome(self, *, spool: bool, broken: bool) -> Reply:
        """Return the reply, and what must be feared missing; a kernel that writes its output by itself loses none."""
        reply = reply_of(self.reply or {})
        if spool:
            return replace(reply, iopub_lost=not self.idle)
        notices = []
        if self.held_back:
            notices.append(
                f"The gateway held output back ({self.held_back}): part of it is missing."
                " Its settings iopub_data_rate_limit, iopub_msg_rate_limit or limit_rate would let it through."
            )
        if broken:
            notices.append(BROKEN)
        elif not self.idle:
            notices.append("The end of the output was not seen: some of it may be missing.")
        if self.is_altered:
            notices.append("The server passes text on, not bytes: what was no UTF-8 came altered.")
        is_lossy = bool(notices)
        if reply.error is not None and reply.error.name == "NameError":
            notices.append("Kernels of an external gateway have no prelude and no modules of ours.")
        return replace(reply, iopub_lost=not self.idle, lossy=is_lossy, notice=" ".join(notices) or None)


def state_lost(message: Message, *, is_settled: bool) -> str | None:
    """Return `restarting`, `dead`, … when a message says that the kernel's process is gone.

    After the start is over (`is_settled`), `starting` means another process, too.
    """
    if message.channel != "iopub" or message.type != "status":
        return None
    state = message.content.get("execution_state")
    return str(state) if state in _STATE_LOST or (is_settled and state == "starting") else None

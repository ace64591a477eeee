"""One cell at a server, as far as messages tell: request, progress, outcome. Pure.

A cell is over when its reply and its `idle` were both seen; the reply alone is enough where the `idle` is lost, and
then the result says that output may be missing. A server that holds output back says so in a text of its own, which is
no output of the cell.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from supervisord_py.kernels.backend import Reply
from supervisord_py.kernels.cell import CellError, CellStatus
from supervisord_py.kernels.cell_files import reply_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.backend import ExecuteRequest
    from supervisord_py.kernels.gateway.wire import Message

STATE_LOST = frozenset(("restarting", "autorestarting", "dead"))
"""What a server's `status` says when the process that held the variables is gone."""
BROKEN = "The connection to the gateway broke while the cell ran: output may be missing."
_HELD_BACK = re.compile(r"\s*IOPub (data|message) rate exceeded")


def content_of(request: ExecuteRequest) -> dict[str, Any]:
    """Return the content of the execute_request."""
    return {
        "code": request.code,
        "silent": False,
        "store_history": request.store_history,
        "user_expressions": {},
        "allow_stdin": False,
        "stop_on_error": False,  # one cell at a time; ipykernel 6 would abort the next one, too
    }


def metadata_of(request: ExecuteRequest) -> dict[str, Any]:
    """Return the mark by which our launcher knows a cell of ours, and writes its files."""
    mark = {
        "cell": request.cell_id,
        "dir": str(request.cells_dir),
        "preview": request.preview_bytes,
        "cap": request.cell_bytes,
    }
    return {"px": mark}


@dataclass(slots=True)
class CellProgress:
    """One cell on its way.

    Attributes:
        msg_id: Of the request.
        reply: Content of the execute_reply, once it came.
        idle: The end of its output was seen.
        held_back: Sentences of the server about output that it did not send.
        is_altered: Some of the text bears the sign that stands for bytes which are no UTF-8.
    """

    msg_id: str
    reply: Mapping[str, Any] | None = None
    idle: bool = False
    held_back: list[str] = field(default_factory=list)
    is_altered: bool = False

    def take(self, message: Message) -> bool:
        """Note a message of this cell; True when it is output, to be recorded."""
        if message.channel == "shell":
            if message.type == "execute_reply" and self.reply is None:
                self.reply = message.content
            return False
        if message.channel != "iopub":
            return False
        if message.type == "status":
            self.idle = self.idle or message.content.get("execution_state") == "idle"
            return False
        if message.type == "stream":
            if sentence := rate_limited(message.content):
                self.held_back.append(sentence)
                return False
            self.is_altered = self.is_altered or "\ufffd" in str(message.content.get("text"))
        return True


def rate_limited(content: Mapping[str, Any]) -> str | None:
    """Return the first sentence of a server's warning that it drops output; None for a program's own text."""
    text = content.get("text")
    if content.get("name") != "stderr" or not isinstance(text, str) or not _HELD_BACK.match(text):
        return None
    return text.strip().splitlines()[0].rstrip(".")


def state_lost(message: Message, *, is_settled: bool) -> str | None:
    """Return `restarting`, `dead`, … when a message says that the kernel's process is gone.

    After the start is over (`is_settled`), `starting` means another process, too.
    """
    if message.channel != "iopub" or message.type != "status":
        return None
    state = message.content.get("execution_state")
    return str(state) if state in STATE_LOST or (is_settled and state == "starting") else None


def outcome_of(progress: CellProgress, *, spool: bool, broken: bool) -> Reply:
    """Return the reply of a cell whose execute_reply came.

    Args:
        progress: What was heard of it.
        spool: The kernel wrote its output down by itself: nothing of it is lost with a connection.
        broken: The connection broke while it ran.
    """
    reply = reply_of(progress.reply or {})
    if spool:
        return replace(reply, iopub_lost=not progress.idle)
    notices = []
    if progress.held_back:
        notices.append(
            f"The gateway held output back ({progress.held_back[0]}): part of it is missing."
            " Its settings iopub_data_rate_limit, iopub_msg_rate_limit or limit_rate would let it through."
        )
    if broken:
        notices.append(BROKEN)
    elif not progress.idle:
        notices.append("The end of the output was not seen: some of it may be missing.")
    if progress.is_altered:
        notices.append("The server passes text on, not bytes: what was no UTF-8 came altered.")
    is_lossy = bool(notices)
    if reply.error is not None and reply.error.name == "NameError":
        notices.append("Kernels of an external gateway have no prelude and no modules of ours.")
    return replace(reply, iopub_lost=not progress.idle, lossy=is_lossy, notice=" ".join(notices) or None)


def outcome_unknown(place: str) -> Reply:
    """Return the reply of a cell that is over, while its execute_reply was lost."""
    text = f"The connection to {place} broke, and how the cell ended was not heard; perhaps it never ran."
    return Reply(CellStatus.ERROR, error=CellError("ReplyLost", text), lossy=True, notice=BROKEN)

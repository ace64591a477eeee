"""How far one cell has come, as far as a server's messages tell. Pure.

Law: a cell is over when its reply and its `idle` were both seen; the reply alone is enough where the `idle` is lost,
and then it is said that the end of the output was not seen. A server that holds output back says so in a text of its
own, which is no output of the cell; from then on the output counts as incomplete.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.kernels.gateway.wire import Message

STATE_LOST = frozenset(("restarting", "autorestarting", "dead"))
"""What a server's `status` says when the process that held the variables is gone."""
_HELD_BACK = re.compile(r"\s*IOPub (data|message) rate exceeded")


class Heard(StrEnum):
    """What a message was to a cell."""

    NOTHING = "nothing"
    NEWS = "news"
    REPLY = "reply"
    IDLE = "idle"
    HELD_BACK = "held_back"


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

    @property
    def is_over(self) -> bool:
        """Whether nothing more has to come."""
        return self.reply is not None and self.idle

    def take(self, message: Message) -> Heard:
        """Note a message; it may belong to something else."""
        if message.parent_id != self.msg_id:
            return Heard.NOTHING
        if message.channel == "shell":
            return self._take_reply(message)
        if message.channel != "iopub":
            return Heard.NOTHING
        if message.type == "status":
            return self._take_status(message.content)
        if message.type == "stream" and (sentence := rate_limited(message.content)):
            self.held_back.append(sentence)
            return Heard.HELD_BACK
        if message.type == "stream" and "\ufffd" in str(message.content.get("text")):
            self.is_altered = True
        return Heard.NEWS

    def _take_reply(self, message: Message) -> Heard:
        if message.type != "execute_reply" or self.reply is not None:
            return Heard.NOTHING
        self.reply = message.content
        return Heard.REPLY

    def _take_status(self, content: Mapping[str, Any]) -> Heard:
        if content.get("execution_state") != "idle":
            return Heard.NOTHING
        self.idle = True
        return Heard.IDLE


def rate_limited(content: Mapping[str, Any]) -> str | None:
    """Return the first sentence of a server's warning that it drops output; None for a program's own text."""
    text = content.get("text")
    if content.get("name") != "stderr" or not isinstance(text, str) or not _HELD_BACK.match(text):
        return None
    return text.strip().splitlines()[0].rstrip(".")


def state_lost(message: Message) -> str | None:
    """Return `restarting`, `dead`, … when a message says that the kernel's process is gone."""
    if message.channel != "iopub" or message.type != "status":
        return None
    state = message.content.get("execution_state")
    return str(state) if state in STATE_LOST else None

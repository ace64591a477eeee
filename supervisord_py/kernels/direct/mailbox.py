"""What waits for a front end that reads slowly: bounded, and honest about what was left out. Pure.

Law: below the limit nothing is dropped. Beyond it output (streams, displays, results) is, and a gap that counts it
stands in its place; what a front end cannot do without (replies, status, errors, comms, input requests) never is. When
even that is more than `OVERRUN` times the limit, the front end counts as gone.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisord_py.kernels.direct.message import Message

OVERRUN = 8
OUTPUT = frozenset(("stream", "display_data", "update_display_data", "execute_result", "px_tick"))


@dataclass(slots=True)
class Gap:
    """Output that was left out: `dropped_bytes` of messages, the first of which was `first`."""

    first: Message
    dropped_bytes: int


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that waits, and the channel that it came on."""

    channel: str
    message: Message


class Mailbox:
    """One front end's.

    Args:
        limit_bytes: Beyond which output is left out.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._waiting: deque[Letter | Gap] = deque()
        self._bytes = 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the messages that wait."""
        return self._bytes

    @property
    def overrun(self) -> bool:
        """True when more waits than any front end that lives would leave."""
        return self._bytes > OVERRUN * self._limit

    def put(self, channel: str, message: Message) -> None:
        """Take a message, or count it into a gap."""
        if channel == "iopub" and message.type in OUTPUT and self._bytes + message.size > self._limit:
            self._leave_out(message)
            return
        self._waiting.append(Letter(channel, message))
        self._bytes += message.size

    def _leave_out(self, message: Message) -> None:
        last = self._waiting[-1] if self._waiting else None
        if isinstance(last, Gap) and last.first.parent_id == message.parent_id:
            last.dropped_bytes += message.size
        else:
            self._waiting.append(Gap(message, message.size))

    def take(self) -> Letter | Gap | None:
        """Return what comes next, None when nothing waits."""
        if not self._waiting:
            return None
        found = self._waiting.popleft()
        if isinstance(found, Letter):
            self._bytes -= found.message.size
        return found

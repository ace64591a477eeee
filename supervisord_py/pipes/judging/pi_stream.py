"""`pi --mode json`: delta-only since 0.84, every update with the whole message before; both are read the same way.

Text is told by its deltas. What is kept of the stream: sessions, whole messages (not the system prompt), tool calls,
retries, compactions; never an update, nor the copies that `turn_end` and `agent_end` carry. `agent_end` is the end
unless it says that it will retry or another start follows; `agent_settled` (since 0.80.4) is the end.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from supervisord_py.pipes.execution import Usage
from supervisord_py.pipes.judging import reading
from supervisord_py.pipes.judging.line_stream import LineStream
from supervisord_py.pipes.judging.values import Happening, Kept, Resumed, Settled

if TYPE_CHECKING:
    from collections.abc import Callable

_DROPPED = frozenset(("message_update", "tool_execution_update", "message_start"))
_WITH_COPIES = frozenset(("turn_end", "agent_end"))
_COPIES = ("message", "messages", "toolResults")
_ERROR = "error"
_ABORTED = "aborted"


class PiStream(LineStream):
    """One run of pi."""

    def record(self, record: dict[str, Any], line: bytes) -> list[Happening]:
        """Understand one record."""
        kind = reading.words(record, "type") or ""
        meant = self._meanings().get(kind)
        return [*self._kept(kind, record, line), *(meant(record) if meant else ())]

    def _meanings(self) -> dict[str, Callable[[dict[str, Any]], list[Happening]]]:
        return {
            "session": self._session,
            "agent_start": self._begun,
            "turn_start": self._turn,
            "message_update": self._update,
            "message_end": self._message,
            "auto_retry_start": self._begun,
            "agent_end": self._agent_end,
            "agent_settled": lambda _: self._settle(),
        }

    def _kept(self, kind: str, record: dict[str, Any], line: bytes) -> list[Happening]:
        if kind in _DROPPED or reading.words(record, "message", "role") == "system":
            return []
        if kind in _WITH_COPIES:
            line = json.dumps({name: it for name, it in record.items() if name not in _COPIES}).encode()
        return [Kept(line + b"\n")]

    def _session(self, record: dict[str, Any]) -> list[Happening]:
        self.gathering.session_id = reading.words(record, "id")
        return []

    def _begun(self, _: dict[str, Any]) -> list[Happening]:
        if not self.gathering.settled:
            return []
        self.gathering.settled = False
        return [Resumed()]

    def _turn(self, record: dict[str, Any]) -> list[Happening]:
        self.gathering.turn()
        return self._begun(record)

    def _update(self, record: dict[str, Any]) -> list[Happening]:
        if reading.words(record, "assistantMessageEvent", "type") != "text_delta":
            return []
        return self.gathering.say(reading.words(record, "assistantMessageEvent", "delta") or "")

    def _message(self, record: dict[str, Any]) -> list[Happening]:
        message = reading.member(record, "message")
        if reading.words(message, "role") != "assistant":
            return []
        gathering = self.gathering
        text = reading.block_text(reading.member(message, "content"))
        gathering.stop_reason = reading.words(message, "stopReason")
        gathering.final_text = ""
        failed = gathering.stop_reason in {_ERROR, _ABORTED}
        gathering.error_message = (reading.words(message, "errorMessage") or gathering.stop_reason) if failed else None
        gathering.spend(_usage(message))
        return gathering.answer(text)

    def _agent_end(self, record: dict[str, Any]) -> list[Happening]:
        return [] if reading.member(record, "willRetry") is True else self._settle()

    def _settle(self) -> list[Happening]:
        if self.gathering.settled:
            return []
        self.gathering.settled = True
        return [Settled()]


def _usage(message: Any) -> Usage:
    used = reading.member(message, "usage")
    read, written = reading.count(used, "input"), reading.count(used, "output")
    return Usage(
        read,
        written,
        reading.count(used, "cacheRead"),
        reading.count(used, "cacheWrite"),
        reading.count(used, "totalTokens") or read + written,
        reading.amount(used, "cost", "total"),
    )

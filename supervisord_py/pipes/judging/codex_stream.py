"""`codex exec --json`: threads, turns, items. An item of type `error` is no failure; `turn.failed` is one.

What codex calls a turn is the whole run, and its tokens are told at its end alone. A turn of the model, which the
ceiling `turns` counts, begins with the run and after the result of a tool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisord_py.pipes.execution import Usage
from supervisord_py.pipes.judging import reading
from supervisord_py.pipes.judging.line_stream import LineStream
from supervisord_py.pipes.judging.values import Happening, Kept, Settled

if TYPE_CHECKING:
    from collections.abc import Callable

_DROPPED = frozenset(("item.started", "item.updated"))
_TOOLS = frozenset(("command_execution", "file_change", "mcp_tool_call", "web_search"))
_PRESENT = "present"


class CodexStream(LineStream):
    """One run of codex."""

    def record(self, record: dict[str, Any], line: bytes) -> list[Happening]:
        """Understand one record."""
        kind = reading.words(record, "type") or ""
        meanings: dict[str, Callable[[dict[str, Any]], list[Happening]]] = {
            "thread.started": self._thread,
            "turn.started": self._answers,
            "item.started": self._answers,
            "item.completed": self._item,
            "turn.completed": self._completed,
            "turn.failed": self._failed,
            "error": self._error,
        }
        meant = meanings.get(kind)
        kept: list[Happening] = [] if kind in _DROPPED else [Kept(line + b"\n")]
        return [*kept, *(meant(record) if meant else ())]

    def _thread(self, record: dict[str, Any]) -> list[Happening]:
        self.gathering.session_id = reading.words(record, "thread_id")
        return []

    def _answers(self, _: dict[str, Any]) -> list[Happening]:
        self.gathering.turn_of(_PRESENT)
        return []

    def _item(self, record: dict[str, Any]) -> list[Happening]:
        kind = reading.words(record, "item", "type") or ""
        if kind in _TOOLS:
            self.gathering.turn_id = None
        if kind != "agent_message":
            return []
        self._answers(record)
        return self.gathering.answer(reading.words(record, "item", "text") or "")

    def _completed(self, record: dict[str, Any]) -> list[Happening]:
        gathering = self.gathering
        gathering.stop_reason, gathering.error_message, gathering.settled = "stop", None, True
        used = reading.member(record, "usage")
        read, written = reading.count(used, "input_tokens"), reading.count(used, "output_tokens")
        cached, kept = reading.count(used, "cached_input_tokens"), reading.count(used, "cache_write_input_tokens")
        gathering.spend(Usage(read, written, cached, kept, read + written))
        return [Settled()]

    def _failed(self, record: dict[str, Any]) -> list[Happening]:
        gathering = self.gathering
        said = reading.words(record, "error", "message") or gathering.error_message
        gathering.error_message, gathering.stop_reason, gathering.settled = said or "the turn failed", "error", True
        return [Settled()]

    def _error(self, record: dict[str, Any]) -> list[Happening]:
        """Remember an error on the way: it is one only if nothing better follows."""
        self.gathering.error_message = reading.words(record, "message")
        return []

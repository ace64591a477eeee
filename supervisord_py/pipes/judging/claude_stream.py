"""`claude -p --output-format stream-json --verbose`, its `json`, and qwen's `json`, which speaks the same words.

The last record, `result`, decides: `is_error` true is a failure whatever `subtype` says. A document over several lines,
or a list of records, is read at the end.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from supervisord_py.pipes.execution import Usage
from supervisord_py.pipes.judging import reading
from supervisord_py.pipes.judging.document_stream import DocumentStream
from supervisord_py.pipes.judging.values import Happening, Kept, Settled

if TYPE_CHECKING:
    from collections.abc import Iterable

_STOP = "stop"


class ClaudeStream(DocumentStream):
    """One run of claude or qwen."""

    def record(self, record: dict[str, Any], line: bytes) -> list[Happening]:
        """Understand one record."""
        kind = reading.words(record, "type")
        gathering = self.gathering
        gathering.session_id = reading.words(record, "session_id") or gathering.session_id
        if kind == "stream_event":
            return gathering.say(_delta(record))
        happenings: list[Happening] = [Kept(line + b"\n")]
        if kind == "assistant":
            happenings += gathering.turn()
            happenings += gathering.answer(reading.block_text(reading.member(record, "message", "content")))
        elif kind == "result":
            happenings += self._result(record)
        return happenings

    def document(self, found: Any) -> list[Happening]:
        """Understand what was written as one document: a record, or a list of them."""
        records: Iterable[Any] = found if isinstance(found, list) else (found,)
        happenings: list[Happening] = []
        for record in records:
            if isinstance(record, dict):
                self.gathering.records += 1
                happenings += self.record(record, json.dumps(record).encode())
        return happenings

    def _result(self, record: dict[str, Any]) -> list[Happening]:
        gathering = self.gathering
        text = reading.words(record, "result") or ""
        failed = reading.member(record, "is_error") is True
        happenings: list[Happening] = []
        if failed:
            gathering.error_message = _failure(record, text)
            gathering.stop_reason = "error"
        else:
            gathering.error_message = None
            gathering.stop_reason = reading.words(record, "stop_reason") or _STOP
            if not gathering.has_text or not gathering.final_text:
                happenings += gathering.answer(text)
        gathering.settled = True
        return [*happenings, *gathering.spent(_usage(record, gathering.usage.turns)), Settled()]


def _delta(record: dict[str, Any]) -> str:
    if reading.words(record, "event", "delta", "type") != "text_delta":
        return ""
    return reading.words(record, "event", "delta", "text") or ""


def _failure(record: dict[str, Any], text: str) -> str:
    """Return the words of a failure, its status first: it stands beside the text, not in it."""
    status = reading.count(record, "api_error_status")
    message = text or reading.words(record, "error", "message") or reading.words(record, "subtype") or "error"
    return message if not status or str(status) in message else f"{status}: {message}"


def _usage(record: dict[str, Any], turns: int) -> Usage:
    used = reading.member(record, "usage")
    read, written = reading.count(used, "input_tokens"), reading.count(used, "output_tokens")
    cached = reading.count(used, "cache_read_input_tokens")
    cache_written = reading.count(used, "cache_creation_input_tokens")
    return Usage(
        read,
        written,
        cached,
        cache_written,
        read + written + cached + cache_written,
        reading.amount(record, "total_cost_usd"),
        reading.count(record, "num_turns") or turns,
    )

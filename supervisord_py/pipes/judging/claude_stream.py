"""`claude -p --output-format stream-json --verbose`, and qwen's `-o stream-json`, which speaks the same words.

The last record, `result`, decides: `is_error` true is a failure whatever `subtype` says, and its totals replace what
was added up on the way. An answer of several blocks is several records with one message id; an error is also told as
an answer of the model `<synthetic>`, which nobody gave.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from supervisord_py.pipes.execution import Usage
from supervisord_py.pipes.judging import reading
from supervisord_py.pipes.judging.line_stream import LineStream
from supervisord_py.pipes.judging.values import Happening, Kept, Settled

if TYPE_CHECKING:
    pass

_STOP = "stop"
_REFUSAL = "refusal"
_NOBODY = "<synthetic>"
_HIDDEN = "[API Error: "
"""How an answer begins that is an error of qwen's; its 0.15 calls it a success, and exits with 0."""


class ClaudeStream(LineStream):
    """One run of claude or qwen."""

    def record(self, record: dict[str, Any], line: bytes) -> list[Happening]:
        """Understand one record."""
        kind = reading.words(record, "type")
        gathering = self.gathering
        gathering.session_id = reading.words(record, "session_id") or gathering.session_id
        if kind == "stream_event":
            return gathering.say(_delta(record))
        happenings: list[Happening] = [Kept(line + b"\n")]
        if kind == "assistant" and reading.words(record, "message", "model") != _NOBODY:
            happenings += self._said(record)
        elif kind == "result":
            happenings += self._result(record)
        return happenings

    def _said(self, record: dict[str, Any]) -> list[Happening]:
        gathering = self.gathering
        if gathering.turn_of(reading.words(record, "message", "id") or reading.words(record, "uuid") or ""):
            gathering.spend(_tokens(reading.member(record, "message", "usage")))
        text = reading.block_text(reading.member(record, "message", "content"))
        return [] if text.startswith(_HIDDEN) else gathering.answer(text)

    def _result(self, record: dict[str, Any]) -> list[Happening]:
        gathering = self.gathering
        text = reading.words(record, "result") or ""
        failed = reading.member(record, "is_error") is True or text.startswith(_HIDDEN)
        happenings: list[Happening] = []
        if failed:
            gathering.error_message = _failure(record, text)
            gathering.stop_reason = _REFUSAL if reading.words(record, "stop_reason") == _REFUSAL else "error"
        else:
            gathering.error_message = None
            gathering.stop_reason = reading.words(record, "stop_reason") or _STOP
            if not gathering.has_text or not gathering.final_text:
                happenings += gathering.answer(text)
        gathering.settled = True
        gathering.usage = _usage(record, gathering.usage.turns)
        return [*happenings, Settled()]


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
    """Return the totals of a run. Old ones leave out the turns."""
    tokens = _tokens(reading.member(record, "usage"))
    cost = reading.amount(record, "total_cost_usd")
    return replace(tokens, cost=cost, turns=reading.count(record, "num_turns") or turns)


def _tokens(used: Any) -> Usage:
    """Return what was used, without cost and turns: qwen counts the cached tokens among those of the input."""
    read, written = reading.count(used, "input_tokens"), reading.count(used, "output_tokens")
    cached = reading.count(used, "cache_read_input_tokens")
    cache_written = reading.count(used, "cache_creation_input_tokens")
    return Usage(
        read,
        written,
        cached,
        cache_written,
        reading.count(used, "total_tokens") or read + written + cached + cache_written,
    )

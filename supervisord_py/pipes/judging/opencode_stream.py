"""`opencode run --format json`: texts, steps with their tokens and cost, and `error` records with an HTTP status."""

from __future__ import annotations

from typing import Any

from supervisord_py.pipes.execution import Usage
from supervisord_py.pipes.judging import reading
from supervisord_py.pipes.judging.line_stream import LineStream
from supervisord_py.pipes.judging.values import Happening, Kept


class OpencodeStream(LineStream):
    """One run of opencode. It ends by itself; no record says that it is done."""

    def record(self, record: dict[str, Any], line: bytes) -> list[Happening]:
        """Understand one record."""
        self.gathering.session_id = reading.words(record, "sessionID") or self.gathering.session_id
        happenings: list[Happening] = [Kept(line + b"\n")]
        match reading.words(record, "type"):
            case "text":
                happenings += self.gathering.answer(reading.words(record, "part", "text") or "")
            case "step_start":
                self.gathering.turn()
            case "step_finish":
                self.gathering.stop_reason = reading.words(record, "part", "reason") or "stop"
                self.gathering.error_message = None
                self.gathering.spend(_usage(record))
            case "error":
                self._fail(record)
        return happenings

    def _fail(self, record: dict[str, Any]) -> None:
        error = reading.member(record, "error")
        status = reading.count(error, "data", "statusCode")
        said = reading.words(error, "data", "message") or reading.words(error, "name") or "error"
        self.gathering.error_message = f"{status}: {said}" if status and str(status) not in said else said
        self.gathering.stop_reason = "error"


def _usage(record: dict[str, Any]) -> Usage:
    tokens = reading.member(record, "part", "tokens")
    read, written = reading.count(tokens, "input"), reading.count(tokens, "output")
    thought = reading.count(tokens, "reasoning")
    cached, cache_written = reading.count(tokens, "cache", "read"), reading.count(tokens, "cache", "write")
    cost = reading.amount(record, "part", "cost")
    return Usage(
        read, written + thought, cached, cache_written, read + written + thought + cached + cache_written, cost
    )

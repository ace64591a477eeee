"""`gemini -o stream-json`. Errors may come on stderr after a stack trace.

An answer is told in pieces, and nothing says where it ends but the call of a tool or the result. A record `error` may
come before a result that has none of its own.
"""

from __future__ import annotations

from typing import Any

from supervisord_py.pipes.execution import Usage
from supervisord_py.pipes.judging import reading
from supervisord_py.pipes.judging.line_stream import LineStream
from supervisord_py.pipes.judging.values import FINAL_TEXT_CHARS, Happening, Kept, Settled

_PRESENT = "present"


class GeminiStream(LineStream):
    """One run of gemini."""

    def record(self, record: dict[str, Any], line: bytes) -> list[Happening]:
        """Understand one record."""
        match reading.words(record, "type"):
            case "init":
                self.gathering.session_id = reading.words(record, "session_id")
            case "message" if reading.words(record, "role") == "assistant":
                return self._words(record)
            case "tool_use":
                self._answers()
                return [*self._line_ends(), Kept(line + b"\n")]
            case "tool_result":
                self.gathering.turn_id = None
            case "result":
                return [Kept(line + b"\n"), *self._result(record)]
            case "error":
                self._fail(record.get("error", record))
        return [Kept(line + b"\n")]

    def _answers(self) -> None:
        """Begin a turn of the model, where none is present."""
        if self.gathering.turn_id is None:
            self.gathering.final_text = ""
        self.gathering.turn_of(_PRESENT)

    def _line_ends(self) -> list[Happening]:
        self.gathering.told = 0
        return self.gathering.answer("")

    def _words(self, record: dict[str, Any]) -> list[Happening]:
        said = reading.words(record, "content") or ""
        self._answers()
        self.gathering.final_text = (self.gathering.final_text + said)[-FINAL_TEXT_CHARS:]
        return self.gathering.say(said)

    def _result(self, record: dict[str, Any]) -> list[Happening]:
        gathering = self.gathering
        if reading.words(record, "status") == "success":
            gathering.stop_reason, gathering.error_message = "stop", None
        elif gathering.error_message is None or reading.member(record, "error") is not None:
            self._fail(reading.member(record, "error"))
        gathering.settled = True
        gathering.usage = _usage(reading.member(record, "stats"), gathering.usage.turns)
        return [*self._line_ends(), Settled()]

    def _fail(self, error: Any) -> None:
        code = reading.count(error, "code")
        said = reading.words(error, "message") or "error"
        self.gathering.error_message = f"{code}: {said}" if code and str(code) not in said else said
        self.gathering.stop_reason = "error"


def _usage(stats: Any, turns: int) -> Usage:
    """Return the sum over all models. Thoughts are in the total alone."""
    read, written = reading.count(stats, "input_tokens"), reading.count(stats, "output_tokens")
    total = reading.count(stats, "total_tokens") or read + written
    return Usage(read, written, reading.count(stats, "cached"), 0, total, turns=turns)

"""`gemini -o json` (one document) and `-o stream-json` (records). Errors may come on stderr after a stack trace."""

from __future__ import annotations

import json
from typing import Any

from supervisord_py.pipes.execution import Usage
from supervisord_py.pipes.judging import reading
from supervisord_py.pipes.judging.document_stream import DocumentStream
from supervisord_py.pipes.judging.values import Happening, Kept, Settled


class GeminiStream(DocumentStream):
    """One run of gemini."""

    def record(self, record: dict[str, Any], line: bytes) -> list[Happening]:
        """Understand one record."""
        match reading.words(record, "type"):
            case "init":
                self.gathering.session_id = reading.words(record, "session_id")
            case "message" if reading.words(record, "role") == "assistant":
                return self._words(record)
            case "result":
                return [Kept(line + b"\n"), *self._result(record)]
            case "error":
                self._fail(record.get("error", record))
            case None:
                return self.document(record)
        return [Kept(line + b"\n")]

    def document(self, found: Any) -> list[Happening]:
        """Understand the one document of `-o json`."""
        gathering = self.gathering
        happenings: list[Happening] = [Kept(json.dumps(found).encode() + b"\n")]
        if reading.member(found, "error") is not None:
            self._fail(reading.member(found, "error"))
        else:
            happenings += gathering.answer(reading.words(found, "response") or "")
            gathering.stop_reason = "stop"
        gathering.settled = True
        return [*happenings, *gathering.spent(_usage(reading.member(found, "stats"))), Settled()]

    def _words(self, record: dict[str, Any]) -> list[Happening]:
        said = reading.words(record, "content") or ""
        self.gathering.final_text = (self.gathering.final_text + said)[-64 * 1024 :]
        return self.gathering.say(said)

    def _result(self, record: dict[str, Any]) -> list[Happening]:
        gathering = self.gathering
        if reading.words(record, "status") == "success":
            gathering.stop_reason, gathering.error_message = "stop", None
        else:
            self._fail(reading.member(record, "error"))
        gathering.settled, gathering.told = True, 0
        return [*gathering.answer(""), *gathering.spent(_usage(reading.member(record, "stats"))), Settled()]

    def _fail(self, error: Any) -> None:
        code = reading.count(error, "code")
        said = reading.words(error, "message") or "error"
        self.gathering.error_message = f"{code}: {said}" if code and str(code) not in said else said
        self.gathering.stop_reason = "error"


def _usage(stats: Any) -> Usage:
    """Return the sum over all models; records say it flat, documents by model."""
    models = reading.member(stats, "models")
    each = [reading.member(it, "tokens") for it in models.values()] if isinstance(models, dict) else []
    if not each:
        read, written = reading.count(stats, "input_tokens"), reading.count(stats, "output_tokens")
        total = reading.count(stats, "total_tokens") or read + written
        return Usage(read, written, reading.count(stats, "cached"), 0, total)
    read = sum(reading.count(it, "prompt") for it in each)
    written = sum(reading.count(it, "candidates") for it in each)
    cached = sum(reading.count(it, "cached") for it in each)
    return Usage(read, written, cached, 0, sum(reading.count(it, "total") for it in each) or read + written)

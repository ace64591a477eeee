"""The output formats of claude and qwen, codex, gemini, opencode; and the table of all formats by name."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from supervisord_py.ledger.pipe_executions import Usage
from supervisord_py.pipes.streams import (
    FINAL_TEXT_CHARS,
    JsonLines,
    PiStream,
    TextStream,
    amount,
    block_text,
    count,
    member,
    with_status,
    words,
)

_PRESENT = "present"  # the turn of a format whose turns have no names


class ClaudeStream(JsonLines):
    """`claude -p --output-format stream-json --verbose`, and qwen's `-o stream-json`, which speaks the same words.

    The last record, `result`, decides: `is_error` true is a failure whatever `subtype` says, and its totals replace
    what was added up on the way. An answer of several blocks is several records with one message id; an error is also
    told as an answer of the model `<synthetic>`, which nobody gave. qwen 0.15 calls an answer that begins with
    `[API Error: ` a success, and exits with 0.
    """

    def record(self, kind: str, record: dict[str, Any], line: bytes) -> None:
        """Understand one record."""
        self.summary.session_id = words(record, "session_id") or self.summary.session_id
        if kind == "stream_event":
            if words(record, "event", "delta", "type") == "text_delta":
                self.say(words(record, "event", "delta", "text") or "")
            return
        self.keep(line)
        if kind == "assistant" and words(record, "message", "model") != "<synthetic>":
            message = member(record, "message")
            if self.turn(words(message, "id") or words(record, "uuid") or ""):
                self.spend(self._tokens(member(message, "usage")))
            text = block_text(member(message, "content"))
            if not text.startswith("[API Error: "):
                self.answer(text)
        elif kind == "result":
            self._result(record)

    def _result(self, record: dict[str, Any]) -> None:
        summary = self.summary
        text, stop = words(record, "result") or "", words(record, "stop_reason")
        if member(record, "is_error") is True or text.startswith("[API Error: "):
            message = text or words(record, "error", "message") or words(record, "subtype") or "error"
            self.fail(with_status(count(record, "api_error_status"), message))
            if stop == "refusal":
                summary.stop_reason = stop
        else:
            summary.error_message, summary.stop_reason = None, stop or "stop"
            if not summary.has_text or not summary.final_text:
                self.answer(text)
        summary.settled = True
        turns = count(record, "num_turns") or summary.usage.turns  # old ones leave them out
        summary.usage = replace(
            self._tokens(member(record, "usage")), cost=amount(record, "total_cost_usd"), turns=turns
        )

    @staticmethod
    def _tokens(used: Any) -> Usage:
        """Return what was used: qwen counts the cached tokens among those of the input."""
        read, written = count(used, "input_tokens"), count(used, "output_tokens")
        cached, cache_written = count(used, "cache_read_input_tokens"), count(used, "cache_creation_input_tokens")
        total = count(used, "total_tokens") or read + written + cached + cache_written
        return Usage(read, written, cached, cache_written, total)


class CodexStream(JsonLines):
    """`codex exec --json`: threads, turns, items. An item of type `error` is no failure; `turn.failed` is one.

    What codex calls a turn is the whole run, and its tokens are told at its end alone. A turn of the model, which the
    ceiling `turns` counts, begins with the run and after the result of a tool.
    """

    def record(self, kind: str, record: dict[str, Any], line: bytes) -> None:
        """Understand one record."""
        summary = self.summary
        if kind not in {"item.started", "item.updated"}:
            self.keep(line)
        match kind:
            case "thread.started":
                summary.session_id = words(record, "thread_id")
            case "turn.started" | "item.started":
                self.turn(_PRESENT)
            case "item.completed":
                self._item(record)
            case "turn.completed":
                used = member(record, "usage")
                read, written = count(used, "input_tokens"), count(used, "output_tokens")
                cached, cache_written = count(used, "cached_input_tokens"), count(used, "cache_write_input_tokens")
                self.spend(Usage(read, written, cached, cache_written, read + written))
                summary.stop_reason, summary.error_message, summary.settled = "stop", None, True
            case "turn.failed":
                self.fail(words(record, "error", "message") or summary.error_message or "the turn failed")
                summary.settled = True
            case "error":  # one on the way is an error only if nothing better follows
                summary.error_message = words(record, "message")

    def _item(self, record: dict[str, Any]) -> None:
        kind = words(record, "item", "type")
        if kind in {"command_execution", "file_change", "mcp_tool_call", "web_search"}:
            self._turn = None
        elif kind == "agent_message":
            self.turn(_PRESENT)
            self.answer(words(record, "item", "text") or "")


class GeminiStream(JsonLines):
    """`gemini -o stream-json`. Errors may come on stderr after a stack trace.

    An answer is told in pieces, and nothing says where it ends but the call of a tool or the result. A record `error`
    may come before a result that has none of its own.
    """

    def record(self, kind: str, record: dict[str, Any], line: bytes) -> None:
        """Understand one record."""
        summary = self.summary
        if kind == "message" and words(record, "role") == "assistant":
            said = words(record, "content") or ""
            self._begin_turn()
            summary.final_text = (summary.final_text + said)[-FINAL_TEXT_CHARS:]
            self.say(said)
            return
        self.keep(line)
        match kind:
            case "init":
                summary.session_id = words(record, "session_id")
            case "tool_use":
                self._begin_turn()
                self.answer("")
            case "tool_result":
                self._turn = None
            case "error":
                self._failed(record.get("error", record))
            case "result":
                self._result(record)

    def _begin_turn(self) -> None:
        if self._turn is None:
            self.summary.final_text = ""
        self.turn(_PRESENT)

    def _result(self, record: dict[str, Any]) -> None:
        summary, stats = self.summary, member(record, "stats")
        if words(record, "status") == "success":
            summary.stop_reason, summary.error_message = "stop", None
        elif summary.error_message is None or member(record, "error") is not None:
            self._failed(member(record, "error"))
        summary.settled = True
        read, written = count(stats, "input_tokens"), count(stats, "output_tokens")
        total = count(stats, "total_tokens") or read + written  # of all models; thoughts are in the total alone
        summary.usage = Usage(read, written, count(stats, "cached"), 0, total, turns=summary.usage.turns)
        self.answer("")

    def _failed(self, error: Any) -> None:
        self.fail(with_status(count(error, "code"), words(error, "message") or "error"))


class OpencodeStream(JsonLines):
    """`opencode run --format json`: texts, steps with their tokens and cost, and `error` records with an HTTP status.

    It ends by itself; no record says that it is done.
    """

    def record(self, kind: str, record: dict[str, Any], line: bytes) -> None:
        """Understand one record."""
        summary = self.summary
        summary.session_id = words(record, "sessionID") or summary.session_id
        self.keep(line)
        match kind:
            case "text":
                self.answer(words(record, "part", "text") or "")
            case "step_start":
                self.turn()
            case "step_finish":
                summary.stop_reason, summary.error_message = words(record, "part", "reason") or "stop", None
                self.spend(self._usage(member(record, "part")))
            case "error":
                error = member(record, "error")
                message = words(error, "data", "message") or words(error, "name") or "error"
                self.fail(with_status(count(error, "data", "statusCode"), message))

    @staticmethod
    def _usage(part: Any) -> Usage:
        tokens = member(part, "tokens")
        read, written = count(tokens, "input"), count(tokens, "output") + count(tokens, "reasoning")
        cached, cache_written = count(tokens, "cache", "read"), count(tokens, "cache", "write")
        total = read + written + cached + cache_written
        return Usage(read, written, cached, cache_written, total, amount(part, "cost"))


PARSERS: dict[str, type[TextStream]] = {
    "text": TextStream,
    "pi-jsonl": PiStream,
    "claude-json": ClaudeStream,
    "codex-jsonl": CodexStream,
    "gemini-json": GeminiStream,
    "opencode-jsonl": OpencodeStream,
}


def parser_for(name: str) -> TextStream:
    """Return a parser for an output format; an unknown one is text."""
    return PARSERS.get(name, TextStream)()

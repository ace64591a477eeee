"""What agents print, read in whatever pieces it comes.

`feed` returns bytes for stdout, and whole JSON lines for `events.jsonl`; `end` returns what is left
of both. `summary` says what the stream came to so far. A wrong type is as good as nothing: no
stream raises for what a program wrote. `PARSERS` are all formats by name.
"""

from __future__ import annotations

import codecs
import json
import operator
import re
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import structs

from supervisord_py.ledger.pipes import ErrorType, Usage

FINAL_TEXT_CHARS = 64 * 1024
LINE_BYTES = 16 * 1024 * 1024
_MOST_NOTICES = 10
_NOTICE_CHARS = 300
_LAST_ANSWER = frozenset(("stop", "end_turn", "stop_sequence", "length", "max_tokens", "refusal"))
"""Why an answer ended after which the agents do no more; after a call of a tool, or an error,
they go on.
"""
_PRESENT = "present"  # the turn of a format whose turns have no names


class Summary(msgspec.Struct):
    # the last words of the assistant, at most FINAL_TEXT_CHARS; "" where there were none
    final_text: str = ""
    has_text: bool = False  # something other than white space was said
    # why the last answer ended, in the agent's word; None where nobody said
    stop_reason: str | None = None
    error_message: str | None = None  # the error that the stream ended with; None where it did not
    error_type: ErrorType | None = None  # what that error is, where the format says so
    # the agent says that it is done. Its process may not know: give it a grace, then stop it.
    settled: bool = False
    is_last_answer: bool = (
        # the present answer asks for no tool: what it used was the last, unless a turn follows
        False
    )
    records: int = 0  # that were understood; 0 for text agents
    garbage_lines: int = 0  # that should have been records
    usage: Usage = Usage()
    # the tokens that were read from a cache are among those of the input
    cached_in_input: bool = False
    # how often the agent was not allowed to use a tool, by the tool's name
    denied: dict[str, int] = {}
    notices: list[str] = []  # what it complained of and which is no failure

    @property
    def is_closed(self) -> bool:
        """Whether the agent has told the last of its usage: nothing is left that a ceiling could
        spare.
        """
        return self.settled or self.is_last_answer

    @property
    def warnings(self) -> tuple[str, ...]:
        """What went wrong without being a failure, as sentences."""
        times = [
            name if count == 1 else f"{name} ({count} times)" for name, count in self.denied.items()
        ]
        denied = [f"was not allowed to use {', '.join(times)}"] if times else []
        return (*denied, *dict.fromkeys(self.notices))


class TextStream:
    """A program that prints its answer."""

    def __init__(self) -> None:
        self.summary = Summary()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        summary = self.summary
        summary.has_text = summary.has_text or bool(data.strip())
        tail = self._decoder.decode(data[-4 * FINAL_TEXT_CHARS :])
        summary.final_text = (summary.final_text + tail)[-FINAL_TEXT_CHARS:]
        return data, b""

    def end(self) -> tuple[bytes, bytes]:
        return b"", b""


class JsonLines(TextStream):
    """A program that prints JSON records, one a line; a subclass understands each in `record`.

    A record ends at LF and nowhere else (U+2028 may stand inside). A line over `line_bytes` counts
    as garbage, as does one that is no JSON object.
    """

    line_bytes = LINE_BYTES

    def __init__(self) -> None:
        self.summary = Summary()
        self._text: list[str] = []
        self._records: list[bytes] = []
        self._rest = bytearray()  # of a line that is not complete
        self._told = 0  # characters of the present answer that were told as text already
        self._ends_line = True  # the text told so far ends a line, or there is none
        self._turn: str | None = None  # which turn of the model is present; None between two

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        first, *more = data.split(b"\n")
        self._rest += first
        for rest in more:
            self._line(bytes(self._rest))
            self._rest = bytearray(rest)
        if len(self._rest) > self.line_bytes:
            # so that what follows of this line is no record, either
            self._rest = bytearray(b"too long")
        parsed = "".join(self._text).encode("utf-8", "replace"), b"".join(self._records)
        self._text, self._records = [], []
        return parsed

    def end(self) -> tuple[bytes, bytes]:
        return self.feed(b"\n")  # an unfinished line may be a record all the same

    def record(self, kind: str, record: dict[str, Any], line: bytes) -> None:
        """Understand one record; `kind` is its `type`, `line` its text without the line's end."""
        raise NotImplementedError

    def _line(self, line: bytes) -> None:
        found = None
        with suppress(ValueError, RecursionError):
            found = json.loads(line)
        if isinstance(found, dict):
            self.summary.records += 1
            self.record(words(found, "type"), found, line)
        elif line.strip():
            self.summary.garbage_lines += 1

    # -- for the formats ---------------------------------------------------------------------------

    def keep(self, line: bytes) -> None:
        self._records.append(line + b"\n")

    def say(self, text: str) -> None:
        """Tell a piece of the present answer as it comes."""
        if text:
            self._text.append(text)
            self._told += len(text)
            self.summary.has_text = self.summary.has_text or bool(text.strip())
            self._ends_line = text.endswith("\n")

    def answer(self, text: str) -> None:
        """Take the whole present answer: tell what was not told yet, and end its last line."""
        self.say(text[self._told :])
        self._told = 0
        if text.strip():
            self.summary.final_text = text[-FINAL_TEXT_CHARS:]
        if not self._ends_line:
            self._ends_line = True
            self._text.append("\n")

    def fail(self, message: str, status: float = 0, error_type: ErrorType | None = None) -> None:
        """Note the error that the stream ends with, if nothing better follows, with its HTTP
        status in front.
        """
        number = int(status)
        self.summary.error_message = (
            f"{number}: {message}" if number and str(number) not in message else message
        )
        self.summary.error_type = error_type
        self.summary.stop_reason = "error"

    def done(self, stop_reason: str | None = "stop") -> None:
        self.summary.error_message = None
        self.summary.error_type = None
        self.summary.stop_reason = stop_reason

    def deny(self, tool: str) -> None:
        """Note that the agent was not allowed to use a tool."""
        name = tool or "a tool"
        self.summary.denied[name] = self.summary.denied.get(name, 0) + 1

    def note(self, text: str) -> None:
        """Note a complaint that is no failure."""
        if text and len(self.summary.notices) < _MOST_NOTICES:
            self.summary.notices.append(text[:_NOTICE_CHARS])

    def spend(self, used: Usage) -> None:
        both = map(operator.add, structs.astuple(self.summary.usage), structs.astuple(used))
        self.summary.usage = Usage(*both)

    def turn(self, name: str | None = None) -> bool:
        """Count a turn of the model; one with a name, which is told in several records, once.

        Say if it is another.
        """
        if name is not None and name == self._turn:
            return False
        self._turn = name
        self.summary.is_last_answer = False
        self.spend(Usage(turns=1))
        return True


# -- careful reading -------------------------------------------------------------------------------


def member(record: Any, *path: str) -> Any:
    for name in path:
        record = record.get(name) if isinstance(record, dict) else None
    return record


def words(record: Any, *path: str) -> str:
    found = member(record, *path)
    return found if isinstance(found, str) else ""


def amount(record: Any, *path: str) -> float:
    """Return a number that is neither negative nor without end; 0 where there is none."""
    found = member(record, *path)
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return 0.0
    return float(found) if 0 <= found < float("inf") else 0.0


def tokens(
    used: Any, *names: str, total: str = "", counts_cached: bool = False, cost: float = 0.0
) -> Usage:
    """Return what was used; `names` are of input, output, cache read and written.

    Where no `total` is told it is their sum; of all four where the input is told without the cached
    (`counts_cached`).
    """
    read, written, cached, cache_written = (int(amount(used, *name.split("."))) for name in names)
    added = read + written + (cached + cache_written if counts_cached else 0)
    return Usage(read, written, cached, cache_written, int(amount(used, total)) or added, cost)


def block_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(words(each, "text") for each in blocks if words(each, "type") == "text")


# -- the formats -----------------------------------------------------------------------------------


class PiStream(JsonLines):
    """`pi --mode json`: delta-only since 0.84, every update with the whole message before; both are
    read the same way.

    Kept are sessions, whole messages (not the system prompt), tool calls, retries, compactions;
    never an update, nor the copies that `turn_end` and `agent_end` carry. `agent_end` is the end
    unless it says that it will retry or another start follows; `agent_settled` (since 0.80.4) is
    the end.
    """

    def record(self, kind: str, record: dict[str, Any], line: bytes) -> None:
        summary, message = self.summary, member(record, "message")
        if kind in {"turn_end", "agent_end"}:
            copies = {"message", "messages", "toolResults"}
            line = json.dumps(
                {name: value for name, value in record.items() if name not in copies}
            ).encode()
        dropped = {"message_update", "tool_execution_update", "message_start"}
        if kind not in dropped and words(message, "role") != "system":
            self.keep(line)
        match kind:
            case "agent_start" | "auto_retry_start":
                summary.settled = False
                summary.is_last_answer = False
            case "turn_start":
                self.turn()
                summary.settled = False
            case "message_update" if words(record, "assistantMessageEvent", "type") == "text_delta":
                self.say(words(record, "assistantMessageEvent", "delta"))
            case "message_end" if words(message, "role") == "assistant":
                stop, used = words(message, "stopReason") or None, member(message, "usage")
                self.done(stop)
                summary.is_last_answer = stop in _LAST_ANSWER
                if stop in {"error", "aborted"}:
                    summary.error_message = words(message, "errorMessage") or stop
                summary.final_text = ""
                names, cost = (
                    ("input", "output", "cacheRead", "cacheWrite"),
                    amount(used, "cost", "total"),
                )
                self.spend(tokens(used, *names, total="totalTokens", cost=cost))
                self.answer(block_text(member(message, "content")))
            case "message_end" if (
                words(message, "role") == "toolResult" and member(message, "isError") is True
            ):
                # A tool that it may not use is not there.
                if re.fullmatch(
                    r"Tool \S+ not found", block_text(member(message, "content")).strip()
                ):
                    self.deny(words(message, "toolName"))
            case "agent_end" if member(record, "willRetry") is not True:
                summary.settled = True
            case "agent_settled":
                summary.settled = True


class ClaudeStream(JsonLines):
    """`claude -p --output-format stream-json --verbose`, and qwen's `-o stream-json`, which speaks
    the same words.

    The last record, `result`, decides: `is_error` true is a failure whatever `subtype` says, and
    its totals replace what was added up on the way. An answer of several blocks is several records
    with one message id; an error is also told as an answer of the model `<synthetic>`, which nobody
    gave. qwen 0.15 calls an answer that begins with `[API Error: ` a success, and exits with 0; it
    counts the cached tokens among those of the input.
    """

    def record(self, kind: str, record: dict[str, Any], line: bytes) -> None:
        if kind == "stream_event":
            if words(record, "event", "delta", "type") == "text_delta":
                self.say(words(record, "event", "delta", "text"))
            return
        self.keep(line)
        if kind == "assistant" and words(record, "message", "model") != "<synthetic>":
            message = member(record, "message")
            if self.turn(words(message, "id") or words(record, "uuid")):
                self.spend(self._tokens(message))
            self.summary.is_last_answer = words(message, "stop_reason") in _LAST_ANSWER
            text = block_text(member(message, "content"))
            if not text.startswith("[API Error: "):
                self.answer(text)
        elif kind == "result":
            self._result(record)

    def _result(self, record: dict[str, Any]) -> None:
        summary = self.summary
        text, stop = words(record, "result"), words(record, "stop_reason")
        subtype, ending = words(record, "subtype"), words(record, "terminal_reason")
        # `error_max_turns` and its like are told with `is_error` false: it stopped itself.
        stopped_itself = subtype.startswith("error")
        if member(record, "is_error") is True or stopped_itself or text.startswith("[API Error: "):
            message = (
                text
                or words(record, "error", "message")
                or f"it stopped itself: {subtype or 'error'}"
            )
            error_type = ErrorType.BUDGET_EXCEEDED if subtype.startswith("error_max") else None
            self.fail(message, amount(record, "api_error_status"), error_type)
            if stop == "refusal":
                summary.stop_reason = stop
        else:
            self.done(stop or "stop")
            if ending not in {"", "completed"}:
                self.note(f"it ended with {ending!r}")
            if not summary.has_text or not summary.final_text:
                self.answer(text)
        denials = member(record, "permission_denials")
        summary.denied = {}  # a later result has those of the earlier ones, too
        for denial in denials if isinstance(denials, list) else []:
            self.deny(words(denial, "tool_name"))
        summary.settled = True
        turns = int(amount(record, "num_turns")) or summary.usage.turns  # old ones leave them out
        summary.usage = structs.replace(
            self._tokens(record), cost=amount(record, "total_cost_usd"), turns=turns
        )

    def _tokens(self, holder: Any) -> Usage:
        # qwen tells a total, and counts the cached tokens among those of the input.
        self.summary.cached_in_input = amount(holder, "usage", "total_tokens") > 0
        names = (
            "input_tokens",
            "output_tokens",
            "cache_read_input_tokens",
            "cache_creation_input_tokens",
        )
        return tokens(member(holder, "usage"), *names, total="total_tokens", counts_cached=True)


class CodexStream(JsonLines):
    """`codex exec --json`: threads, turns, items. An item of type `error` is no failure;
    `turn.failed` is one.

    What codex calls a turn is the whole run, and its tokens are told at its end alone. A turn of
    the model, which the ceiling `turns` counts, begins with the run and after the result of a tool.
    """

    def record(self, kind: str, record: dict[str, Any], line: bytes) -> None:
        summary, item = self.summary, words(record, "item", "type")
        if kind not in {"item.started", "item.updated"}:
            self.keep(line)
        match kind:
            case "turn.started" | "item.started":
                self.turn(_PRESENT)
            case "item.completed" if item == "agent_message":
                self.turn(_PRESENT)
                self.answer(words(record, "item", "text"))
            case "item.completed" if item in {
                "command_execution",
                "file_change",
                "mcp_tool_call",
                "web_search",
            }:
                self._turn = None
                self._denied(item, member(record, "item"))
            case "turn.completed":
                summary.cached_in_input = True
                names = (
                    "input_tokens",
                    "output_tokens",
                    "cached_input_tokens",
                    "cache_write_input_tokens",
                )
                self.spend(tokens(member(record, "usage"), *names))
                self.done()
                summary.settled = True
            case "turn.failed":
                self.fail(
                    words(record, "error", "message") or summary.error_message or "the turn failed"
                )
                summary.settled = True
            case "error":  # one on the way is an error only if nothing better follows
                summary.error_message = words(record, "message") or None

    def _denied(self, kind: str, item: Any) -> None:
        if words(item, "status") == "declined":
            self.deny(kind)
        elif words(item, "status") == "failed" and "Read-only file system" in words(
            item, "aggregated_output"
        ):
            self.note("its sandbox refused a command: Read-only file system")


class GeminiStream(JsonLines):
    """`gemini -o stream-json`. Errors may come on stderr after a stack trace.

    An answer is told in pieces, and nothing says where it ends but the call of a tool or the
    result. A record `error` may come before a result that has none of its own. It may also come
    before a result that says `success`, where gemini ended a loop, or itself had enough turns:
    without an answer after it, that is how the run ended.
    """

    _OWN_STOP = re.compile(
        r"\b(loop|stopp|maximum|exceed|limit|blocked|abort|cancel)", re.IGNORECASE
    )
    _TURNS = re.compile(r"\bturns\b", re.IGNORECASE)
    _LOOP = re.compile(r"\bloop\b", re.IGNORECASE)
    _DENIALS = frozenset(
        ("tool_not_registered", "policy_violation", "tool_denied", "permission_denied")
    )

    def __init__(self) -> None:
        super().__init__()
        # names of the tools that are in use, by the id of the call
        self._tools: dict[str, str] = {}

    def record(self, kind: str, record: dict[str, Any], line: bytes) -> None:
        summary, is_answer = (
            self.summary,
            kind == "message" and words(record, "role") == "assistant",
        )
        if not is_answer:
            self.keep(line)
        if (is_answer or kind == "tool_use") and self.turn(_PRESENT):
            summary.final_text = ""
        match kind:
            case "message" if is_answer:
                said = words(record, "content")
                if summary.error_message is not None and said.strip():
                    self.done(None)  # something better follows
                summary.final_text = (summary.final_text + said)[-FINAL_TEXT_CHARS:]
                self.say(said)
            case "tool_use":
                self.answer("")
                self._tools[words(record, "tool_id")] = words(record, "tool_name")
            case "tool_result":
                self._turn = None
                tool = self._tools.pop(words(record, "tool_id"), "")
                if words(record, "error", "type") in self._DENIALS:
                    self.deny(tool)
            case "error":
                self._complained(record)
            case "result":
                summary.cached_in_input = True
                if words(record, "status") == "success":
                    if summary.error_message is None:
                        self.done()
                elif summary.error_message is None or member(record, "error") is not None:
                    self._failed(member(record, "error"))
                summary.settled = True
                names = ("input_tokens", "output_tokens", "cached", "")
                # thoughts are in the total alone
                used = tokens(member(record, "stats"), *names, total="total_tokens")
                summary.usage = structs.replace(used, turns=summary.usage.turns)
                self.answer("")

    def _complained(self, record: dict[str, Any]) -> None:
        error = record.get("error", record)
        message = words(error, "message")
        if words(record, "severity") == "warning" and not self._OWN_STOP.search(message):
            self.note(message)
        elif self._TURNS.search(message):
            self.fail(message, error_type=ErrorType.BUDGET_EXCEEDED)
        elif self._LOOP.search(message):
            self.fail(message, error_type=ErrorType.MISSING_OUTPUT)
        else:
            self._failed(error)

    def _failed(self, error: Any) -> None:
        self.fail(words(error, "message") or "error", amount(error, "code"))


class OpencodeStream(JsonLines):
    """`opencode run --format json`: texts, steps with their tokens and cost, and `error` records
    with an HTTP status.

    It ends by itself; no record says that it is done.
    """

    def record(self, kind: str, record: dict[str, Any], line: bytes) -> None:
        self.keep(line)
        part, error = member(record, "part"), member(record, "error")
        match kind:
            case "text":
                self.answer(words(part, "text"))
            case "tool_use" if "rejected permission" in words(part, "state", "error"):
                self.deny(words(part, "tool"))
            case "step_start":
                self.turn()
            case "step_finish":
                self.done(words(part, "reason") or "stop")
                self.summary.is_last_answer = self.summary.stop_reason in _LAST_ANSWER
                names = ("tokens.input", "tokens.output", "tokens.cache.read", "tokens.cache.write")
                self.spend(tokens(part, *names, counts_cached=True, cost=amount(part, "cost")))
                thoughts = int(amount(part, "tokens", "reasoning"))
                self.spend(Usage(output_tokens=thoughts, total_tokens=thoughts))
            case "error":
                message = words(error, "data", "message") or words(error, "name") or "error"
                self.fail(message, amount(error, "data", "statusCode"))


PARSERS: dict[str, type[TextStream]] = {
    "text": TextStream,
    "pi-jsonl": PiStream,
    "claude-json": ClaudeStream,
    "codex-jsonl": CodexStream,
    "gemini-json": GeminiStream,
    "opencode-jsonl": OpencodeStream,
}

"""What agents print, read in whatever pieces it comes: `feed` gives text for stdout and records worth keeping.

A parser never raises for what a program wrote. `summary` says what the stream came to so far.
"""

from __future__ import annotations

import codecs
import json
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from supervisord_py.ledger.pipe_executions import Usage

FINAL_TEXT_CHARS = 64 * 1024
LINE_BYTES = 16 * 1024 * 1024


class Parsed(NamedTuple):
    """What a piece of output held: bytes for stdout, and whole JSON lines for `events.jsonl`."""

    text: bytes = b""
    records: bytes = b""


class Summary(msgspec.Struct):
    """What a stream came to so far."""

    final_text: str = ""  # the last words of the assistant, at most FINAL_TEXT_CHARS; "" where there were none
    has_text: bool = False  # something other than white space was said
    stop_reason: str | None = None  # why the last answer ended, in the agent's word; None where nobody said
    error_message: str | None = None  # the error that the stream ended with; None where it did not
    settled: bool = False  # the agent says that it is done. Its process may not know: give it a grace, then stop it.
    records: int = 0  # how many records were understood; always 0 for text agents
    garbage_lines: int = 0  # lines that should have been records and were not
    session_id: str | None = None  # the agent's own id of its session
    usage: Usage = Usage()


class TextStream:
    """One run of a program that prints its answer."""

    def __init__(self) -> None:
        self.summary = Summary()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, data: bytes) -> Parsed:
        """Take the next bytes."""
        summary = self.summary
        summary.has_text = summary.has_text or bool(data.strip(b" \t\r\n\v\f"))
        tail = self._decoder.decode(data[-4 * FINAL_TEXT_CHARS :])
        summary.final_text = (summary.final_text + tail)[-FINAL_TEXT_CHARS:]
        return Parsed(data)

    def end(self) -> Parsed:
        """Take the end of the stream; once."""
        return Parsed()


class JsonLines(TextStream):
    """A stream of JSON records, one a line; a subclass understands each in `record`.

    A record ends at LF and nowhere else (U+2028 may stand inside). A line over `line_bytes` is skipped to its end and
    counted as garbage; so is one that is no JSON object.
    """

    def __init__(self, *, line_bytes: int = LINE_BYTES) -> None:
        self.summary = Summary()
        self._line_bytes = line_bytes
        self._text: list[str] = []
        self._records: list[bytes] = []
        self._rest: list[bytes] = []  # pieces of the line that is not complete: joined once, when it is
        self._rest_bytes = 0
        self._skipping = False
        self._told = 0  # characters of the present answer that were told as text already
        self._ends_line = True  # the text told so far ends a line, or there is none
        self._turn: str | None = None  # which turn of the model is present; None between two

    def feed(self, data: bytes) -> Parsed:
        """Take the next bytes."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._line(line)
        self._rest.append(rest)
        self._rest_bytes += len(rest)
        if self._rest_bytes > self._line_bytes:
            self._rest, self._rest_bytes, self._skipping = [], 0, True
        return self._taken()

    def end(self) -> Parsed:
        """Take the end of the stream: an unfinished line may be a record all the same."""
        self._line(b"")
        return self._taken()

    def record(self, kind: str, record: dict[str, Any], line: bytes) -> None:
        """Understand one record; `kind` is its `type`, `line` its text without the line's end."""
        raise NotImplementedError

    def _taken(self) -> Parsed:
        parsed = Parsed("".join(self._text).encode("utf-8", "replace"), b"".join(self._records))
        self._text, self._records = [], []
        return parsed

    def _line(self, last: bytes) -> None:
        line = b"".join((*self._rest, last))
        self._rest, self._rest_bytes = [], 0
        if self._skipping:
            self._skipping = False
            self.summary.garbage_lines += 1
            return
        if not line.strip():
            return
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            self.summary.garbage_lines += 1
            return
        self.summary.records += 1
        self.record(words(found, "type") or "", found, line)

    # -- for the formats -----------------------------------------------------------------------------------------------

    def keep(self, line: bytes) -> None:
        """Keep a record, without its line's end."""
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

    def fail(self, message: str | None) -> None:
        """Note the error that the stream ends with, if nothing better follows."""
        self.summary.error_message, self.summary.stop_reason = message, "error"

    def spend(self, used: Usage) -> None:
        """Add to what was used, turns excepted."""
        before = self.summary.usage
        self.summary.usage = Usage(
            before.input_tokens + used.input_tokens,
            before.output_tokens + used.output_tokens,
            before.cache_read_tokens + used.cache_read_tokens,
            before.cache_write_tokens + used.cache_write_tokens,
            before.total_tokens + used.total_tokens,
            before.cost + used.cost,
            before.turns,
        )

    def turn(self, name: str | None = None) -> bool:
        """Count a turn of the model; one with a name, which is told in several records, once. Say if it is another."""
        if name is not None and name == self._turn:
            return False
        self._turn = name
        self.summary.usage = structs.replace(self.summary.usage, turns=self.summary.usage.turns + 1)
        return True


# -- careful reading: a wrong type is as good as nothing, never an error -----------------------------------------------


def member(record: Any, *path: str) -> Any:
    """Return what lies at a path of member names, None where there is nothing."""
    for name in path:
        if not isinstance(record, dict):
            return None
        record = record.get(name)
    return record


def words(record: Any, *path: str) -> str | None:
    """Return a text."""
    found = member(record, *path)
    return found if isinstance(found, str) else None


def amount(record: Any, *path: str) -> float:
    """Return a number that is neither negative nor without end; 0 where there is none."""
    found = member(record, *path)
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return 0.0
    return float(found) if 0 <= found < float("inf") else 0.0


def count(record: Any, *path: str) -> int:
    """Return the same as a whole number."""
    return int(amount(record, *path))


def block_text(content: Any) -> str:
    """Return the joined texts of a message's content: a text, or a list of blocks."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return "".join(words(each, "text") or "" for each in blocks if words(each, "type") == "text")


def with_status(status: int, message: str) -> str:
    """Put an HTTP status that stands beside a message in front of it, unless the message names it."""
    return f"{status}: {message}" if status and str(status) not in message else message


class PiStream(JsonLines):
    """`pi --mode json`: delta-only since 0.84, every update with the whole message before; both are read the same way.

    Kept are sessions, whole messages (not the system prompt), tool calls, retries, compactions; never an update, nor
    the copies that `turn_end` and `agent_end` carry. `agent_end` is the end unless it says that it will retry or
    another start follows; `agent_settled` (since 0.80.4) is the end.
    """

    def record(self, kind: str, record: dict[str, Any], line: bytes) -> None:
        """Understand one record."""
        summary = self.summary
        self._keep_some(kind, record, line)
        match kind:
            case "session":
                summary.session_id = words(record, "id")
            case "agent_start" | "auto_retry_start":
                summary.settled = False
            case "turn_start":
                self.turn()
                summary.settled = False
            case "message_update" if words(record, "assistantMessageEvent", "type") == "text_delta":
                self.say(words(record, "assistantMessageEvent", "delta") or "")
            case "message_end" if words(record, "message", "role") == "assistant":
                self._answered(record["message"])
            case "agent_end" if member(record, "willRetry") is not True:
                summary.settled = True
            case "agent_settled":
                summary.settled = True

    def _keep_some(self, kind: str, record: dict[str, Any], line: bytes) -> None:
        dropped = {"message_update", "tool_execution_update", "message_start"}
        if kind in dropped or words(record, "message", "role") == "system":
            return
        if kind in {"turn_end", "agent_end"}:
            copies = {"message", "messages", "toolResults"}
            line = json.dumps({name: value for name, value in record.items() if name not in copies}).encode()
        self.keep(line)

    def _answered(self, message: Any) -> None:
        summary, used = self.summary, member(message, "usage")
        stop = summary.stop_reason = words(message, "stopReason")
        summary.error_message = (words(message, "errorMessage") or stop) if stop in {"error", "aborted"} else None
        summary.final_text = ""
        read, written = count(used, "input"), count(used, "output")
        cached, cache_written = count(used, "cacheRead"), count(used, "cacheWrite")
        total = count(used, "totalTokens") or read + written
        self.spend(Usage(read, written, cached, cache_written, total, amount(used, "cost", "total")))
        self.answer(block_text(member(message, "content")))

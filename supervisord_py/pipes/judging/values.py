"""What an agent's output means: the things a stream parser tells, and what is known of it in the end. Frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from supervisord_py.pipes.execution import ErrorType, Usage


@dataclass(frozen=True, slots=True)
class Text:
    """Bytes for the execution's stdout: for JSON agents the assistant's words as they come."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """A record of the stream that is worth keeping: one JSON line, newline included, for `events.jsonl`."""

    line: bytes


@dataclass(frozen=True, slots=True)
class Settled:
    """The agent says that it is done. Its process may not know: give it a grace, then stop it."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """It was not done after all."""


Happening = Text | Kept | Settled | Resumed


@dataclass(frozen=True, slots=True)
class Summary:
    """What a whole stream came to.

    Attributes:
        final_text: The last words of the assistant, at most FINAL_TEXT_CHARS; "" where there were none.
        has_text: Something other than white space was said.
        stop_reason: Why the last answer ended, in the agent's word; None where nobody said.
        error_message: The error that the stream ended with; None where it did not.
        settled: The agent said that it was done.
        records: How many records were understood; always 0 for text agents.
        garbage_lines: Lines that should have been records and were not.
        session_id: The agent's own id of its session.
    """

    final_text: str = ""
    has_text: bool = False
    stop_reason: str | None = None
    error_message: str | None = None
    settled: bool = False
    records: int = 0
    garbage_lines: int = 0
    session_id: str | None = None
    usage: Usage = field(default_factory=Usage)


FINAL_TEXT_CHARS = 64 * 1024


class Requirement(StrEnum):
    """What an execution must have given, beside a good exit code."""

    NOTHING = "nothing"
    """The exit code alone decides."""
    TEXT = "text"
    """Something other than white space on stdout."""
    FINAL_TEXT = "final_text"
    """A last answer with text that ended normally."""


@dataclass(frozen=True, slots=True)
class ErrorPattern:
    """A regular expression of an adapter (searched without regard to case) and what it means."""

    error_type: ErrorType
    pattern: str


@dataclass(frozen=True, slots=True)
class SuccessRule:
    """When an agent's execution has succeeded.

    Attributes:
        exit_codes: Good ones.
        require: And what else.
        patterns: The adapter's own error patterns, before the built-in table.
        scan_output: Look for `patterns` in stdout even after a good exit: for agents that hide their failures.
    """

    exit_codes: tuple[int, ...] = (0,)
    require: Requirement = Requirement.FINAL_TEXT
    patterns: tuple[ErrorPattern, ...] = ()
    scan_output: bool = False


class Cause(StrEnum):
    """Why we ended an execution ourselves; NOBODY where it ended by itself."""

    NOBODY = "nobody"
    SETTLED = "settled"
    TIMEOUT = "timeout"
    SILENT = "silent"
    CANCELLED = "cancelled"
    SHUTDOWN = "shutdown"
    INTERRUPTED = "interrupted"
    BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class Ending:
    """All that is known when nothing of an execution runs any more.

    Attributes:
        cause: Who ended it.
        code, signal: Of the leader; both None where nobody knows.
        limit: The keeper's verdict where it killed for one (`memory_limit`, `oom_kill`, `cpu_limit`), else None.
        stdout_tail, stderr_tail: Text of the last bytes.
        detail: Why the cause came, for the message: the timeout in words, the ceiling, what survived the stop.
    """

    cause: Cause
    code: int | None = None
    signal: int | None = None
    limit: str | None = None
    stdout_tail: str = ""
    stderr_tail: str = ""
    detail: str | None = None

"""What an execution is: one accepted run of a pipe, one row of the ledger. Frozen values, no I/O.

The life of one: queued → running → completed | failed | timed_out | cancelled. A retry is a new execution that names
the one before it. What it needs to run (preset, prompt inputs, time window, limits) is frozen when it is queued.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Status(StrEnum):
    """Where an execution is. The last four are final."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether it never changes again."""
        return self not in {Status.QUEUED, Status.RUNNING}


class Trigger(StrEnum):
    """Why an execution was queued."""

    MANUAL = "manual"
    SCHEDULED = "scheduled"
    EVENT = "event"
    RETRY = "retry"


class Group(StrEnum):
    """Which slots an execution waits for. A retry waits in the group of the first try."""

    SCHEDULED = "scheduled"
    EVENT = "event"
    MANUAL = "manual"


class ErrorType(StrEnum):
    """Why an execution failed: the closed list of CONTRACT §7, and the four that DESIGN D41 adds."""

    TIMEOUT = "timeout"
    CRASH = "crash"
    RATE_LIMITED = "rate_limited"
    QUOTA_EXHAUSTED = "quota_exhausted"
    MODEL_NOT_FOUND = "model_not_found"
    AUTH_FAILED = "auth_failed"
    NETWORK = "network"
    CONTEXT_OVERFLOW = "context_overflow"
    SAFETY_REFUSAL = "safety_refusal"
    CANCELLED = "cancelled"
    SHUTDOWN = "shutdown"
    INTERRUPTED = "interrupted"
    AGENT_NOT_FOUND = "agent_not_found"
    PRESET_NOT_FOUND = "preset_not_found"
    CONFIG_ERROR = "config_error"
    MISSING_OUTPUT = "missing_output"
    PREFLIGHT_FAILED = "preflight_failed"
    DISK_FULL = "disk_full"
    UNKNOWN = "unknown"
    AGENT_INCOMPATIBLE = "agent_incompatible"
    PROVIDER_ERROR = "provider_error"
    BUDGET_EXCEEDED = "budget_exceeded"
    RESOURCE_LIMIT = "resource_limit"


@dataclass(frozen=True, slots=True)
class Usage:
    """What a model was paid for. Tokens are counts, cost is in US dollars; all zero where nobody said."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    total_tokens: int = 0
    cost: float = 0.0
    turns: int = 0


@dataclass(frozen=True, slots=True)
class Preset:
    """A model to run with, resolved and frozen. The key is a reference, never a key.

    Attributes:
        id: Its name in presets.toml; None for what the pipe itself or the adapter says.
        provider: As the agent calls it; a custom one has `url` and `api`.
        model: As the provider calls it; None lets the agent choose.
        url: Base address of a custom or local provider.
        api: Wire protocol at that address (`openai-completions`, `anthropic-messages`, …).
        api_key: `$ENV`, `file:PATH`, `cmd:ARGV`, or None.
        prompt: Stands before the pipe's own body.
        effort: `low`, `medium`, `high`, or None.
        input_cost, output_cost: US dollars for a million tokens, for agents that cannot know them; None = unknown.
    """

    id: str | None = None
    provider: str | None = None
    model: str | None = None
    url: str | None = None
    api: str | None = None
    api_key: str | None = None
    prompt: str | None = None
    effort: str | None = None
    input_cost: float | None = None
    output_cost: float | None = None
    context_window: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is frozen at the queueing, beside the preset: how this execution is to be run.

    Attributes:
        agent: Name of the adapter.
        command: Argv of the `command` adapter; empty for all others.
        timeout_seconds: Wall clock of the run, from the spawn.
        wanted_seconds: The same as it was asked for, where it was more than `pipes.timeout_max_seconds`; else None.
        max_turns, max_tokens, max_cost: Ceilings that end the run; None for none.
        retries: How many further tries may follow a failure that can pass by itself.
        fallbacks: Presets that are tried, in order, after this one failed.
        allow_empty: No text is no failure.
        history: Keep the agent's session between executions.
        memory_bytes: Resident limit of the tree; None for none.
        context: Facts of the trigger (`{event, key, data}`) or of the caller, shown to the agent; JSON values.
    """

    agent: str
    command: tuple[str, ...] = ()
    timeout_seconds: float = 300.0
    max_turns: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    retries: int = 0
    fallbacks: tuple[Preset, ...] = ()
    allow_empty: bool = False
    history: bool = False
    memory_bytes: int | None = None
    context: Mapping[str, Any] | None = None
    wanted_seconds: float | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of it is not as it was asked for: sentences for people."""
        if self.wanted_seconds is None:
            return ()
        return (cut_timeout(self.wanted_seconds, self.timeout_seconds),)


def cut_timeout(wanted: float, most: float) -> str:
    """Say that a timeout is more than there may be. Both in seconds."""
    return f"timeout: {wanted:g} s is cut to {most:g} s (pipes.timeout_max_seconds)"


@dataclass(frozen=True, slots=True)
class Execution:
    """One row of `pipe_executions`. Times are Unix seconds here, UTC ISO texts with milliseconds in the file.

    Attributes:
        id: Grows; never given twice.
        pipe_name: Folder name of the pipe.
        position: 1-based place in its group's line while queued, else None. Not stored.
        not_before: A retry or a staggered start waits until then; None = at once.
        pid, start_time, boot_id, instance: Who runs it: identity and the placement's key.
        trigger_event, trigger_key: The event that led to it, and its key.
        context_start, context_end: The time window that the prompt names.
        stdout, stderr: Text up to the cap (head and tail around a marker); None in lists.
        stdout_bytes, stderr_bytes: Of the whole output.
        invalid_utf8: Some bytes were no UTF-8; they are kept in the files and replaced in the text.
        lost_bytes: Output of any stream that can be read nowhere (over the cap of its file, full disk); normally 0.
        output_dir: The folder that the agent was told to write to.
        session_path: Where the agent left its session, if it keeps one.
    """

    id: int
    pipe_name: str
    status: Status
    trigger: Trigger
    group: Group
    queued_at: float
    plan: Plan
    preset: Preset
    position: int | None = None
    not_before: float | None = None
    started_at: float | None = None
    finished_at: float | None = None
    queue_wait_ms: int | None = None
    duration_ms: int | None = None
    pid: int | None = None
    start_time: int | None = None
    boot_id: str | None = None
    instance: str | None = None
    trigger_event: str | None = None
    trigger_key: str | None = None
    rendered_prompt: str | None = None
    api_port: int | None = None
    context_start: float | None = None
    context_end: float | None = None
    stdout: str | None = None
    stderr: str | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    invalid_utf8: bool = False
    lost_bytes: int = 0
    exit_code: int | None = None
    signal: int | None = None
    error_type: ErrorType | None = None
    error_message: str | None = None
    retry_of: int | None = None
    retry_count: int = 0
    usage: Usage = field(default_factory=Usage)
    output_dir: str | None = None
    incomplete: bool = False
    session_path: str | None = None
    agent_version: str | None = None

    @property
    def truncated(self) -> bool:
        """Whether not all of its output was kept."""
        return self.lost_bytes > 0

    @property
    def unit(self) -> str:
        """`pipe:<name>`."""
        return f"pipe:{self.pipe_name}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an execution ended, decided once.

    Attributes:
        status: A final one.
        retry_after_seconds: What the provider asked for, where it did.
    """

    status: Status
    error_type: ErrorType | None = None
    error_message: str | None = None
    retry_after_seconds: float | None = None

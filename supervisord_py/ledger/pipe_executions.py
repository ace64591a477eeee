"""Executions of pipes: one Struct is the row, the object and the document; and how a row changes.

The life of one: queued → running → completed | failed | timed_out | cancelled. A retry is a new execution that names
the one before it. What it needs to run (preset, prompt, time window, limits) is frozen when it is queued.

Law: one execution of a pipe runs at a time, in all daemons that share the file: the row says `running` before anything
is spawned, and SQLite refuses a second one. The first end that is recorded stands. A full disk stops nobody: what it
does not take is written later.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from supervisord_py.errors import ConflictError
from supervisord_py.ledger.table import Table

if TYPE_CHECKING:
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.ledger.table import Operation


class Status(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self not in {Status.QUEUED, Status.RUNNING}


class Trigger(StrEnum):
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


class Usage(msgspec.Struct, frozen=True):
    """What a model was paid for. Tokens are counts, cost is in US dollars; all zero where nobody said."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    total_tokens: int = 0
    cost: float = 0.0
    turns: int = 0


_Word = Annotated[str, Meta(min_length=1)]
_Cost = Annotated[float, Meta(ge=0)]
_Count = Annotated[int, Meta(ge=1)]


class Preset(msgspec.Struct, frozen=True):
    """A model to run with, resolved and frozen; see presets.toml(5). The key is a reference, never a key."""

    id: str | None = None  # its name in presets.toml; None for what the pipe itself or the adapter says
    provider: _Word | None = None
    model: _Word | None = None  # as the provider calls it; None lets the agent choose
    url: _Word | None = None  # base address of a custom or local provider
    api: _Word | None = None  # the wire protocol there
    api_key: _Word | None = None
    prompt: _Word | None = None  # stands before the pipe's own body
    effort: str | None = None
    input_cost: _Cost | None = None  # US dollars for a million tokens, for agents that cannot know them
    output_cost: _Cost | None = None
    context_window: _Count | None = None
    max_tokens: _Count | None = None


class Plan(msgspec.Struct, frozen=True):
    """What is frozen at the queueing, beside the preset: how this execution is to be run. None is no ceiling."""

    agent: str = "pi"
    command: tuple[str, ...] = ()  # argv of the `command` adapter; empty for all others
    timeout_seconds: float = 300.0  # wall clock of the run, from the spawn
    max_turns: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    retries: int = 0  # how many further tries may follow a failure that can pass by itself
    fallbacks: tuple[Preset, ...] = ()  # presets that are tried, in order, after this one failed
    allow_empty: bool = False  # no text is no failure
    history: bool = False  # keep the agent's session between executions
    memory_bytes: int | None = None  # resident limit of the tree
    context: Mapping[str, Any] | None = None  # of the trigger (`{event, key, data}`) or the caller, shown to the agent
    processes: int | None = None
    cpu_percent: int | None = None  # of one processor


class Execution(
    msgspec.Struct, frozen=True, kw_only=True, rename={"group": "queue_group", "preset": "preset_snapshot"}
):
    """One accepted run of a pipe. Times are Unix seconds, in the file ISO texts; what is not known (yet) is None."""

    id: int  # grows; never given twice
    pipe_name: str
    status: Status = Status.FAILED
    trigger: Trigger = Trigger.MANUAL
    group: Group = Group.MANUAL
    queued_at: float = 0.0
    agent: str = "pi"
    model: str | None = None
    provider: str | None = None
    preset_id: str | None = None
    position: int | None = None  # 1-based place in its group's line while queued, else None. Not stored.
    not_before: float | None = None  # a retry or a staggered start waits until then; None = at once
    started_at: float | None = None
    finished_at: float | None = None
    queue_wait_ms: int | None = None
    duration_ms: int | None = None
    timeout_seconds: float | None = None
    pid: int | None = None  # who runs it: identity, and the key of its process
    start_time: int | None = None
    boot_id: str | None = None
    instance: str | None = None
    trigger_event: str | None = None
    trigger_key: str | None = None
    api_port: int | None = None
    context_start: float | None = None  # the time window that the prompt names
    context_end: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    error_type: ErrorType | None = None
    error_message: str | None = None
    retry_of: int | None = None
    retry_count: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    total_tokens: int = 0
    cost: float = 0.0
    turns: int = 0
    output_dir: str | None = None  # where the agent was told to write
    session_path: str | None = None  # where it left its session, if it keeps one
    agent_version: str | None = None
    incomplete: bool = False  # it was cut off: what it wrote may be half-done
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    lost_bytes: int = 0  # more than 0: not all of its output was kept (a full disk)
    invalid_utf8: bool = False  # the text has U+FFFD for what is no UTF-8; the files have the bytes
    plan: Plan = Plan()
    preset: Preset = Preset()
    rendered_prompt: str | None = None
    progress: str | None = None  # what whoever takes it over must know while it runs; gone at its end
    stdout: str | None = None  # text up to the cap (head and tail around a marker), as is the next
    stderr: str | None = None

    @property
    def usage(self) -> Usage:
        return Usage(*(getattr(self, name) for name in Usage.__struct_fields__))

    @property
    def unit(self) -> str:
        return f"pipe:{self.pipe_name}"


class Outcome(msgspec.Struct, frozen=True):
    """How an execution ended, decided once. `retry_after_seconds`: what the provider asked for, where it did."""

    status: Status
    error_type: ErrorType | None = None
    error_message: str | None = None
    retry_after_seconds: float | None = None


EXECUTIONS = Table(
    "pipe_executions",
    Execution,
    moments=("queued_at", "not_before", "started_at", "finished_at", "context_start", "context_end"),
    blobs=("plan", "preset_snapshot", "rendered_prompt", "progress", "stdout", "stderr"),
    computed=("position",),
)
OPEN = "status IN ('queued', 'running')"
"""Condition of an update: an execution that is final stays as it is."""


def mark_running(number: int, **facts: Any) -> Operation:
    """Take an execution out of the queue, before its process is spawned.

    The operation raises ConflictError where another one of its pipe runs (`execution` and `pid` name it), or where it
    is not queued any more.
    """
    update = EXECUTIONS.update(number, "status = 'queued'", status=Status.RUNNING, **facts)

    def run(connection: sqlite3.Connection) -> None:
        try:
            if update(connection):
                return
        except sqlite3.IntegrityError:
            sql = """SELECT holder.pipe_name, holder.id, holder.pid FROM pipe_executions AS holder JOIN pipe_executions
                     AS mine ON mine.pipe_name = holder.pipe_name WHERE mine.id = ? AND holder.status = 'running'"""
            pipe, holder, pid = connection.execute(sql, (number,)).fetchone()
            process = "its process is not there yet" if pid is None else f"pid {pid}"
            raise ConflictError(
                f"pipe:{pipe} is already running: execution {holder}, {process}",
                hint=f"`pxctl pipe tail {holder}` follows it, `pxctl pipe cancel {holder}` ends it",
                unit=f"pipe:{pipe}",
                execution=holder,
                pid=pid,
            ) from None
        said = f"execution {number} is not queued any more"
        raise ConflictError(said, hint="see `pxctl pipe runs`", execution=number)

    return run


def finish(number: int, *, also: Operation | None = None, **facts: Any) -> Operation:
    """Record how an execution ended, queued or running, and `also` with it; the first end counts."""
    update = EXECUTIONS.update(number, OPEN, progress=None, **facts)

    def run(connection: sqlite3.Connection) -> None:
        if update(connection) and also is not None:
            also(connection)

    return run


async def open_rows(ledger: Ledger) -> list[Execution]:
    """Return what runs and what waits, whole, in the order of the line."""
    return await EXECUTIONS.find(ledger, f"WHERE {OPEN} ORDER BY queued_at, id")

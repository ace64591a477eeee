"""Pipes: their executions, of which one Struct is the row, the object and the document, and what is
remembered of each.

The life of one: queued → running → completed | failed | timed_out | cancelled. A retry is a new
execution that names the one before it. What it needs to run (preset, prompt, time window, limits)
is frozen when it is queued.

Law: one execution of a pipe runs at a time, in all daemons that share the file: the row says
`running` before anything is spawned, and SQLite refuses a second one. The first end that is
recorded stands. A full disk stops nobody: what it does not take is written later. A change of a
pipe's state says only what it changes, and rides in the transaction of the execution that it
belongs to: of two facts that are one a crash never keeps one. An event with a key starts a pipe
once: of two that claim one (pipe, event, key) exactly one gets it.

Law: a question costs what its answer is large, not what the history is: every one is answered from
an index, the rows themselves are fetched last, and large texts never. What is still open is never
pruned, nor the newest row of all: its id is where numbering goes on.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from supervisord_py.errors import ConflictError
from supervisord_py.ledger.store import Ledger
from supervisord_py.ledger.table import Operation, Table, to_text, together


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
    """Why an execution failed: the closed list of CONTRACT §7, and the four that DESIGN D41
    adds.
    """

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


class CostSource(StrEnum):
    """Who says what an execution cost."""

    AGENT = "agent"
    PRESET = "preset"  # tokens times the preset's prices


class Usage(msgspec.Struct, frozen=True):
    """What a model was paid for.

    Tokens are counts, cost is in US dollars; all zero where nobody said.
    """

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
    """A model to run with, resolved and frozen; see presets.toml(5).

    The key is a reference, never a key.
    """

    # its name in presets.toml; None for what the pipe itself or the adapter says
    id: str | None = None
    provider: _Word | None = None
    model: _Word | None = None  # as the provider calls it; None lets the agent choose
    url: _Word | None = None  # base address of a custom or local provider
    api: _Word | None = None  # the wire protocol there
    api_key: _Word | None = None
    prompt: _Word | None = None  # stands before the pipe's own body
    effort: str | None = None
    # US dollars for a million tokens, for agents that cannot know them
    input_cost: _Cost | None = None
    output_cost: _Cost | None = None
    # the same of tokens in a cache; None for the price of the input
    cache_read_cost: _Cost | None = None
    cache_write_cost: _Cost | None = None
    context_window: _Count | None = None
    max_tokens: _Count | None = None


class Plan(msgspec.Struct, frozen=True):
    """What is frozen at the queueing, beside the preset: how this execution is to be run.

    None is no ceiling.
    """

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
    # of the trigger (`{event, key, data}`) or the caller, shown to the agent
    context: Mapping[str, Any] | None = None
    processes: int | None = None
    cpu_percent: int | None = None  # of one processor
    # once it has completed, the next time range begins where its own ends
    range_counts: bool = True


class Execution(
    Usage, frozen=True, kw_only=True, rename={"group": "queue_group", "preset": "preset_snapshot"}
):
    """One accepted run of a pipe.

    Times are Unix seconds, in the file ISO texts; what is not known (yet) is None.
    """

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
    # 1-based place in its group's line while queued, else None. Not stored.
    position: int | None = None
    # what keeps it in its line, in words: who holds its slot. Not stored.
    waits_for: str | None = None
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
    output_dir: str | None = None  # where the agent was told to write
    session_path: str | None = None  # where it left its session, if it keeps one
    agent_version: str | None = None
    incomplete: bool = False  # it was cut off: what it wrote may be half-done
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    lost_bytes: int = 0  # more than 0: not all of its output was kept (a full disk)
    invalid_utf8: bool = False  # the text has U+FFFD for what is no UTF-8; the files have the bytes
    cost_source: CostSource | None = None  # None where the cost is not known: it is 0 then
    warnings: tuple[str, ...] = ()  # what went wrong without being a failure, as sentences
    plan: Plan = Plan()
    preset: Preset = Preset()
    rendered_prompt: str | None = None
    # what whoever takes it over must know while it runs; gone at its end
    progress: str | None = None
    stdout: str | None = None  # text up to the cap (head and tail around a marker), as is the next
    stderr: str | None = None

    @property
    def usage(self) -> Usage:
        return Usage(*(getattr(self, name) for name in Usage.__struct_fields__))

    @property
    def unit(self) -> str:
        return f"pipe:{self.pipe_name}"


class Outcome(msgspec.Struct, frozen=True):
    """How an execution ended, decided once.

    `retry_after_seconds`: what the provider asked for, where it did.
    """

    status: Status
    error_type: ErrorType | None = None
    error_message: str | None = None
    retry_after_seconds: float | None = None


EXECUTIONS = Table(
    "pipe_executions",
    Execution,
    moments=(
        "queued_at",
        "not_before",
        "started_at",
        "finished_at",
        "context_start",
        "context_end",
    ),
    blobs=("plan", "preset_snapshot", "rendered_prompt", "progress", "stdout", "stderr"),
    computed=("position", "waits_for"),
)
OPEN = "status IN ('queued', 'running')"
"""Condition of an update: an execution that is final stays as it is."""


def mark_running(number: int, **facts: Any) -> Operation:
    """Take an execution out of the queue, before its process is spawned.

    The operation raises ConflictError where another one of its pipe runs (`execution` and `pid`
    name it), or where it is not queued any more.
    """
    update = EXECUTIONS.update(number, "status = 'queued'", status=Status.RUNNING, **facts)

    def run(connection: sqlite3.Connection) -> None:
        try:
            if update(connection):
                return
        except sqlite3.IntegrityError:
            sql = """SELECT holder.pipe_name, holder.id, holder.pid
                     FROM pipe_executions AS holder
                     JOIN pipe_executions AS mine ON mine.pipe_name = holder.pipe_name
                     WHERE mine.id = ? AND holder.status = 'running'"""
            pipe, holder, pid = connection.execute(sql, (number,)).fetchone()
            said = (
                f"pipe:{pipe} is already running: execution {holder}, pid {pid or 'not known yet'}"
            )
            hint = f"`pxctl pipe tail {holder}` follows it, `pxctl pipe cancel {holder}` ends it"
            raise ConflictError(
                said, hint=hint, unit=f"pipe:{pipe}", execution=holder, pid=pid
            ) from None
        said = f"execution {number} is not queued any more"
        raise ConflictError(said, hint="see `pxctl pipe runs`", execution=number)

    return run


def finish(number: int, *, also: Operation | None = None, **facts: Any) -> Operation:
    """Record how an execution ended, queued or running, and `also` with it; the first end
    counts.
    """
    update = EXECUTIONS.update(number, OPEN, progress=None, **facts)

    def run(connection: sqlite3.Connection) -> None:
        if update(connection) and also is not None:
            also(connection)

    return run


# Each of the two has an index of its own, both together have none.
_OPEN_IDS = """SELECT id FROM pipe_executions INDEXED BY pipe_executions_waiting
    WHERE status = 'queued' UNION ALL
    SELECT id FROM pipe_executions INDEXED BY pipe_executions_running WHERE status = 'running'"""


async def open_rows(ledger: Ledger) -> list[Execution]:
    """Return what runs and what waits, whole, in the order of the line."""
    return await EXECUTIONS.find(ledger, f"WHERE id IN ({_OPEN_IDS}) ORDER BY queued_at, id")


# -- what is remembered of pipes -------------------------------------------------------------------


class PipeStateRow(msgspec.Struct, frozen=True):
    """One pipe. Times are Unix seconds."""

    pipe_name: str
    last_run_at: float | None = None
    last_success_at: float | None = None
    consecutive_failures: int = 0  # failures in a row
    enabled: bool | None = None  # what was wished on this machine; None = its file decides
    enabled_file: bool | None = None  # what its file said when that was wished
    schedule: str | None = None  # the text that `anchor_at`, `last_due` and `occurrences` belong to
    anchor_at: float | None = None  # where an interval that never ran counts from
    last_due: float | None = None  # the due time that was decided last, run or skipped
    occurrences: int = 0  # runs of this schedule
    last_context_end: float | None = None  # up to where the last success had looked
    last_decision: str | None = None  # what the scheduler said last
    last_decision_at: float | None = None


PIPE_STATES = Table(
    "pipe_scheduler_state",
    PipeStateRow,
    key="pipe_name",
    moments=(
        "last_run_at",
        "last_success_at",
        "anchor_at",
        "last_due",
        "last_context_end",
        "last_decision_at",
    ),
)


class Claim(NamedTuple):
    """A pipe's hold on one occurrence of an event. `claimed_at` is Unix seconds."""

    pipe_name: str
    event_name: str
    event_key: str
    claimed_at: float


def claimed(claim: Claim, operation: Operation) -> Operation:
    """Return an operation that does another one where the claim is free, and says whether it
    was.
    """
    sql = """INSERT INTO pipe_claims (pipe_name, event_name, event_key, claimed_at)
             VALUES (?, ?, ?, ?)
             ON CONFLICT (pipe_name, event_name, event_key) DO NOTHING"""

    def run(connection: sqlite3.Connection) -> bool:
        is_free = connection.execute(sql, (*claim[:3], to_text(claim.claimed_at))).rowcount == 1
        if is_free:
            operation(connection)
        return is_free

    return run


def release_claim(pipe: str, event: str, key: str) -> Operation:
    """Give a claim back: what it started failed, and the event may start the pipe again."""
    sql = "DELETE FROM pipe_claims WHERE pipe_name = ? AND event_name = ? AND event_key = ?"
    return lambda connection: connection.execute(sql, (pipe, event, key))


def forget(pipe: str) -> Operation:
    """Drop what is remembered of a pipe that was removed, and its claims; its executions stay."""
    claims = "DELETE FROM pipe_claims WHERE pipe_name = ?"
    return together(
        PIPE_STATES.delete(pipe), lambda connection: connection.execute(claims, (pipe,))
    )


# -- executions, many at once ----------------------------------------------------------------------

DEFAULT_PAGE = 50
MOST_PAGE = 500


class ExecutionFilter(NamedTuple):
    """Which executions: queued at or after `since` and before `until`; `before_id` is a
    `next_cursor`. None for all.

    `pipe_pattern` has `*`, `?` and `[…]` for the names of pipes.
    """

    pipe: str | None = None
    statuses: tuple[Status, ...] = ()
    since: float | None = None
    until: float | None = None
    before_id: int | None = None
    limit: int = DEFAULT_PAGE
    pipe_pattern: str | None = None
    error_types: tuple[ErrorType, ...] = ()
    agent: str | None = None
    preset: str | None = None


async def page(ledger: Ledger, wanted: ExecutionFilter) -> tuple[tuple[Execution, ...], int | None]:
    """Return executions, newest first, and the `before_id` of the next page; None at the end."""
    limit = wanted.limit
    asked: dict[str, Any] = {
        "pipe_name = ?": wanted.pipe,
        "pipe_name GLOB ?": wanted.pipe_pattern,
        "agent = ?": wanted.agent,
        "preset_id = ?": wanted.preset,
        "queued_at >= ?": None if wanted.since is None else to_text(wanted.since),
        "queued_at < ?": None if wanted.until is None else to_text(wanted.until),
        "id < ?": wanted.before_id,
    }
    asked = {part: value for part, value in asked.items() if value is not None}
    parts: list[str] = []
    words: list[str] = []
    for column, among in (("status", wanted.statuses), ("error_type", wanted.error_types)):
        if among:
            parts.append(f"{column} IN ({', '.join('?' * len(among))})")
            words += [each.value for each in among]
    where = " AND ".join([*parts, *asked]) or "1"
    values = [*words, *asked.values(), limit + 1]
    # The index holds nearly all that is asked for: what does not fit is left out without a look at
    # the rows. Those that are looked at for the agent, the preset or the error have these columns
    # before their large texts.
    index = (
        "INDEXED BY pipe_executions_of_pipe"
        if words or asked.keys() - {"id < ?"}
        else "NOT INDEXED"
    )
    inner = f"SELECT id FROM pipe_executions {index} WHERE {where} ORDER BY id DESC LIMIT ?"  # noqa: S608  # our own words
    found = await EXECUTIONS.listed(ledger, f"WHERE id IN ({inner}) ORDER BY id DESC", *values)
    rows = tuple(found[:limit])
    return rows, rows[-1].id if len(found) > limit else None


_NAMES = """WITH RECURSIVE pipes (name) AS (SELECT min(pipe_name) FROM pipe_executions UNION ALL
    SELECT (SELECT min(pipe_name) FROM pipe_executions WHERE pipe_name > name)
        FROM pipes WHERE name IS NOT NULL)"""
"""The names of all pipes that have a row, one look into the index each."""


async def last_of_each(ledger: Ledger) -> dict[str, Execution]:
    newest = (
        "SELECT (SELECT max(id) FROM pipe_executions WHERE pipe_name = name) FROM pipes WHERE name "
        "IS NOT NULL"
    )
    found = await EXECUTIONS.listed(ledger, f"WHERE id IN ({_NAMES} {newest}) ORDER BY pipe_name")
    return {row.pipe_name: row for row in found}


async def usage_since(ledger: Ledger, when: float, pipe: str) -> tuple[int, float]:
    """Return tokens and US dollars of a pipe's executions that began at or after a moment, and
    have ended.
    """
    sql = """SELECT coalesce(sum(total_tokens), 0), coalesce(sum(cost), 0.0) FROM pipe_executions
             WHERE pipe_name = ? AND started_at >= ?"""
    values = (pipe, to_text(when))
    tokens, cost = await ledger.read(lambda connection: connection.execute(sql, values).fetchone())
    return tokens, cost


_FINAL = "status NOT IN ('queued', 'running')"
_NOT_THE_NEWEST = "id < (SELECT max(id) FROM pipe_executions)"
_OLD = f"""SELECT id FROM pipe_executions WHERE finished_at < ? AND {_FINAL} AND {_NOT_THE_NEWEST}
    ORDER BY id LIMIT ?"""  # noqa: S608  # our own words
_MANY = f"""SELECT id FROM (
        SELECT id, status, row_number() OVER (PARTITION BY pipe_name ORDER BY id DESC) AS place
        FROM pipe_executions INDEXED BY pipe_executions_of_pipe)
    WHERE place > ? AND {_FINAL} AND {_NOT_THE_NEWEST}
    ORDER BY id LIMIT ?"""  # noqa: S608  # as above
_LARGE = f"""SELECT id FROM (
        SELECT id, status, sum(max(0, stdout_bytes + stderr_bytes - lost_bytes))
            OVER (ORDER BY id DESC) AS upto
        FROM pipe_executions)
    WHERE upto > ? AND {_FINAL} AND {_NOT_THE_NEWEST} ORDER BY id LIMIT ?"""  # noqa: S608  # as above


async def prune(
    ledger: Ledger, *, before: float, rows_of_each: int, bytes_of_all: int, batch: int = 200
) -> tuple[int, ...]:
    """Remove one batch of what ended before a moment (Unix seconds), or is more than so many rows
    or bytes.

    Returns the ids that went, () when nothing is beyond the limits; their folders are the caller's
    to remove.

    Raises LedgerDegradedError: the disk takes nothing.
    """

    def beyond(connection: sqlite3.Connection, sql: str, bound: str | int) -> tuple[int, ...]:
        return tuple(number for (number,) in connection.execute(sql, (bound, batch)))

    def delete(connection: sqlite3.Connection, ids: tuple[int, ...]) -> tuple[int, ...]:
        sql = f"DELETE FROM pipe_executions WHERE id = ? AND {_FINAL}"  # noqa: S608  # our own words
        return tuple(number for number in ids if connection.execute(sql, (number,)).rowcount == 1)

    for sql, bound in (
        (_OLD, to_text(before)),
        (_MANY, max(1, rows_of_each)),
        (_LARGE, max(0, bytes_of_all)),
    ):
        # Looked for among the readers: the writer is not to be held up by a long look.
        if found := await ledger.read(partial(beyond, sql=sql, bound=bound)):
            return await ledger.call(partial(delete, ids=found))
    return ()

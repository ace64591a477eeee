"""Executions of pipes: a row from the moment of the trigger, claimed before the spawn, closed once with its outcome.

Law: one execution of a pipe runs at a time, in all daemons that share the file: the row says `running` before anything
is spawned, and SQLite refuses a second one. The first end that is recorded stands. What the scheduler remembers of the
pipe changes in the same transaction as the row. A full disk stops nobody: what it does not take is written later.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING

from supervisord_py.errors import ConflictError
from supervisord_py.ledger.instants import to_text
from supervisord_py.ledger.pipe_claims import is_claimed, write_claim
from supervisord_py.ledger.pipe_rows import QUEUED, RUNNING, PipeExecutionRow, insert, listed, together, whole
from supervisord_py.ledger.pipe_state import write_change
from supervisord_py.ledger.store import Durability, LedgerDegradedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.ledger.pipe_claims import Claim
    from supervisord_py.ledger.pipe_rows import Operation
    from supervisord_py.ledger.pipe_state import StateChange
    from supervisord_py.ledger.store import Ledger

    Build = Callable[[int], PipeExecutionRow]

__all__ = ["QUEUED", "RUNNING", "PipeExecutionRow"]

TABLE = "pipe_executions"
MESSAGE_MAX = 4000
"""Characters of an error message that are kept: lists carry it, and a whole stderr has its own column."""


@dataclass(frozen=True, slots=True)
class Added:
    """What was inserted, and how safe it is."""

    row: PipeExecutionRow
    durability: Durability


@dataclass(frozen=True, slots=True)
class Running:
    """What is known when it leaves the queue.

    Attributes:
        instance: The key that its process will have.
        progress: JSON text: what whoever takes it over must know while it runs.
    """

    started_at: float
    queue_wait_ms: int | None = None
    instance: str | None = None
    timeout_seconds: float | None = None
    progress: str | None = None


@dataclass(frozen=True, slots=True)
class Spawned:
    """Which process it became. What is None stays as it was."""

    pid: int
    start_time: int
    boot_id: str
    started_at: float
    agent_version: str | None = None
    session_path: str | None = None


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What a model was paid for so far: counts, and US dollars."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    total_tokens: int = 0
    cost: float = 0.0
    turns: int = 0


@dataclass(frozen=True, slots=True)
class Output:
    """What it has given so far: texts up to the cap (None: as they were), whole sizes in bytes, and what it used."""

    stdout: str | None = None
    stderr: str | None = None
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    lost_bytes: int = 0
    invalid_utf8: bool = False
    progress: str | None = None
    usage: UsageRow = UsageRow()


@dataclass(frozen=True, slots=True)
class Finish:
    """How it ended. `output`, `session_path` and `agent_version` stay as they were where they are None."""

    status: str
    finished_at: float
    duration_ms: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    error_type: str | None = None
    error_message: str | None = None
    incomplete: bool = False
    output: Output | None = None
    session_path: str | None = None
    agent_version: str | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of an end: how safe it is, and whether it is the one that stands (as far as is known)."""

    durability: Durability
    first: bool


async def add(ledger: Ledger, build: Build, *, change: StateChange | None = None) -> Added:
    """Record an execution, and what its pipe's state becomes by it, together.

    Args:
        ledger: Where.
        build: Makes the row for an id.
        change: Of the pipe's state.
    """
    row = build(ledger.next_number(TABLE))
    return Added(row, await ledger.write(partial(_add, row, change)))


async def add_claimed(ledger: Ledger, build: Build, claim: Claim, *, change: StateChange | None = None) -> Added | None:
    """Record an execution that an event starts, once: the claim and the row are one transaction.

    The id is taken inside of it, once the claim is granted, so that one that is refused leaves no hole in the numbers:
    `build` is called in the writer's thread.

    Returns:
        None where the pipe has claimed this event before; nothing is written then.

    Raises:
        LedgerDegradedError: The disk takes nothing, so nobody can know whether it was claimed.
    """

    def next_row() -> PipeExecutionRow:
        return build(ledger.next_number(TABLE))

    row = await ledger.call(partial(_add_claimed, next_row, claim, change))
    return None if row is None else Added(row, Durability.COMMITTED)


def _add(row: PipeExecutionRow, change: StateChange | None, connection: sqlite3.Connection) -> None:
    insert(connection, row)
    if change is not None:
        write_change(connection, change)


def _add_claimed(
    next_row: Callable[[], PipeExecutionRow], claim: Claim, change: StateChange | None, connection: sqlite3.Connection
) -> PipeExecutionRow | None:
    if is_claimed(connection, claim):
        return None
    row = next_row()
    write_claim(connection, claim, row.id)
    _add(row, change, connection)
    return row


async def mark_running(
    ledger: Ledger,
    number: int,
    running: Running,
    *,
    change: StateChange | None = None,
    also: Operation | None = None,
) -> Durability:
    """Take an execution out of the queue, before its process is spawned; `change` and `also` are one step with it.

    Raises:
        ConflictError: Another one of its pipe runs (`execution` and `pid` name it), or it is not queued any more
            (`state` says what it is); nothing was written.
    """
    return await ledger.write(together(partial(_mark_running, number, running, change), also))


def _mark_running(number: int, running: Running, change: StateChange | None, connection: sqlite3.Connection) -> None:
    sql = """UPDATE pipe_executions SET status = ?, started_at = ?, queue_wait_ms = ?, instance = ?,
             timeout_seconds = coalesce(?, timeout_seconds), progress = ? WHERE id = ? AND status = ?"""
    known = (to_text(running.started_at), running.queue_wait_ms, running.instance, running.timeout_seconds)
    facts = (RUNNING, *known, running.progress, number, QUEUED)
    try:
        changed = connection.execute(sql, facts).rowcount
    except sqlite3.IntegrityError:
        raise _held(connection, number) from None
    if not changed:
        raise _not_queued(connection, number)
    if change is not None:
        write_change(connection, change)


def _held(connection: sqlite3.Connection, number: int) -> ConflictError:
    sql = """SELECT holder.pipe_name, holder.id, holder.pid FROM pipe_executions AS holder JOIN pipe_executions AS mine
             ON mine.pipe_name = holder.pipe_name WHERE mine.id = ? AND holder.status = 'running'"""
    pipe, holder, pid = connection.execute(sql, (number,)).fetchone()
    process = "its process is not there yet" if pid is None else f"pid {pid}"
    return ConflictError(
        f"pipe:{pipe} is already running: execution {holder}, {process}",
        hint=f"`pxctl pipe tail {holder}` follows it, `pxctl pipe cancel {holder}` ends it",
        unit=f"pipe:{pipe}",
        execution=holder,
        pid=pid,
    )


def _not_queued(connection: sqlite3.Connection, number: int) -> ConflictError:
    found = connection.execute("SELECT pipe_name, status FROM pipe_executions WHERE id = ?", (number,)).fetchone()
    pipe, state = found or (None, "not in the ledger")
    return ConflictError(
        f"execution {number} is not queued any more: it is {state}",
        hint="see `pxctl pipe runs`",
        unit=None if pipe is None else f"pipe:{pipe}",
        execution=number,
        state=state,
    )


async def spawned(ledger: Ledger, number: int, facts: Spawned, *, also: Operation | None = None) -> Durability:
    """Record which process it became, right after the spawn, and `also` in the same step."""
    sql = """UPDATE pipe_executions SET pid = ?, start_time = ?, boot_id = ?, started_at = ?,
             agent_version = coalesce(?, agent_version), session_path = coalesce(?, session_path)
             WHERE id = ? AND status = ?"""
    who = (facts.pid, facts.start_time, facts.boot_id, to_text(facts.started_at))
    values = (*who, facts.agent_version, facts.session_path, number, RUNNING)
    return await ledger.write(together(lambda connection: connection.execute(sql, values), also))


async def set_output(ledger: Ledger, number: int, output: Output) -> Durability:
    """Record what a running execution has given so far.

    Returns:
        DEFERRED where the disk takes nothing: it is not kept, because texts would pile up in memory; say it again.
    """
    try:
        await ledger.call(lambda connection: _set_output(connection, number, output))
    except LedgerDegradedError:
        return Durability.DEFERRED
    return Durability.COMMITTED


def _set_output(connection: sqlite3.Connection, number: int, output: Output) -> None:
    connection.execute(_OUTPUT, [*_output_values(output), number])


async def finish(
    ledger: Ledger, number: int, end: Finish, *, change: StateChange | None = None, also: Operation | None = None
) -> Ended:
    """Record how an execution ended, queued or running, and with it `change`, in one step; the first end counts.

    Returns:
        Whether this end stands; where it does not, nothing was written of it, `change` included; `also` was.
    """
    first = [True]
    durability = await ledger.write(together(partial(_finish, number, end, change, first), also))
    return Ended(durability, first[0])


def _finish(
    number: int, end: Finish, change: StateChange | None, first: list[bool], connection: sqlite3.Connection
) -> None:
    if end.output is not None:
        connection.execute(_OUTPUT, [*_output_values(end.output), number])
    sql = """UPDATE pipe_executions SET status = ?, finished_at = ?, duration_ms = ?, exit_code = ?, signal = ?,
             error_type = ?, error_message = ?, incomplete = ?, session_path = coalesce(?, session_path),
             agent_version = coalesce(?, agent_version), progress = NULL
             WHERE id = ? AND status IN ('queued', 'running')"""
    message = None if end.error_message is None else end.error_message[:MESSAGE_MAX]
    how = (end.status, to_text(end.finished_at), end.duration_ms, end.exit_code, end.signal, end.error_type, message)
    values = (*how, int(end.incomplete), end.session_path, end.agent_version, number)
    first[0] = connection.execute(sql, values).rowcount == 1
    if first[0] and change is not None:
        write_change(connection, change)


_TEXTS = ("stdout", "stderr", "progress")
_SIZES = ("stdout_bytes", "stderr_bytes", "lost_bytes", "invalid_utf8")
_USAGE = tuple(each.name for each in fields(UsageRow))
_OUTPUT = f"""UPDATE pipe_executions SET {", ".join(f"{name} = coalesce(?, {name})" for name in _TEXTS)},
    {", ".join(f"{name} = ?" for name in (*_SIZES, *_USAGE))} WHERE id = ? AND status IN ('queued', 'running')"""  # noqa: S608  # our own names


def _output_values(output: Output) -> list[object]:
    texts = [getattr(output, name) for name in _TEXTS]
    return [*texts, *(int(getattr(output, name)) for name in _SIZES), *(getattr(output.usage, name) for name in _USAGE)]


async def get(ledger: Ledger, number: int, *, blobs: bool) -> PipeExecutionRow | None:
    """Return one execution, with its large texts or without."""
    found = await (whole if blobs else listed)(ledger, "WHERE id = ?", (number,))
    return found[0] if found else None


async def queued_rows(ledger: Ledger) -> list[PipeExecutionRow]:
    """Return what waits, whole, in the order of the line."""
    return await whole(ledger, "WHERE status = 'queued' ORDER BY queued_at, id", ())


async def open_rows(ledger: Ledger) -> list[PipeExecutionRow]:
    """Return what is recorded as running, whole, by id."""
    return await whole(ledger, "WHERE status = 'running' ORDER BY id", ())

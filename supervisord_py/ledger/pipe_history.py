"""What is remembered of pipes: how each stands between its runs, which events it has taken, and its executions.

A change of a pipe's state says only what it changes, and rides in the transaction of the execution that it belongs to,
so that "it runs" and "it ran last then" are never two facts of which a crash keeps one. An event with a key starts a
pipe once: of two that claim one (pipe, event, key) exactly one gets it.

Law: a question costs what its answer is large, not what the history is: every one is answered from an index, the rows
themselves are fetched last, and large texts never. What is still open is never pruned, nor the newest row of all: its
id is where numbering goes on.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection
from functools import partial
from typing import Any, NamedTuple

import msgspec

from supervisord_py.ledger.pipe_executions import EXECUTIONS, Execution, Status
from supervisord_py.ledger.store import Ledger
from supervisord_py.ledger.table import Operation, Table, to_text, together


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
    moments=("last_run_at", "last_success_at", "anchor_at", "last_due", "last_context_end", "last_decision_at"),
)


class Claim(NamedTuple):
    """A pipe's hold on one occurrence of an event. `claimed_at` is Unix seconds."""

    pipe_name: str
    event_name: str
    event_key: str
    claimed_at: float


def claimed(claim: Claim, operation: Operation) -> Operation:
    """Return an operation that does another one where the claim is free, and says whether it was."""
    sql = """INSERT INTO pipe_claims (pipe_name, event_name, event_key, claimed_at) VALUES (?, ?, ?, ?)
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
    return together(PIPE_STATES.delete(pipe), lambda connection: connection.execute(claims, (pipe,)))


# -- executions -----------------------------------------------------------------------------------------------------

DEFAULT_PAGE = 50
MOST_PAGE = 500


class ExecutionFilter(NamedTuple):
    """Which executions: queued at or after `since` and before `until`; `before_id` is a `next_cursor`. None for all."""

    pipe: str | None = None
    statuses: tuple[Status, ...] = ()
    since: float | None = None
    until: float | None = None
    before_id: int | None = None
    limit: int = DEFAULT_PAGE


class ExecutionPage(NamedTuple):
    """Executions, newest first. `next_cursor` is the `before_id` of the next page; None at the end."""

    executions: tuple[Execution, ...]
    next_cursor: int | None = None


async def page(ledger: Ledger, wanted: ExecutionFilter) -> ExecutionPage:
    """Return a page of the history; a limit that is out of bounds is brought to the nearest one."""
    limit = min(max(wanted.limit, 1), MOST_PAGE)
    asked: dict[str, Any] = {
        "pipe_name = ?": wanted.pipe,
        "queued_at >= ?": None if wanted.since is None else to_text(wanted.since),
        "queued_at < ?": None if wanted.until is None else to_text(wanted.until),
        "id < ?": wanted.before_id,
    }
    asked = {part: value for part, value in asked.items() if value is not None}
    statuses = [each.value for each in wanted.statuses]
    parts = [f"status IN ({', '.join('?' * len(statuses))})"] if statuses else []
    where, values = " AND ".join([*parts, *asked]) or "1", [*statuses, *asked.values(), limit + 1]
    # The index holds all that is asked for, so what does not fit is left out without a look at the rows.
    index = "INDEXED BY pipe_executions_of_pipe" if statuses or asked.keys() - {"id < ?"} else "NOT INDEXED"
    inner = f"SELECT id FROM pipe_executions {index} WHERE {where} ORDER BY id DESC LIMIT ?"  # noqa: S608  # our own words
    found = await EXECUTIONS.listed(ledger, f"WHERE id IN ({inner}) ORDER BY id DESC", *values)
    rows = tuple(found[:limit])
    return ExecutionPage(rows, rows[-1].id if len(found) > limit else None)


_NAMES = """WITH RECURSIVE pipes (name) AS (SELECT min(pipe_name) FROM pipe_executions UNION ALL
    SELECT (SELECT min(pipe_name) FROM pipe_executions WHERE pipe_name > name) FROM pipes WHERE name IS NOT NULL)"""
"""The names of all pipes that have a row, one look into the index each."""


async def last_of_each(ledger: Ledger) -> dict[str, Execution]:
    """Return the newest execution of each pipe that has any."""
    newest = "SELECT (SELECT max(id) FROM pipe_executions WHERE pipe_name = name) FROM pipes WHERE name IS NOT NULL"
    found = await EXECUTIONS.listed(ledger, f"WHERE id IN ({_NAMES} {newest}) ORDER BY pipe_name")
    return {row.pipe_name: row for row in found}


async def usage_since(ledger: Ledger, when: float, pipe: str) -> tuple[int, float]:
    """Return tokens and US dollars of a pipe's executions that began at or after a moment, and have ended."""
    sql = """SELECT coalesce(sum(total_tokens), 0), coalesce(sum(cost), 0.0) FROM pipe_executions
             WHERE pipe_name = ? AND started_at >= ?"""
    values = (pipe, to_text(when))
    tokens, cost = await ledger.read(lambda connection: connection.execute(sql, values).fetchone())
    return tokens, cost


async def existing(ledger: Ledger, ids: Collection[int]) -> set[int]:
    """Return those of the ids that have a row."""
    sql = "SELECT 1 FROM pipe_executions WHERE id = ?"
    return await ledger.read(lambda it: {number for number in ids if it.execute(sql, (number,)).fetchone()})


_FINAL = "status NOT IN ('queued', 'running')"
_NOT_THE_NEWEST = "id < (SELECT max(id) FROM pipe_executions)"
_OLD = f"""SELECT id FROM pipe_executions WHERE finished_at < ? AND {_FINAL} AND {_NOT_THE_NEWEST}
    ORDER BY id LIMIT ?"""  # noqa: S608  # our own words
_MANY = f"""SELECT id FROM (SELECT id, status, row_number() OVER (PARTITION BY pipe_name ORDER BY id DESC) AS place
    FROM pipe_executions INDEXED BY pipe_executions_of_pipe) WHERE place > ? AND {_FINAL} AND {_NOT_THE_NEWEST}
    ORDER BY id LIMIT ?"""  # noqa: S608  # as above
_LARGE = f"""SELECT id FROM (SELECT id, status, sum(max(0, stdout_bytes + stderr_bytes - lost_bytes))
    OVER (ORDER BY id DESC) AS upto
    FROM pipe_executions) WHERE upto > ? AND {_FINAL} AND {_NOT_THE_NEWEST} ORDER BY id LIMIT ?"""  # noqa: S608  # as above


async def prune(
    ledger: Ledger, *, before: float, rows_of_each: int, bytes_of_all: int, batch: int = 200
) -> tuple[int, ...]:
    """Remove one batch of what ended before a moment (Unix seconds), or is more than so many rows or bytes.

    Returns the ids that went, () when nothing is beyond the limits; their folders are the caller's to remove.

    Raises LedgerDegradedError: the disk takes nothing.
    """

    def beyond(connection: sqlite3.Connection, sql: str, bound: str | int) -> tuple[int, ...]:
        return tuple(number for (number,) in connection.execute(sql, (bound, batch)))

    def delete(connection: sqlite3.Connection, ids: tuple[int, ...]) -> tuple[int, ...]:
        sql = f"DELETE FROM pipe_executions WHERE id = ? AND {_FINAL}"  # noqa: S608  # our own words
        return tuple(number for number in ids if connection.execute(sql, (number,)).rowcount == 1)

    for sql, bound in ((_OLD, to_text(before)), (_MANY, max(1, rows_of_each)), (_LARGE, max(0, bytes_of_all))):
        # Looked for among the readers: the writer is not to be held up by a long look.
        if found := await ledger.read(partial(beyond, sql=sql, bound=bound)):
            return await ledger.call(partial(delete, ids=found))
    return ()

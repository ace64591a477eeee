"""What is remembered of each pipe between its runs, and which events it has taken.

A change says only what it changes, and rides in the transaction of the execution that it belongs to, so that "it runs"
and "it ran last then" are never two facts of which a crash keeps one. An event with a key starts a pipe once: of two
that claim one (pipe, event, key) exactly one gets it; a claim is given back when what it started failed.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

import msgspec

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

"""What is remembered of each pipe between its runs: one small row that the scheduler reads, not the whole history.

Law: a change says only what it changes, and can ride in the transaction of the execution that it belongs to, so that
"it runs" and "it ran last then" are never two facts of which a crash keeps one. The last word counts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal

from supervisord_py.ledger.instants import to_seconds, to_text
from supervisord_py.ledger.rows import select

if TYPE_CHECKING:
    import sqlite3

    from supervisord_py.ledger.store import Durability, Ledger


class Keep(Enum):
    """A field that a change leaves as it is."""

    KEEP = "keep"


KEEP: Literal[Keep.KEEP] = Keep.KEEP


@dataclass(frozen=True, slots=True)
class PipeStateRow:
    """One pipe. Times are Unix seconds.

    Attributes:
        last_run_at: When its last execution began; None before the first.
        last_success_at: When its last successful one ended.
        consecutive_failures: Failures in a row.
        enabled: What was wished on this machine; None = its file decides.
        enabled_file: What its file said when that was wished.
        schedule: The text that `anchor_at`, `last_due` and `occurrences` belong to.
        anchor_at: Where an interval that never ran counts from.
        last_due: The due time that was decided last, run or skipped.
        occurrences: Runs of this schedule.
        last_context_end: Up to where the last success had looked.
        last_decision, last_decision_at: What the scheduler said last, and when.
    """

    pipe_name: str
    last_run_at: float | None = None
    last_success_at: float | None = None
    consecutive_failures: int = 0
    enabled: bool | None = None
    enabled_file: bool | None = None
    schedule: str | None = None
    anchor_at: float | None = None
    last_due: float | None = None
    occurrences: int = 0
    last_context_end: float | None = None
    last_decision: str | None = None
    last_decision_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """What becomes another in a pipe's row; as in PipeStateRow."""

    pipe_name: str
    last_run_at: float | Keep | None = KEEP
    last_success_at: float | Keep | None = KEEP
    consecutive_failures: int | Keep = KEEP
    enabled: bool | Keep | None = KEEP
    enabled_file: bool | Keep | None = KEEP
    schedule: str | Keep | None = KEEP
    anchor_at: float | Keep | None = KEEP
    last_due: float | Keep | None = KEEP
    occurrences: int | Keep = KEEP
    last_context_end: float | Keep | None = KEEP
    last_decision: str | Keep | None = KEEP
    last_decision_at: float | Keep | None = KEEP

    def values(self) -> dict[str, Any]:
        """Return the fields that change, by name."""
        found = {name: getattr(self, name) for name in _CHANGING}
        return {name: value for name, value in found.items() if value is not KEEP}

    def applied(self, row: PipeStateRow) -> PipeStateRow:
        """Return the row after this change."""
        return replace(row, **self.values())


_CHANGING = tuple(each.name for each in fields(StateChange) if each.name != "pipe_name")
_MOMENTS = frozenset(
    {"last_run_at", "last_success_at", "anchor_at", "last_due", "last_context_end", "last_decision_at"}
)
_FLAGS = frozenset({"enabled", "enabled_file"})
_COLUMNS = ", ".join(each.name for each in fields(PipeStateRow))
"""Older files have some that nobody reads any more."""


def write_change(connection: sqlite3.Connection, change: StateChange) -> None:
    """Write a change within the transaction of somebody's operation; makes the row where there is none."""
    columns = {name: _cell(name, value) for name, value in change.values().items()}
    names = ", ".join(["pipe_name", *columns])
    marks = ", ".join("?" * (len(columns) + 1))
    news = ", ".join(f"{name} = excluded.{name}" for name in columns)
    sql = f"INSERT INTO pipe_scheduler_state ({names}) VALUES ({marks}) ON CONFLICT (pipe_name) DO"  # noqa: S608  # names of our own fields
    connection.execute(f"{sql} {'UPDATE SET ' + news if news else 'NOTHING'}", (change.pipe_name, *columns.values()))


def remember(ledger: Ledger, change: StateChange) -> None:
    """Record a change."""
    ledger.post(lambda connection: write_change(connection, change))


async def forget(ledger: Ledger, pipe: str) -> Durability:
    """Drop what is remembered of a pipe that was removed, and its claims; its executions stay."""

    def run(connection: sqlite3.Connection) -> None:
        connection.execute("DELETE FROM pipe_scheduler_state WHERE pipe_name = ?", (pipe,))
        connection.execute("DELETE FROM pipe_claims WHERE pipe_name = ?", (pipe,))

    return await ledger.write(run)


async def everything(ledger: Ledger) -> dict[str, PipeStateRow]:
    """Return what is remembered of all pipes, by name."""
    sql = f"SELECT {_COLUMNS} FROM pipe_scheduler_state ORDER BY pipe_name"  # noqa: S608  # names of our own fields
    rows = await ledger.read(lambda connection: [_row(it) for it in select(connection, sql, ())])
    return {row.pipe_name: row for row in rows}


def _cell(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in _MOMENTS:
        return to_text(value)
    return int(value) if name in _FLAGS else value


def _row(columns: dict[str, Any]) -> PipeStateRow:
    for name in _MOMENTS:
        columns[name] = to_seconds(columns[name])
    for name in _FLAGS:
        columns[name] = None if columns[name] is None else bool(columns[name])
    return PipeStateRow(**columns)

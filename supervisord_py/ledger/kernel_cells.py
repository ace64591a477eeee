"""Cells that were sent to kernels: one row each, written at the dispatch, closed once with how it ended.

Law: the row of a cell is there before the cell is sent, except while the disk takes nothing: a cell never waits for a
full disk, its row follows in order. The first end that is recorded stands. The order of a session's history is the
order of dispatch, whatever the wall clock did meanwhile.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from supervisord_py.ledger.rows import from_json, select, to_json

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from supervisord_py.ledger.store import Durability, Ledger

RUNNING = "running"
KEPT = "kept"


@dataclass(frozen=True, slots=True)
class KernelCellRow:
    """One cell. Times are Unix seconds; what is not known (yet) is None.

    Attributes:
        id: Names its files.
        session: Id of its session.
        instance: Key of the process life that ran it.
        call: Id of the call that it was part of.
        ordinal: Its place in that call, from 0.
        status: `running`, or one word of CellStatus.
        queued_at: When its call arrived.
        total_bytes: Of the complete stream output.
        error: `{name, value, traceback}` of what it raised.
        variables: `kept` or `lost`, once it ended.
        steps: Rungs that ended it, `{action, after_seconds, detail}`.
    """

    id: str
    session: str
    call: str
    ordinal: int
    code: str
    status: str
    queued_at: float
    started_at: float
    instance: str | None = None
    title: str | None = None
    ended_at: float | None = None
    duration_seconds: float | None = None
    execution_count: int | None = None
    total_bytes: int = 0
    truncated: bool = False
    lossy: bool = False
    error: Mapping[str, Any] | None = None
    variables: str | None = None
    steps: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Dispatched:
    """What is known when a cell is sent; as in KernelCellRow."""

    id: str
    session: str
    call: str
    ordinal: int
    code: str
    queued_at: float
    started_at: float
    instance: str | None = None
    title: str | None = None


@dataclass(frozen=True, slots=True)
class CellEnd:
    """What is known at its end; as in KernelCellRow."""

    status: str
    ended_at: float
    duration_seconds: float | None = None
    execution_count: int | None = None
    total_bytes: int = 0
    truncated: bool = False
    lossy: bool = False
    error: Mapping[str, Any] | None = None
    variables: str = KEPT
    steps: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Newest:
    """The cell of a session that was sent last, the process life that ran it, and how that ended, where it did."""

    id: str
    instance: str | None = None
    reason: str | None = None
    code: int | None = None
    signal: int | None = None


_NEWEST = """SELECT newest.session, newest.id, newest.instance, life.reason, life.code, life.signal
    FROM (SELECT session, id, instance, max(rowid) FROM kernel_cells GROUP BY session) AS newest
    LEFT JOIN instances AS life ON life.key = newest.instance"""
_SENT = tuple(each.name for each in fields(Dispatched))
_INSERT = f"""INSERT INTO kernel_cells ({", ".join(_SENT)}, status) VALUES ({", ".join("?" * len(_SENT))}, ?)
    ON CONFLICT (id) DO NOTHING"""  # noqa: S608  # names of our own fields
_END = tuple(each.name for each in fields(CellEnd))
_CLOSE = f"UPDATE kernel_cells SET {', '.join(f'{name} = ?' for name in _END)} WHERE id = ? AND ended_at IS NULL"  # noqa: S608  # as above


async def dispatch(ledger: Ledger, cell: Dispatched) -> Durability:
    """Record a cell that is about to be sent; an id that is there already stays as it is."""
    values = [*(getattr(cell, name) for name in _SENT), RUNNING]
    return await ledger.write(lambda connection: connection.execute(_INSERT, values))


def finish(ledger: Ledger, cell: str, end: CellEnd) -> None:
    """Record how a cell ended; only the first end counts."""
    found = {name: getattr(end, name) for name in _END}
    found["error"] = None if end.error is None else to_json(end.error)
    found["steps"] = json.dumps([dict(step) for step in end.steps], default=str, separators=(",", ":"))
    values = [*found.values(), cell]
    ledger.post(lambda connection: connection.execute(_CLOSE, values))


async def get(ledger: Ledger, cell: str) -> KernelCellRow | None:
    """Return one cell."""
    found = await _query(ledger, "WHERE id = ?", (cell,))
    return found[0] if found else None


async def of_session(
    ledger: Ledger, session: str, *, after: str | None = None, limit: int = 1000
) -> list[KernelCellRow]:
    """Return the oldest cells of a session, in order of dispatch.

    Args:
        ledger: Where.
        session: Id of the session.
        after: Only those sent later than this cell; one that is no longer kept has all of them later.
        limit: At most so many.
    """
    where = """WHERE session = ? AND rowid > coalesce((SELECT rowid FROM kernel_cells WHERE id = ?), 0)
               ORDER BY rowid LIMIT ?"""
    return await _query(ledger, where, (session, after, limit))


async def newest_of_all(ledger: Ledger) -> dict[str, Newest]:
    """Return the newest cell of each session that has any."""

    def run(connection: sqlite3.Connection) -> dict[str, Newest]:
        found = connection.execute(_NEWEST)
        return {session: Newest(*facts) for session, *facts in found}

    return await ledger.read(run)


async def open_cells(ledger: Ledger, session: str | None = None) -> list[KernelCellRow]:
    """Return the cells whose end is not recorded, of one session or of all, in order of dispatch."""
    if session is None:
        return await _query(ledger, "WHERE ended_at IS NULL ORDER BY rowid", ())
    return await _query(ledger, "WHERE session = ? AND ended_at IS NULL ORDER BY rowid", (session,))


async def _query(ledger: Ledger, where: str, values: Sequence[object]) -> list[KernelCellRow]:
    def run(connection: sqlite3.Connection) -> list[KernelCellRow]:
        return [_row(it) for it in select(connection, f"SELECT * FROM kernel_cells {where}", values)]  # noqa: S608  # ours

    return await ledger.read(run)


def _row(columns: dict[str, Any]) -> KernelCellRow:
    error, steps = columns.pop("error"), columns.pop("steps")
    columns["truncated"], columns["lossy"] = bool(columns["truncated"]), bool(columns["lossy"])
    return KernelCellRow(**columns, error=None if error is None else from_json(error), steps=_steps(steps))


def _steps(text: str) -> tuple[Mapping[str, Any], ...]:
    """Return the steps of a column; a damaged one reads as empty."""
    try:
        found = json.loads(text)
    except ValueError:
        return ()
    return tuple(it for it in found if isinstance(it, dict)) if isinstance(found, list) else ()

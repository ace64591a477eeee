"""Sessions of kernels, and the cells that were sent to them.

What a session last was is known by name after it stopped and after a restart; it decides nothing.
The row of a cell is there before the cell is sent, except while the disk takes nothing; the first
end that is recorded stands. The order of a session's history is the order of dispatch, whatever the
wall clock did meanwhile.
"""

from __future__ import annotations

from typing import Any

import msgspec

from supervisord_py.ledger.schema import readable_rows
from supervisord_py.ledger.store import Ledger
from supervisord_py.ledger.table import Table, together

RUNNING = "running"


class KernelSessionRow(msgspec.Struct, frozen=True):
    """One session. Times are Unix seconds."""

    id: str  # the `{k}` of the routes
    name: str
    cwd: str
    interpreter: str  # path, `spec:NAME`, or `bash`
    backend: str
    language: str
    owner: str  # `session`, `per_call`, `jupyter` or `jupyter_api`
    created_at: float  # when the first kernel of it was wanted; never overwritten
    state: str  # one word of SessionState
    kernelspec: str | None = None
    last_used: float | None = None
    reason: str | None = None  # why its last kernel ended, or why it stops
    restarts: int = 0  # how often it came back by itself
    instance: str | None = None  # key of its last process life
    failure: dict[str, Any] | None = None  # problem document of a hard failure


class KernelCellRow(msgspec.Struct, frozen=True):
    """One cell. Times are Unix seconds; what is not known (yet) is None."""

    id: str  # names its files
    session: str
    call: str  # id of the call that it was part of
    ordinal: int  # its place in that call, from 0
    code: str
    status: str  # `running`, or one word of CellStatus
    queued_at: float  # when its call arrived
    started_at: float
    instance: str | None = None  # key of the process life that ran it
    title: str | None = None
    ended_at: float | None = None
    duration_seconds: float | None = None
    execution_count: int | None = None
    total_bytes: int = 0  # of the complete stream output
    truncated: bool = False
    lossy: bool = False
    error: dict[str, Any] | None = None  # `{name, value, traceback}` of what it raised
    variables: str | None = None  # `kept` or `lost`, once it ended
    steps: tuple[dict[str, Any], ...] = ()  # what ended it, `{action, after_seconds, detail}`
    timeout_seconds: float | None = None  # of its call, from `queued_at` on


SESSIONS = Table("kernel_sessions", KernelSessionRow)
CELLS = Table("kernel_cells", KernelCellRow)
_NEWEST = """WITH RECURSIVE sessions (name) AS (SELECT min(session) FROM kernel_cells UNION ALL
    SELECT (SELECT min(session) FROM kernel_cells WHERE session > name)
        FROM sessions WHERE name IS NOT NULL)
    SELECT name, (SELECT instance FROM kernel_cells
        WHERE rowid = (SELECT max(rowid) FROM kernel_cells WHERE session = name))
    FROM sessions WHERE name IS NOT NULL"""
"""A few looks into the index for each session, however many cells it had."""


def remember(ledger: Ledger, row: KernelSessionRow) -> None:
    ledger.post(SESSIONS.put(row, keep=("created_at",)))


def forget(ledger: Ledger, session: str) -> None:
    cells = "DELETE FROM kernel_cells WHERE session = ?"
    ledger.post(
        together(SESSIONS.delete(session), lambda connection: connection.execute(cells, (session,)))
    )


async def all_sessions(ledger: Ledger) -> list[KernelSessionRow]:
    return await SESSIONS.find(ledger, "ORDER BY coalesce(last_used, created_at) DESC, id")


def finish(ledger: Ledger, cell: str, **end: Any) -> None:
    """Record how a cell ended, by columns of its row; only the first end counts."""
    ledger.post(CELLS.update(cell, "ended_at IS NULL", **end))


async def of_session(ledger: Ledger, session: str) -> list[KernelCellRow]:
    """Return the cells of a session in the order in which they were sent."""
    return await CELLS.find(ledger, "WHERE session = ? ORDER BY rowid", session)


async def newest_of_all(ledger: Ledger) -> dict[str, str | None]:
    """Return the process life that ran the newest cell of each session that has any."""
    rows, _ = await ledger.read(lambda connection: readable_rows(connection, _NEWEST))
    return dict(rows)


async def open_cells(ledger: Ledger, session: str | None = None) -> list[KernelCellRow]:
    """Return the cells whose end is not recorded, of one session or of all, in order of
    dispatch.
    """
    # By name, because the order by rowid would else have SQLite read the whole table.
    where = (
        "INDEXED BY kernel_cells_open WHERE session = coalesce(?, session) AND ended_at IS NULL "
        "ORDER BY rowid"
    )
    return await CELLS.find(ledger, where, session)

"""How much is remembered: the oldest rows go, in small batches, so that nobody waits for a long transaction.

Law: what is still open is never pruned, nor the newest row of a table: its id is where numbering goes on. Executions of
pipes have files beside their rows, so their room prunes both (`pipe_history.prune`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from supervisord_py.ledger.instants import to_text

if TYPE_CHECKING:
    import sqlite3

    from supervisord_py.ledger.store import Ledger

_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class TableLimit:
    """At most so many rows, none older than so many seconds."""

    rows: int
    age_seconds: float


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """How much is kept of each kind."""

    events: TableLimit = TableLimit(100_000, 30 * _DAY)
    runs: TableLimit = TableLimit(50_000, 30 * _DAY)
    instances: TableLimit = TableLimit(20_000, 30 * _DAY)
    idempotency_seconds: float = _DAY
    kernel_cells: TableLimit = TableLimit(20_000, 30 * _DAY)
    kernel_sessions: TableLimit = TableLimit(1_000, 30 * _DAY)
    pipe_claims_seconds: float = 7 * _DAY


_BY_AGE = {
    "events": "SELECT rowid FROM events WHERE time < ? AND id < (SELECT max(id) FROM events) ORDER BY id",
    "runs": """SELECT rowid FROM runs WHERE ended_at < ? AND id < (SELECT max(id) FROM runs) ORDER BY id""",
    "instances": "SELECT rowid FROM instances WHERE ended_at < ? ORDER BY rowid",
    "pipe_claims": "SELECT rowid FROM pipe_claims WHERE claimed_at < ? ORDER BY claimed_at",
    "idempotency": "SELECT rowid FROM idempotency WHERE created_at < ? AND status IS NOT NULL ORDER BY rowid",
    "kernel_cells": """SELECT rowid FROM kernel_cells WHERE ended_at < ?
                       AND rowid < (SELECT max(rowid) FROM kernel_cells) ORDER BY rowid""",
    "kernel_sessions": """SELECT rowid FROM kernel_sessions WHERE state IN ('stopped', 'failed')
                          AND coalesce(last_used, created_at) < ? ORDER BY rowid""",
}
_BY_COUNT = {
    "events": "SELECT rowid FROM events WHERE id <= (SELECT id FROM events ORDER BY id DESC LIMIT 1 OFFSET ?)",
    "runs": """SELECT rowid FROM runs WHERE ended_at IS NOT NULL
               AND id <= (SELECT id FROM runs ORDER BY id DESC LIMIT 1 OFFSET ?)""",
    "instances": """SELECT rowid FROM instances WHERE ended_at IS NOT NULL
                    AND rowid <= (SELECT rowid FROM instances ORDER BY rowid DESC LIMIT 1 OFFSET ?)""",
    "kernel_cells": """SELECT rowid FROM kernel_cells WHERE ended_at IS NOT NULL
                       AND rowid <= (SELECT rowid FROM kernel_cells ORDER BY rowid DESC LIMIT 1 OFFSET ?)""",
    "kernel_sessions": """SELECT rowid FROM kernel_sessions WHERE state IN ('stopped', 'failed') AND rowid NOT IN
        (SELECT rowid FROM kernel_sessions ORDER BY coalesce(last_used, created_at) DESC, rowid DESC LIMIT ?)""",
}


async def prune(ledger: Ledger, limits: RetentionLimits, now: float, batch: int = 500) -> dict[str, int]:
    """Remove what is beyond the limits; return how many rows went of each table that lost any.

    Args:
        ledger: Where.
        limits: How much stays.
        now: Unix seconds.
        batch: Rows of one transaction.

    Raises:
        LedgerDegradedError: The disk takes nothing; what was removed before that stays removed.
    """
    gone = {
        "idempotency": await _remove(
            ledger, "idempotency", _BY_AGE["idempotency"], now - limits.idempotency_seconds, batch
        ),
        "pipe_claims": await _remove(
            ledger, "pipe_claims", _BY_AGE["pipe_claims"], to_text(now - limits.pipe_claims_seconds), batch
        ),
    }
    for table, limit in (
        ("events", limits.events),
        ("runs", limits.runs),
        ("instances", limits.instances),
        ("kernel_cells", limits.kernel_cells),
        ("kernel_sessions", limits.kernel_sessions),
    ):
        old = await _remove(ledger, table, _BY_AGE[table], now - limit.age_seconds, batch)
        gone[table] = old + await _remove(ledger, table, _BY_COUNT[table], max(1, limit.rows), batch)
    return {table: count for table, count in gone.items() if count}


async def _remove(ledger: Ledger, table: str, which: str, bound: float | str, batch: int) -> int:
    sql = f"DELETE FROM {table} WHERE rowid IN ({which} LIMIT ?)"  # noqa: S608  # our own words
    total = 0
    while True:
        count = await ledger.call(partial(_delete, sql, bound, batch))
        total += count
        if count < batch:
            return total


def _delete(sql: str, bound: float | str, batch: int, connection: sqlite3.Connection) -> int:
    return connection.execute(sql, (bound, batch)).rowcount

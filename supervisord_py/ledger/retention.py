"""How much is remembered: the oldest rows go, in small batches, so that nobody waits for a long transaction.

Law: what is still open is never pruned, nor the newest row of a table: its id is where numbering goes on. Executions of
pipes have files beside their rows, so their room prunes both (`pipe_history.prune`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from supervisord_py.ledger.instants import to_text

if TYPE_CHECKING:
    from supervisord_py.ledger.store import Ledger

_DAY = 86_400.0


class TableLimit(msgspec.Struct, frozen=True):
    """At most so many rows, none older than so many seconds."""

    rows: int
    age_seconds: float = 90 * _DAY


class RetentionLimits(msgspec.Struct, frozen=True):
    """How much is kept of each kind."""

    events: TableLimit = TableLimit(100_000)
    runs: TableLimit = TableLimit(100_000)
    instances: TableLimit = TableLimit(100_000)
    idempotency_seconds: float = _DAY
    kernel_cells: TableLimit = TableLimit(20_000)
    kernel_sessions: TableLimit = TableLimit(1_000)
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
    """Remove what is beyond the limits at `now` (Unix seconds); return how many rows went of each table that lost any.

    Raises:
        LedgerDegradedError: The disk takes nothing; what was removed before that stays removed.
    """
    gone: dict[str, int] = {}

    async def remove(table: str, which: str, bound: float | str) -> None:
        sql = f"DELETE FROM {table} WHERE rowid IN ({which} LIMIT ?)"  # noqa: S608  # our own words
        count = batch
        while count == batch:
            count = await ledger.call(lambda connection: connection.execute(sql, (bound, batch)).rowcount)
            gone[table] = gone.get(table, 0) + count

    await remove("idempotency", _BY_AGE["idempotency"], now - limits.idempotency_seconds)
    await remove("pipe_claims", _BY_AGE["pipe_claims"], to_text(now - limits.pipe_claims_seconds))
    for table, by_count in _BY_COUNT.items():
        limit: TableLimit = getattr(limits, table)
        await remove(table, _BY_AGE[table], now - limit.age_seconds)
        await remove(table, by_count, max(1, limit.rows))
    return {table: count for table, count in gone.items() if count}

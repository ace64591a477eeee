"""How much is remembered: the oldest rows go, in small batches, so that nobody waits for a long transaction.

Law: what is still open is never pruned, nor the newest row of a table: its id is where numbering goes on. Executions of
pipes have files beside their rows, so their room prunes both (`pipe_history.prune`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from supervisord_py.ledger.table import to_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.ledger.store import Ledger

_DAY = 86_400.0


class TableLimit(msgspec.Struct, frozen=True):
    """At most so many rows, none older than so many seconds."""

    rows: int = 100_000
    age_seconds: float = 90 * _DAY


LIMITS = {
    "events": TableLimit(),
    "runs": TableLimit(),
    "instances": TableLimit(),
    "kernel_cells": TableLimit(20_000),
    "kernel_sessions": TableLimit(1_000),
    "idempotency": TableLimit(age_seconds=_DAY),
    "pipe_claims": TableLimit(age_seconds=7 * _DAY),
}
"""How much is kept of each table; of the last two any number."""

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


async def prune(
    ledger: Ledger, now: float, limits: Mapping[str, TableLimit] = LIMITS, batch: int = 500
) -> dict[str, int]:
    """Remove what is beyond the limits at `now` (Unix seconds); return how many rows went of each table that lost any.

    Raises LedgerDegradedError: the disk takes nothing; what was removed before that stays removed.
    """
    gone: dict[str, int] = {}

    async def remove(table: str, which: str, bound: float | str) -> None:
        sql = f"DELETE FROM {table} WHERE rowid IN ({which} LIMIT ?)"  # noqa: S608  # our own words
        count = batch
        while count == batch:
            count = await ledger.call(lambda connection: connection.execute(sql, (bound, batch)).rowcount)
            gone[table] = gone.get(table, 0) + count

    for table, limit in limits.items():
        oldest = now - limit.age_seconds
        await remove(table, _BY_AGE[table], to_text(oldest) if table == "pipe_claims" else oldest)
        if table in _BY_COUNT:
            await remove(table, _BY_COUNT[table], max(1, limit.rows))
    return {table: count for table, count in gone.items() if count}

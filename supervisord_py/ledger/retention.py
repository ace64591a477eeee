"""How much is remembered: the oldest rows go, in small batches, so that nobody waits for a long transaction.

Law: what is still open is never pruned, nor the newest row of a table: its id is where numbering goes on. Executions of
pipes have files beside their rows, so their room prunes both (`pipe_history.prune`).
"""

from __future__ import annotations

from operator import methodcaller
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
    "instances": TableLimit(),
    "kernel_cells": TableLimit(20_000),
    "kernel_sessions": TableLimit(1_000),
    "idempotency": TableLimit(age_seconds=_DAY),
    "pipe_claims": TableLimit(age_seconds=7 * _DAY),
}

_AGES = {
    "events": "time",
    "instances": "ended_at",
    "kernel_cells": "ended_at",
    "kernel_sessions": "iif(state IN ('stopped', 'failed'), coalesce(last_used, created_at), NULL)",
    "idempotency": "iif(status IS NULL, NULL, created_at)",
    "pipe_claims": "claimed_at",
}
"""When a row was over; NULL while it is not."""


async def prune(
    ledger: Ledger, now: float, limits: Mapping[str, TableLimit] = LIMITS, batch: int = 500
) -> dict[str, int]:
    """Remove what is beyond the limits at `now` (Unix seconds); return how many rows went of each table that lost any.

    Raises LedgerDegradedError: the disk takes nothing; what was removed before that stays removed.
    """
    gone: dict[str, int] = {}
    for table, limit in limits.items():
        moment: float | str = now - limit.age_seconds
        if table == "pipe_claims":
            moment = to_text(now - limit.age_seconds)
        over, beyond = _AGES[table], f"(SELECT rowid FROM {table} ORDER BY rowid DESC LIMIT 1 OFFSET ?)"  # noqa: S608  # our own words
        sql = f"""DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE {over} IS NOT NULL
            AND ({over} < ? OR rowid <= {beyond}) AND rowid < (SELECT max(rowid) FROM {table})
            ORDER BY rowid LIMIT ?)"""  # noqa: S608  # as above
        values, count = (moment, max(1, limit.rows), batch), batch
        while count == batch:
            count = (await ledger.call(methodcaller("execute", sql, values))).rowcount
            gone[table] = gone.get(table, 0) + count
    return {table: count for table, count in gone.items() if count}

"""Answers kept under an `Idempotency-Key`, so that a request that is sent twice is done once (DESIGN §4.11)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import sqlite3

    from supervisord_py.ledger.store import Ledger

CUT_OFF = 0  # status of a row whose control plane ended before the answer did (set at the opening of the ledger)


class Known(NamedTuple):
    """What is known of the first request with a key; `status` is None while it is worked on, CUT_OFF as above."""

    digest: str
    status: int | None
    content_type: str | None
    body: bytes | None


async def claim(ledger: Ledger, key: str, route: str, digest: str, now: float) -> Known | None:
    """Claim a key for a request at `now` (Unix seconds) with a body of that digest; None: go on, it was free.

    Of two requests exactly one begins, and then calls `complete` or `abandon`. `route` is method and path: the same
    key elsewhere is another key. Raises LedgerDegradedError: the disk takes nothing, so a second request could not be
    told from the first.
    """

    def run(connection: sqlite3.Connection) -> Known | None:
        insert = """INSERT INTO idempotency (key, route, body_digest, created_at) VALUES (?, ?, ?, ?)
                    ON CONFLICT (key, route) DO NOTHING"""
        if connection.execute(insert, (key, route, digest, now)).rowcount == 1:
            return None
        query = "SELECT body_digest, status, content_type, body FROM idempotency WHERE key = ? AND route = ?"
        return Known(*connection.execute(query, (key, route)).fetchone())

    return await ledger.call(run)


async def complete(ledger: Ledger, key: str, route: str, status: int, content_type: str, body: bytes) -> bool:
    """Keep the answer."""
    sql = "UPDATE idempotency SET status = ?, content_type = ?, body = ? WHERE key = ? AND route = ?"
    return await ledger.write(lambda connection: connection.execute(sql, (status, content_type, body, key, route)))


async def abandon(ledger: Ledger, key: str, route: str) -> bool:
    """Free a key whose request had no effect."""
    sql = "DELETE FROM idempotency WHERE key = ? AND route = ?"
    return await ledger.write(lambda connection: connection.execute(sql, (key, route)))

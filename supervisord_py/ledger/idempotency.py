"""Answers kept under an `Idempotency-Key`, so that a request that is sent twice is done once.

Law (DESIGN §4.11): of two requests with one key on one route exactly one begins. The other learns what became of the
first: still in flight, cut off by a restart, done (here is its answer), or that its own body is another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import sqlite3

    from supervisord_py.ledger.store import Durability, Ledger

_CUT_OFF = 0  # status of a row whose control plane ended before the answer did (set at the opening of the ledger)


class New(msgspec.Struct, frozen=True):
    """Nobody used this key here: go on, then `complete` or `abandon`."""


class InFlight(msgspec.Struct, frozen=True):
    """The first request is still being worked on."""


class Mismatch(msgspec.Struct, frozen=True):
    """The key was used with another body."""


class Interrupted(msgspec.Struct, frozen=True):
    """The first request was cut off; what it had done is not known. `abandon` frees the key."""


class Done(msgspec.Struct, frozen=True):
    """The answer that was given."""

    status: int
    content_type: str
    body: bytes


Beginning = New | InFlight | Mismatch | Interrupted | Done


async def begin(ledger: Ledger, key: str, route: str, digest: str, now: float) -> Beginning:
    """Claim a key for a request at `now` (Unix seconds) with a body of that digest.

    `route` is method and path: the same key elsewhere is another key.

    Raises LedgerDegradedError: the disk takes nothing, so a second request could not be told from the first.
    """

    def claim(connection: sqlite3.Connection) -> Beginning:
        insert = """INSERT INTO idempotency (key, route, body_digest, created_at) VALUES (?, ?, ?, ?)
                    ON CONFLICT (key, route) DO NOTHING"""
        if connection.execute(insert, (key, route, digest, now)).rowcount == 1:
            return New()
        query = "SELECT body_digest, status, content_type, body FROM idempotency WHERE key = ? AND route = ?"
        known, status, content_type, body = connection.execute(query, (key, route)).fetchone()
        if known != digest:
            return Mismatch()
        if status is None:
            return InFlight()
        return Interrupted() if status == _CUT_OFF else Done(status, content_type or "", body or b"")

    return await ledger.call(claim)


async def complete(ledger: Ledger, key: str, route: str, answer: Done) -> Durability:
    """Keep the answer."""
    sql = "UPDATE idempotency SET status = ?, content_type = ?, body = ? WHERE key = ? AND route = ?"
    values = (answer.status, answer.content_type, answer.body, key, route)
    return await ledger.write(lambda connection: connection.execute(sql, values))


async def abandon(ledger: Ledger, key: str, route: str) -> Durability:
    """Free a key whose request had no effect, or whose answer is too large to keep."""
    sql = "DELETE FROM idempotency WHERE key = ? AND route = ?"
    return await ledger.write(lambda connection: connection.execute(sql, (key, route)))

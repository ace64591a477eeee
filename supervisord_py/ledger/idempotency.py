"""Answers kept under an `Idempotency-Key`, so that a request that is sent twice is done once.

Law (DESIGN §4.11): of two requests with one key on one route exactly one begins. The other learns what became of the
first: still in flight, cut off by a restart, done (here is its answer), or that its own body is another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3

    from supervisord_py.ledger.store import Durability, Ledger

_CUT_OFF = 0  # status of a row whose control plane ended before the answer did (set at the opening of the ledger)


@dataclass(frozen=True, slots=True)
class New:
    """Nobody used this key here: go on, then `complete` or `abandon`."""


@dataclass(frozen=True, slots=True)
class InFlight:
    """The first request is still being worked on."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key was used with another body."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The first request was cut off; what it had done is not known. `abandon` frees the key."""


@dataclass(frozen=True, slots=True)
class Done:
    """The answer that was given."""

    status: int
    content_type: str
    body: bytes


Beginning = New | InFlight | Mismatch | Interrupted | Done


async def begin(ledger: Ledger, key: str, route: str, digest: str, now: float) -> Beginning:
    """Claim a key for a request.

    Args:
        ledger: Where.
        key: The header's value.
        route: Method and path: the same key elsewhere is another key.
        digest: Of the body.
        now: Unix seconds.

    Raises LedgerDegradedError: the disk takes nothing, so a second request could not be told from the first.
    """
    return await ledger.call(lambda connection: _begin(connection, key, route, digest, now))


def _begin(connection: sqlite3.Connection, key: str, route: str, digest: str, now: float) -> Beginning:
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


async def complete(ledger: Ledger, key: str, route: str, answer: Done) -> Durability:
    """Keep the answer."""
    sql = "UPDATE idempotency SET status = ?, content_type = ?, body = ? WHERE key = ? AND route = ?"
    values = (answer.status, answer.content_type, answer.body, key, route)
    return await ledger.write(lambda connection: connection.execute(sql, values))


async def abandon(ledger: Ledger, key: str, route: str) -> Durability:
    """Free a key whose request had no effect, or whose answer is too large to keep."""
    sql = "DELETE FROM idempotency WHERE key = ? AND route = ?"
    return await ledger.write(lambda connection: connection.execute(sql, (key, route)))

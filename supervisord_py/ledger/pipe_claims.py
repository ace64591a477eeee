"""Which pipe has taken which event: an event with a key starts a pipe once, however often it is told.

Law: of two that claim one (pipe, event, key) exactly one gets it; a claim is given back when what it started failed,
and forgotten when it is old.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.ledger.instants import to_text

if TYPE_CHECKING:
    import sqlite3

    from supervisord_py.ledger.store import Durability, Ledger


@dataclass(frozen=True, slots=True)
class Claim:
    """A pipe's hold on one occurrence of an event. `claimed_at` is Unix seconds."""

    pipe_name: str
    event_name: str
    event_key: str
    claimed_at: float


def write_claim(connection: sqlite3.Connection, claim: Claim, execution: int | None) -> bool:
    """Claim within the transaction of somebody's operation; return whether it was free."""
    sql = """INSERT INTO pipe_claims (pipe_name, event_name, event_key, claimed_at, execution) VALUES (?, ?, ?, ?, ?)
             ON CONFLICT (pipe_name, event_name, event_key) DO NOTHING"""
    values = (claim.pipe_name, claim.event_name, claim.event_key, to_text(claim.claimed_at), execution)
    return connection.execute(sql, values).rowcount == 1


def is_claimed(connection: sqlite3.Connection, claim: Claim) -> bool:
    """Say, within a transaction that writes, whether a claim is taken: until its end nobody else can take it."""
    sql = "SELECT 1 FROM pipe_claims WHERE pipe_name = ? AND event_name = ? AND event_key = ?"
    return connection.execute(sql, (claim.pipe_name, claim.event_name, claim.event_key)).fetchone() is not None


async def release(ledger: Ledger, execution: int) -> Durability:
    """Give back what an execution had claimed: it failed, and the event may start the pipe again."""
    sql = "DELETE FROM pipe_claims WHERE execution = ?"
    return await ledger.write(lambda connection: connection.execute(sql, (execution,)))


async def prune(ledger: Ledger, before: float, batch: int = 500) -> int:
    """Forget claims that are older than a moment (Unix seconds), in small batches; return how many.

    Raises:
        LedgerDegradedError: The disk takes nothing.
    """
    sql = """DELETE FROM pipe_claims WHERE rowid IN
             (SELECT rowid FROM pipe_claims WHERE claimed_at < ? ORDER BY claimed_at LIMIT ?)"""
    total, values = 0, (to_text(before), batch)
    while True:
        count = await ledger.call(lambda connection: connection.execute(sql, values).rowcount)
        total += count
        if count < batch:
            return total

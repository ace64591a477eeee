"""Which units are pinned: what a user wanted, and it survives restarts of everything.

Law: the last word counts; a pin of a unit that no longer exists harms nobody and is there again when the unit is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.ledger.rows import select

if TYPE_CHECKING:
    import sqlite3

    from supervisord_py.ledger.store import Durability, Ledger


@dataclass(frozen=True, slots=True)
class Pin:
    """A unit exempt from LRU eviction, and with `forever` from eviction for age too. `pinned_at` is Unix seconds."""

    unit: str
    forever: bool
    pinned_at: float


async def pin(ledger: Ledger, wanted: Pin) -> Durability:
    """Pin a unit, or change how it is pinned."""
    sql = """INSERT INTO pins (unit, forever, pinned_at) VALUES (?, ?, ?)
             ON CONFLICT (unit) DO UPDATE SET forever = excluded.forever, pinned_at = excluded.pinned_at"""
    values = (wanted.unit, int(wanted.forever), wanted.pinned_at)
    return await ledger.write(lambda connection: connection.execute(sql, values))


async def unpin(ledger: Ledger, unit: str) -> Durability:
    """Take a pin away; one that is not there is away already."""
    return await ledger.write(lambda connection: connection.execute("DELETE FROM pins WHERE unit = ?", (unit,)))


async def everything(ledger: Ledger) -> list[Pin]:
    """Return all pins, by unit."""

    def run(connection: sqlite3.Connection) -> list[Pin]:
        rows = select(connection, "SELECT unit, forever, pinned_at FROM pins ORDER BY unit")
        return [Pin(row["unit"], bool(row["forever"]), row["pinned_at"]) for row in rows]

    return await ledger.read(run)

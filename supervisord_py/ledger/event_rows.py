"""What happened, kept: the journal of the event stream, and the questions asked of it later.

Law: appending never waits and never fails; an id is written once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisord_py.ledger.rows import from_json, select, to_json

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping, Sequence

    from supervisord_py.ledger.store import Ledger

CHAIN_MAX = 100


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event: id, Unix seconds, unit or None, its word, reason, instance, id of its cause, further JSON values."""

    id: int
    time: float
    unit: str | None
    event: str
    reason: str | None
    instance: str | None
    cause: int | None
    facts: Mapping[str, Any]


class EventJournal:
    """The ledger as the event stream sees it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def append(self, event: Any) -> None:
        """Queue an event to be written: anything with the members of EventRow."""
        sql = """INSERT INTO events (id, time, unit, event, reason, instance, cause, facts)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING"""
        facts = to_json(event.facts)
        values = (
            event.id,
            event.time,
            event.unit,
            event.event,
            event.reason,
            event.instance,
            event.cause,
            facts,
        )
        self._ledger.post(lambda connection: connection.execute(sql, values))

    async def last_id(self) -> int:
        """Return the greatest id that is kept, 0 when there is none."""
        return await last_id(self._ledger)

    async def after(self, after_id: int, unit: str | None, limit: int) -> list[EventRow]:
        """Return the oldest events with a greater id, ascending."""
        return await after(self._ledger, after_id, unit, limit)

    async def latest(self, unit: str | None, limit: int) -> list[EventRow]:
        """Return the newest events, ascending."""
        return await latest(self._ledger, unit, limit)


async def last_id(ledger: Ledger) -> int:
    """Return the greatest id that is kept, 0 when there is none."""
    query = "SELECT coalesce(max(id), 0) FROM events"
    return await ledger.read(lambda connection: int(connection.execute(query).fetchone()[0]))


async def after(ledger: Ledger, after_id: int, unit: str | None = None, limit: int = 1000) -> list[EventRow]:
    """Return the oldest events with a greater id, of one unit or of all, ascending."""
    if unit is None:
        return await _query(ledger, "WHERE id > ? ORDER BY id LIMIT ?", (after_id, limit))
    return await _query(ledger, "WHERE unit = ? AND id > ? ORDER BY id LIMIT ?", (unit, after_id, limit))


async def latest(ledger: Ledger, unit: str | None = None, limit: int = 100) -> list[EventRow]:
    """Return the newest events, of one unit or of all, ascending."""
    if unit is None:
        found = await _query(ledger, "ORDER BY id DESC LIMIT ?", (limit,))
    else:
        found = await _query(ledger, "WHERE unit = ? ORDER BY id DESC LIMIT ?", (unit, limit))
    return found[::-1]


async def get(ledger: Ledger, number: int) -> EventRow | None:
    """Return one event."""
    found = await _query(ledger, "WHERE id = ?", (number,))
    return found[0] if found else None


async def chain(ledger: Ledger, number: int) -> list[EventRow]:
    """Return an event and what led to it, cause before effect; ends where a cause is no longer kept."""
    found: list[EventRow] = []
    wanted: int | None = number
    while wanted is not None and len(found) < CHAIN_MAX:
        row = await get(ledger, wanted)
        if row is None:
            break
        found.append(row)
        # A cause is older than its effect; anything else is damage and would go round in circles.
        wanted = row.cause if row.cause is not None and row.cause < row.id else None
    return found[::-1]


async def _query(ledger: Ledger, where: str, values: Sequence[object]) -> list[EventRow]:
    def run(connection: sqlite3.Connection) -> list[EventRow]:
        rows = select(connection, f"SELECT * FROM events {where}", values)  # noqa: S608  # our own words
        return [EventRow(**{**row, "facts": from_json(row["facts"])}) for row in rows]

    return await ledger.read(run)

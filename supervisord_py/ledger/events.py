"""What happened, kept: the journal of the event stream, and the questions asked of it later."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from supervisord_py.ledger.store import Ledger
from supervisord_py.ledger.table import Table

CHAIN_MAX = 100


class Event(msgspec.Struct, frozen=True):
    """One fact: the row, the object of the stream, and (`document`) what users see."""

    id: int  # grows; names this event for ever
    time: float  # Unix seconds
    unit: str | None  # None when it concerns the daemon
    event: str  # one snake_case word
    reason: str | None = None  # of CONTRACT §7
    instance: str | None = None
    cause: int | None = None  # the event that led to this one
    facts: dict[str, Any] = {}

    def document(self) -> dict[str, Any]:
        """Return the JSON object of CONTRACT §3: time as RFC 3339 UTC, facts beside the other members."""
        known = msgspec.structs.asdict(self)
        moment = datetime.fromtimestamp(self.time, UTC).isoformat(timespec="milliseconds")
        known |= {"time": moment.replace("+00:00", "Z")}
        del known["facts"]
        return {**known, **{name: value for name, value in self.facts.items() if name not in known}}


EVENTS = Table("events", Event)


async def last_id(ledger: Ledger) -> int:
    query = "SELECT coalesce(max(id), 0) FROM events"
    return await ledger.read(lambda connection: int(connection.execute(query).fetchone()[0]))


async def after(ledger: Ledger, number: int, unit: str | None, limit: int) -> list[Event]:
    """Return the oldest events with a greater id, ascending."""
    # Two queries, not one with coalesce: each has its index.
    of, values = ("", [number, limit]) if unit is None else ("unit = ? AND ", [unit, number, limit])
    return await EVENTS.find(ledger, f"WHERE {of}id > ? ORDER BY id LIMIT ?", *values)


async def latest(ledger: Ledger, unit: str | None, limit: int) -> list[Event]:
    of, values = ("", [limit]) if unit is None else ("WHERE unit = ? ", [unit, limit])
    return (await EVENTS.find(ledger, f"{of}ORDER BY id DESC LIMIT ?", *values))[::-1]


async def chain(ledger: Ledger, number: int) -> list[Event]:
    """Return an event and what led to it, cause before effect; ends where a cause is no longer kept."""
    found: list[Event] = []
    wanted: int | None = number
    while wanted is not None and len(found) < CHAIN_MAX and (row := await EVENTS.get(ledger, wanted)) is not None:
        found.append(row)
        # A cause is older than its effect; anything else is damage and would go round in circles.
        wanted = row.cause if row.cause is not None and row.cause < row.id else None
    return found[::-1]

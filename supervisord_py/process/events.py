"""What happened, in order, to whoever wants to know: one stream of numbered facts.

Law: publishing never waits and never fails; ids grow, also over restarts of the daemon, and name one event for ever; a
subscriber gets every event after the id he names, once and in order, or an `EventGap` that says how many he was too
slow for. Memory holds the newest events, the journal (the ledger) all; a subscriber is a place in both, and costs the
publisher nothing but a wake-up.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import msgspec

from supervisord_py.ledger.store import Ledger
from supervisord_py.ledger.table import Table
from supervisord_py.process.model import Reason

CHAIN_MAX = 100
RECENT_MAX = 2048
REPLAY_BATCH = 500
RESTART_STRIDE = 1000
"""Ids left out at a start: those that a daemon that was killed may have told somebody but not yet written down."""


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
        try:
            moment = datetime.fromtimestamp(self.time, UTC)
        except (OverflowError, ValueError, OSError):  # a damaged cell, which must not hide the others
            moment = datetime.fromtimestamp(0, UTC)
        known |= {"time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")}
        del known["facts"]
        return {**known, **{name: value for name, value in self.facts.items() if name not in known}}


class EventGap(msgspec.Struct, frozen=True):
    """The reader was too slow: at most so many events are not in memory any more and not in the journal."""

    missed: int

    def document(self) -> dict[str, Any]:
        return {"event": "gap", "missed": self.missed}


Item = Event | EventGap
EVENTS = Table("events", Event)


# -- the journal -------------------------------------------------------------------------------------------------------


async def last_event(ledger: Ledger) -> int:
    query = "SELECT coalesce(max(id), 0) FROM events"
    return await ledger.read(lambda connection: int(connection.execute(query).fetchone()[0]))


async def after(ledger: Ledger, number: int, unit: str | None, limit: int) -> list[Event]:
    """Return the oldest events with a greater id, ascending."""
    # Two queries, not one with coalesce: each has its index.
    of, values = ("", [number, limit]) if unit is None else ("unit = ? AND ", [unit, number, limit])
    return await EVENTS.find(ledger, f"WHERE {of}id > ? ORDER BY id LIMIT ?", *values)


async def chain(ledger: Ledger, last: Event) -> list[Event]:
    """Return an event behind what led to it, cause before effect; begins where a cause is no longer kept."""
    found, row = [last], await EVENTS.get(ledger, last.cause)
    # A cause is older than its effect; anything else is damage and would go round in circles.
    while row is not None and row.id < found[-1].id and len(found) < CHAIN_MAX:
        found.append(row)
        row = await EVENTS.get(ledger, row.cause)
    return found[::-1]


# -- the stream --------------------------------------------------------------------------------------------------------


class EventStream:
    """The one stream of events. Use on the loop's thread only; make it with `open`."""

    def __init__(self, ledger: Ledger, last_id: int) -> None:
        self.last_id = last_id  # the greatest id that was given away so far
        self.listeners: set[Callable[[Event], None]] = set()  # called with each event; they never wait and never fail
        self._ledger = ledger
        self._first_id = last_id + 1
        self._recent: deque[Event] = deque(maxlen=RECENT_MAX)
        self._wakes: set[asyncio.Event] = set()  # one a subscriber
        self._is_closed = False

    @classmethod
    async def open(cls, ledger: Ledger) -> EventStream:
        """Go on where the journal ends, or beyond it (`Ledger.first_event`), so that no id ever names two events."""
        last_id = await last_event(ledger)
        after_journal = last_id + RESTART_STRIDE if last_id else 0
        return cls(ledger, max(after_journal, ledger.first_event))

    def publish(
        self,
        event: str,
        unit: str | None = None,
        reason: Reason | None = None,
        *,
        instance: str | None = None,
        cause: int | None = None,
        **facts: Any,
    ) -> int:
        """Tell everybody that something happened, and return the id of the event, one snake_case word.

        `unit` is None for the daemon itself, `cause` the id of the event that led to this one; `facts` are JSON values.
        """
        self.last_id += 1
        word = None if reason is None else reason.value
        published = Event(self.last_id, time.time(), unit, event, word, instance, cause, facts)
        self._recent.append(published)
        self._ledger.post(EVENTS.insert(published))
        for listener in self.listeners:
            listener(published)
        for wake in self._wakes:
            wake.set()
        return published.id

    def subscribe(self, after_id: int | None = None, *, unit: str | None = None) -> AsyncGenerator[Item, None]:
        """Return a reader of what follows an id: None for what comes from this call on, 0 for all that is kept."""
        return self._follow(self.last_id if after_id is None else min(after_id, self.last_id), unit)

    async def _follow(self, at: int, unit: str | None) -> AsyncGenerator[Item, None]:
        wake = asyncio.Event()
        self._wakes.add(wake)
        try:
            while True:
                if at < self.last_id:
                    items, at = await self._read_on(at, unit)
                    for item in items:
                        yield item
                elif self._is_closed:
                    return
                else:
                    wake.clear()
                    await wake.wait()
        finally:
            self._wakes.discard(wake)

    async def _read_on(self, after_id: int, unit: str | None) -> tuple[list[Item], int]:
        """Return the next events after an id, a batch of them, and up to which id that was."""
        first = self._recent[0].id if self._recent else self.last_id + 1
        if after_id + 1 >= first:
            newer = islice(self._recent, after_id + 1 - first, None)  # ids in memory have no holes
            return [it for it in newer if unit in (None, it.unit)], self.last_id
        rows = [row for row in await after(self._ledger, after_id, unit, REPLAY_BATCH) if row.id < first]
        if len(rows) == REPLAY_BATCH:
            return [*rows], rows[-1].id
        # The rest is in memory, unless a full disk keeps the journal behind what memory has given up since.
        if first > self._first_id and (written := max(after_id, await last_event(self._ledger))) < first - 1:
            return [*rows, EventGap(first - 1 - max(written, self._first_id - 1))], first - 1
        return [*rows], first - 1

    async def history(self, after_id: int = 0, *, unit: str | None = None, limit: int = 1000) -> list[Event]:
        """Return the oldest events after an id, ascending, those included that are not written yet."""
        recent = [it for it in self._recent if it.id > after_id]  # first: meanwhile newer ones may push them out
        kept = {row.id: row for row in await after(self._ledger, after_id, unit, limit)}
        kept.update((it.id, it) for it in recent if unit in (None, it.unit))
        return [kept[number] for number in sorted(kept)[:limit]]

    async def latest(self, *, unit: str | None = None, limit: int = 100) -> list[Event]:
        """Return the newest events, ascending, those included that are not written yet."""
        of, values = ("", [limit]) if unit is None else ("WHERE unit = ? ", [unit, limit])
        kept = {row.id: row for row in await EVENTS.find(self._ledger, f"{of}ORDER BY id DESC LIMIT ?", *values)}
        kept.update((it.id, it) for it in self._recent if unit in (None, it.unit))
        return [kept[number] for number in sorted(kept)[-limit:]] if limit > 0 else []

    def close(self) -> None:
        """End all subscriptions: their readers get what there is, then the end."""
        self._is_closed = True
        for wake in self._wakes:
            wake.set()

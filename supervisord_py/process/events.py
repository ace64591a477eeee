"""What happened, in order, to whoever wants to know: one stream of numbered facts.

Law: publishing never waits and never fails; ids grow, also over restarts of the daemon, and name
one event for ever; a subscriber gets every event after the id he names, once and in order, or an
`EventGap` that says how many he was too slow for. Memory holds the newest events, the journals
(tables of the ledger, `event_words.py`) all; a subscriber is a place in both, and costs the
publisher nothing but a wake-up.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from supervisord_py.config.settings import HistorySettings
from supervisord_py.ledger import kept
from supervisord_py.ledger.schema import TableLimit, readable_rows
from supervisord_py.ledger.store import Ledger
from supervisord_py.ledger.table import Operation, Table
from supervisord_py.process.event_words import (
    DEATHS,
    EVERYTHING,
    FAILED,
    EventFilter,
    Journal,
    journal_of,
)
from supervisord_py.process.model import Reason

CHAIN_MAX = 100
DAY_SECONDS = 86_400.0
RECENT_MAX = 2048
REPLAY_BATCH = 500
LAST_ID = 2**63 - 1
LASTING_UNITS = 10_000  # whose last deaths are kept whatever their age; those that died last
LASTING_CHAIN = 20  # events that led to such a death and are kept with it
RESTART_STRIDE = 1000
"""Ids left out at a start: those that a daemon that was killed may have told somebody but not
yet written down.
"""


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
        """Return the JSON object of CONTRACT §3: time as RFC 3339 UTC, facts beside the other
        members.
        """
        known = msgspec.structs.asdict(self)
        try:
            moment = datetime.fromtimestamp(self.time, UTC)
        # a damaged cell, which must not hide the others
        except (OverflowError, ValueError, OSError):
            moment = datetime.fromtimestamp(0, UTC)
        known |= {"time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")}
        del known["facts"]
        return {**known, **{name: value for name, value in self.facts.items() if name not in known}}


class EventGap(msgspec.Struct, frozen=True):
    """The reader was too slow: at most so many events are not in memory any more and not in the
    journal.
    """

    missed: int

    def document(self) -> dict[str, Any]:
        return {"event": "gap", "missed": self.missed}


Item = Event | EventGap
ALL_EVENTS = Table("all_events", Event)
"""All journals as one, for questions."""
JOURNALS = {journal: Table(journal.value, Event) for journal in Journal}


class EventRange(NamedTuple):
    """Events by their ids: those after `after`, up to `upto`; and whether there are no others
    that are wanted.
    """

    after: int
    upto: int
    is_complete: bool


# -- the journals ----------------------------------------------------------------------------------


def written(event: Event) -> Operation:
    """Return the operation that writes an event into its journal."""
    return JOURNALS[journal_of(event.event, event.reason, event.facts)].insert(event)


async def last_event(ledger: Ledger) -> int:
    return await ledger.read(kept.last_event)


async def after(
    ledger: Ledger, number: int, limit: int, wanted: EventFilter = EVERYTHING, before: int = LAST_ID
) -> list[Event]:
    """Return the oldest events with a greater id, and a smaller one than `before`, ascending."""
    condition, values = wanted.conditions()
    where = f"WHERE {condition} AND id > ? AND id < ? ORDER BY id LIMIT ?"
    return await ALL_EVENTS.find(ledger, where, *values, number, before, limit)


async def chain(ledger: Ledger, last: Event) -> list[Event]:
    """Return an event behind what led to it, cause before effect; begins where a cause is no
    longer kept.
    """
    found, row = [last], await ALL_EVENTS.get(ledger, last.cause)
    # A cause is older than its effect; anything else is damage and would go round in circles.
    while row is not None and row.id < found[-1].id and len(found) < CHAIN_MAX:
        found.append(row)
        row = await ALL_EVENTS.get(ledger, row.cause)
    return found[::-1]


# -- what is forgotten, and what is never ----------------------------------------------------------


def limits_of(history: HistorySettings) -> dict[str, TableLimit]:
    """Return how many rows of each journal are kept, and for how long."""
    runs = TableLimit("time", history.runs_rows, history.runs_days * DAY_SECONDS)
    others = TableLimit("time", history.events_rows, history.events_days * DAY_SECONDS)
    return {journal.value: runs if journal is Journal.RUNS else others for journal in Journal}


_IDS_OF_QUERY = 500  # SQLite takes only so many values
_LAST_DEATHS = """
    WITH units(unit) AS (SELECT DISTINCT unit FROM {table} WHERE unit IS NOT NULL)
    SELECT id, instance FROM units JOIN {table} AS death ON death.id =
        (SELECT id FROM {table} AS it WHERE it.unit = units.unit AND it.event IN ({marks})
            ORDER BY it.id DESC LIMIT 1)"""


async def lasting_rows(ledger: Ledger) -> dict[str, set[int]]:
    """Return the rows that must outlive all limits, by table: of each unit its last death, and
    what led to it.
    """
    return await ledger.read(_lasting_rows)


def _lasting_rows(connection: sqlite3.Connection) -> dict[str, set[int]]:
    deaths: list[tuple[int, str | None]] = []
    for journal in FAILED:
        sql = _LAST_DEATHS.format(table=journal.value, marks=", ".join("?" * len(DEATHS)))
        deaths += readable_rows(connection, sql, DEATHS)[0]
    deaths = sorted(deaths, key=lambda death: death[0])[-LASTING_UNITS:]
    rows: dict[str, set[int]] = {}
    causes = [number for number, _ in deaths]
    for _ in range(LASTING_CHAIN):
        found = list(
            _rows_of(
                connection,
                "SELECT id, cause, journal FROM all_events WHERE id IN ({marks})",
                causes,
            )
        )
        for number, _, journal in found:
            rows.setdefault(journal, set()).add(number)
        causes = [cause for number, cause, _ in found if cause is not None and cause < number]
    keys = [key for _, key in deaths if key is not None]
    instances = _rows_of(connection, "SELECT rowid FROM instances WHERE key IN ({marks})", keys)
    rows["instances"] = {number for (number,) in instances}
    return rows


def _rows_of(
    connection: sqlite3.Connection, sql: str, values: Sequence[object]
) -> Iterator[tuple[Any, ...]]:
    """Yield what a query finds for many values, with `{marks}` where they are to stand."""
    for begin in range(0, len(values), _IDS_OF_QUERY):
        page = values[begin : begin + _IDS_OF_QUERY]
        found, _ = readable_rows(connection, sql.format(marks=", ".join("?" * len(page))), page)
        yield from found


async def last_death(ledger: Ledger, unit: str) -> Event | None:
    """Return the last event by which a life of the unit ended badly, however long ago that was."""
    wanted = EventFilter(units=frozenset((unit,)), words=frozenset(DEATHS), journals=FAILED)
    condition, values = wanted.conditions()
    rows = await ALL_EVENTS.find(ledger, f"WHERE {condition} ORDER BY id DESC LIMIT 1", *values)
    return rows[0] if rows else None


# -- the stream ------------------------------------------------------------------------------------


class EventStream:
    """The one stream of events. Use on the loop's thread only; make it with `open`."""

    def __init__(self, ledger: Ledger, last_id: int) -> None:
        self.last_id = last_id  # the greatest id that was given away so far
        # called with each event; they never wait and never fail
        self.listeners: set[Callable[[Event], None]] = set()
        self._ledger = ledger
        self._first_id = last_id + 1
        self._recent: deque[Event] = deque(maxlen=RECENT_MAX)
        self._wakes: set[asyncio.Event] = set()  # one a subscriber
        self._is_closed = False

    @classmethod
    async def open(cls, ledger: Ledger) -> EventStream:
        """Go on where the journal ends, or beyond it (`Ledger.first_event`), so that no id ever
        names two events.
        """
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
        """Tell everybody that something happened, and return the id of the event, one snake_case
        word.

        `unit` is None for the daemon itself, `cause` the id of the event that led to this one;
        `facts` are JSON values.
        """
        self.last_id += 1
        word = None if reason is None else reason.value
        published = Event(self.last_id, time.time(), unit, event, word, instance, cause, facts)
        self._recent.append(published)
        self._ledger.post(written(published))
        for listener in self.listeners:
            listener(published)
        for wake in self._wakes:
            wake.set()
        return published.id

    def subscribe(
        self,
        after_id: int | None = None,
        *,
        unit: str | None = None,
        wanted: EventFilter = EVERYTHING,
    ) -> AsyncGenerator[Item, None]:
        """Return a reader of what follows an id: None for what comes from this call on, 0 for
        all that is kept.
        """
        begin = self.last_id if after_id is None else min(after_id, self.last_id)
        return self._follow(begin, _of_unit(unit, wanted))

    async def _follow(self, at: int, wanted: EventFilter) -> AsyncGenerator[Item, None]:
        wake = asyncio.Event()
        self._wakes.add(wake)
        try:
            while True:
                if at < self.last_id:
                    items, at = await self._read_on(at, wanted)
                    for item in items:
                        yield item
                elif self._is_closed:
                    return
                else:
                    wake.clear()
                    await wake.wait()
        finally:
            self._wakes.discard(wake)

    async def _read_on(self, after_id: int, wanted: EventFilter) -> tuple[list[Item], int]:
        """Return the next events after an id, a batch of them, and the id up to which they were
        read.
        """
        first_in_memory = self._first_in_memory
        if after_id + 1 >= first_in_memory:
            # Ids in memory have no holes: the distance of two ids is that of their places.
            newer = islice(self._recent, after_id + 1 - first_in_memory, None)
            return [event for event in newer if wanted.admits(event)], self.last_id

        rows = await after(self._ledger, after_id, REPLAY_BATCH, wanted, first_in_memory)
        items: list[Item] = [*rows]
        if len(rows) == REPLAY_BATCH:
            return items, rows[-1].id

        # The journal has no more events before those in memory. Memory gives up its oldest events
        # whether they are written or not, so a full disk can leave events neither in memory nor in
        # the journal. The reader must learn how many.
        if first_in_memory > self._first_id:
            last_lost = first_in_memory - 1
            last_written = await last_event(self._ledger)
            # Smaller ids than `_first_id` are no loss: this daemon gave them to no event.
            last_readable = max(after_id, last_written, self._first_id - 1)
            if last_readable < last_lost:
                items.append(EventGap(last_lost - last_readable))
        return items, first_in_memory - 1

    @property
    def _first_in_memory(self) -> int:
        return self._recent[0].id if self._recent else self.last_id + 1

    async def between(
        self, ids: EventRange, wanted: EventFilter = EVERYTHING
    ) -> AsyncGenerator[Item, None]:
        """Yield the events of a range, those included that are not written yet."""
        at = ids.after
        upto = min(ids.upto, self.last_id)
        while at < upto:
            items, at = await self._read_on(at, wanted)
            for item in items:
                if isinstance(item, EventGap) or item.id <= upto:
                    yield item

    async def newest(
        self, limit: int, wanted: EventFilter = EVERYTHING, before: int | None = None
    ) -> EventRange:
        """Return the range of the newest events, of those before an id where one is given;
        `limit` is at least 1.
        """
        upto = self.last_id if before is None else min(before - 1, self.last_id)
        first = self._first_in_memory
        recent = [it.id for it in self._recent if it.id <= upto and wanted.admits(it)]
        if len(recent) > limit:
            return EventRange(recent[-limit - 1], upto, is_complete=False)
        condition, values = wanted.conditions()
        sql = (
            f"SELECT id FROM all_events WHERE {condition} AND id < ? "  # noqa: S608  # our own words
            "ORDER BY id DESC LIMIT 1 OFFSET ?"
        )
        older = await self._ids(sql, *values, min(first, upto + 1), limit - len(recent))
        return EventRange(older[0] if older else 0, upto, is_complete=not older)

    async def oldest(
        self, after_id: int, limit: int, wanted: EventFilter = EVERYTHING
    ) -> EventRange:
        """Return the range of the oldest events after an id; `limit` is at least 1."""
        first = self._first_in_memory
        recent = [it.id for it in self._recent if it.id > after_id and wanted.admits(it)]
        condition, values = wanted.conditions()
        sql = (
            f"SELECT id FROM all_events WHERE {condition} "  # noqa: S608  # our own words
            "AND id > ? AND id < ? ORDER BY id LIMIT ?"
        )
        # One more than is asked for shows whether there are others.
        found = [*await self._ids(sql, *values, after_id, first, limit + 1), *recent]
        if len(found) > limit:
            return EventRange(after_id, found[limit - 1], is_complete=False)
        return EventRange(after_id, self.last_id, is_complete=True)

    async def _ids(self, sql: str, *values: object) -> list[int]:
        return await self._ledger.read(
            lambda connection: [int(row[0]) for row in connection.execute(sql, values)]
        )

    async def units(self) -> set[str]:
        """Return every unit of which an event is kept."""
        queries = (f"SELECT DISTINCT unit FROM {journal.value}" for journal in Journal)  # noqa: S608  # our own words
        sql = " UNION ".join(queries)
        rows, _ = await self._ledger.read(lambda connection: readable_rows(connection, sql))
        return {unit for (unit,) in rows if isinstance(unit, str)} | {
            it.unit for it in self._recent if it.unit
        }

    async def history(
        self,
        after_id: int = 0,
        *,
        unit: str | None = None,
        limit: int = 1000,
        wanted: EventFilter = EVERYTHING,
    ) -> list[Event]:
        """Return the oldest events after an id, ascending, those included that are not written
        yet.
        """
        chosen = _of_unit(unit, wanted)
        return await self._events_of(await self.oldest(after_id, limit, chosen), chosen)

    async def latest(
        self, *, unit: str | None = None, limit: int = 100, wanted: EventFilter = EVERYTHING
    ) -> list[Event]:
        """Return the newest events, ascending, those included that are not written yet."""
        chosen = _of_unit(unit, wanted)
        return await self._events_of(await self.newest(limit, chosen), chosen)

    async def _events_of(self, ids: EventRange, wanted: EventFilter) -> list[Event]:
        return [item async for item in self.between(ids, wanted) if isinstance(item, Event)]

    def close(self) -> None:
        """End all subscriptions: their readers get what there is, then the end."""
        self._is_closed = True
        for wake in self._wakes:
            wake.set()


def _of_unit(unit: str | None, wanted: EventFilter) -> EventFilter:
    return wanted if unit is None else structs.replace(wanted, units=frozenset((unit,)))

"""What happened, in order, to whoever wants to know: one stream of numbered facts.

Law: publishing never waits and never fails; ids grow, also over restarts of the daemon, and name one event for ever; a
subscriber gets every event after the id he names, once and in order, or an `EventGap` that says how many he was too
slow for. The journal (the ledger) keeps them; what is not yet written there is replayed from memory.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self

import msgspec

from supervisord_py.ledger.events import Event

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.ledger.events import EventJournal
    from supervisord_py.process.model import Reason

RECENT_MAX = 2048
QUEUE_MAX = 2048
REPLAY_BATCH = 500
RESTART_STRIDE = 100
"""Ids left out at a start: those that a daemon that was killed may have told somebody but not yet written down."""


class EventGap(msgspec.Struct, frozen=True):
    """The reader was too slow for so many events."""

    missed: int

    def document(self) -> dict[str, Any]:
        """Return the JSON object that stands in the stream."""
        return {"event": "gap", "missed": self.missed}


Item = Event | EventGap


class Subscription:
    """One reader: an async iterator, registered from the moment it is made. Close it, or use it as a context."""

    def __init__(self, stream: EventStream, after_id: int | None, unit: str | None) -> None:
        self._stream = stream
        self._unit = unit
        self._queue: deque[Event] = deque()
        self._missed = 0
        self._wake = asyncio.Event()
        self._closed = False
        self._seam = stream.last_id  # events up to here come from journal and memory, later ones through the queue
        self._replayed = self._seam if after_id is None else min(after_id, self._seam)
        self._recent = stream.recent_after(self._replayed)
        self._history: deque[Event] = deque()

    def offer(self, event: Event) -> None:
        """Take an event; the oldest one makes room where the reader is slow."""
        if self._unit is not None and event.unit != self._unit:
            return
        if len(self._queue) >= self._stream.queue_max:
            self._queue.popleft()
            self._missed += 1
        self._queue.append(event)
        self._wake.set()

    def close(self) -> None:
        """End it: the reader gets what is queued, then the end."""
        self._closed = True
        self._stream.leave(self)
        self._wake.set()

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Item:
        if self._replayed < self._seam and not self._history:
            await self._replay()
        if self._history:
            return self._history.popleft()
        while True:
            if self._missed:
                missed, self._missed = self._missed, 0
                return EventGap(missed)
            if self._queue:
                return self._queue.popleft()
            if self._closed:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    async def _replay(self) -> None:
        """Fetch the next batch of what was before the seam: from the journal, then from memory."""
        first_recent = self._recent[0].id if self._recent else self._seam + 1
        while self._replayed < first_recent - 1 and not self._history:
            rows = await self._stream.history(self._replayed, unit=self._unit, limit=REPLAY_BATCH)
            older = [row for row in rows if row.id < first_recent]
            self._history.extend(older)
            self._replayed = older[-1].id if older and len(rows) == REPLAY_BATCH else first_recent - 1
        if not self._history:
            fitting = (event for event in self._recent if self._unit is None or event.unit == self._unit)
            self._history.extend(event for event in fitting if self._replayed < event.id <= self._seam)
            self._replayed, self._recent = self._seam, ()


class EventStream:
    """The one stream of events. Use on the loop's thread only; make it with `open`.

    Args:
        journal: Keeps them.
        last_id: The greatest id that was given away so far.
        clock: Unix seconds.
        queue_max: Events that wait for one slow subscriber.
    """

    def __init__(
        self,
        journal: EventJournal,
        last_id: int,
        *,
        clock: Callable[[], float] = time.time,
        queue_max: int = QUEUE_MAX,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._last_id = last_id
        self._recent: deque[Event] = deque(maxlen=RECENT_MAX)
        self._subscriptions: set[Subscription] = set()
        self.listeners: set[Callable[[Event], None]] = set()
        """Called with each event as it is published; they never wait and never fail."""
        self.queue_max = queue_max

    @classmethod
    async def open(cls, journal: EventJournal, *, clock: Callable[[], float] = time.time) -> EventStream:
        """Go on where the journal ends, with a stride, so that no id ever names two events."""
        last_id = await journal.last_id()
        return cls(journal, last_id + RESTART_STRIDE if last_id else 0, clock=clock)

    @property
    def last_id(self) -> int:
        """The id of the newest event."""
        return self._last_id

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
        """Tell everybody that something happened.

        Args:
            event: One snake_case word.
            unit: `kind:name`, or None for the daemon itself.
            reason: Of CONTRACT §7.
            instance: Instance id.
            cause: Id of the event that led to this one.
            facts: JSON values.

        Returns:
            The id of the event.
        """
        self._last_id += 1
        word = None if reason is None else reason.value
        published = Event(self._last_id, self._clock(), unit, event, word, instance, cause, facts)
        self._recent.append(published)
        self._journal.append(published)
        for listener in self.listeners:
            listener(published)
        for subscription in tuple(self._subscriptions):
            subscription.offer(published)
        return published.id

    def subscribe(self, after_id: int | None = None, *, unit: str | None = None) -> Subscription:
        """Return a reader of everything after an id: None for only what comes, 0 for everything that is kept."""
        subscription = Subscription(self, after_id, unit)
        self._subscriptions.add(subscription)
        return subscription

    def leave(self, subscription: Subscription) -> None:
        """Forget a reader."""
        self._subscriptions.discard(subscription)

    def recent_after(self, after_id: int) -> tuple[Event, ...]:
        """Return what memory holds after an id, ascending."""
        return tuple(event for event in self._recent if event.id > after_id)

    async def history(self, after_id: int = 0, *, unit: str | None = None, limit: int = 1000) -> list[Event]:
        """Return the oldest events after an id, ascending, those included that are not written yet."""
        recent = self.recent_after(after_id)  # taken first: while the journal is read, newer ones may push them out
        kept = {row.id: row for row in await self._journal.after(after_id, unit, limit)}
        kept.update((it.id, it) for it in recent if unit is None or it.unit == unit)
        return [kept[number] for number in sorted(kept)[:limit]]

    async def latest(self, *, unit: str | None = None, limit: int = 100) -> list[Event]:
        """Return the newest events, ascending, those included that are not written yet."""
        kept = {row.id: row for row in await self._journal.latest(unit, limit)}
        kept.update((it.id, it) for it in self._recent if unit is None or it.unit == unit)
        return [kept[number] for number in sorted(kept)[-limit:]] if limit > 0 else []

    def close(self) -> None:
        """End all subscriptions: their readers get what is queued, then the end."""
        for subscription in tuple(self._subscriptions):
            subscription.close()

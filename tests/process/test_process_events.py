"""The stream of events: every one once and in order, from any id, however slow the reader and whatever the journal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.process import events as module
from supervisord_py.process.events import RESTART_STRIDE, Event, EventGap, EventStream, Item
from supervisord_py.process.model import Reason


class MemoryJournal:
    """Keeps what it was told to write; what is in `late` is not written yet."""

    def __init__(self) -> None:
        self.rows: list[Event] = []
        self.late: list[Event] = []
        self.slow = False

    def append(self, event: Event) -> None:
        if not self.slow:
            self.rows += self.late
            self.late = []
        (self.late if self.slow else self.rows).append(event)

    async def last_id(self) -> int:
        return max((row.id for row in self.rows), default=0)

    async def after(self, after_id: int, unit: str | None, limit: int) -> Sequence[Event]:
        await asyncio.sleep(0)
        return [row for row in self.rows if row.id > after_id and unit in {None, row.unit}][:limit]

    async def latest(self, unit: str | None, limit: int) -> Sequence[Event]:
        await asyncio.sleep(0)
        return [row for row in self.rows if unit in {None, row.unit}][-limit:]


@pytest.fixture
def journal() -> MemoryJournal:
    return MemoryJournal()


@pytest.fixture
async def stream(journal: MemoryJournal) -> EventStream:
    return await EventStream.open(journal, clock=lambda: 1_700_000_000.125)


async def read(subscription: AsyncGenerator[Item, None], count: int) -> list[Item]:
    async with asyncio.timeout(60):
        return [await anext(subscription) for _ in range(count)]


def ids(items: Sequence[Item]) -> list[int]:
    return [item.id for item in items if isinstance(item, Event)]


async def test_an_event_as_json(stream: EventStream) -> None:
    cause = stream.publish("tool_started", "tool:x")
    stream.publish("tool_stopped", "tool:x", Reason.EVICTED_LRU, instance="k", cause=cause, pid=5, id="not this one")
    subscription = stream.subscribe(0)
    told, ended = [item.document() for item in await read(subscription, 2)]
    plain = {"time": "2023-11-14T22:13:20.125Z", "unit": "tool:x"}
    rest = {"event": "tool_started", "reason": None, "instance": None, "cause": None}
    assert told == {"id": 1, **plain, **rest}
    rest = {"event": "tool_stopped", "reason": "evicted_lru", "instance": "k", "cause": 1, "pid": 5}
    assert ended == {"id": 2, **plain, **rest}
    assert EventGap(3).document() == {"event": "gap", "missed": 3}


@pytest.mark.parametrize(("behind", "missed"), [(False, 0), (True, 6)])
async def test_a_slow_reader_gets_the_rest_from_the_journal_or_is_told_how_many_he_missed(
    journal: MemoryJournal, monkeypatch: pytest.MonkeyPatch, behind: bool, missed: int
) -> None:
    monkeypatch.setattr(module, "RECENT_MAX", 3)
    stream = EventStream(journal, 0)
    slow, quick = stream.subscribe(), stream.subscribe()
    seen = []
    for number in range(10):
        journal.slow = behind and number > 0
        stream.publish("e")
        seen += ids(await read(quick, 1))
    items = await read(slow, 5 if behind else 10)
    assert ids(items) == [1, 8, 9, 10] if behind else list(range(1, 11))
    assert [each for each in items if isinstance(each, EventGap)] == [EventGap(missed)] * behind
    assert seen == list(range(1, 11))


async def test_ids_grow_over_restarts_and_leave_a_stride(stream: EventStream, journal: MemoryJournal) -> None:
    assert stream.last_id == 0
    stream.publish("e")
    journal.slow = True
    lost = stream.publish("told to somebody, never written")
    again = await EventStream.open(journal)
    assert again.publish("e") == 1 + RESTART_STRIDE + 1 > lost
    assert ids(await read(again.subscribe(lost), 1)) == [again.last_id]


async def test_closing_lets_readers_finish(stream: EventStream) -> None:
    waiting, behind = stream.subscribe(), stream.subscribe()
    task = asyncio.ensure_future(read(waiting, 2))
    await asyncio.sleep(0)
    stream.publish("last")
    stream.close()
    with pytest.raises(StopAsyncIteration):
        await task
    async with asyncio.timeout(60):
        assert [item.document()["event"] async for item in behind] == ["last"]


@given(st.data())
def test_any_subscriber_sees_an_unbroken_run(data: st.DataObject) -> None:
    """Model: publishing, subscribing from anywhere, reading some, a journal that is now and then late, restarts."""

    async def story() -> None:
        journal = MemoryJournal()
        stream = await EventStream.open(journal)
        published: list[int] = []
        for _ in range(data.draw(st.integers(1, 6))):
            journal.slow = data.draw(st.booleans())
            published += [stream.publish("e") for _ in range(data.draw(st.integers(0, 9)))]
            after = data.draw(st.none() | st.integers(0, (published or [0])[-1] + 2))
            subscription = stream.subscribe(after)
            start = stream.last_id if after is None else min(after, stream.last_id)
            published += [stream.publish("e") for _ in range(data.draw(st.integers(0, 9)))]
            expected = [number for number in published if number > start]
            assert ids(await read(subscription, len(expected))) == expected
            await subscription.aclose()
            if data.draw(st.booleans()):
                journal.rows += journal.late
                journal.late = []
                stream = await EventStream.open(journal)
        assert published == sorted(set(published))

    asyncio.run(story())

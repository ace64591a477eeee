"""The stream of events: every one once and in order, from any id, however slow the reader or late the ledger."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.ledger.store import Ledger, StoreLimits
from supervisord_py.process import events as module
from supervisord_py.process.events import RESTART_STRIDE, Event, EventGap, EventStream, Item
from supervisord_py.process.model import Reason


@asynccontextmanager
async def opened(folder: Path | str) -> AsyncIterator[Ledger]:
    ledger = await Ledger.open(Path(folder) / "pxd.db", StoreLimits(posted_seconds=0.0))
    yield ledger
    await ledger.close()


@contextmanager
def late(ledger: Ledger) -> Iterator[None]:
    """Have the ledger write nothing of what is told meanwhile."""
    gate = threading.Event()
    ledger.post(lambda _: gate.wait(60))
    yield
    gate.set()


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    async with opened(tmp_path) as ledger:
        yield ledger


async def read(subscription: AsyncGenerator[Item, None], count: int) -> list[Item]:
    async with asyncio.timeout(60):
        return [await anext(subscription) for _ in range(count)]


def ids(items: Sequence[Item]) -> list[int]:
    return [item.id for item in items if isinstance(item, Event)]


def test_an_event_as_json() -> None:
    facts = {"pid": 5, "id": "not this one"}
    ended = Event(2, 1_700_000_000.125, "tool:x", "tool_stopped", Reason.EVICTED_LRU.value, "k", 1, facts)
    plain = {"id": 2, "time": "2023-11-14T22:13:20.125Z", "unit": "tool:x", "event": "tool_stopped"}
    assert ended.document() == {**plain, "reason": "evicted_lru", "instance": "k", "cause": 1, "pid": 5}
    assert EventGap(3).document() == {"event": "gap", "missed": 3}


@pytest.mark.parametrize(("behind", "missed"), [(False, 0), (True, 6)])
async def test_a_slow_reader_gets_the_rest_from_the_ledger_or_is_told_how_many_he_missed(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, behind: bool, missed: int
) -> None:
    monkeypatch.setattr(module, "RECENT_MAX", 3)
    stream = await EventStream.open(ledger)
    slow, quick = stream.subscribe(), stream.subscribe()
    stream.publish("e")
    await ledger.flush()
    with late(ledger):
        seen = ids(await read(quick, 1))
        for _ in range(9):
            stream.publish("e")
            seen += ids(await read(quick, 1))
        items = await read(slow, 5) if behind else []
    await ledger.flush()
    items = items or await read(slow, 10)
    assert ids(items) == [1, 8, 9, 10] if behind else list(range(1, 11))
    assert [each for each in items if isinstance(each, EventGap)] == [EventGap(missed)] * behind
    assert seen == list(range(1, 11))


async def test_closing_lets_readers_finish(ledger: Ledger) -> None:
    stream = await EventStream.open(ledger)
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
def test_any_subscriber_sees_an_unbroken_run_and_no_id_is_given_twice(data: st.DataObject) -> None:
    """Model: publishing, subscribing from anywhere, reading some, a ledger that is now and then late, restarts."""

    async def life(folder: str, published: list[int]) -> None:
        async with opened(folder) as ledger:
            stream = await EventStream.open(ledger)
            with late(ledger):
                told = [stream.publish("e") for _ in range(data.draw(st.integers(0, 9)))]
                assert told == [] or published == [] or told[0] == published[-1] + RESTART_STRIDE + 1
                published += told
                after = data.draw(st.none() | st.integers(0, (published or [0])[-1] + 2))
                subscription = stream.subscribe(after)
                start = stream.last_id if after is None else min(after, stream.last_id)
                published += [stream.publish("e") for _ in range(data.draw(st.integers(0, 9)))]
                expected = [number for number in published if number > start]
                assert ids(await read(subscription, len(expected))) == expected
            await subscription.aclose()

    with TemporaryDirectory() as folder:
        published: list[int] = []
        for _ in range(data.draw(st.integers(1, 4))):
            asyncio.run(life(folder, published))

"""The stream of events: every one once and in order, from any id, however slow the reader or
late the ledger.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.config.settings import HistorySettings
from supervisord_py.ledger import instances
from supervisord_py.ledger.instances import INSTANCES, InstanceRow
from supervisord_py.ledger.schema import TableLimit
from supervisord_py.ledger.store import Ledger, StoreLimits
from supervisord_py.process import events as module
from supervisord_py.process.event_words import FAILED, EventFilter, Journal
from supervisord_py.process.events import (
    ALL_EVENTS,
    RESTART_STRIDE,
    Event,
    EventGap,
    EventRange,
    EventStream,
    Item,
    chain,
    last_death,
    lasting_rows,
    limits_of,
    written,
)
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
    ended = Event(
        2, 1_700_000_000.125, "tool:x", "tool_stopped", Reason.EVICTED_LRU.value, "k", 1, facts
    )
    plain = {"id": 2, "time": "2023-11-14T22:13:20.125Z", "unit": "tool:x", "event": "tool_stopped"}
    assert ended.document() == {
        **plain,
        "reason": "evicted_lru",
        "instance": "k",
        "cause": 1,
        "pid": 5,
    }
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
    """Model: publishing, subscribing from anywhere, reading some, a ledger that is now and then
    late, restarts.
    """

    async def life(folder: str, published: list[int]) -> None:
        async with opened(folder) as ledger:
            stream = await EventStream.open(ledger)
            with late(ledger):
                told = [stream.publish("e") for _ in range(data.draw(st.integers(0, 9)))]
                assert (
                    told == [] or published == [] or told[0] == published[-1] + RESTART_STRIDE + 1
                )
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


# -- selected, and forgotten -----------------------------------------------------------------------

UNITS = ("tool:a", "tool:b", "kernel:a-1", None)
OCCURRENCES = (
    ("run", None, {"outcome": "completed"}),
    ("run", None, {"outcome": "failed"}),
    ("ready", None, {}),
    ("stopped", "memory_limit", {}),
    ("died", "signal", {}),
)
times = st.integers(0, 9).map(float)
happenings = st.lists(
    st.tuples(times, st.sampled_from(UNITS), st.sampled_from(OCCURRENCES)), max_size=12
)
filters = st.builds(
    EventFilter,
    units=st.frozensets(st.sampled_from(UNITS), max_size=2),
    unit_globs=st.lists(st.sampled_from(["tool:*", "*:a*", "tool:[!a]"]), max_size=1).map(tuple),
    words=st.none() | st.frozensets(st.sampled_from(["run", "died", "stopped"])),
    since=st.none() | times,
    until=st.none() | times,
    journals=st.sampled_from([(), FAILED, (Journal.LIFE, Journal.FAILURES)]),
)


@given(happenings, happenings, filters, st.integers(1, 14), st.integers(0, 26))
def test_what_is_selected_is_the_same_in_memory_and_in_the_ledger(
    old: list[Any], new: list[Any], wanted: EventFilter, limit: int, number: int
) -> None:
    """Some events are written, some are only in memory: pages of either end have the right ones,
    and say if all.
    """

    async def check(folder: str) -> None:
        async with opened(folder) as ledger:
            for at, (moment, unit, (event, reason, facts)) in enumerate(old, 1):
                ledger.post(written(Event(at, moment, unit, event, reason, None, None, facts)))
            await ledger.flush()
            stream = EventStream(ledger, len(old))
            with late(ledger):
                for moment, unit, (event, reason, facts) in new:
                    stream.publish(event, unit, reason and Reason(reason), **facts)
                    stream._recent[-1] = msgspec.structs.replace(stream._recent[-1], time=moment)
                whole = [*await ALL_EVENTS.find(ledger, "ORDER BY id"), *stream._recent]
                matching = [each.id for each in whole if wanted.admits(each)]
                newest = await stream.newest(limit, wanted, number or None)
                before = [each for each in matching if not number or each < number]
                assert await ids_of(stream, newest, wanted) == before[-limit:]
                assert newest.is_complete == (len(before) <= limit)
                oldest = await stream.oldest(number, limit, wanted)
                after = [each for each in matching if each > number]
                assert await ids_of(stream, oldest, wanted) == after[:limit]
                assert oldest.is_complete == (len(after) <= limit)

    with TemporaryDirectory() as folder:
        asyncio.run(check(folder))


async def ids_of(stream: EventStream, chosen: EventRange, wanted: EventFilter) -> list[int]:
    return ids([item async for item in stream.between(chosen, wanted)])


async def test_the_last_death_of_each_unit_and_what_led_to_it_outlast_all_limits(
    ledger: Ledger,
) -> None:
    stream = await EventStream.open(ledger)
    lives: dict[str, list[list[int]]] = {"tool:a": [], "tool:b": []}
    for unit, told in lives.items():
        for key in ("k1", "k2"):
            await ledger.write(INSTANCES.insert(InstanceRow(f"{unit}.{key}", unit, 1.0)))
            await ledger.write(instances.ended(f"{unit}.{key}", 1.0, "signal"))
            started = stream.publish("starting", unit)
            ready = stream.publish("ready", unit, cause=started)
            told.append(
                [
                    started,
                    ready,
                    stream.publish("died", unit, cause=ready, instance=f"{unit}.{key}"),
                ]
            )
    stream.publish("run", "tool:a", outcome="completed")
    for _ in range(3):
        for event in ("reloaded", "survivors", "run_failed", "run"):
            stream.publish(event, "tool:c")
    await ledger.flush()
    lasting = await lasting_rows(ledger)
    limits = limits_of(HistorySettings(runs_days=1e-9, events_days=1e-9)) | {
        "instances": TableLimit("ended_at", 1, 1.0)
    }
    await ledger.prune(1e12, limits, lasting=lasting)
    kept = {each.id for each in await ALL_EVENTS.find(ledger)}
    expected = {number for told in lives.values() for number in told[-1]}
    newest = range(stream.last_id - 3, stream.last_id + 1)
    assert kept == expected | set(newest), (
        "and the newest row of each table, where numbering goes on"
    )
    rows = await INSTANCES.find(ledger, "ORDER BY key")
    assert [row.key for row in rows] == ["tool:a.k2", "tool:b.k2"]
    for unit, told in lives.items():
        death = await last_death(ledger, unit)
        assert death is not None
        assert [each.id for each in await chain(ledger, death)] == told[-1]
    assert await last_death(ledger, "tool:c") is None


async def test_no_journal_pushes_out_what_another_one_keeps(ledger: Ledger) -> None:
    stream = await EventStream.open(ledger)
    for event, facts in (("ready", {}), ("survivors", {}), ("run_failed", {})):
        stream.publish(event, "tool:a", **facts)
    for _ in range(50):
        stream.publish("run", "tool:b", outcome="completed")
    await ledger.flush()
    gone = await ledger.prune(
        time.time(), limits_of(HistorySettings(runs_rows=10, events_rows=10)), batch=3
    )
    assert gone == {"run_events": 40}
    assert [each.event for each in await stream.history(unit="tool:a")] == [
        "ready",
        "survivors",
        "run_failed",
    ]

"""Instances, pins, states, events, answers: what is written is what is read, first ends stand, the old goes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from operator import methodcaller
from typing import Any

from msgspec import structs

from supervisord_py.api.idempotency import CUT_OFF, Known, claim
from supervisord_py.ledger import events, instances
from supervisord_py.ledger.events import EVENTS, Event, EventJournal
from supervisord_py.ledger.instances import INSTANCES, InstanceRow
from supervisord_py.ledger.schema import TableLimit
from supervisord_py.ledger.store import Ledger
from supervisord_py.process.events import EventStream
from supervisord_py.process.model import Reason

OpenLedger = Callable[..., Awaitable[Ledger]]
IDEMPOTENT = "INSERT INTO idempotency (key, route, body_digest, status, created_at) VALUES (?, 'r', 'd', ?, ?)"


async def test_the_first_end_of_an_instance_stands_and_so_does_its_first_readiness(ledger: Ledger) -> None:
    starting = InstanceRow("k", "tool:x", 100.0, start_method="spawn", port=8000, spec_digest="d")
    assert await ledger.write(INSTANCES.insert(starting))
    assert await ledger.write(INSTANCES.insert(InstanceRow("k", "tool:other", 1.0)))
    for moment in (102.0, 999.0):
        await ledger.write(instances.became_ready("k", moment))
    assert [it.key for it in await instances.open_rows(ledger)] == ["k"]
    facts: dict[str, Any] = {"signal": 9, "verdict": {"by": "keeper", "rss_bytes": 9}, "max_rss_bytes": 1 << 20}
    await ledger.write(instances.ended("k", 110.0, "memory_limit", **facts))
    await ledger.write(instances.ended("k", 120.0, "exit", code=0))
    whole = structs.replace(starting, ready_at=102.0, ended_at=110.0, reason="memory_limit", **facts)
    assert await INSTANCES.get(ledger, "k") == whole
    assert await INSTANCES.get(ledger, "none") is None
    assert await instances.open_rows(ledger) == []


async def test_what_nobody_holds_is_closed_as_interrupted_exactly_once(open_ledger: OpenLedger) -> None:
    ledger = await open_ledger()
    for key in ("ended", "held", "gone", "never spawned"):
        await ledger.write(INSTANCES.insert(InstanceRow(key, "tool:x", 100.0)))
    await ledger.write(instances.ended("ended", 105.0, "exit", code=0))
    await ledger.close()
    ledger = await open_ledger()
    closed = await instances.close_interrupted(ledger, {"held"}, 200.0)
    assert {it.key: (it.reason, it.ended_at) for it in closed} == {
        "gone": ("interrupted", 200.0),
        "never spawned": ("interrupted", 200.0),
    }
    assert await instances.close_interrupted(ledger, {"held"}, 300.0) == []
    assert [it.key for it in await instances.open_rows(ledger)] == ["held"]


async def test_events_are_kept_by_the_journal_and_follow_their_causes(open_ledger: OpenLedger) -> None:
    ledger = await open_ledger()
    stream = await EventStream.open(EventJournal(ledger), clock=lambda: 7.0)
    first = stream.publish("run_accepted", "tool:x")
    second = stream.publish(
        "tool_stopped", "tool:y", Reason.EVICTED_LRU, instance="k", cause=first, odd={1, 2}.__class__
    )
    third = stream.publish("tool_started", "tool:x", cause=second)
    await ledger.flush()
    assert await EVENTS.get(ledger, first) == Event(1, 7.0, "tool:x", "run_accepted", None, None, None, {})
    row = await EVENTS.get(ledger, second)
    assert row is not None
    assert (row.reason, row.instance, row.cause, row.facts) == ("evicted_lru", "k", 1, {"odd": "<class 'set'>"})
    assert [it.id for it in await events.chain(ledger, third)] == [first, second, third]
    assert await events.chain(ledger, 999) == []
    assert [it.id for it in await EventJournal(ledger).after(1, None, 9)] == [2, 3]
    assert [it.id for it in await EventJournal(ledger).after(0, "tool:x", 1)] == [1]
    assert [it.id for it in await EventJournal(ledger).latest(None, 2)] == [2, 3]
    assert [it.id for it in await EventJournal(ledger).latest("tool:x", 1)] == [3]
    await ledger.close()
    again = await EventStream.open(EventJournal(await open_ledger()))
    assert again.publish("e") > third
    subscription = again.subscribe(second)
    async with asyncio.timeout(60):
        assert [(await anext(subscription)).document()["event"] for _ in range(2)] == ["tool_started", "e"]
    assert [it.event for it in await again.latest(unit="tool:y")] == ["tool_stopped"]


async def test_of_two_requests_with_one_key_one_begins_and_a_restart_cuts_it_off(open_ledger: OpenLedger) -> None:
    ledger = await open_ledger()
    both = await asyncio.gather(*(claim(ledger, "key", "POST /x", "digest") for _ in range(2)))
    assert sorted(both, key=bool) == [None, Known("digest", None, None, None)], "the second is still under way"
    assert await claim(ledger, "key", "POST /y", "other") is None, "another route is another key"
    await ledger.close()
    assert await claim(await open_ledger(), "key", "POST /x", "digest") == Known("digest", CUT_OFF, None, None)


async def test_pruning_by_age_keeps_what_is_open_and_the_newest_row_for_its_number(ledger: Ledger) -> None:
    """Of twenty of each, one a second, the last five are open."""
    for number in range(1, 21):
        EventJournal(ledger).append(Event(number, float(number), "tool:x", "e", None, None, None, {}))
        await ledger.write(INSTANCES.insert(InstanceRow(f"k{number:02}", "tool:x", float(number))))
        ledger.post(methodcaller("execute", IDEMPOTENT, (f"{number}", 200 if number <= 15 else None, float(number))))
        if number <= 15:
            await ledger.write(instances.ended(f"k{number:02}", float(number), "exit"))
    old = dict.fromkeys(("events", "instances", "idempotency"), TableLimit(1000, 10.0))
    assert await ledger.prune(20.0, old, batch=4) == {"events": 9, "instances": 9, "idempotency": 9}
    assert await ledger.prune(1e6, old) == {"events": 10, "instances": 6, "idempotency": 6}
    assert await EventJournal(ledger).last_id() == 20

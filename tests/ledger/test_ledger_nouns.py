"""Instances, events, answers, sessions, cells: what is written is what is read, first ends
stand, the old goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from operator import methodcaller
from typing import Any

from msgspec import structs

from supervisord_py.ledger import instances
from supervisord_py.ledger import kernels as kernel_rows
from supervisord_py.ledger.instances import INSTANCES, InstanceRow
from supervisord_py.ledger.kernels import CELLS, KernelCellRow, KernelSessionRow
from supervisord_py.ledger.schema import LIMITS
from supervisord_py.ledger.store import Ledger
from supervisord_py.process.event_words import Journal
from supervisord_py.process.events import (
    ALL_EVENTS,
    JOURNALS,
    Event,
    EventStream,
    chain,
    last_event,
)
from supervisord_py.process.model import Reason

OpenLedger = Callable[..., Awaitable[Ledger]]
IDEMPOTENT = (
    "INSERT INTO idempotency (key, route, body_digest, status, created_at) VALUES (?, 'r', 'd', ?, "
    "?)"
)


async def test_the_first_end_of_an_instance_stands_and_so_does_its_first_readiness(
    ledger: Ledger,
) -> None:
    starting = InstanceRow("k", "tool:x", 100.0, start_method="spawn", port=8000, spec_digest="d")
    assert await ledger.write(INSTANCES.insert(starting))
    assert await ledger.write(INSTANCES.insert(InstanceRow("k", "tool:other", 1.0)))
    for moment in (102.0, 999.0):
        await ledger.write(instances.became_ready("k", moment))
    assert [it.key for it in await instances.open_rows(ledger)] == ["k"]
    facts: dict[str, Any] = {
        "signal": 9,
        "verdict": {"by": "keeper", "rss_bytes": 9},
        "max_rss_bytes": 1 << 20,
    }
    await ledger.write(instances.ended("k", 110.0, "memory_limit", **facts))
    await ledger.write(instances.ended("k", 120.0, "exit", code=0))
    whole = structs.replace(
        starting, ready_at=102.0, ended_at=110.0, reason="memory_limit", **facts
    )
    assert await INSTANCES.get(ledger, "k") == whole
    assert await INSTANCES.get(ledger, "none") is None
    assert await instances.open_rows(ledger) == []


async def test_what_nobody_holds_is_closed_as_interrupted_exactly_once(
    open_ledger: OpenLedger,
) -> None:
    ledger = await open_ledger()
    for key in ("ended", "held", "gone", "never spawned"):
        await ledger.write(INSTANCES.insert(InstanceRow(key, "tool:x", 100.0)))
    await ledger.write(instances.ended("ended", 105.0, "exit", code=0))
    await ledger.close()
    ledger = await open_ledger()
    closed = await instances.close_interrupted(ledger, {"held"}, 200.0)
    assert {(it.key, it.reason, it.ended_at) for it in closed} == {
        (key, "interrupted", 200.0) for key in ("gone", "never spawned")
    }
    assert await instances.close_interrupted(ledger, {"held"}, 300.0) == []
    assert [it.key for it in await instances.open_rows(ledger)] == ["held"]


async def test_events_are_kept_by_the_journal_and_follow_their_causes(
    open_ledger: OpenLedger,
) -> None:
    ledger = await open_ledger()
    stream = await EventStream.open(ledger)
    first = stream.publish("run_accepted", "tool:x")
    second = stream.publish(
        "tool_stopped", "tool:y", Reason.EVICTED_LRU, instance="k", cause=first, odd=set
    )
    third = stream.publish("tool_started", "tool:x", cause=second)
    await ledger.flush()
    rows = await ALL_EVENTS.find(ledger, "ORDER BY id")
    assert rows[0] == Event(1, rows[0].time, "tool:x", "run_accepted")
    told = rows[1].reason, rows[1].instance, rows[1].cause, rows[1].facts
    assert told == ("evicted_lru", "k", 1, {"odd": "<class 'set'>"})
    assert await chain(ledger, rows[2]) == rows
    await ledger.close()
    again = await EventStream.open(await open_ledger())
    assert again.publish("e") > third
    subscription = again.subscribe(second)
    async with asyncio.timeout(60):
        assert [(await anext(subscription)).document()["event"] for _ in range(2)] == [
            "tool_started",
            "e",
        ]
    assert [it.event for it in await again.latest(unit="tool:y")] == ["tool_stopped"]
    assert [it.id for it in await again.latest(limit=2)] == [third, again.last_id]
    assert [it.id for it in await again.history(unit="tool:x", limit=1)] == [first]


async def test_pruning_by_age_keeps_what_is_open_and_the_newest_row_for_its_number(
    ledger: Ledger,
) -> None:
    """Of twenty of each, one a second, the last five are open."""
    for number in range(1, 21):
        ledger.post(JOURNALS[Journal.LIFE].insert(Event(number, float(number), "tool:x", "e")))
        await ledger.write(INSTANCES.insert(InstanceRow(f"k{number:02}", "tool:x", float(number))))
        ledger.post(
            methodcaller(
                "execute", IDEMPOTENT, (f"{number}", 200 if number <= 15 else None, float(number))
            )
        )
        if number <= 15:
            await ledger.write(instances.ended(f"k{number:02}", float(number), "exit"))
    old = {
        name: structs.replace(LIMITS[name], age_seconds=10.0)
        for name in ("events", "instances", "idempotency")
    }
    assert await ledger.prune(20.0, old, batch=4) == {"events": 9, "instances": 9, "idempotency": 9}
    assert await ledger.prune(1e6, old) == {"events": 10, "instances": 6, "idempotency": 6}
    assert await last_event(ledger) == 20


# -- kernels ---------------------------------------------------------------------------------------

WORDS = ("default-3fa9c1", "default", "/srv", "/srv/bin/python", "direct", "python", "session")
SESSION = KernelSessionRow(*WORDS, created_at=100.0, state="idle")


def sent(number: int, session: str = "default-3fa9c1") -> KernelCellRow:
    began = float(number)
    return KernelCellRow(
        f"{number:016x}", session, f"c{number}", 0, f"{number}+1", "running", began, began
    )


async def test_the_last_word_on_a_session_counts_but_not_on_when_it_was_made(
    ledger: Ledger,
) -> None:
    last = structs.replace(
        SESSION,
        created_at=999.0,
        state="failed",
        last_used=150.5,
        reason="signal",
        failure={"signal": 11},
    )
    for row in (SESSION, last, SESSION):
        kernel_rows.remember(ledger, row)
        await ledger.flush()
        assert await kernel_rows.SESSIONS.get(ledger, SESSION.id) == structs.replace(
            row, created_at=100.0
        )


async def test_cells_that_were_running_when_everything_died_are_found_open(
    open_ledger: OpenLedger,
) -> None:
    ledger = await open_ledger()
    for number in (1, 2, 3):
        await ledger.write(CELLS.insert(sent(number)))
    kernel_rows.finish(ledger, sent(1).id, status="ok", ended_at=5.0)
    await ledger.close()
    ledger = await open_ledger()
    assert [it.id for it in await kernel_rows.open_cells(ledger)] == [sent(2).id, sent(3).id]
    await ledger.write(CELLS.insert(structs.replace(sent(2), code="another")))
    kernel_rows.finish(ledger, sent(2).id, status="aborted", ended_at=10.0, variables="lost")
    kernel_rows.finish(ledger, sent(2).id, status="ok", ended_at=11.0)
    await ledger.flush()
    closed = await CELLS.get(ledger, sent(2).id)
    assert closed is not None
    assert (closed.code, closed.status, closed.variables, closed.ended_at) == (
        "2+1",
        "aborted",
        "lost",
        10.0,
    )
    assert [it.id for it in await kernel_rows.open_cells(ledger)] == [sent(3).id]
    assert await kernel_rows.open_cells(ledger, "other") == []
    assert [it.id for it in await kernel_rows.open_cells(ledger, SESSION.id)] == [sent(3).id]


async def test_pruning_keeps_the_living_and_the_newest_row_for_its_order(ledger: Ledger) -> None:
    for number in range(1, 7):
        await ledger.write(CELLS.insert(sent(number)))
        if number != 2:
            kernel_rows.finish(ledger, sent(number).id, status="ok", ended_at=float(number))
        state = ("idle", "stopped", "failed")[number % 3]
        kernel_rows.remember(
            ledger, structs.replace(SESSION, id=f"s{number}", state=state, created_at=float(number))
        )
    kernel_rows.remember(ledger, structs.replace(SESSION, id="s1", state="stopped", last_used=1e6))
    await ledger.flush()
    old = {
        name: structs.replace(LIMITS[name], age_seconds=10.0)
        for name in ("kernel_cells", "kernel_sessions")
    }
    assert await ledger.prune(15.0, old, batch=2) == {"kernel_cells": 3, "kernel_sessions": 2}
    assert [it.started_at for it in await kernel_rows.of_session(ledger, SESSION.id)] == [
        2,
        5,
        6,
    ], "one is open"
    assert {it.id for it in await kernel_rows.all_sessions(ledger)} == {"s1", "s3", "s5", "s6"}, (
        "one was used"
    )
    assert await ledger.prune(1e6, old) == {"kernel_cells": 1, "kernel_sessions": 1}
    await ledger.write(CELLS.insert(sent(7)))
    assert [it.started_at for it in await kernel_rows.of_session(ledger, SESSION.id)] == [2, 6, 7]


async def test_the_newest_cell_of_each_session_tells_how_the_life_that_ran_it_ended(
    ledger: Ledger,
) -> None:
    await ledger.write(INSTANCES.insert(InstanceRow(key="k.2", unit="kernel:b", started_at=1.0)))
    await ledger.write(instances.ended("k.2", ended_at=5.0, reason="signal", signal=11))
    for cell in (sent(1), structs.replace(sent(2, "b"), instance="k.2"), sent(3), sent(0)):
        await ledger.write(CELLS.insert(cell))
    await ledger.flush()
    assert await kernel_rows.newest_of_all(ledger) == {"default-3fa9c1": None, "b": "k.2"}

"""The pool with real processes: capacity, age, pins, stops, and what survives."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from supervisord_py.errors import OverloadedError, ShuttingDownError
from supervisord_py.ledger import instances
from supervisord_py.process.events import Event
from supervisord_py.tools.serving.warm_events import Pin
from tools.tool_house import alive, eventually

if TYPE_CHECKING:
    from tools.tool_house import ToolHouse

Houses = "Callable[..., Awaitable[ToolHouse]]"


async def test_the_least_recently_used_idle_tool_makes_room(houses: Houses) -> None:
    house = await houses(warm_keep_max=2)
    for name in ("a", "b", "c"):
        house.add("shapes", name)
    await house.ask("a")
    await house.ask("b")
    await house.ask("a")
    await house.ask("c")
    await eventually(lambda: house.state("b").state == "cold")
    assert house.state("a").state == house.state("c").state == "ready"
    assert house.state("b").reason == "evicted_lru"
    (row,) = await instances.latest(house.ledger, "tool:b")
    assert row.reason == "evicted_lru"
    (stopping,) = await house.said("stopping", "tool:b")
    (starting,) = await house.said("starting", "tool:c")
    assert stopping.cause == starting.id


async def test_busy_and_pinned_tools_are_never_evicted(houses: Houses) -> None:
    house = await houses(warm_keep_max=2)
    for name in ("busy", "pinned", "late"):
        house.add("shapes", name)
    await house.launcher.pin("pinned")
    await house.launcher.warm("pinned")
    running = asyncio.create_task(house.ask("busy", {"do": "sleep", "number": 600, "obeys": True}))
    await eventually(lambda: house.state("busy").state == "busy")
    with pytest.raises(OverloadedError) as caught:
        await house.ask("late", timeout_seconds=0.3)
    assert caught.value.extra["retry_after_seconds"] >= 1
    assert house.state("busy").state == "busy"
    assert house.state("pinned").state == "ready"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (await house.ask("late", {"number": 1}))["echo"] == {"number": 1}
    assert house.state("pinned").state == "ready"


async def test_a_full_line_refuses_at_once(houses: Houses) -> None:
    house = await houses(queue_max=1)
    house.add("shapes", concurrency=1)
    running = asyncio.create_task(house.ask("shapes", {"do": "sleep", "number": 600}))
    await eventually(lambda: house.state("shapes").in_flight == 1)
    waiting = asyncio.create_task(house.ask("shapes"))
    await eventually(lambda: house.state("shapes").waiting == 1)
    with pytest.raises(OverloadedError, match="wait for it already"):
        await house.ask("shapes")
    for task in (running, waiting):
        task.cancel()
    await asyncio.gather(running, waiting, return_exceptions=True)


async def test_only_pinned_tools_refuse_at_once(houses: Houses) -> None:
    house = await houses(warm_keep_max=1)
    house.add("shapes", "a", pinned=True)
    house.add("shapes", "b")
    await house.launcher.warm("a")
    with pytest.raises(OverloadedError, match="pinned"):
        await house.ask("b")


async def test_age_counts_from_the_end_of_the_last_request(house: ToolHouse) -> None:
    house.add("shapes", warm_keep_seconds=1)
    pid = (await house.ask("shapes"))["pid"]
    assert (await house.ask("shapes", {"do": "sleep", "number": 1.5}))["slept"] == 1.5
    assert house.state("shapes").pid == pid
    await eventually(lambda: house.state("shapes").state == "cold")
    assert house.state("shapes").reason == "evicted_ttl"
    assert not alive(pid)


async def test_keep_alive_zero_stops_after_this_request(house: ToolHouse) -> None:
    house.add("shapes")
    pid = (await house.ask("shapes", keep_alive=0.0))["pid"]
    await eventually(lambda: house.state("shapes").state == "cold")
    assert not alive(pid)


async def test_an_edited_declaration_replaces_the_idle_instance(house: ToolHouse) -> None:
    house.add("shapes", env={"MARK": "old"})
    assert (await house.ask("shapes", {"do": "env"}))["env"]["MARK"] == "old"
    manifest = house.tools / "shapes" / "tool.json"
    manifest.write_text(manifest.read_text().replace('"old"', '"new"'))
    house.catalog.refresh()
    assert (await house.ask("shapes", {"do": "env"}))["env"]["MARK"] == "new"


async def test_a_removed_tool_is_stopped_and_its_socket_dropped(house: ToolHouse) -> None:
    house.add("shapes")
    pid = (await house.ask("shapes"))["pid"]
    for path in sorted((house.tools / "shapes").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (house.tools / "shapes").rmdir()
    house.catalog.refresh()
    await house.launcher.refresh()
    await eventually(lambda: not alive(pid))
    await eventually(lambda: not house.launcher.instances())
    await house.launcher.refresh()
    assert house.launcher.listeners.tools() == ()
    assert await house.placement.take_fd("listen:tool:shapes") is None


async def test_a_stop_leaves_nothing_not_even_a_deaf_grandchild_in_its_own_session(house: ToolHouse) -> None:
    house.add("shapes")
    await house.ask("shapes")
    child = (await house.ask("shapes", {"do": "fork"}))["child"]
    assert alive(child)
    report = await house.launcher.stop("shapes")
    assert report.survivors == ()
    assert not alive(child)


async def test_a_deaf_tool_is_killed_in_the_end(house: ToolHouse) -> None:
    house.add("shapes", env={"FAULT": "ignores_term"}, stop_timeout_seconds=0.5)
    pid = (await house.ask("shapes"))["pid"]
    report = await house.launcher.stop("shapes")
    assert report.killed
    assert not alive(pid)


@pytest.mark.parametrize(
    ("fault", "end", "event", "state"),
    [("", "stop", "stopped", "cold"), ("", "kill", "died", "cold"), ("exits_seven", "", "stopped", "failed")],
)
async def test_who_hears_of_an_end_finds_the_final_state_and_the_record(
    house: ToolHouse, fault: str, end: str, event: str, state: str
) -> None:
    house.add("shapes", env={"FAULT": fault})
    async with house.events.subscribe(unit="tool:shapes") as heard, asyncio.TaskGroup() as tasks:
        asked = asyncio.gather(house.ask("shapes"), return_exceptions=True)
        if end:
            pid = (await asked)[0]["pid"]  # type: ignore[index]  # it was answered
        if end == "stop":
            tasks.create_task(house.launcher.stop("shapes"))
        elif end == "kill":
            os.kill(pid, signal.SIGKILL)
        async for item in heard:
            if isinstance(item, Event) and item.event == event:
                break
        seen = house.state("shapes")
        assert seen.state == state
        assert seen.reason == item.reason
        assert item.instance is not None
        row = await instances.get(house.ledger, item.instance)
        await asked
    assert row is not None
    assert row.reason == item.reason


async def test_an_end_is_told_before_the_next_beginning(house: ToolHouse) -> None:
    house.add("shapes")
    pid = (await house.ask("shapes"))["pid"]
    stopping = asyncio.create_task(house.launcher.stop("shapes"))
    await asyncio.sleep(0)  # it has begun
    assert house.state("shapes").state == "stopping"
    assert (await house.ask("shapes"))["pid"] != pid
    await stopping
    await house.ledger.flush()
    told = [each.event for each in await house.events.history(unit="tool:shapes")]
    assert told.index("stopped") + 1 == len(told) - 1 - told[::-1].index("starting")


async def test_a_stop_while_starting_ends_the_start(house: ToolHouse) -> None:
    house.add("shapes", env={"FAULT": "slow", "SLOW": "600"}, start_timeout_seconds=3000)
    waiting = asyncio.create_task(house.ask("shapes"))
    await eventually(lambda: house.state("shapes").pid)
    pid = house.state("shapes").pid
    await house.launcher.stop("shapes")
    assert not alive(pid)
    (result,) = await asyncio.gather(waiting, return_exceptions=True)
    assert "stopped" in str(result)


async def test_closing_stops_everything_and_tells_who_waits(house: ToolHouse) -> None:
    house.add("shapes", "a")
    house.add("shapes", "b")
    pids = [(await house.ask(name))["pid"] for name in ("a", "b")]
    running = asyncio.create_task(house.ask("a", {"do": "sleep", "number": 600}))
    await eventually(lambda: house.state("a").in_flight == 1)
    await house.launcher.close()
    with pytest.raises(ShuttingDownError):
        await running
    assert not [pid for pid in pids if alive(pid)]
    for name in ("a", "b"):
        (row,) = await instances.latest(house.ledger, f"tool:{name}")
        assert row.reason == "shutdown"


async def test_pins_are_declared_set_and_taken_back(house: ToolHouse) -> None:
    house.add("shapes", "born-pinned", pinned=True)
    house.add("shapes", "free")
    assert [house.state(name).pin for name in ("born-pinned", "free")] == [Pin.LRU, Pin.NONE]
    await house.launcher.unpin("born-pinned")
    await house.launcher.pin("free", forever=True)
    assert [house.state(name).pin for name in ("born-pinned", "free")] == [Pin.NONE, Pin.FOREVER]
    await house.new_control_plane()
    assert [house.state(name).pin for name in ("born-pinned", "free")] == [Pin.NONE, Pin.FOREVER]


async def test_a_lease_keeps_an_instance_busy(house: ToolHouse) -> None:
    house.add("shapes")
    async with house.launcher.lease("shapes", keep_alive=0.0) as lease:
        assert (lease.address, lease.port) == ("127.0.0.1", house.state("shapes").port)
        assert alive(lease.pid)
        assert house.state("shapes").state == "busy"
    await eventually(lambda: house.state("shapes").state == "cold")
    assert lease.over.is_set()


async def test_schema_drift_is_a_warning_and_no_fault(house: ToolHouse) -> None:
    house.add("shapes", env={"FAULT": "drift"})
    await house.ask("shapes")
    await eventually(lambda: [each for each in house.state("shapes").warnings if "/version" in each])
    (event,) = await house.said("schema_drift")
    assert event.reason == "schema_drift"
    assert house.state("shapes").state == "ready"


async def test_a_memory_budget_evicts_by_size(houses: Houses) -> None:
    house = await houses(memory_budget_mb=1)
    house.add("shapes")
    await house.ask("shapes")
    await eventually(lambda: house.state("shapes").state == "cold", "the eviction over the budget")
    assert house.state("shapes").reason == "evicted_lru"

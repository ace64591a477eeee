"""The pool with real processes: capacity, age, pins, stops, and what survives."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from supervisord_py.errors import OverloadedError, ShuttingDownError
from supervisord_py.ledger import instances
from supervisord_py.ledger.events import Event
from supervisord_py.process.pool import Pin
from tools.tool_house import alive, eventually

if TYPE_CHECKING:
    from tools.tool_house import ToolHouse

Houses = "Callable[..., Awaitable[ToolHouse]]"


async def test_only_pinned_tools_refuse_at_once(houses: Houses) -> None:
    house = await houses(warm_keep_max=1)
    house.add("shapes", "a", pinned=True)
    house.add("shapes", "b")
    await house.launcher.warm("a")
    with pytest.raises(OverloadedError, match="pinned"):
        await house.ask("b")


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
    assert house.launcher.driver.listeners.tools() == ()
    assert await house.placement.take_fd("listen:tool:shapes") is None


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
        row = await instances.INSTANCES.get(house.ledger, item.instance)
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


async def test_a_memory_budget_evicts_by_size(houses: Houses) -> None:
    house = await houses(memory_budget_mb=1)
    house.add("shapes")
    await house.ask("shapes")
    await eventually(lambda: house.state("shapes").state == "cold", "the eviction over the budget")
    assert house.state("shapes").reason == "evicted_lru"

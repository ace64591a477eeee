"""The launcher with real processes: starts, ends, capacity, and a new control plane that takes over warm tools.

What it says of bad tools, limits and runs is told from outside by tests/e2e; the mechanism itself by tests/process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from contextlib import aclosing

import pytest

from supervisord_py.errors import (
    StartFailedError,
    TimedOutError,
)
from supervisord_py.tools import driver, service
from tools.tool_house import ToolHouse, alive, eventually

Houses = "Callable[..., Awaitable[ToolHouse]]"


# -- starts ----------------------------------------------------------------------------------------------------------


async def test_an_impatient_request_leaves_the_start_going(house: ToolHouse) -> None:
    house.add("shapes", env={"FAULT": "gated"}, start_timeout_seconds=600)
    with pytest.raises(TimedOutError, match="still starting"):
        await house.ask("shapes", timeout_seconds=0.2)
    (house.tools / "shapes" / "gate").touch()
    await eventually(lambda: house.state("shapes").state == "ready")
    assert len(await house.said("starting", "tool:shapes")) == 1


async def test_who_is_told_that_a_tool_is_ready_finds_it_ready(house: ToolHouse) -> None:
    house.add("shapes")
    async with aclosing(house.events.subscribe(unit="tool:shapes")) as told:
        start = asyncio.create_task(house.launcher.warm("shapes"))
        async for event in told:
            if getattr(event, "event", None) == "ready":
                break
        assert house.state("shapes").state in {"ready", "busy"}, "no other event tells who waits to look again"
        await start


async def test_a_port_that_is_somebody_elses_is_not_trusted(house: ToolHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener that answers 200 on the port, but is not the child's, is never taken for the tool."""

    async def stranger(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(stranger, "127.0.0.1", 0)
    taken = server.sockets[0].getsockname()[1]

    monkeypatch.setattr(driver, "free_port", lambda: taken)
    house.add("shapes", listen="port", env={"FAULT": "never"})
    async with server:
        with pytest.raises(StartFailedError, match="not the tool's own"):
            await house.ask("shapes")
    assert len(await house.said("spawned")) == 1


async def test_an_adopted_tool_keeps_a_port_of_its_own(house: ToolHouse) -> None:
    house.add("stubborn-port", env={"REUSES": "1"})
    pid = (await house.ask("stubborn-port"))["pid"]
    port = house.state("stubborn-port").port
    await house.new_control_plane()
    assert (await house.ask("stubborn-port"))["pid"] == pid
    assert house.state("stubborn-port").port == port


# -- a new control plane --------------------------------------------------------------------------------------------


async def test_a_start_under_way_is_watched_on(house: ToolHouse) -> None:
    house.add("shapes", env={"FAULT": "gated"}, start_timeout_seconds=600)
    began = time.monotonic()
    waiting = asyncio.create_task(house.ask("shapes"))
    await eventually(lambda: house.state("shapes").pid)
    pid = house.state("shapes").pid
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await house.new_control_plane()
    assert (house.state("shapes").state, house.state("shapes").pid) == ("starting", pid)
    (house.tools / "shapes" / "gate").touch()
    assert (await house.ask("shapes"))["pid"] == pid
    assert 0 < (house.state("shapes").cold_start_ms or 0) <= (time.monotonic() - began) * 1000 + 100


# -- capacity and ends ----------------------------------------------------------------------------------------------


async def test_a_removed_tool_is_stopped_and_its_socket_dropped(house: ToolHouse) -> None:
    house.add("shapes")
    pid = (await house.ask("shapes"))["pid"]
    for path in sorted((house.tools / "shapes").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (house.tools / "shapes").rmdir()
    house.catalog.refresh()
    await house.launcher.refresh()
    await eventually(lambda: not alive(pid))
    await eventually(lambda: not house.launcher._instances)
    await house.launcher.refresh()
    assert house.launcher.driver.listeners.tools() == ()
    assert await house.placement.take_fd("listen:tool:shapes") is None


async def test_a_memory_budget_evicts_by_size(houses: Houses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PERIOD_SECONDS", 0.05)
    house = await houses(memory_budget_mb=1)
    house.add("shapes")
    await house.ask("shapes")
    await eventually(lambda: house.state("shapes").state == "cold", "the eviction over the budget")
    assert house.state("shapes").reason == "evicted_lru"


async def test_our_own_question_that_an_evicted_tool_leaves_unanswered_starts_it_no_more(
    houses: Houses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits in the backlog like a client's, of whom a connection to a cold tool's port is the wish for it."""
    house = await houses(warm_keep_max=1)
    asked, asks = asyncio.Event(), socket.socket()

    async def ask_for_ever(_upstream: object, _manifest: object) -> tuple[str, ...]:
        await asked.wait()
        asks.connect(("127.0.0.1", house.state("shapes").port))
        asked.clear()
        await asyncio.Event().wait()
        return ()

    monkeypatch.setattr(service, "schema_drift", ask_for_ever)
    house.add("shapes", stop_timeout_seconds=0.1)
    house.add("shapes", "other")
    await house.ask("shapes")
    os.kill(house.state("shapes").pid, signal.SIGSTOP)  # it accepts nobody any more
    asked.set()
    await eventually(lambda: not asked.is_set(), "the question")
    await house.ask("other")
    await eventually(lambda: house.state("shapes").state == "cold", "the eviction")
    await house.ask("other")
    assert len(await house.said("starting", "tool:shapes")) == 1
    asks.close()

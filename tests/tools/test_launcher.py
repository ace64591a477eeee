"""The launcher with real processes: starts, runs, ends, capacity, and a new control plane that
takes over.

What it says of bad tools, limits and runs is told from outside by tests/e2e; the mechanism itself
by tests/process.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import time
from contextlib import aclosing
from functools import partial

import pytest

from supervisord_py import errors
from supervisord_py.errors import StartFailedError, TimedOutError, ToolFailedError
from supervisord_py.ledger import instances
from supervisord_py.tools import driver, proxy, service, upstream
from supervisord_py.tools.proxy import ToolRun
from tools.tool_house import PATIENCE, ToolHouse, alive, eventually

# -- starts ----------------------------------------------------------------------------------------


async def test_a_start_goes_on_without_whoever_asked_and_under_another_control_plane(
    house: ToolHouse,
) -> None:
    house.add("shapes", env={"FAULT": "gated"}, listen="port", start_timeout_seconds=600)
    began = time.monotonic()
    with pytest.raises(TimedOutError, match="still starting"):
        await house.ask("shapes", timeout_seconds=0.2)
    pid = await eventually(lambda: house.state("shapes").pid)
    await house.new_control_plane()
    assert (house.state("shapes").state, house.state("shapes").pid) == ("starting", pid)
    (house.tools / "shapes" / "gate").touch()
    assert (await house.ask("shapes"))["pid"] == pid
    port = house.state("shapes").port
    await house.new_control_plane()
    assert ((await house.ask("shapes"))["pid"], house.state("shapes").port) == (pid, port)
    assert 0 < (house.state("shapes").cold_start_ms or 0) <= (time.monotonic() - began) * 1000 + 100
    assert len(await house.said("starting", "tool:shapes")) == 1


async def test_who_is_told_that_a_tool_is_ready_finds_it_ready(house: ToolHouse) -> None:
    house.add("shapes")
    async with aclosing(house.events.subscribe(unit="tool:shapes")) as told:
        start = asyncio.create_task(house.launcher.warm("shapes"))
        async for event in told:
            if getattr(event, "event", None) == "ready":
                break
        assert house.state("shapes").state in {"ready", "busy"}, (
            "no other event tells who waits to look again"
        )
        await start


async def test_a_port_that_is_somebody_elses_is_not_trusted(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stranger(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(stranger, "127.0.0.1", 0)
    monkeypatch.setattr(driver, "free_port", lambda: server.sockets[0].getsockname()[1])
    house.add("shapes", listen="port", env={"FAULT": "never"})
    async with server:
        with pytest.raises(StartFailedError, match="not the tool's own"):
            await house.ask("shapes")
    assert len(await house.said("spawned")) == 1


SWALLOWS = """
import socket, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args): pass
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    do_POST = do_GET

server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
swallowed = server.socket.accept()
server.serve_forever()
"""
SLOW = SWALLOWS.replace("swallowed = server.socket.accept()", "import time").replace(
    "    def do_GET(self):\n", "    def do_GET(self):\n        time.sleep(1)\n"
)


@pytest.mark.parametrize("listen", ["handover", "port"])
@pytest.mark.parametrize(
    "program", [SWALLOWS, SLOW], ids=["swallows the first", "answers each late"]
)
async def test_a_question_without_an_answer_holds_up_no_other(
    house: ToolHouse, listen: str, program: str
) -> None:
    house.add("shapes", listen=listen, start_timeout_seconds=10)
    (house.tools / "shapes" / "main.py").write_text(program)
    for _ in range(2):
        await house.launcher.warm("shapes")
        await house.launcher.stop("shapes")
    assert await house.said("start_failed") == []


# -- capacity and ends -----------------------------------------------------------------------------


async def test_a_removed_tool_is_stopped_and_its_socket_dropped(house: ToolHouse) -> None:
    house.add("shapes")
    pid = (await house.ask("shapes"))["pid"]
    shutil.rmtree(house.tools / "shapes")
    house.launcher.catalog.refresh()
    await house.launcher.refresh()
    await eventually(lambda: not alive(pid) and not house.launcher._instances)
    await house.launcher.refresh()
    assert house.launcher.driver.listeners.ports == {}
    assert await house.placement.take_fd("listen:tool:shapes") is None


async def test_a_directory_that_cannot_be_read_takes_no_tool_down(house: ToolHouse) -> None:
    """Twice in a row: a loop of links is as unreadable as a stale network file system."""
    house.add("shapes")
    pid = (await house.ask("shapes"))["pid"]
    away = house.tools.with_name("away")
    for _ in range(2):
        house.tools.rename(away)
        house.tools.symlink_to(house.tools)
        house.launcher.catalog.refresh()
        await house.launcher.refresh()
        assert house.state("shapes").state == "ready"
        house.tools.unlink()
        away.rename(house.tools)
        house.launcher.catalog.refresh()
        assert (await house.ask("shapes"))["pid"] == pid


@pytest.mark.parametrize("house", [{"memory_budget_mb": 1}], indirect=True)
async def test_a_memory_budget_evicts_by_size(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "PERIOD_SECONDS", 0.05)
    await house.new_control_plane()
    house.add("shapes")
    await house.ask("shapes")
    await eventually(lambda: house.state("shapes").state == "cold", "the eviction over the budget")
    assert house.state("shapes").reason == "evicted_lru"


@pytest.mark.parametrize("house", [{"warm_keep_max": 1}], indirect=True)
async def test_our_unanswered_question_starts_no_evicted_tool(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits in the backlog like a client's, of whom a connection to a cold tool's port is the
    wish for it.
    """
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


# -- runs ------------------------------------------------------------------------------------------


async def said(house: ToolHouse, words: str, times: int = 1) -> None:
    """Wait until the tool `shapes` has written something to stderr so many times."""
    tail = partial(house.launcher.supervisor.tail, house.launcher.instance_of("shapes"))

    async def is_said() -> bool:
        return (await tail()).count(words) >= times

    await eventually(is_said, words)


async def test_too_long_a_run_is_stopped_with_its_tool(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    over: list[ToolRun] = []
    exceed = ToolRun.exceed_runtime

    async def hold(run: ToolRun) -> None:
        over.append(run)

    monkeypatch.setattr(ToolRun, "exceed_runtime", hold)
    house.add("shapes", max_runtime_seconds=1, env={"FAULT": "no_cancel"})
    pid = (await house.ask("shapes"))["pid"]
    late = asyncio.create_task(house.ask("shapes", {"do": "sleep", "number": 600}))
    await eventually(lambda: over)
    other = asyncio.create_task(house.ask("shapes", {"do": "sleep", "number": 600}))
    await said(house, "sleeping", 2)
    await exceed(over[0])  # the other's time would be over a moment later, or earlier
    with pytest.raises(errors.ResourceLimitError, match="ResourceLimitExceeded: runtime") as failed:
        await late
    assert "sleeping" in failed.value.extra["stderr_tail"]
    with pytest.raises(errors.InterruptedRunError, match="collateral"):
        await other
    await eventually(
        lambda: not alive(pid) and house.state("shapes").state == "cold", "the end of the tree"
    )
    (row,) = await instances.latest(house.ledger, "tool:shapes")
    assert row.reason == "runtime_limit"


async def test_the_callers_own_time_is_kept(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "_CANCEL_SECONDS", PATIENCE)
    house.add("shapes")
    await house.ask("shapes")
    with pytest.raises(TimedOutError):
        await house.ask("shapes", {"do": "sleep", "number": 600}, timeout_seconds=0.3)
    await said(house, "cancel /cancel?run_id=")
    assert house.state("shapes").in_flight == 0


async def test_failed_runs_are_events_but_no_flood(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.add("shapes")

    async def fail(status: int) -> list[tuple[object, object]]:
        with pytest.raises(ToolFailedError):
            await house.ask("shapes", {"do": "status", "number": status})
        return [
            (it.facts["status"], it.facts["instance_ended"])
            for it in await house.said("run_failed")
        ]

    monkeypatch.setattr(proxy, "FAILED_SECONDS", 1e9)
    assert await fail(418) == []
    assert await fail(500) == [(500, False)]
    assert await fail(503) == [(500, False)]
    monkeypatch.setattr(proxy, "FAILED_SECONDS", 0.0)
    with pytest.raises(ToolFailedError):
        await house.ask("shapes", {"do": "die", "number": 3})
    assert await fail(503) == [(500, False), (502, True), (503, False)]


@pytest.mark.parametrize("late", [False, True])
async def test_what_a_tool_says_once_its_error_is_out_is_told(
    house: ToolHouse, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "TRACEBACK_SECONDS", 0.5)
    house.add("shapes")
    await house.ask("shapes")
    os.kill(house.rig.pid, signal.SIGSTOP if late else signal.SIGCONT)
    try:
        run = asyncio.create_task(house.ask("shapes", {"do": "status", "number": 500}))
        await asyncio.wait([run], timeout=1)
    finally:
        os.kill(house.rig.pid, signal.SIGCONT)
    with pytest.raises(ToolFailedError) as failed:
        await run
    said = "trouble at the mill\na traceback, once the answer is out\n"
    assert failed.value.extra["stderr_tail"] == said

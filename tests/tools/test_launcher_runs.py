"""What becomes of runs: answers as they came, and for every way to fail an error that says why."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from supervisord_py.errors import (
    InterruptedRunError,
    ResourceLimitError,
    TimedOutError,
    ToolFailedError,
)
from supervisord_py.ledger import instances
from supervisord_py.tools import proxy, upstream
from supervisord_py.tools.proxy import ToolRun
from tools.tool_house import PATIENCE, ToolHouse, alive, eventually


async def said(house: ToolHouse, words: str, times: int = 1) -> None:
    """Wait until the tool `shapes` has written something to stderr so many times."""
    instance = house.launcher.instance_of("shapes")
    assert instance is not None
    async with asyncio.timeout(PATIENCE):
        while (await house.launcher.supervisor.tail(instance)).count(words) < times:
            await asyncio.sleep(0.02)


async def test_too_long_a_run_is_cancelled_then_stopped_and_others_are_collateral(
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
    results = await asyncio.gather(late, other, return_exceptions=True)
    assert isinstance(results[0], ResourceLimitError)
    assert results[0].detail.startswith("ResourceLimitExceeded: runtime")
    assert "sleeping" in results[0].extra["stderr_tail"]
    assert isinstance(results[1], InterruptedRunError)
    assert results[1].extra["collateral"] is True
    await eventually(lambda: not alive(pid), "the end of the tree")
    await eventually(lambda: house.state("shapes").state == "cold")
    (row,) = await instances.latest(house.ledger, "tool:shapes")
    assert row.reason == "runtime_limit"


async def test_the_callers_own_time_is_kept_and_the_tool_is_asked_to_cancel(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "_CANCEL_SECONDS", PATIENCE)
    house.add("shapes")
    await house.ask("shapes")
    with pytest.raises(TimedOutError):
        await house.ask("shapes", {"do": "sleep", "number": 600}, timeout_seconds=0.3)
    await said(house, "cancel /cancel?run_id=")
    assert house.state("shapes").in_flight == 0


async def test_runs_that_fail_through_their_tool_are_events_but_no_flood(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.add("shapes")

    async def fail(status: int) -> list[tuple[object, object]]:
        with pytest.raises(ToolFailedError):
            await house.ask("shapes", {"do": "status", "number": status})
        return [(it.facts["status"], it.facts["instance_ended"]) for it in await house.said("run_failed")]

    monkeypatch.setattr(proxy, "FAILED_SECONDS", 1e9)
    assert await fail(418) == []
    assert await fail(500) == [(500, False)]
    assert await fail(503) == [(500, False)]
    monkeypatch.setattr(proxy, "FAILED_SECONDS", 0.0)
    with pytest.raises(ToolFailedError):
        await house.ask("shapes", {"do": "die", "number": 3})
    assert await fail(503) == [(500, False), (502, True), (503, False)]


SAID = "trouble at the mill\na traceback, once the answer is out\n"


async def test_what_a_tool_says_once_its_error_is_out_is_told(house: ToolHouse) -> None:
    house.add("shapes")
    with pytest.raises(ToolFailedError) as failed:
        await house.ask("shapes", {"do": "status", "number": 500})
    assert failed.value.extra["stderr_tail"] == SAID


async def test_what_a_tool_said_of_its_error_is_told_however_late_the_keeper_reads_it(house: ToolHouse) -> None:
    house.add("shapes")
    await house.ask("shapes")
    os.kill(house.rig.pid, signal.SIGSTOP)
    try:
        run = asyncio.create_task(house.ask("shapes", {"do": "status", "number": 500}))
        await asyncio.wait([run], timeout=1)
    finally:
        os.kill(house.rig.pid, signal.SIGCONT)
    with pytest.raises(ToolFailedError) as failed:
        await run
    assert failed.value.extra["stderr_tail"] == SAID

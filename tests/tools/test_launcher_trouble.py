"""Trouble below the launcher: a keeper that is gone, processes that cannot be killed, clients of a dead instance."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from supervisord_py.errors import KeeperLostError, PxError, SurvivorsError, ToolFailedError
from supervisord_py.process import supervisor
from supervisord_py.process.model import StopReport, Survivor
from tools.tool_house import alive, eventually

if TYPE_CHECKING:
    from tools.tool_house import ToolHouse


async def test_a_lost_keeper_reaches_everyone_and_nobody_waits_for_ever(house: ToolHouse) -> None:
    house.add("shapes")
    pid = (await house.ask("shapes"))["pid"]
    running = asyncio.create_task(house.ask("shapes", {"do": "sleep", "number": 600}))
    await eventually(lambda: house.state("shapes").in_flight == 1)
    house.rig.process.kill()
    with pytest.raises((KeeperLostError, ToolFailedError)):
        await running
    await eventually(lambda: not house.launcher.instances())
    with pytest.raises(PxError):
        await house.ask("shapes")
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    await eventually(lambda: not alive(pid))


async def test_what_survives_a_stop_is_named_and_no_second_copy_is_started(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.add("shapes")
    await house.ask("shapes")
    real, spared = house.placement.stop, True

    async def stop(key: str, **options: Any) -> StopReport:
        if spared:
            return StopReport(key, (Survivor(4242, "undead", 1),), killed=True)
        return await real(key, **options)

    monkeypatch.setattr(house.placement, "stop", stop)
    monkeypatch.setattr(supervisor, "TRY_AGAIN_SECONDS", 0.05)
    with pytest.raises(SurvivorsError, match=r"undead \(4242\)") as caught:
        await house.launcher.stop("shapes")
    assert caught.value.extra["survivors"] == [{"pid": 4242, "name": "undead", "start_time": 1}]
    assert caught.value.exit_code == 8
    assert (house.state("shapes").state, house.state("shapes").survivors) == ("stopping", (4242,))
    with pytest.raises(PxError):
        await house.ask("shapes", timeout_seconds=0.2)
    assert len(await house.said("starting")) == 1
    spared = False
    await eventually(lambda: house.state("shapes").state == "cold")


async def test_a_stop_of_a_cold_tool_is_no_trouble_and_of_an_unknown_one_is(house: ToolHouse) -> None:
    house.add("shapes")
    assert (await house.launcher.stop("shapes")).survivors == ()
    for work in (house.launcher.stop("nobody"), house.launcher.pin("nobody"), house.launcher.unpin("nobody")):
        with pytest.raises(PxError, match="nobody"):
            await work
    with pytest.raises(PxError, match="nobody"):
        house.launcher.snapshot("nobody")


async def test_new_settings_hold_at_once(house: ToolHouse) -> None:
    house.add("shapes", "a")
    house.add("shapes", "b")
    await house.ask("a")
    await house.ask("b")
    pool = msgspec.structs.replace(house.config.pool, warm_keep_max=1)
    house.launcher.reconfigure(msgspec.structs.replace(house.config, pool=pool))
    await eventually(lambda: house.state("a").state == "cold")
    assert house.state("b").state == "ready"


async def test_work_that_is_cancelled_before_it_begins_is_closed(house: ToolHouse) -> None:
    """Else Python tells of a coroutine that was never awaited, whenever it is collected."""
    work = asyncio.sleep(600)
    task = house.launcher.supervisor.task(work)
    task.cancel()
    await asyncio.wait({task})
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED


async def test_a_defect_in_one_life_harms_no_other(house: ToolHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    house.add("shapes")

    async def broken() -> None:
        raise RuntimeError("a defect")

    task = house.launcher.supervisor.task(broken())
    await eventually(task.done)
    assert (await house.ask("shapes", {"n": 1}))["echo"] == {"n": 1}

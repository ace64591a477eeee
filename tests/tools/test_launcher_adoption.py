"""A new control plane takes over warm tools as they are, and records what happened while there was none."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from supervisord_py.errors import InterruptedRunError
from supervisord_py.ledger import instances
from supervisord_py.process.instance import read_note
from supervisord_py.process.keeper_client import KeeperClient
from tools.tool_house import PATIENCE, alive, eventually

if TYPE_CHECKING:
    from supervisord_py.process.model import StopReport
    from tools.tool_house import ToolHouse


async def test_the_port_outlives_control_plane_and_instance(house: ToolHouse) -> None:
    house.add("shapes")
    await house.ask("shapes")
    port = house.state("shapes").port
    await house.launcher.stop("shapes")
    await house.new_control_plane()
    await house.ask("shapes")
    assert house.state("shapes").port == port


async def test_age_goes_on_counting_over_a_change_of_control_plane(house: ToolHouse) -> None:
    house.add("shapes", warm_keep_seconds=1)
    pid = (await house.ask("shapes"))["pid"]
    await house.new_control_plane()
    await eventually(lambda: not alive(pid))
    await eventually(lambda: house.state("shapes").reason == "evicted_ttl")


async def test_an_exit_meanwhile_is_recorded_with_its_code(house: ToolHouse) -> None:
    house.add("shapes")
    pid = (await house.ask("shapes"))["pid"]
    await house.noted("shapes")
    await house.abandon()
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: not alive(pid))
    await house._control_plane()
    # The keeper need not have reaped it when it is asked what it holds.
    await eventually(lambda: house.state("shapes").state == "cold", "the record of the end")
    state = house.state("shapes")
    assert (state.state, state.reason, state.restarts) == ("cold", "signal", 1)
    (row,) = await instances.latest(house.ledger, "tool:shapes")
    assert (row.reason, row.signal, row.code) == ("signal", 9, None)
    assert (await house.ask("shapes"))["pid"] != pid


async def test_an_exit_meanwhile_of_one_that_served_before_it_was_noted_is_no_early_exit(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotate = house.placement.annotate

    async def unless_ready(key: str, tag: str) -> None:
        if (note := read_note(tag)) is None or not note.ready:
            await annotate(key, tag)

    monkeypatch.setattr(house.placement, "annotate", unless_ready)
    house.add("shapes")
    pid = (await house.ask("shapes"))["pid"]
    await house.abandon()
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: not Path(f"/proc/{pid}").exists(), "the keeper has reaped it")
    await house._control_plane()
    state = house.state("shapes")
    assert (state.state, state.reason, state.restarts) == ("cold", "signal", 1)
    (row,) = await instances.latest(house.ledger, "tool:shapes")
    assert row.reason == "signal"


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


async def test_a_run_in_flight_hears_that_it_may_ask_again(house: ToolHouse) -> None:
    house.add("shapes")
    await house.ask("shapes")
    running = asyncio.create_task(house.ask("shapes", {"do": "sleep", "number": 600}))
    await eventually(lambda: house.state("shapes").in_flight == 1)
    await house.new_control_plane()
    with pytest.raises(InterruptedRunError):
        await running


async def test_a_tool_whose_folder_has_gone_is_stopped(house: ToolHouse) -> None:
    house.add("shapes")
    pid = (await house.ask("shapes"))["pid"]
    await house.abandon()
    (house.tools / "shapes" / "tool.json").unlink()
    await house._control_plane()
    await eventually(lambda: not alive(pid))
    assert not house.launcher.instances()


async def test_a_stop_under_way_keeps_its_reason(house: ToolHouse) -> None:
    house.add("shapes", env={"FAULT": "ignores_term"}, stop_timeout_seconds=3)
    pid = (await house.ask("shapes"))["pid"]
    stopping = asyncio.create_task(house.launcher.stop("shapes"))
    await eventually(lambda: house.state("shapes").state == "stopping")
    instance = house.launcher.instance_of("shapes")
    async with asyncio.timeout(PATIENCE):
        while (child := await house.placement.attach(instance.key)) is not None and "stopped" not in child.tag:
            await asyncio.sleep(0)
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    await house.new_control_plane()
    await eventually(lambda: not alive(pid))

    async def reason() -> str | None:
        (row,) = await instances.latest(house.ledger, "tool:shapes")
        return row.reason

    deadline = asyncio.get_running_loop().time() + 60
    while await reason() is None:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)
    assert await reason() == "stopped"
    await eventually(lambda: house.state("shapes").reason == "stopped", "the same in status")
    assert house.launcher.last_state("shapes").state == "cold"


async def test_an_older_instance_does_not_tell_how_its_tool_stands(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.add("shapes")
    old = (await house.ask("shapes"))["pid"]
    await house.noted("shapes")
    await house.placement.annotate(house.state("shapes").instance, "{not ours")
    stop, go_on = KeeperClient.stop, asyncio.Event()

    async def late(self: KeeperClient, key: str, *, grace_seconds: float, reason: str) -> StopReport:
        report = await stop(self, key, grace_seconds=grace_seconds, reason=reason)
        await go_on.wait()
        return report

    monkeypatch.setattr(KeeperClient, "stop", late)
    await house.new_control_plane()
    await eventually(lambda: not alive(old))
    await house.ask("shapes")
    go_on.set()
    async with asyncio.timeout(PATIENCE):
        while not await house.said("stopped"):
            await asyncio.sleep(0.01)
    standing = house.launcher.last_state("shapes")
    assert (standing.state, standing.reason) == ("ready", None)


async def test_a_broken_note_is_no_reason_to_keep_a_process(house: ToolHouse) -> None:
    house.add("shapes")
    pid = (await house.ask("shapes"))["pid"]
    await house.noted("shapes")  # else that note might come after the broken one
    await house.placement.annotate(house.state("shapes").instance, "{not ours")
    await house.new_control_plane()
    await eventually(lambda: not alive(pid))
    assert (await house.ask("shapes"))["pid"] != pid

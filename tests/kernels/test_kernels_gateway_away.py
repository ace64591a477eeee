"""Servers that are not there any more: said at once, nothing pretended, nothing waited for that cannot come."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kernels.gateway_fake import fake_server
from kernels.gateway_house import House
from kernels.kernel_rig import eventually, kernel_house
from kernels.room_house import RoomHouse
from pxctl.cells import failure_of
from supervisord_py.api.kernel_documents import call_document
from supervisord_py.errors import PxError
from supervisord_py.kernels.backend import KernelGivenUpError, KernelGoneError
from supervisord_py.kernels.calls.call_rules import Stopped, cut_off
from supervisord_py.kernels.cell import CellStatus, Step, Variables
from supervisord_py.kernels.config import GatewayConfig
from supervisord_py.kernels.gateway import deletion
from supervisord_py.kernels.gateway.external import GatewayExternal
from supervisord_py.kernels.session import BackendName

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kernels.gateway_fake import FakeServer
    from kernels.kernel_rig import KernelRig


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "PROBE_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(deletion, "DELETE_PAUSES", (0.0, 0.0))


@asynccontextmanager
async def kernel_at(folder: Path) -> AsyncIterator[tuple[House, FakeServer]]:
    async with kernel_house(folder) as rig, fake_server() as server:
        gateway = GatewayConfig(dir=folder / "gateway", url=server.url)
        house = House(rig, GatewayExternal(replace(rig.config, gateway=gateway), daemon=rig.keeper.daemon_id))
        try:
            await house.open()
            yield house, server
        finally:
            await house.backend.close(stop=True)


@asynccontextmanager
async def room_at(rig: KernelRig, server: FakeServer) -> AsyncIterator[RoomHouse]:
    house = RoomHouse(rig)
    house.config = replace(house.config, gateway=GatewayConfig(dir=rig.folder / "gateway", url=server.url))
    await house.open()
    try:
        yield house
    finally:
        await house.close()


@pytest.mark.parametrize("sent", [True, False])
async def test_a_cell_at_a_server_that_went_away_is_given_up_with_the_truth(sent: bool, short_tmp: Path) -> None:
    async with kernel_at(short_tmp) as (house, server):
        if not sent:
            await server.vanish()
        _, task = house.begin("1")
        if sent:
            await eventually(lambda: server.executed, "the cell")
            await server.vanish()
        with pytest.raises(KernelGivenUpError, match=f"{server.url} is not reachable") as caught:
            await house.handle.interrupt()
        assert (caught.value.step, caught.value.hint) == (
            "unreachable",
            f"Check kernels.gateway_url; try: curl {server.url}/api",
        )
        with pytest.raises(KernelGoneError, match="is not reachable"):
            await asyncio.wait_for(task, 60)
        assert await house.handle.shutdown(0.0, "timeout") == ()
        assert not any(each.startswith("DELETE") for each in server.asked)
        assert len(await house.backend.held()) == 1, "it is deleted when the server is back"


@pytest.mark.parametrize("rung", ["terminate", "kill"])
async def test_a_delete_that_cannot_be_sent_is_no_delete(rung: str, short_tmp: Path) -> None:
    async with kernel_at(short_tmp) as (house, server):
        await server.vanish()
        with pytest.raises(KernelGivenUpError, match="is not reachable"):
            await getattr(house.handle, rung)()
        assert house.handle.died.done()


async def test_a_call_whose_server_went_away_names_it_when_its_time_is_over(short_tmp: Path) -> None:
    async with kernel_house(short_tmp) as rig, fake_server() as server, room_at(rig, server) as house:
        server.on_execute = type(server).end_cell
        wanted = {"backend": BackendName.GATEWAY_EXTERNAL}
        assert (await house.run("1", **wanted)).status is CellStatus.OK
        await server.vanish()
        result = await house.run("2", timeout_seconds=4.0, **wanted)
        assert (result.status, result.variables) == (CellStatus.TIMED_OUT, Variables.LOST)
        assert [step.action for step in result.cells[0].steps] == ["unreachable"]
        assert f"The gateway at {server.url} is not reachable" in str(result.message)
        assert "killed" not in str(result.message)
        failure = failure_of(call_document(result), "kernel:x", cancelled=False)
        assert failure is not None
        assert (failure.exit_code, failure.hint) == (7, f"check kernels.gateway_url; try: curl {server.url}/api")
        with pytest.raises(PxError, match="is not reachable"):
            await house.run("3", **wanted)


def test_a_kernel_that_was_given_up_is_not_said_to_be_killed() -> None:
    where, step = Stopped(0, 1), Step("delete_failed", 4.0, "The gateway failed.")
    said = cut_off(where, CellStatus.CANCELLED, 4.2, Variables.LOST, (step,))
    assert said == (
        "The cell was cancelled: the kernel was given up after 4.2 s. The gateway failed. All variables are lost."
    )
    ended = replace(step, action="delete")
    assert "was killed after 4.2 s, by delete" in cut_off(where, CellStatus.CANCELLED, 4.2, Variables.LOST, (ended,))

"""Kernels at servers outlive the control plane: found again with their variables, or told as lost and deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kernels.gateway_house import external_of, house_of, local_of
from kernels.kernel_rig import eventually, no_news
from supervisord_py.kernels import gateway
from supervisord_py.kernels.cell import CellStatus
from supervisord_py.kernels.gateway_client import GatewayClient
from supervisord_py.process import host

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kernels.gateway_house import House
    from supervisord_py.process.model import Child

    Require = Callable[[object, str], None]

pytestmark = pytest.mark.deep

TICKS = "import time\nfor n in range(5):\n    time.sleep(0.2)\n    print(n, flush=True)\nprint('end')"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real server on a busy machine may take its time to end a kernel."""
    monkeypatch.setattr(gateway, "UNDO_SECONDS", 60.0)


async def next_control_plane(house: House) -> None:
    """Let go, and be the next one."""
    await house.backend.close(stop=False)
    await house.rig.replace()
    if house.peer is None:
        house.backend = await local_of(house.rig)
    else:
        house.backend = external_of(house.rig, house.peer)


async def attach(house: House, child: Child) -> None:
    house.handle = await house.backend.attach(house.launch, child)
    house.rig._handles.append(house.handle)


async def held(house: House) -> Child:
    """Return the one kernel that an earlier control plane left."""
    (child,) = await house.backend.held()
    assert (child.key, child.unit) == (house.launch.instance, f"kernel:{house.launch.session_id}")
    return child


@pytest.mark.parametrize("kind", ["local", "kernel_gateway", "enterprise_gateway"])
async def test_variables_and_running_cells_survive_the_control_plane(
    kind: str, short_tmp: Path, require: Require
) -> None:
    """A kernel that writes by itself loses nothing; elsewhere the server replays, and the cell counts as lossy."""
    async with house_of(kind, short_tmp, require) as house:
        await house.open(tag="first")
        await house.run("kept = 11")
        await house.backend.annotate(house.launch.instance, "second")
        request, task = await house.begin_and_wait(TICKS)
        await next_control_plane(house)
        assert task.cancelled() or task.done()
        child = await held(house)
        assert child.tag == "second"
        await attach(house, child)
        reply = await house.handle.follow(request, no_news)
        assert reply.status is CellStatus.OK
        assert reply.lossy is (kind != "local")
        out = house.rig.out(request).decode()
        assert out.endswith("end\n")
        if kind == "local":
            assert out == "on\n0\n1\n2\n3\n4\nend\n"
        assert len(house.rig.records(request, "end")) == 1
        assert (await house.handle.follow(request, no_news)).status is CellStatus.OK, "its end is on disk by now"
        assert (await house.run("kept")).records[-2]["data"] == {"text/plain": "11"}
        assert await house.backend.sweep() == 0
        assert await house.handle.shutdown(1.0, "stopped") == ()
        assert await house.backend.held() == ()


@pytest.mark.parametrize("kind", ["local", "kernel_gateway"])
async def test_d7_kernels_that_nobody_takes_over_are_deleted(kind: str, short_tmp: Path, require: Require) -> None:
    async with house_of(kind, short_tmp, require) as house:
        await house.open()
        pid = int((await house.run("import os; print(os.getpid())")).out)
        await next_control_plane(house)
        await held(house)
        assert await house.backend.sweep() == 1
        assert await house.backend.held() == ()
        await eventually(lambda: not _lives(pid), "its end")


async def test_a_kernel_that_was_restarted_meanwhile_is_not_taken_for_the_old_one(
    short_tmp: Path, require: Require
) -> None:
    async with house_of("jupyter_server", short_tmp, require) as house:
        await house.open()
        await house.run("kept = 1")
        assert house.peer is not None
        client = GatewayClient(house.peer.url, house.peer.token, "")
        kernel = house.handle.held.kernel
        await house.backend.close(stop=False)
        await house.rig.replace()
        await client._json("POST", f"api/kernels/{kernel}/restart", "restart", 60, {})
        house.backend = external_of(house.rig, house.peer)
        child = await held(house)
        assert await house.backend.attach(house.launch, child) is None
        await house.backend.close(stop=False)
        assert await client.model(kernel) is None, "the new process is deleted"
        assert await house.backend.held() == ()
        await client.close()


async def test_a_kernel_of_a_server_that_is_gone_is_not_taken_over(short_tmp: Path, require: Require) -> None:
    async with house_of("kernel_gateway", short_tmp, require) as house:
        await house.open()
        await next_control_plane(house)
        child = await held(house)
        assert house.peer is not None
        await house.peer.end()
        assert await house.backend.attach(house.launch, child) is None
        await house.peer.start()
        assert await house.backend.attach(house.launch, child) is None, "a new server does not know it"


def _lives(pid: int) -> bool:
    return host.start_time(pid) is not None

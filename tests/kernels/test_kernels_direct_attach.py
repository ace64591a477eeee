"""A control plane is replaced: the kernels live on, are taken over, and cells in flight come to their end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kernels.kernel_rig import PATIENCE, answers, eventually, kernel_house, no_news
from supervisord_py.errors import InterruptedRunError
from supervisord_py.kernels import connection_file as place
from supervisord_py.kernels.backend import KernelGoneError
from supervisord_py.kernels.cell import CellStatus
from supervisord_py.kernels.direct import DirectBackend, sweep_stale

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kernels.kernel_rig import KernelRig
    from supervisord_py.kernels.backend import ExecuteRequest, Launch, Reply
    from supervisord_py.kernels.direct import DirectKernel

WAITS = "import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n"


class House:
    """One kernel, and whoever holds it now."""

    def __init__(self, rig: KernelRig, launch: Launch, handle: DirectKernel) -> None:
        self.rig = rig
        self.launch = launch
        self.handle: DirectKernel = handle

    async def begin(self, code: str) -> tuple[ExecuteRequest, asyncio.Future[Reply]]:
        """Send a cell and return when it runs."""
        request = self.rig.request(self.launch, code)
        running = asyncio.ensure_future(self.handle.execute(request, no_news))
        await eventually(lambda: self.rig.out(request) or running.done(), "the cell's begin")
        return request, running

    async def replace(self) -> DirectKernel | None:
        """Be the next control plane."""
        await self.rig.replace()
        self.handle = await self.rig.attach(DirectBackend(self.rig.placement, self.rig.config), self.launch)
        return self.handle

    async def heard(self) -> None:
        """Return when the new subscription works: what is published before that, nobody is told."""

        async def ask() -> None:
            while True:
                exchange = self.handle.client.ask("control", "kernel_info_request")
                if (await asyncio.wait({exchange.idle}, timeout=0.5))[0]:
                    return

        await asyncio.wait_for(ask(), PATIENCE)

    async def check(self, code: str) -> None:
        """Run a cell that must end well."""
        async with asyncio.timeout(PATIENCE):
            reply = await self.handle.execute(self.rig.request(self.launch, code), no_news)
        assert reply.status is CellStatus.OK, reply

    def go(self) -> None:
        """Let the waiting cell go on."""
        Path(self.launch.cwd, "go").touch()


async def made(short_rig: KernelRig, kind: str) -> House:
    launch = short_rig.stock() if kind == "stock" else short_rig.launch()
    return House(short_rig, launch, await short_rig.start(DirectBackend(short_rig.placement, short_rig.config), launch))


@pytest.fixture
async def ours(short_tmp: Path) -> AsyncIterator[House]:
    async with kernel_house(short_tmp) as rig:
        yield await made(rig, "ours")


async def test_a_stock_kernel_that_is_done_and_whose_reply_nobody_heard_is_not_claimed_to_be_well(
    short_tmp: Path,
) -> None:
    async with kernel_house(short_tmp) as rig:
        stock = await made(rig, "stock")
        request, running = await stock.begin(WAITS)
        await rig.replace()
        with pytest.raises(InterruptedRunError):
            await running
        stock.go()
        stock.handle = await rig.attach(DirectBackend(rig.placement, rig.config), stock.launch)
        assert await answers(stock.handle, PATIENCE)
        async with asyncio.timeout(PATIENCE):
            reply = await stock.handle.follow(request, no_news)
        assert (reply.status, reply.lossy) == (CellStatus.ERROR, True)
        assert reply.error is not None
        assert reply.error.name == "NoReply"


async def test_a_kernel_that_cannot_answer_is_taken_all_the_same(ours: House) -> None:
    """A loop in C holds the interpreter: nothing is said, and the user's state is not thrown away for that."""
    request, running = await ours.begin("print('begun', flush=True)\nsum(range(10**14))")
    assert await ours.replace() is not None
    with pytest.raises(InterruptedRunError):
        await running
    following = asyncio.ensure_future(ours.handle.follow(request, no_news))
    assert await ours.handle.terminate() == "sigterm"
    with pytest.raises(KernelGoneError):
        async with asyncio.timeout(PATIENCE):
            await following


async def test_what_is_dead_or_has_lost_its_files_is_not_attached(ours: House) -> None:
    backend = DirectBackend(ours.rig.placement, ours.rig.config)
    child = await ours.rig.placement.attach(ours.launch.instance)
    assert child is not None
    folder = place.folder_of(ours.rig.config.run_dir, ours.launch.session_id)
    text = (folder / place.FILE).read_text()
    for broken in ("{}", text.replace(ours.launch.instance, "another.instance")):
        (folder / place.FILE).write_text(broken)
        assert await backend.attach(ours.launch, child) is None
    (folder / place.FILE).write_text(text)
    (folder / "s-1").rename(folder / "elsewhere")
    with socket.socket(socket.AF_UNIX) as nobody:
        nobody.bind(str(folder / "s-1"))
        assert await backend.attach(ours.launch, child) is None
    os.kill(child.identity.pid, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE):
        await asyncio.shield(ours.handle.died)
    dead = await ours.rig.placement.attach(ours.launch.instance)
    assert dead is not None
    assert dead.exit is not None
    assert await backend.attach(ours.launch, dead) is None
    await sweep_stale(ours.rig.config.run_dir, ())
    assert not folder.exists()

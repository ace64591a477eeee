"""How kernels end and how cells are ended: deaths are told truly, interrupts keep the kernel where they can."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from kernels.kernel_rig import PATIENCE, eventually, kernel_house, no_news
from supervisord_py.kernels.config import LadderTimes
from supervisord_py.kernels.direct import DirectBackend

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kernels.kernel_rig import KernelRig
    from supervisord_py.kernels.backend import ExecuteRequest, Launch, Reply
    from supervisord_py.kernels.direct import DirectKernel

BEGUN = "kept = 42\nprint('begun', flush=True)\nopen('begun', 'w').close()\n"
"""A file, because what a stock kernel prints comes out only when its threads may run; last, so that nothing but the
code itself is hit by what comes then."""


class Kernel:
    """A kernel that runs, and a cell in it."""

    def __init__(self, rig: KernelRig, launch: Launch, handle: DirectKernel) -> None:
        self.rig = rig
        self.launch = launch
        self.handle = handle
        self.request: ExecuteRequest

    async def begin(self, code: str, before: str = "") -> asyncio.Future[Reply]:
        """Send a cell and return when it runs, and is done with what comes `before`."""
        mark = Path(self.launch.cwd, "begun")
        mark.unlink(missing_ok=True)
        self.request = self.rig.request(self.launch, before + BEGUN + code)
        running = asyncio.ensure_future(self.handle.execute(self.request, no_news))
        await eventually(lambda: mark.exists() or running.done(), "the cell's begin")
        return running

    async def works(self) -> None:
        """Return when the cell has used a moment of CPU: whatever came before its loop is over."""
        child = self.handle.child
        assert child is not None
        process = psutil.Process(child.identity.pid)
        before = process.cpu_times().user
        await eventually(lambda: process.cpu_times().user > before + 0.3, "the loop")

    async def idle(self) -> None:
        """Return when it is done with all that it was asked, and says so."""
        asked = self.handle.client.ask("shell", "kernel_info_request")
        async with asyncio.timeout(PATIENCE):
            await asked.reply
            await asked.idle

    async def said(self) -> list[str]:
        """Return the further lines that the cell has printed, once there are some."""
        return list(await eventually(lambda: self.rig.out(self.request).decode().splitlines()[1:], "more output"))


@pytest.fixture(params=["ours", "stock"])
async def kernel(request: pytest.FixtureRequest, short_tmp: Path) -> AsyncIterator[Kernel]:
    async with kernel_house(short_tmp) as rig:
        launch = rig.stock() if request.param == "stock" else rig.launch()
        yield Kernel(rig, launch, await rig.start(DirectBackend(rig.placement, rig.config), launch))


async def ended(running: asyncio.Future[Reply]) -> Reply:
    async with asyncio.timeout(PATIENCE):
        return await running


# -- interrupts: the matrix of the notes, as far as one rung goes ---------------------------------------------------


@pytest.fixture
def only_rung(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next rung of the ladder is far away."""
    monkeypatch.setattr(kernel.handle, "_times", LadderTimes(again_seconds=PATIENCE))


async def interrupted(kernel: Kernel, running: asyncio.Future[Reply]) -> None:
    """Wait for the end of an interrupted cell.

    Python may take the signal just as it falls asleep, and IPython drops one that hits its callbacks (1 of 200 was seen
    of each): there the second rung ends the cell, as in a call.
    """
    await asyncio.wait({running}, timeout=5.0)
    if not running.done():
        assert await kernel.handle.interrupt() == "sigint"
    reply = await ended(running)
    assert reply.error is not None
    assert reply.error.name in {"KeyboardInterrupt", "CancelledError", "NoReply"}  # where it just begins


@pytest.mark.usefixtures("only_rung")
async def test_an_interrupt_that_comes_before_its_cell_has_begun_ends_it(kernel: Kernel) -> None:
    """An idle kernel ignores the signal: it is sent once the cell has begun, as its files or messages say."""
    for _ in range(3):
        request = kernel.rig.request(kernel.launch, "import time; time.sleep(600)")
        running = asyncio.ensure_future(kernel.handle.execute(request, no_news))
        await asyncio.sleep(0)  # sent, and not a moment later
        assert await kernel.handle.interrupt() == "sigint"
        await interrupted(kernel, running)


@pytest.mark.deep
@pytest.mark.usefixtures("only_rung")
async def test_an_interrupt_waits_for_a_kernel_that_is_slow_to_begin(kernel: Kernel) -> None:
    child = kernel.handle.child
    assert child is not None
    os.kill(child.identity.pid, signal.SIGSTOP)
    request = kernel.rig.request(kernel.launch, "import time; time.sleep(600)")
    running = asyncio.ensure_future(kernel.handle.execute(request, no_news))
    await asyncio.sleep(0)
    interrupting = asyncio.ensure_future(kernel.handle.interrupt())
    await asyncio.wait({interrupting}, timeout=1.0)
    assert not interrupting.done(), "it would have been lost on an idle kernel"
    os.kill(child.identity.pid, signal.SIGCONT)
    assert await interrupting == "sigint"
    await interrupted(kernel, running)


async def test_a_kernelspec_may_ask_to_be_interrupted_by_message(short_tmp: Path) -> None:
    async with kernel_house(short_tmp) as rig:
        launch = rig.stock(interrupt_mode="message")
        kernel = Kernel(rig, launch, await rig.start(DirectBackend(rig.placement, rig.config), launch))
        running = await kernel.begin("import time; time.sleep(600)")
        assert await kernel.handle.interrupt() == "interrupt_request"
        reply = await ended(running)
        assert reply.error is not None
        assert reply.error.name == "KeyboardInterrupt"

"""Cells in real kernels through the direct backend: with our launcher, and with one that knows nothing of us."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kernels.kernel_rig import PATIENCE, eventually, kernel_house, no_news
from supervisord_py.kernels import cell_end
from supervisord_py.kernels.cell import CellStatus
from supervisord_py.kernels.channels import open_channels
from supervisord_py.kernels.direct import DirectBackend
from supervisord_py.kernels.kernel_client import Message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kernels.kernel_rig import KernelRig
    from supervisord_py.kernels.backend import ExecuteRequest, Launch, Reply
    from supervisord_py.kernels.channels import Channels
    from supervisord_py.kernels.direct import DirectKernel

IPYKERNEL_6 = Path(__file__).parents[2] / ".venv" / "peers" / "ipykernel6" / "bin" / "python"
KINDS = ["ours", pytest.param("ours-6", marks=pytest.mark.deep), "stock"]


class Kernel:
    """A kernel that runs, and what it was started from."""

    def __init__(self, rig: KernelRig, launch: Launch, handle: DirectKernel) -> None:
        self.rig = rig
        self.launch = launch
        self.handle = handle

    async def run(self, code: str, wake: Callable[[], None] = no_news, **changes: Any) -> tuple[Reply, ExecuteRequest]:
        request = self.rig.request(self.launch, code, **changes)
        async with asyncio.timeout(PATIENCE):
            return await self.handle.execute(request, wake), request


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose threads do not get to run is slow to end its output, and nothing is lost by that."""
    monkeypatch.setattr(cell_end, "UNHEARD_SECONDS", PATIENCE)


@pytest.fixture(params=KINDS)
async def kernel(
    request: pytest.FixtureRequest, short_tmp: Path, require: Callable[[object, str], None]
) -> AsyncIterator[Kernel]:
    async with kernel_house(short_tmp) as rig:
        if request.param == "ours-6":
            require(IPYKERNEL_6.exists(), "an interpreter with ipykernel 6 (make peers)")
            launch = rig.launch(interpreter=str(IPYKERNEL_6))
        else:
            launch = rig.stock() if request.param == "stock" else rig.launch()
        yield Kernel(rig, launch, await rig.start(DirectBackend(rig.placement, rig.config), launch))


async def test_the_reply_of_a_stock_kernel_that_left_may_come_a_while_after_the_news_of_its_end(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It alone says that the end was wished for: the thread that reads the sockets may be late on a busy machine."""
    async with kernel_house(short_tmp) as rig:
        launch = rig.stock()
        kernel = Kernel(rig, launch, await rig.start(DirectBackend(rig.placement, rig.config), launch))
        hear, loop = kernel.handle.client.hear, asyncio.get_running_loop()

        def late(channel: str, message: Message) -> None:
            if channel == "shell":
                kernel.handle.died.add_done_callback(lambda _: loop.call_later(0.1, hear, channel, message))
            else:
                hear(channel, message)

        monkeypatch.setattr(kernel.handle.client, "hear", late)
        monkeypatch.setattr(cell_end, "REPLY_SECONDS", PATIENCE)
        reply, _ = await kernel.run("exit()")
        assert (reply.status, reply.asked_exit) == (CellStatus.OK, True)


async def test_a_cell_behind_the_failing_one_of_another_client_is_aborted(kernel: Kernel) -> None:
    """One that was sent may still be on its way when the other one fails, and then it runs: so it is tried again."""
    assert kernel.handle.connection_file is not None
    channels = await open_channels(kernel.handle.connection_file)
    async with asyncio.timeout(PATIENCE):
        while (reply := await behind_a_failing_one(kernel, channels)).status is CellStatus.OK:
            await kernel.run("del never")
    assert reply.status is CellStatus.ABORTED
    assert reply.error is None
    await eventually(lambda: not kernel.handle.foreign_busy, "the end of the other client's cell")
    await channels.close()
    reply, _ = await kernel.run("assert 'never' not in dir()")
    assert reply.status is CellStatus.OK


async def behind_a_failing_one(kernel: Kernel, channels: Channels) -> Reply:
    """Send a cell while another client's runs, and let that one fail."""
    go = Path(kernel.launch.cwd, "go")
    go.unlink(missing_ok=True)
    begun = Path(kernel.launch.cwd, "begun")
    begun.unlink(missing_ok=True)
    code = "import os, time\nos.mknod('begun')\nwhile not os.path.exists('go'): time.sleep(0.01)\n1 / 0"
    await channels.send("shell", jupyter_request("execute_request", code=code, stop_on_error=True))
    await eventually(begun.exists, "the other client's cell")
    await eventually(lambda: kernel.handle.foreign_busy, "the news of it")
    assert kernel.handle.foreign_used_at is not None
    request = kernel.rig.request(kernel.launch, "never = 1")
    running = asyncio.ensure_future(kernel.handle.execute(request, no_news))
    await eventually(lambda: request.cell_id in kernel.handle.client._under_way, "the cell to be sent")
    go.touch()
    async with asyncio.timeout(PATIENCE):
        return await running


async def test_what_a_stock_kernel_loses_is_told(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Faster than can be written, or without the word that all of it came: the reply says that it is lossy."""
    async with kernel_house(short_tmp) as rig:
        launch = rig.stock()
        stock = Kernel(rig, launch, await rig.start(DirectBackend(rig.placement, rig.config), launch))
        with monkeypatch.context() as tight:
            tight.setattr(stock.handle._recording, "_queue_bytes", 100)
            reply, _ = await stock.run("print('x' * 1000)")
        assert (reply.status, reply.lossy, reply.iopub_lost) == (CellStatus.OK, True, False)
        assert reply.notice is not None
        assert "missing" in reply.notice
        with monkeypatch.context() as deaf:
            deaf.setattr(cell_end, "UNHEARD_SECONDS", 0.05)
            deaf.setattr(Message, "is_status", lambda *_: False)
            reply, _ = await stock.run("1")
        assert (reply.status, reply.lossy, reply.iopub_lost) == (CellStatus.OK, True, True)
        reply, _ = await stock.run("1")
        assert not reply.lossy


def jupyter_request(kind: str, **content: Any) -> dict[str, Any]:
    """Return a front end's message; a kernel drops one that it has seen."""
    known = {"session": "front", "username": "u", "version": "5.4", "date": ""}
    header = {"msg_id": uuid.uuid4().hex, "msg_type": kind, **known}
    return {"header": header, "parent_header": {}, "metadata": {}, "content": {"silent": False, **content}}

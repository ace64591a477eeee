"""Connections that break, servers that fall silent, lost replies: what is known is said, nothing is sent twice."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from kernels.gateway_fake import fake_server
from kernels.gateway_house import House
from kernels.kernel_rig import eventually, kernel_house
from supervisord_py.errors import StartFailedError
from supervisord_py.kernels import gateway_kernel
from supervisord_py.kernels.backend import KernelGoneError
from supervisord_py.kernels.cell import CellStatus
from supervisord_py.kernels.config import GatewayConfig
from supervisord_py.kernels.gateway import GatewayExternal
from supervisord_py.kernels.websocket_frames import Message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from kernels.gateway_fake import FakeServer


@asynccontextmanager
async def talking(folder: Path, **how: Any) -> AsyncIterator[tuple[House, FakeServer]]:
    """Have a kernel at a server that does what it is told to."""
    async with kernel_house(folder) as rig, fake_server(**how) as server:
        gateway = GatewayConfig(dir=folder / "gateway", url=server.url)
        backend = GatewayExternal(replace(rig.config, gateway=gateway, trace=True), daemon=rig.keeper.daemon_id)
        house = House(rig, backend)
        try:
            await house.open()
            server.asked.clear()
            yield house, server
        finally:
            await backend.close(stop=True)


WARNING = "IOPub data rate exceeded.\nThe Jupyter server will temporarily stop sending output\n"


def output(text: str) -> dict[str, str]:
    return {"name": "stdout", "text": text}


async def print_and_end(server: FakeServer, message: Message) -> None:
    await server.say("stream", output("all of it\n"), to=message)
    await server.end_cell(message)


async def nothing(server: FakeServer, message: Message) -> None:
    """Run on."""


async def test_a_cell_goes_on_after_a_break_and_is_lossy(short_tmp: Path) -> None:
    """The rest of its output and its reply come over the second connection; what came between is not known."""

    ended = asyncio.Event()

    async def in_turn(server: FakeServer) -> None:
        """Answer no other request before the cell has ended, as a kernel does."""
        if server.executed:
            await ended.wait()

    async def break_in_the_middle(server: FakeServer, message: Message) -> None:
        await server.say("stream", output("first "), to=message)
        await server.cut()
        await eventually(lambda: server.sockets, "the second connection")
        await server.say("stream", output("second"), to=message)
        await server.end_cell(message)
        ended.set()

    async with talking(short_tmp, on_execute=break_in_the_middle, before_info=in_turn) as (house, server):
        ran = await house.run("1")
        assert (ran.reply.status, ran.out, ran.reply.lossy) == (CellStatus.OK, b"first second", True)
        assert "connection to the gateway broke" in str(ran.reply.notice)
        assert server.executed == ["1"], "it is never sent again"


async def test_a_reply_that_a_break_took_is_told_as_lost(short_tmp: Path) -> None:
    async def end_unheard(server: FakeServer, message: Message) -> None:
        await server.cut()

    async with talking(short_tmp, on_execute=end_unheard) as (house, server):
        ran = await house.run("1")
        assert (ran.reply.status, ran.reply.lossy) == (CellStatus.ERROR, True)
        assert ran.reply.error is not None
        assert ran.reply.error.name == "ReplyLost"
        assert (ran.records[-1]["kind"], ran.records[-1]["error"]["name"]) == ("end", "ReplyLost")
        assert server.executed == ["1"]
        assert not house.handle.died.done(), "the variables are kept"


@pytest.mark.parametrize("state", ["restarting", "autorestarting", "dead", "starting"])
async def test_d4_a_server_that_restarts_the_kernel_ends_the_cell(state: str, short_tmp: Path) -> None:
    async def restart(server: FakeServer, message: Message) -> None:
        await server.say("status", {"execution_state": state})

    async with talking(short_tmp, on_execute=restart) as (house, server):
        request, task = house.begin("1")
        with pytest.raises(KernelGoneError, match=state):
            await task
        assert house.handle.died.done()
        assert [each["kind"] for each in house.rig.records(request)] == ["begin"], "who judges it writes its end"
        assert await house.handle.shutdown(1.0, "exit") == ()
        assert server.state is None, "the new process under the old id is deleted"


@pytest.mark.parametrize(
    ("status", "words"), [(404, "does not know it any more"), (401, "requires authentication"), (503, "status 503")]
)
async def test_a_connection_that_cannot_come_back_ends_the_kernel(status: int, words: str, short_tmp: Path) -> None:
    async with talking(short_tmp, on_execute=nothing) as (house, server):
        _, task = house.begin("1")
        await eventually(lambda: server.executed, "the cell")
        kernel = house.handle.held.kernel
        server.answers = {
            f"GET /api/kernels/{kernel}/channels": (status, ""),
            f"GET /api/kernels/{kernel}": (status, ""),
        }
        await server.cut()
        with pytest.raises(KernelGoneError, match=words):
            await task


@pytest.mark.parametrize(
    ("stream", "ends", "words", "out"),
    [
        ({"name": "stderr", "text": WARNING}, True, "IOPub data rate exceeded", b""),
        ({"name": "stdout", "text": "a\ufffdb"}, True, "came altered", "a\ufffdb".encode()),
        ({"name": "stdout", "text": WARNING}, False, "end of the output was not seen", WARNING.encode()),
        ({"name": "stderr", "text": "it says: " + WARNING}, True, None, b"it says: " + WARNING.encode()),
    ],
)
async def test_what_may_be_missing_is_said_and_a_servers_warning_is_no_output(
    stream: dict[str, str], ends: bool, words: str | None, out: bytes, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_kernel, "SILENT_SECONDS", 0.05)

    async def answer(server: FakeServer, message: Message) -> None:
        await server.say("stream", stream, to=message)
        await server.say("execute_reply", {"status": "ok"}, to=message, channel="shell")
        if ends:
            await server.say("status", {"execution_state": "idle"}, to=message)

    async with talking(short_tmp, on_execute=answer) as (house, _):
        await house.run("1")
        ran = await house.run("2")
        assert (ran.reply.status, ran.reply.iopub_lost, ran.reply.lossy) == (CellStatus.OK, not ends, bool(words))
        assert (words or "None") in str(ran.reply.notice)
        assert ran.out == out


@pytest.mark.parametrize(("status", "action"), [(404, "gone"), (500, "interrupt_failed")])
async def test_an_interrupt_that_fails_says_how(status: int, action: str, short_tmp: Path) -> None:
    async with talking(short_tmp) as (house, server):
        server.answers = {f"POST /api/kernels/{house.handle.held.kernel}/interrupt": (status, "")}
        assert await house.handle.interrupt() == action
        assert house.handle.died.done() is (action == "gone")


async def test_a_delete_that_fails_leaves_it_to_a_later_sweep(short_tmp: Path) -> None:
    """Its note stays until it is known to be gone."""
    async with talking(short_tmp) as (house, server):
        key = f"DELETE /api/kernels/{house.handle.held.kernel}"
        server.answers = {key: (500, "")}
        assert await house.handle.kill() == "delete"
        assert server.asked.count(key) == 1
        assert house.handle.died.done(), "nobody works with it any more"
        with pytest.raises(KernelGoneError, match="status 500"):
            await house.run("1")
        await house.handle.shutdown(0.0, "stopped")
        assert len(await house.backend.held()) == 1
        server.answers = {}
        assert await house.backend.sweep() == 1
        assert await house.backend.held() == ()


async def test_a_kernel_that_its_server_has_culled_is_noticed_before_the_next_cell(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_kernel, "LEFT_ALONE_SECONDS", 0.0)
    async with talking(short_tmp, on_execute=print_and_end) as (house, server):
        await house.run("1")
        server.state = None
        with pytest.raises(KernelGoneError, match="does not know it any more"):
            await house.run("2")
        assert server.executed == ["1"]


async def test_a_kernel_that_dies_before_it_is_ready_fails_the_start(short_tmp: Path) -> None:
    async with kernel_house(short_tmp) as rig, fake_server(is_mute=True, state="dead") as server:
        backend = GatewayExternal(
            replace(rig.config, gateway=GatewayConfig(dir=short_tmp / "gateway", url=server.url)), daemon="d"
        )
        with pytest.raises(StartFailedError, match="ended before it was ready"):
            await rig.start(backend, rig.launch())
        await backend.close(stop=True)

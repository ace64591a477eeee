"""Who says nothing for long: a kernel that never says a word is replaced, output that is slow is waited for."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kernels.gateway_fake import fake_server
from kernels.gateway_house import House
from kernels.kernel_rig import eventually, kernel_house
from supervisord_py.errors import PxError
from supervisord_py.kernels.config import GatewayConfig
from supervisord_py.kernels.gateway import handle, output_end
from supervisord_py.kernels.gateway.external import GatewayExternal
from supervisord_py.kernels.output.recorder import CellRecorder

if TYPE_CHECKING:
    from pathlib import Path

    from kernels.gateway_fake import FakeServer
    from kernels.kernel_rig import KernelRig
    from supervisord_py.kernels.gateway.conversation import Conversation
    from supervisord_py.kernels.gateway.wire import Message


def backend_at(rig: KernelRig, url: str, **members: float) -> GatewayExternal:
    known = {"silent_start_seconds": 0.05, **members}
    gateway = GatewayConfig(dir=rig.folder / "gateway", url=url, **known)  # type: ignore[arg-type]
    return GatewayExternal(replace(rig.config, gateway=gateway), daemon=rig.keeper.daemon_id)


@pytest.mark.parametrize("how", ["websocket", "shell"])
async def test_another_kernel_takes_the_place_of_one_that_says_nothing(short_tmp: Path, how: str) -> None:
    """The note names the one that answers, whenever the deletion of the other one comes to its end."""
    async with kernel_house(short_tmp) as rig, fake_server(silent=[how]) as server:
        backend = backend_at(rig, server.url)
        handle = await rig.start(backend, rig.launch())
        silent, answers = server.started
        assert handle.plan.held.kernel == answers
        await backend.close(stop=True)
        assert f"DELETE /api/kernels/{silent}" in server.asked
        assert f"DELETE /api/kernels/{answers}" not in server.asked
        assert [held.key for held in await backend.held()] == [handle.plan.held.instance]


async def test_two_are_enough(short_tmp: Path) -> None:
    async with kernel_house(short_tmp) as rig, fake_server(silent=["shell"] * 3) as server:
        backend = backend_at(rig, server.url)
        with pytest.raises(PxError, match="did not answer"):
            await backend.start(rig.launch(), deadline=rig.deadline(3.0), on_spawned=_ignore)
        await backend.close(stop=True)
        assert len(server.started) == 2
        assert {f"DELETE /api/kernels/{each}" for each in server.started} <= set(server.asked)
        assert await backend.held() == ()


async def test_output_that_comes_long_after_the_reply_is_not_lost(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the kernel publishes next tells that the end of the output has come, or that it will not."""
    monkeypatch.setattr(handle, "IDLE_SECONDS", 0.02)
    cells: list[Message] = []

    async def reply_only(server: FakeServer, message: Message) -> None:
        cells.append(message)
        await server.say("execute_reply", {"status": "ok"}, to=message, channel="shell")

    async def publish(server: FakeServer) -> None:
        for message in cells:
            await server.say("stream", {"name": "stdout", "text": "slow"}, to=message)
            await server.say("status", {"execution_state": "idle"}, to=message)

    async with kernel_house(short_tmp) as rig, fake_server(on_execute=reply_only, before_info=publish) as server:
        house = House(rig, backend_at(rig, server.url))
        await house.open()
        ran = await house.run("1")
        assert (ran.out, ran.reply.lossy) == (b"slow", False)
        await house.backend.close(stop=True)


async def test_a_server_is_not_silent_while_we_are_slow_to_write_what_it_said(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle, "IDLE_SECONDS", 0.02)
    monkeypatch.setattr(output_end, "_LOOK_SECONDS", 0.01)
    go, looks = threading.Event(), list[float]()
    take, silence = CellRecorder.take, output_end._silence

    def slow(self: CellRecorder, msg_type: str, content: dict[str, Any]) -> bool:
        go.wait(60)
        return take(self, msg_type, content)

    def counted(conversation: Conversation) -> float:
        looks.append(silence(conversation))
        return looks[-1]

    monkeypatch.setattr(CellRecorder, "take", slow)
    monkeypatch.setattr(output_end, "_silence", counted)

    async def reply_first(server: FakeServer, message: Message) -> None:
        await server.say("execute_reply", {"status": "ok"}, to=message, channel="shell")
        for text in ("slow ", "disk"):
            await server.say("stream", {"name": "stdout", "text": text}, to=message)
        await server.say("status", {"execution_state": "idle"}, to=message)

    async with kernel_house(short_tmp) as rig, fake_server(on_execute=reply_first) as server:
        house = House(rig, backend_at(rig, server.url, silent_output_seconds=0.05))
        await house.open()
        _, task = house.begin("1")
        await eventually(lambda: len(looks) > 20 or max(looks, default=0) > 0.05, "some looks")
        go.set()
        assert not (await asyncio.wait_for(task, 60)).lossy
        await house.backend.close(stop=True)


async def test_output_after_which_a_server_falls_silent_is_lost_and_said_to_be(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handle, "IDLE_SECONDS", 0.02)
    cells: list[Message] = []

    async def reply_only(server: FakeServer, message: Message) -> None:
        cells.append(message)
        await server.say("execute_reply", {"status": "ok"}, to=message, channel="shell")

    async def fall_silent(_: FakeServer) -> None:
        if cells:
            await asyncio.Event().wait()

    async with kernel_house(short_tmp) as rig, fake_server(on_execute=reply_only, before_info=fall_silent) as server:
        house = House(rig, backend_at(rig, server.url, silent_output_seconds=0.05))
        await house.open()
        ran = await house.run("1")
        assert (ran.out, ran.reply.lossy) == (b"", True)
        await house.backend.close(stop=True)


async def _ignore(_: object) -> None:
    """Nothing is noted."""

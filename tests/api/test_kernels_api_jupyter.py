"""Jupyter's API where things go wrong: front ends that send too much or read too little, ends of all kinds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from api.api_rig import DEADLINE, Rig, until
from api.kernel_fakes import FakeHandle
from supervisord_py.errors import OverloadedError
from supervisord_py.kernels.live_session import SessionView
from supervisord_py.kernels.session import BackendName, Owner
from supervisord_py.kernels.wire import Message, make, unpack


class FakeChannels:
    """Channels that say once that they can be heard, and then what they are told to."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.failure: Exception | None = None
        self.news = asyncio.Event()
        self.closed = 0

    def send(self, message: Message) -> None:
        self.sent.append(message)

    async def __aiter__(self) -> AsyncIterator[Message]:
        yield make("status", {"execution_state": "idle"}, "kernel", "iopub")
        await self.news.wait()
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[FakeChannels]:
    """Every pair of channels that was opened."""
    made: list[FakeChannels] = []

    async def open_channels(_: Path) -> FakeChannels:
        made.append(FakeChannels())
        return made[-1]

    monkeypatch.setattr("supervisord_py.kernels.channels.open_channels", open_channels)
    return made


def living(rig: Rig) -> SessionView:
    view = rig.kernels.put("work")
    rig.kernels.handles[view.id] = FakeHandle()
    return view


def path_of(view: SessionView, rest: str = "") -> str:
    return f"/jupyter/api/kernels/{view.key.jupyter_id}{rest}"


async def test_a_front_end_may_send_what_it_likes(rig: Rig, short_tmp: Path) -> None:
    (short_tmp / "book.ipynb").write_text("")
    body = {"name": "ir", "path": str(short_tmp / "book.ipynb"), "notebook": {"x": 1}, "env": {"KERNEL_X": "1"}}
    status, _, _ = await rig.ask("POST", "/jupyter/api/kernels", body)
    asked = rig.kernels.asked[0][1]
    assert (status, asked.owner, asked.kernelspec, asked.cwd) == (201, Owner.JUPYTER_API, "ir", str(short_tmp))
    assert (asked.env, asked.backend) == ({"KERNEL_X": "1"}, BackendName.DIRECT)
    for path in ("relative/book.ipynb", "/nowhere/at/all/book.ipynb", ""):
        rig.kernels.asked.clear()
        await rig.ask("POST", "/jupyter/api/kernels", {"path": path})
        assert rig.kernels.asked[0][1].cwd is None
    assert (await rig.ask("POST", "/jupyter/api/kernels"))[0] == 201


async def hear_end(ws: aiohttp.ClientWebSocketResponse) -> tuple[list[str], int | None]:
    """Return the states that are told, and the code of the end."""
    states = []
    async with asyncio.timeout(DEADLINE):
        while True:
            item = await ws.receive()
            if item.type is not aiohttp.WSMsgType.TEXT:
                return states, ws.close_code
            states.append(unpack(item.data, None).content["execution_state"])


async def test_a_front_end_that_reads_too_slowly_loses_its_socket(rig: Rig, joined: list[FakeChannels]) -> None:
    view = living(rig)
    async with rig.client.ws_connect(path_of(view, "/channels")) as ws:
        await until(lambda: joined)
        joined[0].failure = OverloadedError("too much waits")
        joined[0].news.set()
        assert await hear_end(ws) == (["idle"], aiohttp.WSCloseCode.TRY_AGAIN_LATER)
    await until(lambda: joined[0].closed == 1)


async def test_a_daemon_that_closes_sends_its_front_ends_away(rig: Rig, joined: list[FakeChannels]) -> None:
    view = living(rig)
    async with rig.client.ws_connect(path_of(view, "/channels")) as ws:
        await until(lambda: joined)
        closing = asyncio.create_task(rig.runner.cleanup())
        assert await hear_end(ws) == (["idle"], aiohttp.WSCloseCode.GOING_AWAY)
        await closing
    assert joined[0].closed == 1


async def test_a_session_that_is_gone_altogether_is_dead(rig: Rig, joined: list[FakeChannels]) -> None:
    view = living(rig)
    async with rig.client.ws_connect(path_of(view, "/channels")) as ws:
        await until(lambda: joined)
        handle = rig.kernels.handles.pop(view.id)
        rig.kernels.views.clear()
        handle.died.set_result(None)
        assert await hear_end(ws) == (["idle", "dead"], aiohttp.WSCloseCode.OK)

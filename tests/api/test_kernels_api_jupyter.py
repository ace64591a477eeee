"""Jupyter's API where things go wrong: front ends that send what they like or read too little, ends of all kinds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from api.api_rig import DEADLINE, Rig, until
from api.fakes import FakeHandle
from supervisord_py.errors import OverloadedError
from supervisord_py.kernels.session import BackendName, Owner
from supervisord_py.kernels.wire import Message, make, unpack


class FakeChannels:
    """Channels that say once that they can be heard, and fail when they are told to."""

    def __init__(self) -> None:
        self.too_much = asyncio.Event()
        self.closed = 0

    def send(self, message: Message) -> None:
        raise NotImplementedError

    async def __aiter__(self) -> AsyncIterator[Message]:
        yield make("status", {"execution_state": "idle"}, "kernel", "iopub")
        await self.too_much.wait()
        raise OverloadedError("too much waits")

    async def close(self) -> None:
        self.closed += 1


async def test_a_front_end_may_send_what_it_likes(rig: Rig, short_tmp: Path) -> None:
    book = short_tmp / "book.ipynb"
    book.touch()
    body = {"name": "ir", "path": str(book), "notebook": {"x": 1}, "env": {"KERNEL_X": "1"}}
    for sent in (body, None, *({"path": path} for path in ("relative/book.ipynb", "/nowhere/at/all/book.ipynb", ""))):
        assert (await rig.ask("POST", "/jupyter/api/kernels", sent))[0] == 201
    first, *others = (request for _, request in rig.kernels.asked)
    assert (first.owner, first.kernelspec, first.cwd) == (Owner.JUPYTER_API, "ir", str(short_tmp))
    assert (first.env, first.backend) == ({"KERNEL_X": "1"}, BackendName.DIRECT)
    assert {request.cwd for request in others} == {None}


@pytest.mark.parametrize(
    ("why", "states", "code"),
    [
        ("it reads too slowly", ["idle"], aiohttp.WSCloseCode.TRY_AGAIN_LATER),
        ("the daemon closes", ["idle"], aiohttp.WSCloseCode.GOING_AWAY),
        ("its session is gone", ["idle", "dead"], aiohttp.WSCloseCode.OK),
    ],
)
async def test_a_front_end_is_sent_away_with_the_reason(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, why: str, states: list[str], code: int
) -> None:
    joined: list[FakeChannels] = []

    async def open_channels(_: Path) -> FakeChannels:
        joined.append(FakeChannels())
        return joined[-1]

    monkeypatch.setattr("supervisord_py.kernels.channels.open_channels", open_channels)
    view, told = rig.kernels.put("work"), list[str]()
    handle = rig.kernels.handles[view.id] = FakeHandle()
    async with rig.client.ws_connect(f"/jupyter/api/kernels/{view.key.jupyter_id}/channels") as ws:
        await until(lambda: joined)
        closing = asyncio.ensure_future(rig.runner.cleanup()) if why == "the daemon closes" else None
        if why == "it reads too slowly":
            joined[0].too_much.set()
        elif why == "its session is gone":
            rig.kernels.handles.clear()
            rig.kernels.views.clear()
            handle.died.set_result(None)
        async with asyncio.timeout(DEADLINE):
            while (item := await ws.receive()).type is aiohttp.WSMsgType.TEXT:
                told.append(unpack(item.data, None).content["execution_state"])
        assert (told, ws.close_code) == (states, code)
    if closing is not None:
        await closing
    await until(lambda: joined[0].closed == 1)

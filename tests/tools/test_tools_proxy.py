"""Tools behind HTTP, as the API's routes put them there: bodies, limits, headers, backpressure, clients that vanish."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from supervisord_py.errors import PxError
from supervisord_py.tools import proxy
from tools.tool_house import ToolHouse


class Front:
    """A minimal API: two routes, and problem documents for errors."""

    def __init__(self, house: ToolHouse) -> None:
        self.house = house
        self.has_begun = False
        self.client: aiohttp.ClientSession
        self._runner: web.AppRunner

    async def open(self) -> Front:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/{tool}/{verb}", self._run)
        app.on_response_prepare.append(self._begin)
        self._runner = web.AppRunner(app, handler_cancellation=True)
        await self._runner.setup()
        path = str(self.house.rig.dir / "api")
        await web.UnixSite(self._runner, path).start()
        self.client = aiohttp.ClientSession("http://px", connector=aiohttp.UnixConnector(path))
        return self

    async def _begin(self, _: web.Request, response: web.StreamResponse) -> None:
        self.has_begun |= not isinstance(response, web.Response)

    async def close(self) -> None:
        await self.client.close()
        await self._runner.cleanup()

    async def _run(self, request: web.Request) -> web.StreamResponse:
        streaming = request.match_info["verb"] == "stream"
        try:
            spec = self.house.catalog.get(request.match_info["tool"])
            return await proxy.forward(self.house.launcher, request, spec, streaming=streaming)
        except PxError as error:
            if self.has_begun:  # as the API does it: no clean end for a stream that broke off
                assert request.transport is not None
                request.transport.abort()
                raise
            return web.json_response(error.problem(), status=error.status)


@pytest.fixture
async def front(house: ToolHouse) -> AsyncIterator[Front]:
    house.add("shapes")
    front = await Front(house).open()
    yield front
    await front.close()


async def test_a_run_goes_through_with_its_headers(front: Front) -> None:
    headers = {"X-Request-Id": "r1", "Authorization": "Bearer secret", "Cookie": "a=b"}
    async with front.client.post("/shapes/run", json={"number": 1}, headers=headers) as answer:
        document = await answer.json()
        assert answer.status == 200
        assert int(answer.headers["X-Px-Cold-Start"]) > 0
        assert answer.headers["X-Px-Run-Id"]
    assert document["echo"] == {"number": 1}
    assert document["headers"]["X-Request-Id"] == "r1"
    assert not {"Authorization", "Cookie"} & document["headers"].keys()
    async with front.client.post("/shapes/run", data=b"") as answer:
        assert "X-Px-Cold-Start" not in answer.headers
        assert (await answer.json())["echo"] == {}


async def test_a_broken_answer_is_a_problem_or_breaks_the_clients_connection(front: Front) -> None:
    """A small one is held back until it is whole; of a stream it is never said that it ended well."""
    async with front.client.post("/shapes/run", json={"do": "half"}) as answer:
        problem = await answer.json()
    assert (answer.status, problem["kind"]) == (502, "tool_failed")

    async def read(shape: dict[str, Any]) -> None:
        async with front.client.post("/shapes/run", json=shape) as answer:
            assert answer.status == 200
            await answer.read()

    for shape in ({"do": "half", "number": 900_000}, {"do": "events", "number": 3, "breaks": True}):
        with pytest.raises(aiohttp.ClientPayloadError):
            await read(shape)
    told = (await front.house.said("run", "tool:shapes"))[-1].facts
    assert (told["outcome"], told["error_kind"]) == ("failed", "tool_failed")


async def test_a_slow_reader_slows_the_tool_and_loses_nothing(front: Front) -> None:
    size = 30 << 20
    async with front.client.post("/shapes/run", json={"do": "big", "number": size}) as answer:
        first = await answer.content.readexactly(1 << 16)
        assert front.house.state("shapes").state == "busy"
        rest = await answer.content.read()
    assert len(first) + len(rest) == size


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_a_stream_in_another_form_has_the_same_items_however_it_is_cut(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(raw: bytes) -> AsyncIterator[bytes]:
        async def pieces() -> AsyncIterator[bytes]:
            for at in range(0, len(raw), size):
                yield raw[at : at + size]

        return pieces()

    events = b': beat\n\nevent: x\nid: 1\ndata: {"a":\r\ndata:1}\r\n\r\n\ndata: [2]'
    assert [item async for item in proxy._as_lines(cut(events))] == [b'{"a": 1}\n', b"[2]\n"]
    lines = b'{"a": 1}\r\n\n[2]'
    assert [item async for item in proxy._as_events(cut(lines))] == [b'data: {"a": 1}\n\n', b"data: [2]\n\n"]
    monkeypatch.setattr(proxy, "LINE_BYTES", 5)
    with pytest.raises(PxError, match="longer than 5 bytes"):
        assert [item async for item in proxy._as_lines(cut(b"data: 123456789"))] == []

"""What happens to every request: ids, problems, limits, shutdown."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from api.api_rig import DEADLINE, Rig, api_rig, until
from supervisord_py.api import tools
from supervisord_py.errors import ToolFailedError


async def test_a_bug_tells_the_client_its_id_and_nothing_else(rig: Rig) -> None:
    del rig.control.degraded
    status, problem, headers = await rig.get("/api/health", **{"X-Request-Id": "my-id"})
    assert (status, problem["kind"], "my-id" in problem["detail"]) == (500, "internal", True)
    assert headers["X-Request-Id"] == problem["request_id"] == "my-id"
    assert not re.search("degraded|Traceback", json.dumps(problem))


async def test_a_body_over_the_limit_is_refused_unread(short_tmp: Path) -> None:
    async with api_rig(short_tmp, max_body_bytes=1000) as rig, asyncio.timeout(DEADLINE):
        rig.add_tool("x")
        reader, writer = await rig.connect()
        writer.write(b"POST /api/tools/x/run HTTP/1.1\r\nHost: px\r\nContent-Length: 104857600\r\n\r\n")
        head, _, body = (await reader.readuntil(b"}")).partition(b"\r\n\r\n")
        writer.close()
        assert (head[:12], b"onnection: close" in head) == (b"HTTP/1.1 413", True)
        problem = json.loads(body)
        assert (problem["kind"], problem["limit_bytes"]) == ("too_large", 1000)
        assert problem["setting"] == "tools.max_body_bytes"


@pytest.mark.parametrize(
    ("media", "first", "last"),
    [("text/event-stream", b"data: 1\n\n", b"data: "), ("application/x-ndjson", b'{"a":1}\n', b"")],
)
async def test_a_stream_that_breaks_says_why_and_does_not_look_complete(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, media: str, first: bytes, last: bytes
) -> None:
    async def broken(_: Any, request: web.Request, *__: Any, **___: Any) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": media})
        await response.prepare(request)
        await response.write(first)
        raise ToolFailedError("The tool closed the connection.", unit="tool:x")

    rig.add_tool("x")
    monkeypatch.setattr(tools, "forward", broken)
    content = b""
    async with rig.client.post("/api/tools/x/stream", json={}) as answer:
        with pytest.raises(aiohttp.ClientPayloadError):
            async for piece in answer.content.iter_any():
                content += piece
    assert content.startswith(first)
    assert json.loads(content.strip().splitlines()[-1].removeprefix(last))["kind"] == "tool_failed"


async def test_while_stopping_nothing_new_begins_but_reads_go_on(rig: Rig) -> None:
    rig.add_tool("x")
    rig.control.stopping = True
    for method, path in (("POST", "/api/tools/x/start"), ("PUT", "/api/tools/x/pin"), ("GET", "/api/health")):
        status, problem, _ = await rig.ask(method, path)
        assert (status, problem["kind"]) == (503, "shutdown"), path
    assert (await rig.get("/api/status"))[1]["daemon"]["stopping"]
    assert (await rig.ask("POST", "/api/daemon/stop"))[0] == 202
    assert rig.launcher.calls == []


async def test_a_stop_goes_on_without_its_client(rig: Rig) -> None:
    rig.add_tool("x")
    rig.launcher.gate = asyncio.Event()
    _, writer = await rig.connect()
    writer.write(b"POST /api/tools/x/stop HTTP/1.1\r\nHost: px\r\nContent-Length: 0\r\n\r\n")
    await until(lambda: rig.launcher.calls)
    writer.transport.abort()
    await until(lambda: len(rig.runner.server.connections) == 0)  # type: ignore[union-attr] # it serves
    rig.launcher.gate.set()
    await until(lambda: "x" in rig.launcher.states)
    assert rig.launcher.cancelled == 0

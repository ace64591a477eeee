"""What happens to every request: ids, problems, limits, shutdown."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from api.api_rig import DEADLINE, Rig, api_rig, until
from supervisord_py import errors
from supervisord_py.api import tools
from supervisord_py.errors import PxError, ToolFailedError

REQUIRED = {"type", "title", "status", "kind", "detail", "hint", "unit", "exit_code", "request_id"}


def every_kind() -> list[type[PxError]]:
    def below(root: type[PxError]) -> list[type[PxError]]:
        return [root, *(leaf for branch in root.__subclasses__() for leaf in below(branch))]

    return [kind for kind in below(PxError) if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", every_kind(), ids=lambda kind: kind.__name__)
async def test_every_kind_of_error_becomes_its_problem_document(rig: Rig, kind: type[PxError]) -> None:
    rig.add_tool("x")
    rig.launcher.failure = kind("It went wrong.", hint="try again", unit="tool:x", more=[1])
    status, problem, headers = await rig.ask("POST", "/api/tools/x/start")
    assert status == kind.status
    assert headers["Content-Type"].startswith("application/problem+json")
    assert set(problem) >= REQUIRED
    assert problem["kind"] == kind.kind
    assert problem["exit_code"] == rig.launcher.failure.exit_code
    assert problem["more"] == [1]
    assert problem["request_id"] == headers["X-Request-Id"]


async def test_a_wrong_method_is_a_problem_that_says_the_right_one(rig: Rig) -> None:
    status, problem, headers = await rig.ask("POST", "/api/status")
    assert (status, problem["kind"]) == (405, "method_not_allowed")
    assert headers["Allow"] == "GET"
    assert problem["allow"] == ["GET"]
    async with rig.client.head("/api/status") as answer:
        assert answer.status == 405


async def test_a_bug_tells_the_client_its_id_and_nothing_else(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(_: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(rig.control, "settings", explode)
    status, problem, headers = await rig.get("/api/config", **{"X-Request-Id": "my-id"})
    assert (status, problem["kind"]) == (500, "internal")
    assert "secret" not in json.dumps(problem)
    assert "Traceback" not in json.dumps(problem)
    assert headers["X-Request-Id"] == problem["request_id"] == "my-id"
    assert "my-id" in problem["detail"]


async def raw_exchange(rig: Rig, sent: bytes) -> bytes:
    """Send bytes, keep the sending side open, and return what comes until the end of the head."""
    reader, writer = await rig.connect()
    try:
        writer.write(sent)
        await writer.drain()
        async with asyncio.timeout(DEADLINE):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0] or b"0")
            return head + await reader.readexactly(length)
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_body_over_the_limit_is_refused_unread(short_tmp: Path) -> None:
    async with api_rig(short_tmp, max_body_bytes=1000) as rig:
        rig.add_tool("x")
        head = b"POST /api/tools/x/run HTTP/1.1\r\nHost: px\r\nContent-Length: 104857600\r\n\r\n"
        answer = await raw_exchange(rig, head)
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"onnection: close" in answer
        problem = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert (problem["kind"], problem["limit_bytes"], problem["setting"]) == (
            "too_large",
            1000,
            "tools.max_body_bytes",
        )
        assert "tools.max_body_bytes" in problem["hint"]


async def _broken_stream(request: web.Request, media: str, first: bytes) -> web.StreamResponse:
    response = web.StreamResponse()
    response.content_type = media
    await response.prepare(request)
    await response.write(first)
    raise ToolFailedError("The tool closed the connection.", unit="tool:x")


async def read_broken(answer: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    """Return what came, and whether it ended as if complete."""
    content = b""
    try:
        async for piece in answer.content.iter_any():
            content += piece
    except aiohttp.ClientPayloadError:
        return content, False
    return content, True


@pytest.mark.parametrize(
    ("media", "first", "last"),
    [("text/event-stream", b"data: 1\n\n", b"data: "), ("application/x-ndjson", b'{"a":1}\n', b"")],
)
async def test_a_stream_that_breaks_says_why_and_does_not_look_complete(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, media: str, first: bytes, last: bytes
) -> None:
    rig.add_tool("x")
    monkeypatch.setattr(tools, "forward", lambda _, request, *__, **___: _broken_stream(request, media, first))
    async with rig.client.post("/api/tools/x/stream", json={}) as answer:
        content, complete = await read_broken(answer)
    assert content.startswith(first)
    assert json.loads(content.strip().splitlines()[-1].removeprefix(last))["kind"] == "tool_failed"
    assert not complete


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

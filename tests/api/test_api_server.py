"""What happens to every request: who may ask, ids, problems, limits, `Idempotency-Key`,
shutdown.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import re
import socket
import subprocess
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from api.api_rig import DEADLINE, Rig, api_rig, until
from supervisord_py.api import app, tools
from supervisord_py.api.auth import TcpAccess, admit_bearer
from supervisord_py.api.idempotency import claim
from supervisord_py.errors import ForbiddenError, OverloadedError, ToolFailedError
from supervisord_py.ledger.schema import AT_OPEN

TCP = TcpAccess("s3cret-token", 7860)
GOOD = {"Host": "127.0.0.1:7860", "Authorization": "Bearer s3cret-token"}


def test_the_token_is_enough_with_a_loopback_name_and_everything_else_is_refused() -> None:
    for more in (
        {},
        {"Authorization": "bearer  s3cret-token "},
        {"Origin": "http://localhost:3000"},
    ):
        admit_bearer({**GOOD, **more}, TCP)
    assert "s3cret" not in repr(TCP)
    refused = {
        "Authorization": ("", "Bearer ", "Bearer s3cret-token\u00e9", "Basic s3cret-token"),
        "Host": (
            "evil.example:7860",
            "",
            "127.0.0.1:7861",
            "localhost.evil.example",
            "[::1",
            "user@127.0.0.1",
            "127.0.0.1:99999999",
            "192.0.2.1",
        ),
        "Origin": ("https://evil.example", "null", "http://[", "ftp://localhost"),
    }
    for headers in (GOOD | {name: value} for name, values in refused.items() for value in values):
        with pytest.raises(ForbiddenError):
            admit_bearer(headers, TCP)
    with pytest.raises(ForbiddenError):
        admit_bearer(GOOD, None)


async def test_another_user_gets_a_403_problem_even_for_unknown_routes(
    rig: Rig, require_root: None
) -> None:
    for path in rig.socket.parents[:2]:
        path.chmod(0o711)
    rig.socket.chmod(0o666)
    argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "curl", "-s", "-m", "60"]
    argv += ["--unix-socket", str(rig.socket), "http://px/api/nothing"]
    asked = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
    problem = json.loads((await asked.communicate())[0])
    assert (problem["status"], problem["kind"], "uid 65534" in problem["detail"]) == (
        403,
        "forbidden",
        True,
    )


async def test_a_client_that_has_said_all_and_reads_on_is_answered(rig: Rig) -> None:
    """As `nc -N` does; also where the answer takes a while. One that is gone is not waited for."""
    async with asyncio.timeout(DEADLINE):
        for request in (b"GET /api/doctor", b"GET /api/events?follow=true"):
            reader, writer = await rig.connect()
            writer.write(request + b" HTTP/1.1\r\nHost: px\r\n\r\n")
            writer.write_eof()
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
            if b"doctor" in request:
                assert (await reader.read()).endswith(b"}")
            writer.close()


async def test_the_loopback_listener_keeps_so_many_connections_and_none_that_asks_nothing(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "TCP_CONNECTIONS", 2)
    monkeypatch.setattr(app, "FIRST_REQUEST_SECONDS", 0.5)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    health = b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer t0ken\r\n\r\n"
    async with api_rig(short_tmp, tcp=TcpAccess("t0ken", port)) as rig, asyncio.timeout(DEADLINE):
        await web.SockSite(rig.runner, listener).start()
        asked, asks = await asyncio.open_connection("127.0.0.1", port)
        asks.write(health)
        await asked.readuntil(b"}")
        silent, says = await asyncio.open_connection("127.0.0.1", port)
        third, _ = await asyncio.open_connection("127.0.0.1", port)
        assert await third.read() == b"", "over the limit"
        assert await silent.read() == b"", "it asked nothing"
        asks.write(health)
        assert (await asked.readuntil(b"200")).endswith(b"HTTP/1.1 200")
        for each in (asks, says, _):
            each.close()


async def test_a_bug_tells_the_client_its_id_and_nothing_else(rig: Rig) -> None:
    del rig.control.degraded
    status, problem, headers = await rig.get("/api/health", **{"X-Request-Id": "my-id"})
    assert (status, problem["kind"], "my-id" in problem["detail"]) == (500, "internal", True)
    assert headers["X-Request-Id"] == problem["request_id"] == "my-id"
    assert not re.search("degraded|Traceback", json.dumps(problem))


async def test_too_few_descriptors_for_any_request_are_told_as_that(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot_load(handler: str) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(app, "handler_of", cannot_load)
            status, problem, headers = await rig.get("/api/health")
        assert (status, problem["kind"], headers["Retry-After"]) == (429, "overloaded", "1")
        assert ("file descriptors" in problem["detail"], "LimitNOFILE" in problem["hint"]) == (
            True,
            True,
        )
        assert (await rig.get("/api/health"))[0] == 200


async def test_a_body_over_the_limit_is_refused_unread(short_tmp: Path) -> None:
    async with api_rig(short_tmp, max_body_bytes=1000) as rig, asyncio.timeout(DEADLINE):
        rig.add_tool("x")
        reader, writer = await rig.connect()
        writer.write(
            b"POST /api/tools/x/run HTTP/1.1\r\nHost: px\r\nContent-Length: 104857600\r\n\r\n"
        )
        head, _, body = (await reader.readuntil(b"}")).partition(b"\r\n\r\n")
        writer.close()
        assert (head[:12], b"onnection: close" in head) == (b"HTTP/1.1 413", True)
        problem = json.loads(body)
        assert (problem["kind"], problem["limit_bytes"]) == ("too_large", 1000)
        assert problem["setting"] == "tools.max_body_bytes"


async def test_while_stopping_nothing_new_begins_but_reads_go_on(rig: Rig) -> None:
    rig.add_tool("x")
    rig.control.stopping = True
    for method, path in (
        ("POST", "/api/tools/x/start"),
        ("PUT", "/api/tools/x/pin"),
        ("GET", "/api/health"),
    ):
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


async def test_an_idempotency_key_is_one_run_however_often_it_is_sent(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.add_tool("x")
    failure: Exception | None = None
    runs, go_on = 0, asyncio.Event()

    async def forward(*_: Any, **__: Any) -> web.StreamResponse:
        nonlocal runs
        runs += 1
        await go_on.wait()
        if failure is not None:
            raise failure
        return web.Response(status=201, content_type="image/png", body=b"png")

    async def run(key: str, body: Any = None, verb: str = "run") -> tuple[int, Any, Any]:
        return await rig.ask("POST", f"/api/tools/x/{verb}", body or {}, {"Idempotency-Key": key})

    monkeypatch.setattr(tools, "forward", forward)
    # Of a client that went away: told as cancelled.
    left = asyncio.create_task(run("left"))
    await until(lambda: runs)
    left.cancel()
    async with asyncio.timeout(30):
        while (kind := (await run("left"))[1]["kind"]) != "cancelled":
            assert kind == "conflict"
    assert runs == 1
    go_on.set()
    # An answer is replayed as it was, to the same request alone.
    for _ in range(2):
        status, body, headers = await run("whole")
        assert (status, body, headers["Content-Type"], runs) == (201, b"png", "image/png", 2)
    assert (await run("whole", {"another": 1}))[0] == 422
    # A stream is not replayed.
    assert (await run("stream", verb="stream"))[0] == 201
    status, problem, _ = await run("stream", verb="stream")
    assert (status, "not kept" in problem["detail"], runs) == (409, True, 3)
    # What began nothing may be tried again; a failed run is replayed as failed.
    failure = OverloadedError("The pool is full.", retry_after_seconds=3)
    assert (await run("fails"))[0] == 429
    failure = ToolFailedError("It exited.", unit="tool:x", code=3)
    await run("fails")
    failure = None
    status, problem, headers = await run("fails")
    assert (status, problem["kind"], problem["code"], runs) == (502, "tool_failed", 3, 5)
    assert headers["Idempotent-Replayed"] == "true"
    # What a start finds unfinished was cut off: the outcome is not known.
    await claim(
        rig.context.ledger, "cut", "POST /api/tools/x/run", hashlib.sha256(b"\0{}").hexdigest()
    )
    rig.context.ledger.post(methodcaller("execute", AT_OPEN))
    status, problem, _ = await run("cut")
    assert (status, problem["kind"], runs) == (409, "interrupted_outcome_unknown", 5)

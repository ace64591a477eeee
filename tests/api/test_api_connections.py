"""Connections and hostile clients: what is garbage is answered, and nobody blocks another."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from api.api_rig import DEADLINE, Rig, api_rig
from supervisord_py.api.app import routed_path
from supervisord_py.api.context import TcpAccess

HEALTH = b"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer t0ken\r\n\r\n"


@asynccontextmanager
async def loopback(folder: Path, **config: float) -> AsyncIterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    async with api_rig(folder, tcp=TcpAccess("t0ken", port), **config) as rig:
        await web.SockSite(rig.runner, listener).start()
        yield port


async def test_a_tcp_connection_without_a_request_is_closed_and_one_that_asked_stays(short_tmp: Path) -> None:
    async with loopback(short_tmp, first_request_seconds=0.5) as port, asyncio.timeout(DEADLINE):
        asked, asks = await asyncio.open_connection("127.0.0.1", port)
        asks.write(HEALTH)
        await asked.readuntil(b"}")
        silent, says = await asyncio.open_connection("127.0.0.1", port)
        says.write(HEALTH[:20])
        assert await silent.read() == b""
        asks.write(HEALTH)
        assert (await asked.readuntil(b"200")).endswith(b"HTTP/1.1 200")
        asks.close()
        says.close()


async def test_so_many_tcp_connections_at_a_time_and_no_more(short_tmp: Path) -> None:
    async with loopback(short_tmp, tcp_connections=2) as port, asyncio.timeout(DEADLINE):
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for reader, writer in held:
            writer.write(HEALTH)
            await reader.readuntil(b"}")
        refused, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await refused.read() == b""
        writer.close()
        held[0][1].close()
        await held[0][1].wait_closed()
        while True:  # the server hears of it a moment later
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HEALTH)
            if (await reader.read(12)) == b"HTTP/1.1 200":
                break
            writer.close()
        held[1][1].close()
        writer.close()


@pytest.mark.parametrize(
    ("path", "unix", "tcp"),
    [
        ("/api", "/api", "/jupyter/api"),
        ("/api/kernels/a/x?y=1", "/api/kernels/a/x?y=1", "/jupyter/api/kernels/a/x?y=1"),
        ("/api/kernelspecs/python3", "/api/kernelspecs/python3", "/jupyter/api/kernelspecs/python3"),
        ("/api/kernelsx", "/api/kernelsx", "/api/kernelsx"),
        ("/api/status", "/api/status", "/api/status"),
        ("/px/api/kernels?cwd=/a", "/api/kernels?cwd=/a", "/api/kernels?cwd=/a"),
        ("/jupyter/api/kernels", "/jupyter/api/kernels", "/jupyter/api/kernels"),
    ],
)  # fmt: skip
def test_each_listener_has_its_reading(path: str, unix: str, tcp: str) -> None:
    assert (routed_path(path, is_tcp=False), routed_path(path, is_tcp=True)) == (unix, tcp)


async def exchange(rig: Rig, sent: bytes, *, half_close: bool = False) -> bytes:
    """Send bytes and return everything that comes back."""
    reader, writer = await rig.connect()
    try:
        writer.write(sent)
        await writer.drain()
        if half_close:
            writer.write_eof()
        async with asyncio.timeout(DEADLINE):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: px\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: px\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: px\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: px\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X-Many: 1\r\n" * 50_000 + b"\r\n",
    ],
    ids=lambda raw: raw[:30].decode("latin-1").strip().replace("\r\n", " "),
)
async def test_garbage_is_answered_with_a_problem_and_the_end(rig: Rig, garbage: bytes) -> None:
    answer = await exchange(rig, garbage, half_close=True)
    head, _, body = answer.partition(b"\r\n\r\n")
    if answer:
        assert head.startswith(b"HTTP/1.")
        assert head.split(b" ")[1][:1] == b"4"
        assert b"application/problem+json" in head
        problem = json.loads(body)
        assert {"kind", "detail", "request_id", "exit_code"} <= set(problem)
        assert "Traceback" not in body.decode()
    assert (await rig.get("/api/health"))[0] == 200


@pytest.mark.parametrize(
    "head",
    [b"GET /api/hea", b"POST /api/tools/new HTTP/1.1\r\nHost: px\r\nContent-Length: 100\r\n\r\n{"],
    ids=["half a head", "half a body"],
)
async def test_half_a_request_that_ends_is_closed(rig: Rig, head: bytes) -> None:
    reader, writer = await rig.connect()
    writer.write(head)
    writer.write_eof()
    async with asyncio.timeout(DEADLINE):
        assert b" 200 " not in await reader.read()
    writer.close()


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_body_that_is_not_coded_as_it_says_is_a_bad_request(rig: Rig, coding: str) -> None:
    headers = {"Content-Encoding": coding}
    status, problem, _ = await rig.ask("POST", "/api/tools/new", b'{"name": "x"}', headers)
    assert (status, problem["kind"]) == (400, "bad_request")

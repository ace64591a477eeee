"""Hostile and clumsy clients: none of them gets a traceback, blocks another, or leaves anything behind."""

from __future__ import annotations

import asyncio
import json

import pytest

from api.api_rig import DEADLINE, Rig, until


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
        b"HELLO\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\x00 HTTP/1.1\r\nHost: px\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: px\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: px\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: px\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\n : x\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX-Big: " + b"a" * 200_000 + b"\r\n\r\n",
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


async def test_many_idle_clients_slow_nobody(rig: Rig) -> None:
    idle = [await rig.connect() for _ in range(300)]
    assert (await rig.get("/api/health"))[0] == 200
    for _, writer in idle:
        writer.close()
    server = rig.runner.server
    assert server is not None
    await until(lambda: len(server.connections) <= 1)

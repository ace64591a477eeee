"""The budget of bodies, what is counted in them, and the listener."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import zlib
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from api.api_rig import DEADLINE, Rig, api_rig, output, until
from supervisord_py.api import app, bodies, listening, tools
from supervisord_py.api.auth import TcpAccess
from supervisord_py.api.bodies import (
    MAX_COST,
    BodyBudget,
    cost_of,
    cost_without_strings,
    decompress,
)
from supervisord_py.errors import OverloadedError, TooLargeError

TEXTS = st.text(alphabet='",:{}[]\\ab', max_size=12)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def values_of(value: Any) -> int:
    """Return how many numbers, texts, lists and objects there are."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(values_of, inner))


@given(VALUES)
def test_the_cost_of_a_text_is_at_least_the_number_of_its_values(value: Any) -> None:
    body = json.dumps(value).encode()
    assert cost_of(body) >= cost_without_strings(body) >= values_of(value) - 1


@given(st.binary(max_size=200))
def test_any_bytes_have_a_cost(body: bytes) -> None:
    assert 0 <= cost_without_strings(body) <= cost_of(body)


def test_commas_in_texts_cost_nothing_and_an_open_text_is_read_once() -> None:
    table = b'{"csv":"' + b"1,2,3\\n" * (MAX_COST // 2) + b'"}'
    assert cost_of(table) > MAX_COST > cost_without_strings(table)
    # by backtracking it would take hours
    assert cost_without_strings(b'{"open":"' + b'\\"' * 500_000) < 10


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@given(content=st.binary(max_size=2000), cut=st.integers(1, 5))
def test_what_is_compressed_is_whole_or_refused(encoding: str, content: bytes, cut: int) -> None:
    packer = zlib.compressobj(wbits=31 if encoding == "gzip" else 15)
    packed = packer.compress(content) + packer.flush()
    assert decompress(packed, encoding, 2000) == content
    with pytest.raises(zlib.error):
        decompress(packed[:-cut], encoding, 2000)
    if content:
        with pytest.raises(TooLargeError):
            decompress(packed, encoding, len(content) - 1)


def test_the_budget_is_shared_and_given_back() -> None:
    budget = BodyBudget(max_body_bytes=10)
    with budget.hold() as one, budget.hold() as other:
        one.grow(budget.limit_bytes - 5)
        other.grow(5)
        with pytest.raises(OverloadedError):
            other.grow(1)
        one.release()
        one.release()
        other.grow(1)
        assert budget.held_bytes == 6
    assert budget.held_bytes == 0


async def test_bodies_of_requests_that_wait_are_bounded_in_sum(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those over it are refused with a time to come again; a client that leaves makes room.

    Twice in a row.
    """
    monkeypatch.setattr(bodies, "BUDGET_BYTES", 1000)
    monkeypatch.setattr(bodies, "BUDGET_BODIES", 1)
    entered = 0

    async def forward(*_: Any, **__: Any) -> web.StreamResponse:
        nonlocal entered
        entered += 1
        await asyncio.Event().wait()
        return web.Response()

    monkeypatch.setattr(tools, "forward", forward)
    async with api_rig(short_tmp, max_body_bytes=1000) as rig, asyncio.timeout(DEADLINE):
        rig.add_tool("x")
        for turn in (1, 2):
            waits = asyncio.create_task(rig.ask("POST", "/api/tools/x/run", b'"%s"' % (b"a" * 798)))
            await until(lambda turn=turn: entered == turn)
            status, problem, headers = await rig.ask(
                "POST", "/api/tools/x/run", b'"%s"' % (b"a" * 298)
            )
            assert (status, problem["kind"], headers["Retry-After"]) == (429, "overloaded", "1")
            waits.cancel()

            async def is_free() -> bool:
                return (await rig.ask("POST", "/api/tools/x/validate-not", b"1"))[0] == 404

            await until(is_free)


# -- connections -----------------------------------------------------------------------------------


async def test_a_listener_without_descriptors_pauses_and_goes_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "PAUSE_SECONDS", 0.05)
    attempts = 0
    accept = socket.socket.accept

    def refuses(self: socket.socket) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts <= 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", refuses)
    async with asyncio.timeout(DEADLINE):
        assert (await rig.get("/api/health"))[0] == 200
    assert 4 <= attempts <= 8, "once for each pause, and for the connection"


async def status_of(reader: asyncio.StreamReader) -> int:
    """Read one answer to its end and return its status."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
    return int(head.split()[1])


async def test_strangers_on_the_loopback_listener_cannot_keep_the_owner_out(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "TCP_CONNECTIONS", 4)
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    head = f"GET /api/health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n".encode()
    async with api_rig(short_tmp, tcp=TcpAccess("t0ken", port)) as rig, asyncio.timeout(DEADLINE):
        await listening.Listener(rig.runner, listener).start()
        ask = head + b"Authorization: Bearer t0ken\r\n\r\n"
        owner, asks = await asyncio.open_connection("127.0.0.1", port)
        asks.write(ask)
        assert await status_of(owner) == 200
        for _ in (1, 2):
            strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(12)]
            for _, stranger in strangers:
                stranger.write(head)
            again, writer = await asyncio.open_connection("127.0.0.1", port)
            for reader, writes in ((owner, asks), (again, writer)):
                writes.write(ask)
                assert await status_of(reader) == 200
            for _, stranger in (*strangers, (again, writer)):
                stranger.close()
        # Without the token a connection ends with the refusal.
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"\r\n")
        assert (await reader.read()).split()[1] == b"403"
        writer.close()
        asks.close()


@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_requests_that_come_at_once_are_all_answered(rig: Rig, method: bytes) -> None:
    """Also where the client has closed its side behind them."""
    rig.add_tool("x")
    path = b"/api/health" if method == b"GET" else b"/api/tools/x/stop"
    async with asyncio.timeout(DEADLINE):
        for _ in (1, 2):
            reader, writer = await rig.connect()
            writer.write(
                (method + b" " + path + b" HTTP/1.1\r\nHost: px\r\nContent-Length: 0\r\n\r\n") * 200
            )
            writer.write_eof()
            assert (await reader.read()).count(b"HTTP/1.1 200") == 200
            writer.close()


async def test_logs_that_a_shutdown_cuts_off_end_with_its_problem(short_tmp: Path) -> None:
    """Followed ones end in order: their clients come back anyway."""
    async with api_rig(short_tmp) as rig, asyncio.timeout(DEADLINE):
        rig.add_tool("x")
        with output(rig, "tool:x") as segments:
            for _ in range(40):
                segments.append(1.0, 1, 1, b"y" * (1 << 18))
            ends, readers, writers = {}, {}, []
            for query in ("", "?follow=1"):
                readers[query], writer = await rig.connect()
                writers.append(writer)
                accept = b"Accept: application/x-ndjson\r\n"
                writer.write(
                    f"GET /api/units/tool:x/logs{query} HTTP/1.1\r\nHost: px\r\n".encode()
                    + accept
                    + b"\r\n"
                )
                await readers[query].readuntil(b"\n{")  # the rest does not fit into the buffers
            closing = asyncio.create_task(rig.runner.cleanup())
            for query, reader in readers.items():
                ends[query] = (await reader.read())[-600:]
            await closing
            for writer in writers:
                writer.close()
    assert b"urn:px:problem:shutdown" in ends[""]
    assert not ends[""].endswith(b"0\r\n\r\n")
    assert b"urn:px:problem" not in ends["?follow=1"]
    assert ends["?follow=1"].endswith(b"0\r\n\r\n")

"""Listening sockets, notification, and the pooled way to a tool: connections are used again, requests are not."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from supervisord_py.errors import PxError
from supervisord_py.tools import driver, proxy
from supervisord_py.tools import upstream as upstream_module
from supervisord_py.tools.driver import NotifySocket
from supervisord_py.tools.upstream import Upstream, schema_drift


def test_listeners_of_a_tree_are_found_in_grandchildren_too() -> None:
    code = """if True:
        import os, socket, time
        if os.fork() == 0:
            sock = socket.create_server(("127.0.0.1", 0))
            print(sock.getsockname()[1], flush=True)
        time.sleep(600)
    """
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            assert driver.listening_of(process.pid) == [("127.0.0.1", port)]
            assert [driver.is_listener_of(process.pid, each) for each in (port, port + 1)] == [True, False]
        finally:
            os.killpg(process.pid, 9)
    assert driver.listening_of(process.pid) == []


async def test_ready_and_imports_are_understood(short_tmp: Path) -> None:
    notify, told = NotifySocket(short_tmp, "12345678.abc"), list[str]()
    assert [path.stat().st_mode & 0o777 for path in (notify.path, notify.path.parent)] == [0o600, 0o700]
    notify.on_modules = told.extend
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        for message in (b"STATUS=half way\nREADY=0", b"X_PX_MODULES=a,b c\nREADY=1"):
            channel.sendto(message, str(notify.path))
    await notify.is_ready.wait()
    assert told == ["a"]
    notify.close()


def http(body: bytes, status: bytes = b"200 OK", length: int | None = None) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, length or len(body), body)


@asynccontextmanager
async def serving(*answers: bytes) -> AsyncIterator[tuple[list[int], Upstream]]:
    """Serve these answers in turn and then hang up; give by which connection each request came, and the way there."""
    asked, left, tasks = list[int](), iter(answers), list[Any]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(set(asked))
        tasks.append(asyncio.current_task())
        with suppress(ConnectionError):
            while await reader.read(4096):
                asked.append(number)
                if (answer := next(left, None)) is None:
                    break
                writer.write(answer)
            writer.close()
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        upstream = Upstream(server.sockets[0].getsockname()[1])
        yield asked, upstream
        upstream.close()
        await asyncio.gather(*tasks)


@pytest.fixture(autouse=True)
def _no_pause_is_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_module, "IDLE_SECONDS", 600.0)


async def post(upstream: Upstream) -> bytes:
    async with await upstream.send("POST", "/run", b"{}") as answer:
        return (await answer.read_up_to(1000))[0]


async def test_a_request_whose_pooled_connection_breaks_is_not_sent_again() -> None:
    """The tool may have worked on it, or died of it."""
    async with serving(b"HTTP/1.1 100 Continue\r\n\r\n" + http(b"ok"), http(b"ok")) as (asked, upstream):
        assert [await post(upstream), await post(upstream)] == [b"ok", b"ok"]
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await post(upstream)
        assert asked == [0, 0, 0]


async def test_a_connection_that_is_half_read_or_too_old_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(http(b"half", length=9), http(b"ok"), http(b"ok")) as (asked, upstream):
        async with await upstream.send("GET", "/"):
            pass
        assert await post(upstream) == b"ok"
        monkeypatch.setattr(upstream_module, "IDLE_SECONDS", 0.0)
        assert await post(upstream) == b"ok"
        assert asked == [0, 1, 2]


DRIFTS = {http(b"", b"404 No"): "()", http(b'{"a": 1 }'): "()", http(b'{"a": 2 }'): "/a"}
DRIFTS |= {http(b"", b"500 No"): "answered 500", http(b"not"): "no JSON", b"what?\r\n\r\n": "no JSON"}


@pytest.mark.parametrize("answer", DRIFTS)
async def test_drift_is_told_by_place_and_never_raised(answer: bytes) -> None:
    async with serving(answer) as (_, upstream):
        assert DRIFTS[answer] in str(await schema_drift(upstream, {"a": 1}))


async def test_an_instance_that_has_ended_meanwhile_is_no_mistake_of_ours() -> None:
    """Whoever waits for its answer, or asks it still, hears of it as of any other connection that is gone."""
    async with serving(http(b"half", length=9)) as (_, upstream):
        async with await upstream.send("GET", "/") as answer:
            upstream.close()
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read_up_to(100)
        with pytest.raises(OSError, match="has ended"):
            await upstream.send("POST", "/run", b"{}")
        assert (await schema_drift(upstream, {"a": 1}), await upstream.cancel("1")) == ((), False)


@pytest.mark.parametrize("size", [1, 3, 1000])
async def test_a_stream_in_another_form_has_the_same_items(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def cut(raw: bytes) -> AsyncIterator[bytes]:
        for at in range(0, len(raw), size):
            yield raw[at : at + size]

    events, lines = b': beat\n\nevent: x\nid: 1\ndata: {"a":\r\ndata:1}\r\n\r\n\ndata: [2]', b'{"a": 1}\r\n\n[2]'
    assert [item async for item in proxy._as_lines(cut(events))] == [b'{"a": 1}\n', b"[2]\n"]
    assert [item async for item in proxy._as_events(cut(lines))] == [b'data: {"a": 1}\n\n', b"data: [2]\n\n"]
    monkeypatch.setattr(proxy, "LINE_BYTES", 5)
    with pytest.raises(PxError, match="longer than 5 bytes"):
        assert [item async for item in proxy._as_lines(cut(b"data: 123456789"))] == []

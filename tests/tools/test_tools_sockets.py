"""Listening sockets, notification, and the pooled way to a tool: connections are used again, requests are not."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from supervisord_py.errors import PxError
from supervisord_py.tools import driver, proxy
from supervisord_py.tools import upstream as upstream_module
from supervisord_py.tools.driver import NotifySocket
from supervisord_py.tools.upstream import Upstream, schema_drift
from tools.tool_house import ToolHouse


async def test_those_who_wait_are_refused_and_the_port_stays(house: ToolHouse) -> None:
    listeners = house.launcher.driver.listeners
    port, again = await asyncio.gather(listeners.get("a"), listeners.get("a"))
    assert port == again == listeners.port_of("a")
    with socket.create_connection(("127.0.0.1", port)) as client:
        listeners.listen_again("a", refuse_waiting=True)
        listeners.listen_again("never heard of", refuse_waiting=True)
        client.settimeout(60)
        with pytest.raises(ConnectionResetError):
            client.recv(10)
    with socket.create_connection(("127.0.0.1", port)):
        pass
    listeners.close()
    assert await listeners.get("a") == port, "the keeper has it"
    await listeners.drop("a")
    assert listeners.port_of("a") is None


def test_listeners_of_a_tree_are_found_in_grandchildren_too() -> None:
    code = (
        "import os, socket, time\n"
        "if os.fork() == 0:\n"
        "    sock = socket.socket(); sock.bind(('127.0.0.1', 0)); sock.listen()\n"
        "    print(sock.getsockname()[1], flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            assert ("127.0.0.1", port) in driver.listening_of(process.pid)
            assert driver.is_listener_of(process.pid, port)
            assert not driver.is_listener_of(process.pid, port + 1)
        finally:
            os.killpg(process.pid, 9)
    assert driver.listening_of(process.pid) == []


def say(path: Path, message: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.sendto(message, str(path))


async def test_ready_and_imports_are_understood(short_tmp: Path) -> None:
    notify = NotifySocket(short_tmp, "12345678.abc")
    assert notify.path.stat().st_mode & 0o777 == 0o600
    assert notify.path.parent.stat().st_mode & 0o777 == 0o700
    say(notify.path, b"STATUS=half way\nREADY=0")
    say(notify.path, b"X_PX_MODULES=a,b c\nREADY=1")
    told: list[str] = []
    notify.on_modules = told.extend
    await notify.is_ready.wait()
    assert told == ["a"]
    notify.close()
    notify.close()


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture
async def serving(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., object]]:
    """Start servers that give these answers in turn and then hang up; no pause of the machine is too long for them."""
    monkeypatch.setattr(upstream_module, "IDLE_SECONDS", 600.0)
    ends: list[tuple[asyncio.Server, Upstream]] = []
    serving: list[Any] = []

    async def start(*answers: bytes) -> tuple[list[int], Upstream]:
        asked: list[int] = []  # by which connection
        left = iter(answers)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            number = len(set(asked))
            serving.append(asyncio.current_task())
            with suppress(ConnectionError):
                while await reader.read(4096):
                    asked.append(number)
                    if (answer := next(left, None)) is None:
                        break
                    writer.write(answer)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        ends.append((server, Upstream(server.sockets[0].getsockname()[1])))
        return asked, ends[-1][1]

    yield start
    for server, upstream in ends:
        upstream.close()
        server.close()
        await server.wait_closed()
    await asyncio.gather(*serving)


async def post(upstream: Upstream) -> bytes:
    async with await upstream.send("POST", "/run", b"{}") as answer:
        return (await answer.read_up_to(1000))[0]


async def test_a_request_whose_pooled_connection_breaks_is_not_sent_again(serving: Callable[..., object]) -> None:
    """The tool may have worked on it, or died of it."""
    asked, upstream = await serving(b"HTTP/1.1 100 Continue\r\n\r\n" + OK, OK)  # type: ignore[misc]
    assert [await post(upstream), await post(upstream)] == [b"ok", b"ok"]
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await post(upstream)
    assert asked == [0, 0, 0]


async def test_a_connection_that_was_not_read_to_its_end_or_is_too_old_is_given_up(
    serving: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, upstream = await serving(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", OK, OK)  # type: ignore[misc]
    async with await upstream.send("GET", "/"):
        pass
    assert await post(upstream) == b"ok"
    monkeypatch.setattr(upstream_module, "IDLE_SECONDS", 0.0)
    assert await post(upstream) == b"ok"
    assert asked == [0, 1, 2]


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", ()),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"a": 1 }', ()),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"a": 2 }', ("/a",)),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", ("answered 500",)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnot", ("no JSON",)),
        (b"what?\r\n\r\n", ("no JSON",)),
    ],
)
async def test_drift_is_told_by_place_and_never_raised(
    serving: Callable[..., object], answer: bytes, found: tuple[str, ...]
) -> None:
    _, upstream = await serving(answer)  # type: ignore[misc]
    drift = await schema_drift(upstream, {"a": 1})
    assert len(drift) == len(found)
    assert all(part in whole for part, whole in zip(found, drift, strict=True))


async def test_an_instance_that_has_ended_meanwhile_is_no_mistake_of_ours(serving: Callable[..., object]) -> None:
    """Whoever waits for its answer, or asks it still, hears of it as of any other connection that is gone."""
    _, upstream = await serving(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")  # type: ignore[misc]
    async with await upstream.send("GET", "/") as answer:
        upstream.close()
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read_up_to(100)
    with pytest.raises(OSError, match="has ended"):
        await upstream.send("POST", "/run", b"{}")
    assert await schema_drift(upstream, {"a": 1}) == ()
    assert not await upstream.cancel("1")


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

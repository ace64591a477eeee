"""The pooled way to a tool: connections are used again, requests are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from supervisord_py.tools import upstream as upstream_module
from supervisord_py.tools.upstream import Upstream, schema_drift

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

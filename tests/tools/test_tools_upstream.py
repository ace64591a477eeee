"""The pooled way to a tool: connections are used again, requests are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest

from supervisord_py.tools import upstream as upstream_module
from supervisord_py.tools.upstream import Upstream, schema_drift

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Scripted:
    """A server that answers the n-th request of a connection as `script` says; None hangs up instead."""

    def __init__(self, script: Callable[[int, int], bytes | None]) -> None:
        self.script = script
        self.connections = 0
        self.requests: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        mine, count = self.connections, 0
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                count += 1
                self.requests.append(head)
                await self._body(head, reader)
                answer = self.script(mine, count)
                if answer is None:
                    return
                writer.write(answer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    @staticmethod
    async def _body(head: bytes, reader: asyncio.StreamReader) -> None:
        if b"chunked" in head:
            await reader.readuntil(b"0\r\n\r\n")
        for line in head.split(b"\r\n"):
            if line.lower().startswith(b"content-length:"):
                await reader.readexactly(int(line.partition(b":")[2]))


@pytest.fixture
async def serving(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., object]]:
    """Start scripted servers, and give an upstream to each; no pause of the machine is too long for them."""
    monkeypatch.setattr(upstream_module, "IDLE_SECONDS", 600.0)
    monkeypatch.setattr(upstream_module, "_CANCEL_SECONDS", 60.0)
    ends: list[object] = []

    async def start(script: Callable[[int, int], bytes | None]) -> tuple[Scripted, Upstream]:
        scripted = Scripted(script)
        server = await asyncio.start_server(scripted.serve, "127.0.0.1", 0)
        upstream = Upstream(server.sockets[0].getsockname()[1])
        ends.append((server, upstream))
        return scripted, upstream

    yield start
    for server, upstream in ends:  # type: ignore[misc]
        upstream.close()
        server.close()
        await server.wait_closed()


async def post(upstream: Upstream) -> bytes:
    async with await upstream.send("POST", "/run", b"{}") as answer:
        return (await answer.read_up_to(1000))[0]


async def test_a_request_whose_pooled_connection_breaks_is_not_sent_again(serving: Callable[..., object]) -> None:
    """The tool may have worked on it, or died of it."""
    scripted, upstream = await serving(lambda _, n: OK if n == 1 else None)  # type: ignore[misc]
    assert await post(upstream) == b"ok"
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await post(upstream)
    assert (scripted.connections, len(scripted.requests)) == (1, 2)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", ()),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"a": 1 }', ()),
        (b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"a": 2 }', ("/a",)),
        (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", ("answered 500",)),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nnot", ("no JSON",)),
        (None, ("no JSON",)),
    ],
)
async def test_drift_is_told_by_place_and_never_raised(
    serving: Callable[..., object], answer: bytes | None, found: tuple[str, ...]
) -> None:
    _, upstream = await serving(lambda _, __: answer)  # type: ignore[misc]
    drift = await schema_drift(upstream, {"a": 1})
    assert len(drift) == len(found)
    assert all(part in whole for part, whole in zip(found, drift, strict=True))


async def test_an_instance_that_has_ended_meanwhile_is_no_mistake_of_ours() -> None:
    """Whoever still holds its connections hears of it as of any other connection that is gone."""
    upstream = Upstream(1)
    upstream.close()
    with pytest.raises(OSError):
        await upstream.send("POST", "/run", b"{}")
    assert await schema_drift(upstream, {"a": 1}) == ()
    assert not await upstream.cancel("1")

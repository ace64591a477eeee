"""Preflights: only certain trouble of a provider stops an execution, and it is told what it is (A5, A6, A7)."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest

from beside import free_port
from supervisord_py.ledger.pipes import ErrorType
from supervisord_py.pipes import preflight
from supervisord_py.pipes.adapters import CannotRunError
from supervisord_py.pipes.preflight import check_provider

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait between two attempts; an answer may be as late as the machine is slow."""
    monkeypatch.setattr(preflight, "FIRST_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(preflight, "READ_SECONDS", PATIENCE)


async def look(url: str, provider: str = "custom", model: str | None = "ok", seconds: float = PATIENCE) -> None:
    values = {"url": url, "url_root": url.removesuffix("/v1"), "provider": provider, "model": model}
    await check_provider(values, seconds=seconds)


async def test_nothing_answers_at_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    for each in (url, "http://[bad"):
        with pytest.raises(CannotRunError) as caught:
            await look(each)
        assert caught.value.error_type is ErrorType.NETWORK
        assert caught.value.detail.startswith(f"nothing answers at {each}: ")
        assert "ssl:" not in caught.value.detail, "the system's words, not the library's"

    async def never(*_: object, **__: object) -> object:
        return await asyncio.Event().wait()

    monkeypatch.setattr("aiohttp.TCPConnector.connect", never)
    with pytest.raises(CannotRunError, match=r"no connection within 0\.05 s$"):
        await look(url, seconds=0.05)


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


NAMES = ok(b'{"models": [{"name": "a:latest", "size": 1}, {"name": "b/c:8b"}], "x": 2}')
SAID = [
    (b"nonsense\r\n\r\n", "a", True),
    (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", "a", True),
    (ok(b'{"models": 1}'), "a", True),
    (NAMES, "a", True),
    (NAMES, "a:8b", False),
    (NAMES, "b/c:8b", True),
    (NAMES, "b/c", False),
]


@pytest.mark.parametrize(("said", "model", "passes"), SAID)
async def test_only_a_model_that_ollama_lacks_is_refused_what_is_strange_is_the_agents_to_judge(
    said: bytes, model: str, passes: bool
) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        with nullcontext() if passes else pytest.raises(CannotRunError, match="it has a:latest, b/c:8b"):
            await look(url, "ollama", model)

"""Preflights: only certain trouble stops an execution, and it is told what it is (A5, A6, A7); versions; programs."""

from __future__ import annotations

import asyncio
import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from beside import free_port
from supervisord_py.errors import StartFailedError
from supervisord_py.ledger.pipes import ErrorType
from supervisord_py.pipes import preflight
from supervisord_py.pipes.adapters import CannotRunError, load_adapters
from supervisord_py.pipes.preflight import AgentShelf, Completed, check_provider

PATIENCE = 60.0
CLAUDE, PI = load_adapters(None).get("claude"), load_adapters(None).get("pi")


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait between two attempts; an answer may be as late as the machine is slow."""
    monkeypatch.setattr(preflight, "FIRST_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(preflight, "READ_SECONDS", PATIENCE)


def shelf(answer: Completed | Exception | None = None) -> AgentShelf:
    async def run(*_: Any, **__: Any) -> Completed:
        if isinstance(answer, Exception):
            raise answer
        return answer or Completed(0)

    nobody: Any = SimpleNamespace(agents_file=Path("/absent"), presets_file=Path("/absent"))
    found = AgentShelf(nobody, nobody, {})
    found.run = run
    return found


# -- providers ---------------------------------------------------------------------------------------------------------


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


# -- versions ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Completed(0, None, "", "2.1.3\n"), None),
        (TimeoutError(), "the version of claude could not be found: it did not answer within 30 s"),
        (StartFailedError("exec failed"), "the version of claude could not be found: exec failed"),
        (Completed(0, None, "who knows\n"), "the version of claude could not be found: who knows"),
        (Completed(0), "the version of claude could not be found: it printed nothing"),
    ],
)
async def test_an_odd_version_is_a_warning(tmp_path: Path, answer: Completed | Exception, words: str | None) -> None:
    _version, found = await shelf(answer).version(CLAUDE, "/bin/sh", tmp_path, {})
    assert found == (() if words is None else (words,))


async def test_a_version_that_cannot_work_is_agent_incompatible_with_its_cure(tmp_path: Path) -> None:
    trouble = "x" * 60_000 + "\nTypeError: webidl.util.markAsUncloneable is not a function\nNode.js v20.20.2\n"
    with pytest.raises(
        CannotRunError, match=r"does not start under what is there to run it: Node.js v20.20.2"
    ) as caught:
        await shelf(Completed(1, None, "", trouble)).version(PI, "/bin/sh", tmp_path, {})
    assert (caught.value.error_type, "node" in str(caught.value.hint)) == (ErrorType.AGENT_INCOMPATIBLE, True)


async def test_versions_are_asked_once_for_each_file(tmp_path: Path) -> None:
    program, known = tmp_path / "claude", shelf()
    program.touch()
    for said, version in (("2.1.3", (2, 1, 3)), ("2.9.9", (2, 1, 3)), ("2.9.9", (2, 9, 9))):
        known.run = shelf(Completed(0, None, said)).run
        assert await known.version(CLAUDE, str(program), tmp_path, {}) == (version, ())
        if said == "2.9.9":
            os.utime(program, ns=(1, 1))

"""Preflights: only certain trouble stops an execution, and it is told what it is (A5, A6, A7)."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mock_provider import MockProvider
from ports import free_port
from supervisord_py.errors import StartFailedError
from supervisord_py.pipes.agents.catalog import load_agents
from supervisord_py.pipes.agents.preflight import Asked, model_names, new_session, preflight, same_model
from supervisord_py.pipes.agents.programs import Answer, Program
from supervisord_py.pipes.agents.refusals import CannotRunError
from supervisord_py.pipes.execution import ErrorType

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from supervisord_py.pipes.agents.versions import Version

PATIENCE = 60.0


@dataclass
class FakeAsk:
    """Answers `pi auth check`."""

    answer: Answer | Exception = field(default_factory=lambda: Answer(0))
    programs: list[Program] = field(default_factory=list)

    async def __call__(self, program: Program, *, seconds: float) -> Answer:
        self.programs.append(program)
        assert seconds > 0
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody wait between two attempts; an answer may be as late as the machine is slow."""
    monkeypatch.setattr("supervisord_py.pipes.agents.preflight.FIRST_WAIT_SECONDS", 0.0)
    monkeypatch.setattr("supervisord_py.pipes.agents.preflight.READ_SECONDS", PATIENCE)


async def look(
    url: str | None,
    provider: str | None = "custom",
    model: str | None = "ok",
    *,
    version: Version | None = (0, 74, 2),
    ask: FakeAsk | None = None,
    seconds: float = PATIENCE,
) -> None:
    values = {"url": url, "url_root": (url or "").removesuffix("/v1"), "provider": provider, "model": model}
    asked = Asked(load_agents(None).get("pi"), values, version, "/bin/pi", Path("/"), {"PATH": "/bin"})
    await preflight(asked, http=new_session, ask=ask or FakeAsk(), seconds=seconds)


async def refusal(
    *arguments: str | None, ask: FakeAsk | None = None, version: Version | None = (0, 74, 2), seconds: float = PATIENCE
) -> CannotRunError:
    with pytest.raises(CannotRunError) as refused:
        await look(*arguments, ask=ask, version=version, seconds=seconds)
    return refused.value


@contextlib.asynccontextmanager
async def server(behave: Callable[[asyncio.StreamWriter], None], port: int = 0) -> AsyncIterator[str]:
    """Serve connections that are treated as `behave` does; they are cut at the end."""
    writers: list[asyncio.StreamWriter] = []

    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        behave(writer)

    listening = await asyncio.start_server(connected, "127.0.0.1", port)
    try:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"
    finally:
        listening.close()
        await listening.wait_closed()
        for writer in writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def answering(raw: bytes) -> Callable[[asyncio.StreamWriter], None]:
    return lambda writer: writer.write(raw)


@pytest.fixture
def closed_port() -> str:
    """Return an address at which nobody listens."""
    return f"http://127.0.0.1:{free_port()}/v1"


async def test_ollama_has_the_model() -> None:
    async with MockProvider() as it:
        await look(it.url, "ollama", "ok")
        await look(it.url, "ollama", "tool:7b")
        await look(it.url, "ollama", None)


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{",
        b"nonsense\r\n\r\n",
    ],
)
async def test_a_server_that_says_something_strange_is_the_agents_to_judge(
    raw: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{preflight.__module__}.READ_SECONDS", 0.1)
    async with server(answering(raw)) as url:
        await look(url, "ollama", "ok")
        await look(url)


async def test_a_server_that_says_nothing_or_hangs_up_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{preflight.__module__}.READ_SECONDS", 0.1)
    for behave in (lambda _: None, lambda writer: writer.transport.abort()):
        async with server(behave) as url:
            await look(url)


async def test_nothing_answers_at_a_url(closed_port: str) -> None:
    refused = await refusal(closed_port)
    assert refused.error_type is ErrorType.NETWORK
    assert refused.detail.startswith(f"nothing answers at {closed_port}: ")
    assert "ssl:" not in refused.detail, "the system's words, not the library's"
    assert (await refusal("http://[bad")).error_type is ErrorType.NETWORK


async def test_a_connection_that_does_not_come_about_ends_with_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> object:
        return await asyncio.Event().wait()

    monkeypatch.setattr("aiohttp.TCPConnector.connect", never)
    refused = await refusal("http://127.0.0.1:9/v1", seconds=0.05)
    assert refused.detail.endswith("no connection within 0.05 s")


async def test_a_server_that_comes_up_meanwhile_is_found(monkeypatch: pytest.MonkeyPatch, closed_port: str) -> None:
    waits: list[float] = []

    async with contextlib.AsyncExitStack() as stack:

        async def meanwhile(seconds: float) -> None:
            waits.append(seconds)
            port = int(closed_port.rsplit(":", 1)[1].removesuffix("/v1"))
            await stack.enter_async_context(server(answering(b"HTTP/1.1 204 OK\r\n\r\n"), port))

        monkeypatch.setattr("asyncio.sleep", meanwhile)
        await look(closed_port)
    assert len(waits) == 1


# -- credentials ----------------------------------------------------------------------------------------------------


async def test_pi_is_asked_for_its_credentials_from_the_version_on_that_knows() -> None:
    ask = FakeAsk()
    await look(None, "openai", "gpt", version=(0, 84, 1), ask=ask)
    words = ("/bin/pi", "auth", "check", "--provider", "openai", "--model", "gpt", "--json")
    assert ask.programs == [Program(words, "/", {"PATH": "/bin"})]


@pytest.mark.parametrize(("provider", "version"), [("openai", (0, 84, 0)), ("openai", None), (None, (0, 90))])
async def test_who_cannot_answer_is_not_asked(provider: str | None, version: Version | None) -> None:
    ask = FakeAsk(Answer(1))
    await look(None, provider, "gpt", version=version, ask=ask)
    assert ask.programs == []


async def test_missing_credentials_are_auth_failed() -> None:
    ask = FakeAsk(Answer(1, None, '{"status":"not_ready"}\n'))
    refused = await refusal(None, "openai", "gpt", version=(1, 0), ask=ask)
    assert refused.error_type is ErrorType.AUTH_FAILED
    assert 'pi has no credentials for the provider \'openai\': {"status":"not_ready"}' in refused.message
    assert ".env beside pipe.md" in refused.message


@pytest.mark.parametrize("answer", [Answer(0), Answer(2), Answer(None, 9), TimeoutError(), StartFailedError("no")])
async def test_an_answer_that_says_nothing_stops_nobody(answer: Answer | Exception) -> None:
    await look(None, "openai", version=(1, 0), ask=FakeAsk(answer))


def test_names_of_models() -> None:
    assert same_model("llama3", ("llama3:latest",))
    assert same_model("a:b/llama3", ("a:b/llama3:latest",))
    assert not same_model("llama3:8b", ("llama3:latest",))
    assert model_names(b'{"models": [{"name": "a"}, {"name": 1}, 2, {}]}') == ("a",)
    assert model_names(b'{"models": 1}') is None


@given(st.binary())
def test_no_answer_makes_the_reader_fail(raw: bytes) -> None:
    model_names(raw)

"""Asks before a spawn what would only fail after it: is the provider there, has it the model, are there credentials?

Law: only certain trouble stops an execution. A server that accepts and then says nothing, or something strange, is the
agent's to judge. Everything ends within the deadline; a refused connection is tried again a few times within it.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from supervisord_py.errors import PxError
from supervisord_py.pipes.agents.command_line import fill_pieces
from supervisord_py.pipes.agents.programs import Program
from supervisord_py.pipes.agents.refusals import CannotRunError
from supervisord_py.pipes.execution import ErrorType

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping
    from pathlib import Path

    import aiohttp

    from supervisord_py.pipes.agents.programs import Ask
    from supervisord_py.pipes.agents.spec import AgentSpec
    from supervisord_py.pipes.agents.templates import Values
    from supervisord_py.pipes.agents.versions import Version

OLLAMA = "ollama"
ATTEMPTS = 3
FIRST_WAIT_SECONDS = 0.2
READ_SECONDS = 2.0
"""A server that was reached and is silent for so long is there; that is all that is asked."""
MAX_TAGS_BYTES = 4 * 1024 * 1024
NOT_READY = 1
"""Exit code of an `auth_check` that found nothing; any other one says nothing."""

Found = TypeVar("Found")


class UnreachableError(Exception):
    """Nobody is there; says why."""


NewSession = Callable[[], "aiohttp.ClientSession"]
"""Makes an HTTP session; who calls it closes it."""


def new_session() -> aiohttp.ClientSession:
    """Return a session that goes through the proxy of the environment, as agents do."""
    import aiohttp

    return aiohttp.ClientSession(trust_env=True)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is about to run."""

    spec: AgentSpec
    values: Values
    version: Version | None
    executable: str
    cwd: Path
    env: Mapping[str, str]


async def preflight(asked: Asked, *, http: NewSession, ask: Ask, seconds: float) -> None:
    """Look whether the execution can succeed; `seconds` bounds all of it.

    Raises:
        CannotRunError: `preflight_failed` (Ollama is not running), `model_not_found` (it has no such model), `network`
            (nothing answers at the url), `auth_failed` (the agent says that it has no credentials).
    """
    url, provider = asked.values.get("url"), asked.values.get("provider")
    if url is not None:
        async with http() as session:
            if provider == OLLAMA:
                await _ollama(session, str(asked.values.get("url_root")), asked.values.get("model"), seconds)
            else:
                await _reachable(session, str(url), seconds)
    await _credentials(asked, ask, seconds)


async def _ollama(http: aiohttp.ClientSession, root: str, model: object, seconds: float) -> None:
    try:
        tags = await _patiently(lambda: _tags(http, root, seconds), seconds)
    except UnreachableError as error:
        raise CannotRunError(
            ErrorType.PREFLIGHT_FAILED, f"Ollama is not running at {root}: {error}", hint="start it: ollama serve"
        ) from error
    if tags is None or model is None or same_model(str(model), tags):
        return
    raise CannotRunError(
        ErrorType.MODEL_NOT_FOUND,
        f"Ollama at {root} does not have the model {model!r}; it has {', '.join(tags) or 'none'}",
        hint=f"fetch it: ollama pull {model}",
    )


async def _tags(http: aiohttp.ClientSession, root: str, seconds: float) -> tuple[str, ...] | None:
    """Return the names of the models, or None where the answer says nothing of them."""
    async with _get(http, f"{root}/api/tags", seconds) as answer:
        if not answer.ok:
            return None
        return model_names(await answer.content.read(MAX_TAGS_BYTES))


async def _reachable(http: aiohttp.ClientSession, url: str, seconds: float) -> None:
    async def knock() -> None:
        async with _get(http, url, seconds):
            pass

    try:
        await _patiently(knock, seconds)
    except UnreachableError as error:
        raise CannotRunError(
            ErrorType.NETWORK, f"nothing answers at {url}: {error}", hint=f"try: curl -i {url}"
        ) from error


def _plain(error: Exception) -> str:
    """Return why no connection came about, in the system's words, without the library's."""
    cause = getattr(error, "os_error", None)
    if not isinstance(cause, OSError):
        return str(error)
    number = cause.errno or 0
    return os.strerror(number) if number > 0 else cause.strerror or str(error)


def _get(http: aiohttp.ClientSession, url: str, seconds: float) -> Any:
    import aiohttp

    # No total: the deadline around it counts. Redirects are the agent's to follow.
    timeout = aiohttp.ClientTimeout(total=None, sock_read=min(READ_SECONDS, seconds / 2))
    return http.get(url, timeout=timeout, allow_redirects=False)


async def _patiently(once: Callable[[], Awaitable[Found | None]], seconds: float) -> Found | None:
    """Do it, again where no connection came about; None where somebody is there and says nothing that helps.

    Raises:
        UnreachableError: Nobody is there.
    """
    import aiohttp

    tenacity: Any = await asyncio.to_thread(importlib.import_module, "tenacity")  # 80 ms, off the loop
    refused = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
    tries = tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(ATTEMPTS),
        wait=tenacity.wait_random_exponential(multiplier=FIRST_WAIT_SECONDS, max=1),
        retry=tenacity.retry_if_exception_type(refused),
        reraise=True,
    )

    async def attempt() -> Found | None:
        return await once()

    try:
        async with asyncio.timeout(seconds):
            found: Found | None = await tries(attempt)
    except (*refused, aiohttp.InvalidURL) as error:
        raise UnreachableError(_plain(error)) from error
    except aiohttp.ClientError:
        return None
    except TimeoutError as error:
        raise UnreachableError(f"no connection within {seconds:g} s") from error
    return found


def same_model(model: str, tags: tuple[str, ...]) -> bool:
    """Say whether Ollama has a model: a name without a tag means `:latest`. Pure."""
    return model in tags or (":" not in model.rpartition("/")[2] and f"{model}:latest" in tags)


def model_names(raw: bytes) -> tuple[str, ...] | None:
    """Read Ollama's list of models; None where it is none. Pure."""
    try:
        document: Any = json.loads(raw)
    except ValueError:
        return None
    match document:
        case {"models": list(models)}:
            names = (each.get("name") for each in models if isinstance(each, dict))
            return tuple(name for name in names if isinstance(name, str))
        case _:
            return None


async def _credentials(asked: Asked, ask: Ask, seconds: float) -> None:
    """Ask the agent itself, where it knows how to answer and the provider is known."""
    check = asked.spec.auth_check
    if check is None or asked.values.get("provider") is None:
        return
    if check.since is not None and (asked.version is None or asked.version not in check.since):
        return
    _, *words = fill_pieces(asked.spec.name, check.argv, asked.values)
    try:
        answer = await ask(Program((asked.executable, *words), str(asked.cwd), asked.env), seconds=seconds)
    except (TimeoutError, PxError):
        return
    if answer.code == NOT_READY:
        raise CannotRunError(
            ErrorType.AUTH_FAILED,
            f"{asked.spec.name} has no credentials for the provider {asked.values['provider']!r}: {answer.last_line}",
            hint="write api_key into the preset, or the provider's key into the .env beside pipe.md",
        )

"""What is asked before a spawn, which would only fail after it: the version, the provider, the credentials.

Only certain trouble stops an execution: a server that accepts and then says nothing, or something strange, is the
agent's to judge. Everything ends within a deadline; a refused connection is tried again a few times within it.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from supervisord_py.errors import PxError
from supervisord_py.ledger.pipe_executions import ErrorType
from supervisord_py.pipes.adapters import CannotRunError, Version, fill_arguments, in_range, parse_version
from supervisord_py.pipes.outcome import classify
from supervisord_py.process.program import Completed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import aiohttp

    from supervisord_py.pipes.adapters import AgentSpec, Values
    from supervisord_py.pipes.launch import LaunchSpec

VERSION_SECONDS = 30.0  # `pi --version` was seen to take nine seconds on a busy machine
FIRST_WAIT_SECONDS = 0.2
READ_SECONDS = 2.0  # a server that was reached and is silent for so long is there; that is all that is asked
_ATTEMPTS = 3
_MAX_TAGS_BYTES = 4 * 1024 * 1024


Run = Callable[..., Awaitable[Completed]]
"""`run(argv, *, name, timeout, cwd, env)`: `process.program.run` with its keeper."""


# -- versions ----------------------------------------------------------------------------------------------------------


class AgentVersion(msgspec.Struct, frozen=True):
    """What was found. `version` None is unknown."""

    version: Version | None = None
    warnings: tuple[str, ...] = ()

    @property
    def text(self) -> str | None:
        """`0.74.2`, or None."""
        return None if self.version is None else ".".join(map(str, self.version))


class VersionCache:
    """Asks programs for their versions, once as long as the file of the program stays the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], tuple[tuple[int, int], Version]] = {}

    async def find(self, spec: AgentSpec, executable: str, cwd: Path, env: Mapping[str, str], run: Run) -> AgentVersion:
        """Return the version of an agent's program, in the folder and environment that it would run with.

        Raises CannotRunError: `agent_incompatible`.
        """
        rule = spec.version
        if not rule.argv:
            return AgentVersion()
        if not spec.argv or rule.argv[0] != spec.argv[0]:
            return AgentVersion(warnings=(f"nobody can say which version of {spec.name} this is",))
        command, stamp = (executable, *rule.argv[1:]), _stamp(executable)
        known = self._known.get(command)
        if known is None or known[0] != stamp:
            try:
                done = await run(command, name="version", timeout=VERSION_SECONDS, cwd=str(cwd), env=env)
                text, version = f"{done.stdout}\n{done.stderr}", None  # some print it on stderr
                if done.code == 0:
                    version = parse_version(text)
                said = done.last_line or "it printed nothing"
            except TimeoutError:
                text, version, said = "", None, f"it did not answer within {VERSION_SECONDS:g} s"
            except PxError as error:
                text, version, said = error.detail, None, error.detail
            if version is None:
                if classify(text) is ErrorType.AGENT_INCOMPATIBLE:
                    raise _incompatible(spec, f"{executable} does not start under what is there to run it: {said}")
                return AgentVersion(warnings=(f"the version of {spec.name} could not be found: {said}",))
            known = self._known[command] = stamp, version
        return _judged(spec, AgentVersion(known[1]))


def _stamp(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:  # it went meanwhile: the spawn will say so
        return 0, 0
    return found.st_mtime_ns, found.st_ino


def _judged(spec: AgentSpec, found: AgentVersion) -> AgentVersion:
    rule, version = spec.version, found.version or ()
    if rule.want is not None and not in_range(version, rule.want):
        raise _incompatible(spec, f"{spec.name} is {found.text}, and this adapter needs {rule.want}")
    if rule.tested is not None and not in_range(version, rule.tested):
        doubt = f"{spec.name} is {found.text}; this adapter was tested with {rule.tested}"
        return AgentVersion(version, (doubt,))
    return found


def _incompatible(spec: AgentSpec, detail: str) -> CannotRunError:
    return CannotRunError(ErrorType.AGENT_INCOMPATIBLE, detail, hint=spec.version.cure or spec.install)


# -- providers ---------------------------------------------------------------------------------------------------------


class UnreachableError(Exception):
    """Nobody is there; says why."""


async def check_provider(values: Values, *, seconds: float) -> None:
    """Look whether the provider of a run is there, and has its model; through the environment's proxy, as agents do.

    Raises CannotRunError: `preflight_failed` (Ollama is not running), `model_not_found` (it has no such model),
    `network` (nothing answers at the url).
    """
    url, root, model = values.get("url"), values.get("url_root"), values.get("model")
    if url is None:
        return
    import aiohttp

    is_ollama = values.get("provider") == "ollama"
    async with aiohttp.ClientSession(trust_env=True) as session:
        try:
            raw = await _get(session, f"{root}/api/tags" if is_ollama else str(url), seconds, read=is_ollama)
        except UnreachableError as error:
            if is_ollama:
                detail, hint = f"Ollama is not running at {root}: {error}", "start it: ollama serve"
                raise CannotRunError(ErrorType.PREFLIGHT_FAILED, detail, hint=hint) from error
            detail, hint = f"nothing answers at {url}: {error}", f"try: curl -i {url}"
            raise CannotRunError(ErrorType.NETWORK, detail, hint=hint) from error
    tags = model_names(raw) if is_ollama and raw is not None else None
    if tags is None or model is None or same_model(str(model), tags):
        return
    detail = f"Ollama at {root} does not have the model {model!r}; it has {', '.join(tags) or 'none'}"
    raise CannotRunError(ErrorType.MODEL_NOT_FOUND, detail, hint=f"fetch it: ollama pull {model}")


async def _get(session: aiohttp.ClientSession, url: str, seconds: float, *, read: bool) -> bytes | None:
    """Return a good answer's body if it is to be read; None where somebody is there and says nothing that helps.

    Raises UnreachableError: no connection came about.
    """
    import aiohttp

    tenacity: Any = await asyncio.to_thread(importlib.import_module, "tenacity")  # 80 ms, off the loop
    refused = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
    tries = tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        wait=tenacity.wait_random_exponential(multiplier=FIRST_WAIT_SECONDS, max=1),
        retry=tenacity.retry_if_exception_type(refused),
        reraise=True,
    )
    # No total: the deadline around it counts. Redirects are the agent's to follow.
    timeout = aiohttp.ClientTimeout(total=None, sock_read=min(READ_SECONDS, seconds / 2))

    async def once() -> bytes | None:
        async with session.get(url, timeout=timeout, allow_redirects=False) as answer:
            return await answer.content.read(_MAX_TAGS_BYTES) if read and answer.ok else None

    try:
        async with asyncio.timeout(seconds):
            found: bytes | None = await tries(once)
    except (*refused, aiohttp.InvalidURL) as error:
        cause = getattr(error, "os_error", None)  # in the system's words, without the library's
        number = (cause.errno or 0) if isinstance(cause, OSError) else 0
        words = os.strerror(number) if number > 0 else str(error)
        raise UnreachableError(words) from error
    except aiohttp.ClientError:
        return None
    except TimeoutError as error:
        raise UnreachableError(f"no connection within {seconds:g} s") from error
    return found


def same_model(model: str, tags: Sequence[str]) -> bool:
    """Say whether Ollama has a model: a name without a tag means `:latest`. Pure."""
    return model in tags or (":" not in model.rpartition("/")[2] and f"{model}:latest" in tags)


def model_names(raw: bytes) -> list[str] | None:
    """Read Ollama's list of models; None where it is none. Pure."""
    try:
        models = json.loads(raw)["models"]
    except (ValueError, TypeError, LookupError, RecursionError):
        return None
    if not isinstance(models, list):
        return None
    names = (each.get("name") for each in models if isinstance(each, dict))
    return [name for name in names if isinstance(name, str)]


async def check_credentials(found: LaunchSpec, *, run: Run, seconds: float) -> None:
    """Ask the agent itself whether it has credentials, where it knows how to answer and the provider is known.

    Raises CannotRunError: `auth_failed`.
    """
    spec, values, version = found.adapter, found.values, found.version.version
    check = spec.auth_check
    if check is None or values.get("provider") is None:
        return
    if check.since is not None and (version is None or not in_range(version, check.since)):
        return
    argv = (found.argv[0], *fill_arguments(spec, check.argv[1:], values))
    try:
        done = await run(argv, name="auth", timeout=seconds, cwd=found.cwd, env=found.env)
    except (TimeoutError, PxError):
        return
    if done.code == 1:  # any other code says nothing
        raise CannotRunError(
            ErrorType.AUTH_FAILED,
            f"{spec.name} has no credentials for the provider {values['provider']!r}: {done.last_line}",
            hint="write api_key into the preset, or the provider's key into the .env beside pipe.md",
        )

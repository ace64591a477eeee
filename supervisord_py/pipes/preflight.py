"""What is known of agents before a spawn: their files as they stand, their versions, and whether a
provider is there.

Law (A1): a file is read whole before it is used, and read again when it has changed; a run under
way never notices. Only certain trouble stops an execution: a server that accepts and then says
nothing, or something strange, is the agent's to judge. Everything ends within a deadline; a refused
connection is tried again a few times within it.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from supervisord_py.errors import PxError
from supervisord_py.ledger.pipes import ErrorType
from supervisord_py.pipes import adapters
from supervisord_py.pipes.adapters import Adapters, AgentSpec, CannotRunError, Values, Version
from supervisord_py.pipes.models import PipesConfig
from supervisord_py.pipes.outcome import classify
from supervisord_py.pipes.presets import Presets, load_presets
from supervisord_py.process import program
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.process.program import Completed

VERSION_SECONDS = 30.0  # `pi --version` was seen to take nine seconds on a busy machine
FIRST_WAIT_SECONDS = 0.2
# a server that was reached and is silent for so long is there; that is all that is asked
READ_SECONDS = 2.0
_ATTEMPTS = 3
_MAX_TAGS_BYTES = 4 * 1024 * 1024
T = TypeVar("T")


def read_again(read: Callable[[Path], T], file: Path) -> Callable[[], T]:
    """Return a function that says what a file says, and reads it only where it has changed.

    It blocks.
    """
    known: tuple[tuple[int, ...], T] | None = None

    def now() -> T:
        nonlocal known
        stamp = (0, 0, 0, 0)
        with suppress(OSError):  # there may be none
            found = os.stat(file)
            stamp = (found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)
        if known is None or known[0] != stamp:
            known = stamp, read(file)
        return known[1]

    return now


class AgentShelf:
    """What is needed to start agents; `environ` is the daemon's environment, to pick from."""

    def __init__(
        self, config: PipesConfig, placement: KeeperClient, environ: Mapping[str, str]
    ) -> None:
        self.config = config  # the room's, also after a reload
        # not the mapping of the process itself, which decodes every value at every look
        self.environ = dict(environ)
        # The agents that are known, and the presets; their file is read (7 ms) only where it has
        # changed. Blocking.
        self.adapters_now = read_again(adapters.load_adapters, config.agents_file)
        self.presets_now = read_again(load_presets, config.presets_file)
        # runs small programs
        self.run: Callable[..., Awaitable[Completed]] = partial(program.run, placement)
        self._versions: dict[tuple[str, ...], tuple[tuple[int, int], Version]] = {}

    def problems(self) -> dict[str, list[str]]:
        found = {"agents": self.adapters_now().problems, "presets": self.presets_now().problems}
        return {
            name: [adapters.sentence(each) for each in problems] for name, problems in found.items()
        }

    async def look(self) -> tuple[Adapters, Presets]:
        """Return agents and presets as their files stand; presets that make no sense may be half
        written (I3).
        """
        if self.presets_now().file_problem is not None:  # a stat of the file: cheaper than a thread
            await asyncio.sleep(0.2)
        return self.adapters_now(), self.presets_now()

    async def version(
        self, spec: AgentSpec, executable: str, cwd: Path, env: Mapping[str, str]
    ) -> tuple[Version | None, tuple[str, ...]]:
        """Return the version of an agent's program, in the folder and environment that it would run
        with, and warnings.

        It is asked once for each file of the program. Raises CannotRunError: `agent_incompatible`.
        """
        rule, stamp = spec.version, (0, 0)
        if not spec.argv or rule.argv[0] != spec.argv[0]:
            return None, ()
        with suppress(OSError):  # it went meanwhile: the spawn will say so
            stamp = (os.stat(executable).st_mtime_ns, os.stat(executable).st_ino)
        command = (executable, *rule.argv[1:])
        known = self._versions.get(command)
        if known is None or known[0] != stamp:
            text, said, version = "", f"it did not answer within {VERSION_SECONDS:g} s", None
            try:
                done = await self.run(
                    command, name="version", timeout=VERSION_SECONDS, cwd=str(cwd), env=env
                )
                # some use stderr
                text, said = f"{done.stdout}\n{done.stderr}", done.last_line or "it printed nothing"
                version = adapters.parse_version(text) if done.code == 0 else None
            except TimeoutError:
                pass
            except PxError as error:
                text = said = error.detail
            if version is None and classify(text) is ErrorType.AGENT_INCOMPATIBLE:
                raise _incompatible(
                    spec, f"{executable} does not start under what is there to run it: {said}"
                )
            if version is None:
                return None, (f"the version of {spec.name} could not be found: {said}",)
            known = self._versions[command] = stamp, version
        found, text = known[1], ".".join(map(str, known[1]))
        if rule.want is not None and not adapters.in_range(found, rule.want):
            raise _incompatible(spec, f"{spec.name} is {text}, and this adapter needs {rule.want}")
        if rule.tested is not None and not adapters.in_range(found, rule.tested):
            return found, (f"{spec.name} is {text}; this adapter was tested with {rule.tested}",)
        return found, ()


def _incompatible(spec: AgentSpec, detail: str) -> CannotRunError:
    return CannotRunError(
        ErrorType.AGENT_INCOMPATIBLE, detail, hint=spec.version.cure or spec.install
    )


# -- providers -------------------------------------------------------------------------------------


async def check_provider(values: Values, *, seconds: float) -> None:
    """Look whether the provider of a run is there, and has its model; through the environment's
    proxy, as agents do.

    Raises CannotRunError: `preflight_failed` (Ollama is not running), `model_not_found` (it has no
    such model), `network` (nothing answers at the url).
    """
    url, root, model = values["url"], values["url_root"], values["model"]
    is_ollama = values.get("provider") == "ollama"
    try:
        raw = await _get(f"{root}/api/tags" if is_ollama else str(url), seconds)
    except ConnectionError as error:
        if is_ollama:
            detail, hint = f"Ollama is not running at {root}: {error}", "start it: ollama serve"
            raise CannotRunError(ErrorType.PREFLIGHT_FAILED, detail, hint=hint) from error
        detail, hint = f"nothing answers at {url}: {error}", f"try: curl -i {url}"
        raise CannotRunError(ErrorType.NETWORK, detail, hint=hint) from error
    tags = None
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        tags = [str(each["name"]) for each in json.loads(raw)["models"]] if is_ollama else None
    is_bare = ":" not in str(model).rpartition("/")[2]  # which means `:latest`
    if tags is None or model is None or model in tags or (is_bare and f"{model}:latest" in tags):
        return
    detail = (
        f"Ollama at {root} does not have the model {model!r}; it has {', '.join(tags) or 'none'}"
    )
    raise CannotRunError(ErrorType.MODEL_NOT_FOUND, detail, hint=f"fetch it: ollama pull {model}")


async def _get(url: str, seconds: float) -> bytes:
    """Return the beginning of what is at an address; b"" where somebody is there and says nothing
    that helps.

    Raises ConnectionError: no connection came about.
    """
    import aiohttp

    # 80 ms, off the loop
    tenacity: Any = await asyncio.to_thread(importlib.import_module, "tenacity")
    refused = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
    tries = tenacity.AsyncRetrying(
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        wait=tenacity.wait_random_exponential(multiplier=FIRST_WAIT_SECONDS, max=1),
        retry=tenacity.retry_if_exception_type(refused),
        reraise=True,
    )
    # No total: the deadline around it counts. Redirects are the agent's to follow.
    timeout = aiohttp.ClientTimeout(total=None, sock_read=min(READ_SECONDS, seconds / 2))

    async def once() -> bytes:
        async with (
            aiohttp.ClientSession(trust_env=True) as session,
            session.get(url, timeout=timeout, allow_redirects=False) as answer,
        ):
            return await answer.content.read(_MAX_TAGS_BYTES) if answer.ok else b""

    try:
        async with asyncio.timeout(seconds):
            return bytes(await tries(once))
    except (*refused, aiohttp.InvalidURL) as error:
        number = getattr(getattr(error, "os_error", None), "errno", None) or 0
        # the system's own words
        raise ConnectionError(os.strerror(number) if number > 0 else str(error)) from error
    except aiohttp.ClientError:
        return b""
    except TimeoutError as error:
        raise ConnectionError(f"no connection within {seconds:g} s") from error

"""With which interpreter, where, and with which environment is a kernel to be started, and why not with another?

The first candidate that runs is taken; why the others were not is kept. What somebody named is taken or refused, never
replaced. An interpreter without ipykernel gets an overlay with it, which is installed where that is allowed; else the
next one has its turn. Nothing is installed in silence. An interpreter is asked once, by running it; what it said holds
while its files are what they were. A failure is never remembered.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING

from msgspec.structs import replace

from supervisord_py.errors import ConfigError, PxError, StartFailedError, TimedOutError
from supervisord_py.kernels import interpreters
from supervisord_py.kernels.choice import Choice, Explanation
from supervisord_py.kernels.environment import deactivated
from supervisord_py.kernels.exposure import Offer, report
from supervisord_py.kernels.installs import Installs, stop_left_over
from supervisord_py.kernels.interpreter_probe import InterpreterProbe
from supervisord_py.kernels.resolution import Resolution
from supervisord_py.kernels.session import BackendName
from supervisord_py.process.child_environment import DEFAULT_PATH, Environment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping

    from supervisord_py.kernels.choice import ChooseRequest
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.exposure import CapabilityReport
    from supervisord_py.kernels.interpreters import Stamps
    from supervisord_py.process.keeper_client import KeeperClient

KEEP_SECONDS = 5.0
"""How long the same question gets the same answer, if nothing it looked at has changed."""
REMEMBERED = 64
_PLACES = (".", ".venv", ".venv/bin", "venv", "venv/bin", ".pxd", interpreters.PROJECT_MODULES)


def ignore(_line: str) -> None:
    """Tell nobody."""


class InterpreterResolver:
    """Chooses; one for a control plane.

    Args:
        placement: Runs what is asked and installed.
        environ: The daemon's environment.
        own: Variables of ours that kernels get (`PX_SOCKET`, so that a cell can call `pxctl`).
    """

    def __init__(
        self, placement: KeeperClient, *, environ: Mapping[str, str], own: Mapping[str, str] | None = None
    ) -> None:
        self._placement = placement
        self._environ = deactivated(environ)
        self._own = Environment(own or {})
        self._probe = InterpreterProbe(placement)
        self._installs = Installs(placement)
        self._choices: dict[Hashable, tuple[Choice, KernelsConfig, Stamps, float]] = {}

    async def open(self) -> None:
        """Stop what an earlier control plane was asking or installing."""
        await stop_left_over(self._placement)

    async def close(self) -> None:
        """End what is being installed."""
        await self._installs.close()

    async def resolve(
        self,
        request: ChooseRequest,
        config: KernelsConfig,
        *,
        install: bool = True,
        progress: Callable[[str], None] = ignore,
    ) -> Choice:
        """Choose; the same question within a few seconds gets the same answer while what it looked at is as it was.

        Args:
            request: For what.
            config: The settings in force.
            install: Whether an overlay may be installed (and the managed environment, where it was named), if the
                settings allow it.
            progress: Gets short steps of an install, on the loop.

        Raises:
            InvalidInputError: The working directory, the interpreter or the kernelspec that was named is none.
            ConfigError: The interpreter of the settings does not run; the kernelspec is broken.
            StartFailedError: No candidate runs (`explanation` says why), there is no bash, or the managed environment
                was named and cannot be installed.
            TimedOutError: The deadline passed; an install goes on, and the next call joins it.
        """
        question = (
            *(request.cwd, request.interpreter, request.kernelspec, request.backend, request.language, install),
            *(frozenset(request.extra.items()), frozenset(request.environ.items())),
        )
        known = self._choices.get(question)
        if known is not None:
            choice, settings, seen, until = known
            fresh = settings is config and time.monotonic() < until
            if fresh and interpreters.stamps([path for path, _ in seen]) == seen:
                return choice
        resolution = self._resolution(request, config, progress, install=install and config.managed)
        choice = await _in_time(request, resolution.choice())
        if request.kernelspec is None:  # who repairs a kernelspec tries it at once
            while len(self._choices) >= REMEMBERED:
                del self._choices[next(iter(self._choices))]
            self._choices[question] = (choice, config, self._looked_at(choice, config), time.monotonic() + KEEP_SECONDS)
        return choice

    async def explain(self, request: ChooseRequest, config: KernelsConfig) -> Explanation:
        """Say what would be chosen and why, or why nothing. Installs nothing; that a start would is said.

        Raises:
            InvalidInputError, ConfigError, TimedOutError: As `resolve`, about the folder, kernelspec and deadline.
        """
        resolution = self._resolution(request, config)
        try:
            return (await _in_time(request, resolution.choice())).explanation
        except PxError:
            found = resolution.failed
            if found is None:
                raise
            if resolution.installable and config.managed:
                return replace(found, failure=f"{found.failure}; a start builds what is lacking first")
            return found

    async def capabilities(
        self,
        config: KernelsConfig,
        ask_gateway: Callable[[], Awaitable[str | None]],
        request: ChooseRequest,
    ) -> CapabilityReport:
        """Say which cells can be run here. Installs nothing.

        Args:
            config: The settings.
            ask_gateway: Asks the external gateway why it cannot be used; called where cells would run there.
            request: Whose folder and environment it is about.

        Raises:
            InvalidInputError: There is no such working directory.
        """
        path = request.environ.get("PATH") or self._environ.get("PATH") or DEFAULT_PATH
        shell = await asyncio.to_thread(interpreters.find_shell, path)
        python = Offer(offered=False)
        if config.expose.python and config.backend is BackendName.GATEWAY_EXTERNAL:
            trouble = await ask_gateway()
            python = Offer(offered=trouble is None, reason=trouble or "cells run at the external gateway")
        elif config.expose.python:
            asked = replace(request, backend=config.backend)
            resolution = self._resolution(asked, config)
            try:
                choice = await _in_time(asked, resolution.choice())
                python = Offer(offered=True, program=choice.interpreter)
            except (ConfigError, StartFailedError) as error:
                found = resolution.failed
                if found is not None and resolution.installable and config.managed:
                    python = Offer(offered=True, reason="what it lacks will be built with the first cell")
                else:
                    python = Offer(offered=False, reason=error.detail)
        return report(config.expose, python, shell, config.backend)

    def _resolution(
        self,
        request: ChooseRequest,
        config: KernelsConfig,
        progress: Callable[[str], None] = ignore,
        *,
        install: bool = False,
    ) -> Resolution:
        about = {"environ": self._environ, "own": self._own}
        return Resolution(self._probe, self._installs, request, config, progress, install=install, **about)

    def _looked_at(self, choice: Choice, config: KernelsConfig) -> Stamps:
        paths = [os.path.join(choice.cwd, place) for place in _PLACES]
        paths += [str(config.modules_dir), choice.interpreter or choice.cwd]
        return (*interpreters.stamps(paths), *self._probe.seen(choice.interpreter or ""))


async def _in_time(request: ChooseRequest, work: Awaitable[Choice]) -> Choice:
    try:
        async with asyncio.timeout_at(request.deadline):
            return await work
    except TimeoutError:
        raise TimedOutError(
            "the time of the call was over before there was an interpreter for it",
            hint="ask again: what is being built goes on; or give the call more time with --timeout",
        ) from None

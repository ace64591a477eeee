"""The one door of this room: with what, where, and with which environment is a kernel to be started?

Law: the answer depends on the request, the settings and what lies on disk, never on what was chosen for somebody else.
Nothing is built unless it may be, and never in silence.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from supervisord_py.errors import ConfigError, TimedOutError
from supervisord_py.kernels.choosing import failures, kernelspecs, places
from supervisord_py.kernels.choosing.building import Builds
from supervisord_py.kernels.choosing.capabilities import Offer, report
from supervisord_py.kernels.choosing.choice import Choice, ChooseRequest
from supervisord_py.kernels.choosing.environment import DEFAULT_PATH, Environment, deactivated
from supervisord_py.kernels.choosing.failures import NoneRunsError
from supervisord_py.kernels.choosing.gateway_health import GatewayHealth
from supervisord_py.kernels.choosing.one_choice import Means, OneChoice
from supervisord_py.kernels.choosing.probe import Probe
from supervisord_py.kernels.choosing.selection import Build, Selector
from supervisord_py.kernels.choosing.steps import Steps
from supervisord_py.kernels.session import BackendName

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from supervisord_py.kernels.choosing.capabilities import CapabilityReport
    from supervisord_py.kernels.choosing.explanation import Explanation
    from supervisord_py.kernels.choosing.gateway_health import Ask
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.process.placement import Placement

T = TypeVar("T")


def ignore(_line: str) -> None:
    """Tell nobody."""


class Choosing:
    """Chooses; one for a control plane.

    Args:
        placement: Runs what is asked and built.
        environ: The daemon's environment.
        own: Variables of ours that kernels get (`PX_SOCKET`, so that a cell can call `pxctl`).
        secrets: Values that no kernel may see, beside the gateway's token.
    """

    def __init__(
        self,
        placement: Placement,
        *,
        environ: Mapping[str, str],
        own: Mapping[str, str] | None = None,
        secrets: tuple[str, ...] = (),
    ) -> None:
        self._steps = Steps(placement)
        self._probe = Probe(self._steps)
        self._builds = Builds(self._steps)
        self._gateway = GatewayHealth()
        selector = Selector(self._probe, self._builds)
        self._means = Means(selector, self._builds, deactivated(environ), Environment(own or {}), secrets)

    async def open(self) -> None:
        """Stop what an earlier control plane was asking or building."""
        await self._steps.open()

    async def close(self) -> None:
        """End what is being asked or built."""
        await self._builds.close()
        await self._probe.close()

    async def choose(
        self,
        request: ChooseRequest,
        config: KernelsConfig,
        *,
        build: Build = Build.ALLOWED,
        progress: Callable[[str], None] = ignore,
    ) -> Choice:
        """Choose.

        Args:
            request: For what.
            config: The settings.
            build: Whether an overlay may be built (and the managed environment, where it was named), if the settings
                allow it.
            progress: Gets the lines of builds, on the loop.

        Raises:
            InvalidInputError: The working directory, the interpreter or the kernelspec that was named is none.
            ConfigError: The interpreter of the settings does not run; the kernelspec is broken.
            StartFailedError: No candidate runs; `explanation` says why. Or there is no bash.
            BuildFailedError: The managed environment was named and cannot be built.
            TimedOutError: The deadline passed; a build goes on, and the next call joins it.
        """
        allowed = build if config.managed else Build.NEVER
        try:
            return await _in_time(request, OneChoice(self._means, request, config, allowed, progress).choice())
        except NoneRunsError as none:
            raise failures.error_of(none) from None

    async def explain(self, request: ChooseRequest, config: KernelsConfig) -> Explanation:
        """Say what would be chosen and why, or why nothing. Builds nothing; what a start would build, counts.

        Raises:
            InvalidInputError: The working directory or the kernelspec that was named is none.
            ConfigError: The kernelspec is broken.
            TimedOutError: The deadline passed.
        """
        try:
            build = Build.FORESEEN if config.managed else Build.NEVER
            work = OneChoice(self._means, request, config, build, ignore).choice()
            return (await _in_time(request, work)).explanation
        except NoneRunsError as none:
            return none.explanation

    async def ensure_managed(self, config: KernelsConfig, progress: Callable[[str], None] = ignore) -> str:
        """Build the managed environment if it is not there, whole; returns its interpreter.

        Raises:
            ConfigError: The settings turn it off.
            BuildFailedError: It cannot be built; `hint` is the command to do it by hand.
        """
        if not config.managed:
            raise failures.managed_is_off(by_request=False)
        return await OneChoice(self._means, ChooseRequest(), config, Build.ALLOWED, progress).ensure_managed()

    async def capabilities(
        self,
        config: KernelsConfig,
        ask_gateway: Ask,
        *,
        cwd: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> CapabilityReport:
        """Say which cells can be run here. Builds nothing.

        Args:
            config: The settings.
            ask_gateway: Asks the external gateway why it cannot be used; called where cells would run there, and not
                again for some seconds.
            cwd: Whose interpreter is asked for; None is the home directory.
            environ: Of the caller.

        Raises:
            InvalidInputError: There is no such working directory.
        """
        environ = environ or {}
        request = ChooseRequest(cwd=cwd, backend=config.backend, environ=environ)
        path = environ.get("PATH") or self._means.environ.get("PATH") or DEFAULT_PATH
        shell = await asyncio.to_thread(places.find_shell, path)
        python = Offer(offered=False)
        if config.expose.python and config.backend is BackendName.GATEWAY_EXTERNAL:
            python = await self._preflight_elsewhere(config, ask_gateway)
        elif config.expose.python:
            python = await self._preflight(request, config)
        return report(config.expose, python, shell, config.backend)

    async def _preflight(self, request: ChooseRequest, config: KernelsConfig) -> Offer:
        work = OneChoice(self._means, request, config, Build.NEVER, ignore).choice()
        try:
            choice = await _in_time(request, work)
        except NoneRunsError as none:
            if none.buildable and config.managed:
                return Offer(offered=True, reason="what it lacks will be built with the first cell")
            return Offer(offered=False, reason=none.explanation.failure)
        except ConfigError as error:
            return Offer(offered=False, reason=error.detail)
        return Offer(offered=True, program=choice.interpreter)

    async def _preflight_elsewhere(self, config: KernelsConfig, ask: Ask) -> Offer:
        if config.gateway.url is None:
            reason = "the backend is gateway-external, and kernels.gateway_url names no gateway"
            return Offer(offered=False, reason=reason)
        trouble = await self._gateway.trouble(config.gateway, ask)
        return Offer(offered=trouble is None, reason=trouble or "cells run at the external gateway")

    async def specs(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the kernelspecs of this machine, see `kernelspecs.documents`."""
        return await kernelspecs.documents()


async def _in_time(request: ChooseRequest, work: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout_at(request.deadline):
            return await work
    except TimeoutError:
        raise TimedOutError(
            "the time of the call was over before there was an interpreter for it",
            hint="ask again: what is being built goes on; or give the call more time with --timeout",
        ) from None

"""With what, where, and with which environment is a kernel to be started?

The answer depends on the request, the settings and what lies on disk, never on what was chosen for somebody else.
Nothing is built unless it may be, and never in silence.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from supervisord_py.errors import ConfigError, InvalidInputError, StartFailedError, TimedOutError
from supervisord_py.kernels.choosing import kernelspecs, places
from supervisord_py.kernels.choosing.candidates import (
    MANAGED,
    Candidate,
    Source,
    Surroundings,
    candidates,
    environments,
)
from supervisord_py.kernels.choosing.capabilities import Offer, report
from supervisord_py.kernels.choosing.choice import BASH, PYTHON, Attempt, Choice, ChooseRequest, Explanation, Verdict
from supervisord_py.kernels.choosing.environment import NOTHING, Filtered, Inputs, deactivated, filtered
from supervisord_py.kernels.choosing.installs import INSTALLER_SETTINGS, Builds, find_installers, managed_plan
from supervisord_py.kernels.choosing.kernelspecs import find_kernelspec
from supervisord_py.kernels.choosing.probe import Probe, Question, activation_of, find
from supervisord_py.kernels.choosing.selection import (
    Build,
    NoneRunsError,
    Policy,
    Selector,
    error_of,
    managed_is_off,
    sentence,
    two_interpreters,
)
from supervisord_py.kernels.choosing.steps import Steps
from supervisord_py.kernels.session import BackendName
from supervisord_py.process.child_environment import DEFAULT_PATH, Environment

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from supervisord_py.kernels.choosing.capabilities import CapabilityReport
    from supervisord_py.kernels.choosing.environment import Activation
    from supervisord_py.kernels.choosing.kernelspecs import Kernelspec
    from supervisord_py.kernels.choosing.selection import Chosen, Selection
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.process.placement import Placement

T = TypeVar("T")
OVERLAYS = "overlays"
BUILT_FIRST = "a start builds what is lacking first"
MANAGED_FOLDER = "python"
_ACTIVE = frozenset({"VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"})
_NOT_FOR_BUILDERS = ("PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")


@dataclass(frozen=True, slots=True)
class Means:
    """What a choice is made with.

    Attributes:
        environ: The daemon's environment.
        own: Variables of ours that kernels get.
        secrets: Values that no kernel may see.
    """

    selector: Selector
    builds: Builds
    environ: Environment
    own: Environment = NOTHING
    secrets: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Means({len(self.environ)} variables)"


class OneChoice:
    """Makes one choice.

    Args:
        means: See there.
        request: For what.
        config: The settings.
        build: What may be built.
        tell: Gets the lines of builds.
    """

    def __init__(
        self, means: Means, request: ChooseRequest, config: KernelsConfig, build: Build, tell: Callable[[str], None]
    ) -> None:
        self._means = means
        self._request = request
        self._config = config
        self._build = build
        self._tell = tell
        self._home = request.environ.get("HOME") or means.environ.get("HOME") or "/"
        self._source = _merged(means.environ, request.environ)
        self._path = self._source.get("PATH") or DEFAULT_PATH
        self._cwd = ""
        self._modules: tuple[str, ...] = ()

    async def choice(self) -> Choice:
        """Choose.

        Raises:
            NoneRunsError: No interpreter.
            InvalidInputError, ConfigError, BuildFailedError: See `Choosing.choose`.
        """
        request = self._request
        places.check_interpreter(request.interpreter)
        modules = str(self._config.modules_dir)
        self._cwd, self._modules = await asyncio.to_thread(places.look_around, request.cwd, self._home, modules)
        if request.language == BASH or request.backend is BackendName.BASH:
            return await self._bash()
        if request.language != PYTHON:
            message = f"cells are in {PYTHON} or {BASH}, not in {request.language[:40]!r}"
            hint = f"say {PYTHON} or {BASH}, or name a kernelspec: `pxctl kernel specs`"
            raise InvalidInputError(message, hint=hint, errors=[{"pointer": "/language", "message": message}])
        if request.backend is BackendName.GATEWAY_EXTERNAL:
            return self._elsewhere()
        spec = None
        if request.kernelspec is not None:
            spec = await find_kernelspec(request.kernelspec, request.backend, self._path)
        if spec is not None and not spec.native:
            if request.interpreter is not None:
                raise two_interpreters(spec.name)
            if spec.python is None:
                return await self._other_language(spec)
        return await self._python(spec)

    # -- the kinds of choices ------------------------------------------------------------------------------------------

    async def _python(self, spec: Kernelspec | None) -> Choice:
        named = spec.python if spec is not None else None
        order = await self._order() if named is None else (Candidate(Source.KERNELSPEC, (named,)),)
        selection = await self._means.selector.select(order, self._policy())
        chosen = selection.chosen
        if chosen is None:
            raise self._none_runs(selection, spec)
        key = f"spec:{spec.name}" if spec is not None and named is not None else places.session_path(chosen.path)
        env = self._filtered(chosen.activation, spec)
        made = self._choice(
            key, PYTHON, env, interpreter=chosen.path, overlay=chosen.overlay, kernelspec=spec.name if spec else None
        )
        explanation = replace(made.explanation, attempts=selection.attempts, modules=self._modules)
        mode = spec.interrupt_mode if spec is not None else "signal"
        notices = _notices(selection.attempts, chosen)
        return replace(made, modules=self._modules, explanation=explanation, notices=notices, interrupt_mode=mode)

    async def _other_language(self, spec: Kernelspec) -> Choice:
        made = self._choice(
            f"spec:{spec.name}", spec.language or spec.name, self._filtered(None, spec), kernelspec=spec.name
        )
        return replace(made, kernelspec_argv=spec.argv, interrupt_mode=spec.interrupt_mode)

    def _elsewhere(self) -> Choice:
        """Of an external gateway only the name of the kernelspec is known; nothing of this machine is sent there."""
        name = self._request.kernelspec or self._config.gateway.kernel_name
        inputs = Inputs(NOTHING, Environment(self._request.extra), secrets=self._secrets())
        found = filtered(inputs, self._config.env, None)
        env = Environment({each: value for each, value in found.env.items() if each in self._request.extra})
        return self._choice(f"spec:{name}", PYTHON, Filtered(env, found.dropped), kernelspec=name)

    async def _bash(self) -> Choice:
        """Shell cells run where the project's environment is active, if it has one; nobody asks whether it runs."""
        shell = await asyncio.to_thread(places.find_shell, self._path)
        if shell is None:
            raise StartFailedError(
                "there is no bash on PATH, nor in /bin or /usr/bin",
                hint="install bash",
                reason="spawn_failed",
                stage="shell",
            )
        activation = await asyncio.to_thread(_existing_environment, environments(self._surroundings()))
        made = self._choice(BASH, BASH, self._filtered(activation, None), shell=shell)
        return replace(made, backend=BackendName.BASH)

    def _choice(
        self,
        key: str,
        language: str,
        env: Filtered,
        *,
        interpreter: str | None = None,
        overlay: str | None = None,
        kernelspec: str | None = None,
        shell: str | None = None,
    ) -> Choice:
        explanation = Explanation(
            self._cwd, interpreter=interpreter or shell, kernelspec=kernelspec, overlay=overlay, environment=env
        )
        return Choice(
            cwd=self._cwd,
            key=key,
            backend=self._request.backend,
            language=language,
            explanation=explanation,
            env=env.env,
            interpreter=interpreter,
            overlay=overlay,
            kernelspec=kernelspec,
            shell=shell,
        )

    # -- what they need --------------------------------------------------------------------------------------------

    async def _order(self) -> Sequence[Candidate]:
        """Return the candidates; a managed environment that was named is built first, where that is allowed."""
        around = self._surroundings()
        named = around.request or around.setting
        if named == MANAGED:
            if around.managed is None:
                raise managed_is_off(by_request=around.request is not None)
            if self._build is Build.ALLOWED:
                await self.ensure_managed()
        return candidates(around)

    async def ensure_managed(self) -> str:
        """See to it that the managed environment is there; returns its interpreter.

        Raises:
            BuildFailedError: It cannot be built.
        """
        root = self._config.data_dir / MANAGED_FOLDER
        plan = managed_plan(root, await asyncio.to_thread(find_installers, self._path))
        await self._means.builds.ensure(plan, self._build_env(), self._tell)
        return str(root / "bin" / "python")

    def _surroundings(self) -> Surroundings:
        root = str(self._config.data_dir / MANAGED_FOLDER) if self._config.managed else None
        return Surroundings(
            cwd=self._cwd,
            environ=self._request.environ,
            path=self._means.environ.get("PATH") or DEFAULT_PATH,
            request=self._request.interpreter or None,
            setting=self._config.python or None,
            managed=root,
            home=self._home,
        )

    def _policy(self) -> Policy:
        question = Question(self._cwd, self._question_env, str(self._config.data_dir / OVERLAYS))
        return Policy(
            question=question,
            build_env=self._build_env,
            path=self._path,
            build=self._build,
            skip_check=self._config.skip_check,
            tell=self._tell,
        )

    def _secrets(self) -> tuple[str, ...]:
        token = self._config.gateway.token
        return (*self._means.secrets, *((token,) if token else ()))

    def _filtered(self, activation: Activation | None, spec: Kernelspec | None) -> Filtered:
        extra = dict(self._request.extra)
        if spec is not None:
            extra = {**spec.environment(self._source), **extra}
        inputs = Inputs(self._source, Environment(extra), self._means.own, self._secrets())
        return filtered(inputs, self._config.env, activation)

    def _question_env(self) -> Environment:
        return self._filtered(None, None).env

    def _build_env(self) -> Environment:
        """Return what builders may see: as kernels, with a person's settings of the installers, without Python's."""
        rules = self._config.env
        wider = replace(
            rules,
            allow_prefixes=(*rules.allow_prefixes, *INSTALLER_SETTINGS),
            deny=(*rules.deny, *_NOT_FOR_BUILDERS),
        )
        env = filtered(Inputs(self._source, secrets=self._secrets()), wider, None).env
        return Environment({**env, "PYTHONUNBUFFERED": "1"})

    def _none_runs(self, selection: Selection, spec: Kernelspec | None) -> NoneRunsError:
        explanation = Explanation(
            self._cwd,
            attempts=selection.attempts,
            kernelspec=spec.name if spec is not None else None,
            environment=self._filtered(None, spec),
            failure=sentence(selection.attempts),
        )
        return NoneRunsError(explanation, buildable=selection.buildable)


def _merged(daemon: Mapping[str, str], caller: Mapping[str, str]) -> Environment:
    """Return the daemon's environment with the caller's over it; a PATH comes with what was active beside it."""
    values = {name: value for name, value in daemon.items() if name not in _ACTIVE or "PATH" not in caller}
    return Environment({**values, **caller})


def _existing_environment(order: Sequence[Candidate]) -> Activation | None:
    found = next((place for place in map(find, order) if isinstance(place, str)), None)
    return None if found is None else activation_of(found)


def _notices(attempts: Sequence[Attempt], chosen: Chosen) -> tuple[str, ...]:
    """Say which interpreters were passed over although they are there: cells run with another's packages now."""
    told = []
    for each in attempts:
        if each.verdict is Verdict.TAKEN:
            break
        if each.passed_over:
            remedy = f" ({each.remedy})" if each.remedy else ""
            told.append(f"{each.sentence}{remedy}; cells run with {chosen.path} instead")
    return tuple(told)


# -- the door ----------------------------------------------------------------------------------------------------------


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
            raise error_of(none) from None

    async def explain(self, request: ChooseRequest, config: KernelsConfig) -> Explanation:
        """Say what would be chosen and why, or why nothing. Builds nothing; that a start would is said.

        Raises:
            InvalidInputError: The working directory or the kernelspec that was named is none.
            ConfigError: The kernelspec is broken.
            TimedOutError: The deadline passed.
        """
        try:
            work = OneChoice(self._means, request, config, Build.NEVER, ignore).choice()
            return (await _in_time(request, work)).explanation
        except NoneRunsError as none:
            if not (none.buildable and config.managed):
                return none.explanation
            return replace(none.explanation, failure=f"{none.explanation.failure}; {BUILT_FIRST}")

    async def capabilities(
        self,
        config: KernelsConfig,
        ask_gateway: Callable[[], Awaitable[str | None]],
        *,
        cwd: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> CapabilityReport:
        """Say which cells can be run here. Builds nothing.

        Args:
            config: The settings.
            ask_gateway: Asks the external gateway why it cannot be used; called where cells would run there.
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
            trouble = await ask_gateway()
            python = Offer(offered=trouble is None, reason=trouble or "cells run at the external gateway")
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

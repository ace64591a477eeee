"""With which interpreter, where, and with which environment is a kernel to be started, and why not with another?

The first candidate that runs is taken; why the others were not is kept. What somebody named is taken or refused, never
replaced. An interpreter without ipykernel gets an overlay with it, which is installed where that is allowed; else the
next one has its turn. Nothing is installed in silence. A choice is remembered for the next call from the same folder
and environment, and holds while every file that it was made from is as it was.
"""

from __future__ import annotations

import asyncio
import shlex
import time
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from supervisord_py.errors import ConfigError, InvalidInputError, PxError, StartFailedError, TimedOutError
from supervisord_py.kernels import interpreters
from supervisord_py.kernels.choice import (
    BASH,
    DECISIVE,
    PYTHON,
    SPEC_PREFIX,
    Attempt,
    CandidateVerdict,
    Choice,
    Source,
)
from supervisord_py.kernels.environment import MARKS, Activation, EnvRules, Filtered, deactivated, filtered
from supervisord_py.kernels.exposure import Offer, report
from supervisord_py.kernels.installs import (
    INSTALLER_SETTINGS,
    InstallFailedError,
    Installs,
    find_installers,
    is_complete,
    mark_of,
)
from supervisord_py.kernels.interpreters import MANAGED, Candidate, InterpreterProbe, candidates, refused
from supervisord_py.kernels.kernelspecs import NATIVE, find_kernelspec
from supervisord_py.kernels.session import BackendName
from supervisord_py.process.child_environment import DEFAULT_PATH, Environment
from supervisord_py.zygote.main import stamped

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from supervisord_py.kernels.choice import ChooseRequest
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.interpreters import Interpreter, Stamps
    from supervisord_py.kernels.kernelspecs import Kernelspec
    from supervisord_py.process.keeper_client import KeeperClient

OLDEST = (3, 8)  # Python versions below it run no kernel of ours
_ACTIVE = frozenset({*MARKS, "CONDA_DEFAULT_ENV"})


def ignore(_line: str) -> None:
    """Tell nobody."""


class Remembered(NamedTuple):
    """A choice, for what it was made, and from which files."""

    request: ChooseRequest
    config: KernelsConfig
    choice: Choice
    stamps: Stamps
    until: float


class InterpreterResolver:
    """Chooses; one for a control plane. `own`: variables of ours that kernels get (`PX_SOCKET`)."""

    def __init__(
        self, client: KeeperClient, *, environ: Mapping[str, str], own: Mapping[str, str] | None = None
    ) -> None:
        self.environ = deactivated(environ)
        self.own = own or {}
        self.probe = InterpreterProbe(client)
        self.installs = Installs(client)
        self.remembered: dict[tuple[str | None, str | None], Remembered] = {}

    async def close(self) -> None:
        await self.installs.close()

    async def resolve(
        self,
        request: ChooseRequest,
        config: KernelsConfig,
        *,
        install: bool = True,
        progress: Callable[[str], None] = ignore,
    ) -> Choice:
        """Choose; install an overlay (and the managed environment, where it was named) if that may be.

        `progress` gets short steps of an install, on the loop. InvalidInputError: what the request named is none;
        ConfigError: the interpreter of the settings does not run, or the kernelspec is broken; StartFailedError: none
        runs (`explanation` says why); TimedOutError: the deadline passed, an install goes on for the next call.
        """
        return await Resolution(self, request, config, progress, install=install and config.managed).choice()

    async def explain(self, request: ChooseRequest, config: KernelsConfig) -> Choice:
        """Say what would be chosen and why, or why nothing. Installs nothing; that a start would is said."""
        resolution = Resolution(self, request, config)
        try:
            return await resolution.choice()
        except PxError:
            if resolution.failed is None:
                raise
            return resolution.failed

    async def capabilities(
        self,
        config: KernelsConfig,
        ask_gateway: Callable[[], Awaitable[str | None]],
        request: ChooseRequest,
    ) -> dict[str, Any]:
        """Return which cells can be run here, in the folder and environment of a request. Installs nothing.

        `ask_gateway` says why the external gateway cannot be used; it is called where cells would run there.
        """
        path = request.environ.get("PATH") or self.environ.get("PATH") or DEFAULT_PATH
        shell = await asyncio.to_thread(interpreters.find_shell, path)
        python = Offer(offered=False)
        if config.expose != BASH and BackendName(config.backend) is BackendName.GATEWAY_EXTERNAL:
            trouble = await ask_gateway()
            python = Offer(trouble is None, trouble or "cells run at the external gateway")
        elif config.expose != BASH:
            resolution = Resolution(self, replace(request, backend=BackendName(config.backend)), config)
            try:
                python = Offer(offered=True, program=(await resolution.choice()).interpreter)
            except (ConfigError, StartFailedError) as error:
                python = Offer(offered=False, reason=error.detail)
                if resolution.installable:
                    python = Offer(offered=True, reason="what it lacks will be built with the first cell")
        return report(config.expose, python, shell, config.backend)


class Resolution:
    """Makes one choice. When none can be made, `failed` explains it and `installable` says if an install would do."""

    def __init__(
        self,
        resolver: InterpreterResolver,
        request: ChooseRequest,
        config: KernelsConfig,
        progress: Callable[[str], None] = ignore,
        *,
        install: bool = False,
    ) -> None:
        self._resolver = resolver
        self._request = request
        self._config = config
        self.progress = progress
        self._install = install
        environ = resolver.environ
        self._home = request.environ.get("HOME") or environ.get("HOME") or "/"
        # a PATH of the caller's comes with what was active beside it
        daemon = {k: v for k, v in environ.items() if k not in _ACTIVE or "PATH" not in request.environ}
        self._source = {**daemon, **request.environ}
        self._path = self._source.get("PATH") or DEFAULT_PATH
        self._secrets = (config.gateway_token,) if config.gateway_token else ()
        self._rules = EnvRules(config.env_allow, config.env_deny)
        self._cwd = ""
        self._modules: tuple[str, ...] = ()
        self._attempts: list[Attempt] = []
        self._seen: list[Stamps] = []  # as the files of each candidate were before it was looked at
        self._said: Interpreter | None = None  # by the one that was taken
        self.failed: Choice | None = None
        self.installable = False

    async def choice(self) -> Choice:
        try:
            async with asyncio.timeout_at(self._request.deadline):
                return await self._choose()
        except TimeoutError:
            raise TimedOutError(
                "the time of the call was over before there was an interpreter for it",
                hint="ask again: what is being built goes on; or give the call more time with --timeout",
            ) from None

    async def _choose(self) -> Choice:
        request, resolver = self._request, self._resolver
        place, asked = (request.cwd, request.interpreter), replace(request, deadline=None)
        known = resolver.remembered.get(place)
        if known is not None and (known[:2] != (asked, self._config) or time.monotonic() >= known.until):
            known = None

        def look() -> tuple[str, Choice | None]:
            cwd = interpreters.real_cwd(request.cwd, self._home)
            holds = known is not None and known.choice.cwd == cwd and stamped(known.stamps) == known.stamps
            return cwd, known.choice if known is not None and holds else None

        self._cwd, choice = await asyncio.to_thread(look)
        if choice is not None:
            return choice
        if request.language == BASH or request.backend is BackendName.BASH:
            return await self._bash()
        if request.language != PYTHON:
            message = f"cells are in {PYTHON} or {BASH}, not in {request.language[:40]!r}"
            hint = f"say {PYTHON} or {BASH}, or name a kernelspec: `jupyter kernelspec list`"
            raise refused("/language", message, hint)
        if request.backend is BackendName.GATEWAY_EXTERNAL:
            return self._elsewhere()
        spec = None
        if request.kernelspec is not None:
            spec = await find_kernelspec(request.kernelspec, request.backend, self._path)
        if spec is None or spec.native:
            return await self._python(await self._order(), spec)
        if request.interpreter is not None:
            detail = f"the kernelspec {spec.name} says itself what it runs; no other interpreter can be named beside it"
            raise refused("/interpreter", detail, "name the one or the other")
        key = f"{SPEC_PREFIX}{spec.name}"
        if spec.python is not None:
            return await self._python((Candidate(Source.KERNELSPEC, (spec.python,)),), spec, key)
        return self._made(
            key,
            self._filtered(None, spec),
            kernelspec=spec.name,
            language=spec.language or spec.name,
            kernelspec_argv=spec.argv,
            interrupt_mode=spec.interrupt_mode,
        )

    # -- the kinds of choices ------------------------------------------------------------------------------------------

    async def _python(self, order: Sequence[Candidate], spec: Kernelspec | None, key: str = "") -> Choice:
        taken = await self._first_that_runs(order)
        if taken is None:
            raise self._none_runs(spec)
        path, activation, overlay = taken
        before = tuple(takewhile(lambda each: each.verdict is not CandidateVerdict.TAKEN, self._attempts))
        notices = tuple(  # cells run with another's packages now
            f"{each.sentence}{f' ({each.remedy})' if each.remedy else ''}; cells run with {path} instead"
            for each in before
            if each.verdict is CandidateVerdict.UNUSABLE
        )
        choice = self._made(
            key or interpreters.session_path(path),
            self._filtered(activation, spec),
            interpreter=path,
            overlay=overlay,
            kernelspec=spec.name if spec else None,
            interrupt_mode=spec.interrupt_mode if spec else "signal",
            notices=notices,
        )
        if spec is None and self._said is not None and not notices:
            await self._remember(choice, self._said, self._seen[: len(before) + 1])
        return choice

    async def _remember(self, choice: Choice, said: Interpreter, seen: Sequence[Stamps]) -> None:
        """Remember a choice that no trouble led to, and which depends on files alone."""
        request = self._request
        places = [str(self._config.modules_dir), f"{self._cwd}/{interpreters.PROJECT_MODULES}"]
        if choice.overlay is not None:
            places += [f"{choice.overlay}/ipykernel", str(mark_of(Path(choice.overlay)))]
        stamps = await asyncio.to_thread(lambda: {**stamped(places), **said.stamps()})
        for each in seen:
            stamps |= each
        asked = replace(request, deadline=None)
        remembered = Remembered(asked, self._config, choice, stamps, said.until)
        interpreters.remember(self._resolver.remembered, (request.cwd, request.interpreter), remembered)

    def _elsewhere(self) -> Choice:
        """Of an external gateway only the name of the kernelspec is known; nothing of this machine is sent there."""
        name = self._request.kernelspec or NATIVE
        found = filtered({}, self._rules, extra=self._request.extra, secrets=self._secrets)
        env = Environment({each: value for each, value in found.env.items() if each in self._request.extra})
        return self._made(f"{SPEC_PREFIX}{name}", Filtered(env, found.dropped), kernelspec=name)

    async def _bash(self) -> Choice:
        """Shell cells run where the project's environment is active, if it has one; nobody asks whether it runs."""
        shell = await asyncio.to_thread(interpreters.find_shell, self._path)
        if shell is None:
            detail = "there is no bash on PATH, nor in /bin or /usr/bin"
            raise StartFailedError(detail, hint="install bash", reason="spawn_failed", stage="shell")

        def active() -> Activation | None:
            order = (each for each in candidates(self._cwd, self._request.environ) if each.source is not Source.PATH)
            found = (interpreters.find(each, self._cwd) for each in order)
            path = next((each for each in found if isinstance(each, str)), None)
            return interpreters.activation_of(path) if path else None

        env = self._filtered(await asyncio.to_thread(active), None)
        return self._made(BASH, env, shell=shell, backend=BackendName.BASH, language=BASH)

    def _made(self, key: str, env: Filtered, **members: Any) -> Choice:
        members = {"backend": self._request.backend, "language": PYTHON, **members}
        about: dict[str, Any] = {"environment": env, "attempts": tuple(self._attempts), "modules": self._modules}
        return Choice(self._cwd, key, **about, **members)

    # -- one candidate after the other ---------------------------------------------------------------------------------

    async def _order(self) -> Sequence[Candidate]:
        """Return the candidates; a managed environment that was named is installed first, where that is allowed."""
        request, setting = self._request.interpreter or None, self._config.python or None
        managed = self._config.data_dir / "python"
        if (request or setting) == MANAGED and not self._config.managed:
            detail = "the managed environment is turned off by [kernels] managed = false"
            hint = "PX_KERNELS__MANAGED=true, or name another interpreter"
            if request is not None:
                raise refused("/interpreter", detail, hint)
            raise ConfigError(f"kernels.python = {MANAGED!r}, but {detail}", hint=hint, key=Source.SETTING.value)
        if (request or setting) == MANAGED and self._install:
            install = (await asyncio.to_thread(find_installers, self._path)).managed(managed)
            await self._resolver.installs.ensure(install, self._installer_env(), self.progress)
        return candidates(
            self._cwd,
            self._request.environ,
            path=self._resolver.environ.get("PATH") or DEFAULT_PATH,
            request=request,
            setting=setting,
            managed=str(managed) if self._config.managed else None,
            home=self._home,
        )

    async def _first_that_runs(self, order: Sequence[Candidate]) -> tuple[str, Activation, str | None] | None:
        """Return path, environment and overlay of the first that runs; what is said of each goes to the attempts."""

        def look_around() -> list[str | Attempt]:
            self._seen = [stamped(each.places()) for each in order]
            self._modules = interpreters.module_folders(str(self._config.modules_dir), self._cwd)
            return [interpreters.find(each, self._cwd) for each in order]

        taken: tuple[str, Activation, str | None] | None = None
        for candidate, found in zip(order, await asyncio.to_thread(look_around), strict=True):
            if isinstance(found, Attempt):
                attempt = found
                self.installable |= candidate.root is not None and candidate.source in DECISIVE
            elif taken is not None:
                detail = "was not needed: an earlier one runs"
                attempt = Attempt(candidate.source, found, CandidateVerdict.NOT_NEEDED, detail)
            else:
                attempt, executable, overlay = await self._asked(candidate.source, found)
                if attempt.verdict is CandidateVerdict.TAKEN:
                    taken = attempt.path, interpreters.activation_of(executable), overlay
            self._attempts.append(attempt)
        return taken

    async def _asked(self, source: Source, path: str) -> tuple[Attempt, str, str | None]:
        """Return what came of a candidate that is there, its executable, and the overlay that it needs."""
        if self._config.skip_check:
            return Attempt(source, path, CandidateVerdict.TAKEN, "exists; it was not asked, by setting"), path, None
        asked = await self._resolver.probe.ask(path, self._cwd, lambda: self._filtered(None, None).env)
        if isinstance(asked, str):
            return Attempt(source, path, CandidateVerdict.UNUSABLE, asked), path, None
        version, why, remedy, overlay = ".".join(map(str, asked.version)), None, None, None
        runs = f"runs, with ipykernel {asked.ipykernel}"
        if asked.version[:2] < OLDEST:
            why = f"is Python {version}; kernels need {OLDEST[0]}.{OLDEST[1]} or newer"
        elif asked.lacking:
            folder = self._config.data_dir / "overlays" / asked.tag
            overlay, runs = str(folder), f"runs, with the overlay {folder}"
            why, remedy = await self._overlay_trouble(asked, folder)
        if why is not None:
            return Attempt(source, path, CandidateVerdict.UNUSABLE, why, version, remedy), path, None
        # a shim found on PATH gives way to what it leads to; what somebody named by its path stays
        path = asked.executable if asked.is_shim and source is Source.PATH else path
        self._said = asked
        return Attempt(source, path, CandidateVerdict.TAKEN, runs, version), asked.executable, overlay

    async def _overlay_trouble(self, asked: Interpreter, overlay: Path) -> tuple[str | None, str | None]:
        """Say why an interpreter has no overlay, which is installed if it may be, and the command that helps."""
        if await asyncio.to_thread(is_complete, overlay, "ipykernel"):
            return None, None
        tools = await asyncio.to_thread(find_installers, self._path)
        remedy, why = tools.add_ipykernel(asked.executable, has_pip=asked.pip), "there is no overlay for it"
        install = tools.overlay(asked.executable, overlay, has_pip=asked.pip)
        if install is not None and self._install:
            try:
                await self._resolver.installs.ensure(install, self._installer_env(), self.progress)
                return None, None
            except InstallFailedError as error:
                why = error.detail
        else:
            self.installable |= install is not None
        return f"has no {asked.lacking[0]}, and {why}", remedy

    # -- environments --------------------------------------------------------------------------------------------------

    def _filtered(self, activation: Activation | None, spec: Kernelspec | None) -> Filtered:
        extra = {**(spec.environment(self._source) if spec else {}), **self._request.extra}
        own, secrets = self._resolver.own, self._secrets
        return filtered(self._source, self._rules, activation, extra=extra, own=own, secrets=secrets)

    def _installer_env(self) -> Environment:
        """Return what installers may see: as kernels, with a person's settings of them, without Python's."""
        rules = self._rules
        allowed, denied = (*rules.allow_prefixes, *INSTALLER_SETTINGS), (*rules.deny, "PYTHONPATH", *_ACTIVE)
        wider = replace(rules, allow_prefixes=allowed, deny=denied)
        return Environment({**filtered(self._source, wider, secrets=self._secrets).env, "PYTHONUNBUFFERED": "1"})

    # -- when none runs ------------------------------------------------------------------------------------------------

    def _none_runs(self, spec: Kernelspec | None) -> PxError:
        """Return the error: what was named in a request is input, in a setting or a kernelspec configuration."""
        self.installable = self.installable and self._config.managed
        attempts = tuple(self._attempts)
        there = [each.sentence for each in attempts if each.verdict is CandidateVerdict.UNUSABLE]
        if len(attempts) == 1:
            detail = f"the interpreter {attempts[0].sentence}"
        elif there:
            detail = f"no Python for cells: {'; '.join(there)}"
        else:
            detail = f"no Python for cells: none of {', '.join(each.path for each in attempts)} is there"
        name, env = (spec.name if spec else None), self._filtered(None, spec)
        failure = f"{detail}; a start builds what is lacking first" if self.installable else detail
        self.failed = self._made("", env, kernelspec=name, failure=failure)
        source = attempts[0].source
        venv = shlex.quote(f"{self._cwd.rstrip('/')}/.venv")
        hint = next((each.remedy for each in attempts if each.remedy), None) or (
            "pxctl kernel start --explain"
            if source in DECISIVE
            else f"python3 -m venv {venv} && {venv}/bin/python -m pip install ipykernel"
        )
        members: dict[str, Any] = {"hint": hint, "explanation": self.failed.document()}
        if source is Source.REQUEST:
            return InvalidInputError(detail, errors=[{"pointer": "/interpreter", "message": detail}], **members)
        if source in DECISIVE:
            where = {"key": source.value} if source is Source.SETTING else {"kernelspec": name}
            return ConfigError(detail, **where, **members)
        return StartFailedError(detail, reason="spawn_failed", stage="interpreter", **members)

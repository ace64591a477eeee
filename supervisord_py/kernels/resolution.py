"""One choice of an interpreter: the candidates one after the other, and what is said of each.

The first that runs is taken. What somebody named is taken or refused, never replaced. An interpreter without ipykernel
gets an overlay with it, which is installed where that is allowed; else the next one has its turn.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shlex
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import ConfigError, PxError, StartFailedError
from supervisord_py.kernels import interpreters
from supervisord_py.kernels.choice import BASH, PYTHON, SPEC_PREFIX, Attempt, Choice, Explanation, Source, Verdict
from supervisord_py.kernels.environment import Activation, Filtered, filtered
from supervisord_py.kernels.installs import (
    INSTALLER_SETTINGS,
    InstallFailedError,
    find_installers,
    managed_install,
    overlay_install,
)
from supervisord_py.kernels.interpreters import (
    MANAGED,
    Candidate,
    Trouble,
    candidates,
    refused,
)
from supervisord_py.kernels.kernelspecs import find_kernelspec
from supervisord_py.kernels.session import BackendName
from supervisord_py.process.child_environment import DEFAULT_PATH, Environment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisord_py.kernels.choice import ChooseRequest
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.installs import Installs
    from supervisord_py.kernels.interpreter_probe import Interpreter, InterpreterProbe
    from supervisord_py.kernels.kernelspecs import Kernelspec

OLDEST = (3, 8)
"""Python versions below it run no kernel of ours."""
_ACTIVE = frozenset({"VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV"})


class Resolution:
    """Makes one choice. When none can be made, `failed` explains it and `installable` says if an install would do."""

    def __init__(
        self,
        probe: InterpreterProbe,
        installs: Installs,
        request: ChooseRequest,
        config: KernelsConfig,
        progress: Callable[[str], None],
        *,
        install: bool,
        environ: Environment,
        own: Environment,
    ) -> None:
        self._probe = probe
        self._installs = installs
        self._environ = environ
        self._own = own
        self._request = request
        self._config = config
        self._progress = progress
        self._install = install
        self._home = request.environ.get("HOME") or environ.get("HOME") or "/"
        # a PATH of the caller's comes with what was active beside it
        daemon = {k: v for k, v in environ.items() if k not in _ACTIVE or "PATH" not in request.environ}
        self._source = Environment({**daemon, **request.environ})
        self._path = self._source.get("PATH") or DEFAULT_PATH
        self._overlays = str(config.data_dir / "overlays")
        self._managed = config.data_dir / "python"
        self._cwd = ""
        self._modules: tuple[str, ...] = ()
        self._attempts: list[Attempt] = []
        self.failed: Explanation | None = None
        self.installable = False

    async def choice(self) -> Choice:
        """Choose; see `InterpreterResolver.resolve`."""
        request = self._request
        interpreters.check_name(request.interpreter)
        self._cwd = await asyncio.to_thread(interpreters.real_cwd, request.cwd, self._home)
        if request.language == BASH or request.backend is BackendName.BASH:
            return await self._bash()
        if request.language != PYTHON:
            message = f"cells are in {PYTHON} or {BASH}, not in {request.language[:40]!r}"
            hint = f"say {PYTHON} or {BASH}, or name a kernelspec: `pxctl kernel specs`"
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
        user = str(self._config.modules_dir)
        self._modules = await asyncio.to_thread(interpreters.module_folders, user, self._cwd)
        taken = await self._first_that_runs(order)
        if taken is None:
            raise self._none_runs(spec)
        path, activation, overlay = taken
        before = self._attempts[: next(i for i, each in enumerate(self._attempts) if each.verdict is Verdict.TAKEN)]
        return self._made(
            key or interpreters.session_path(path),
            self._filtered(activation, spec),
            interpreter=path,
            overlay=overlay,
            kernelspec=spec.name if spec else None,
            interrupt_mode=spec.interrupt_mode if spec else "signal",
            notices=tuple(  # cells run with another's packages now
                f"{each.sentence}{f' ({each.remedy})' if each.remedy else ''}; cells run with {path} instead"
                for each in before
                if each.passed_over
            ),
        )

    def _elsewhere(self) -> Choice:
        """Of an external gateway only the name of the kernelspec is known; nothing of this machine is sent there."""
        name = self._request.kernelspec or self._config.gateway.kernel_name
        found = filtered({}, self._config.env, extra=self._request.extra, secrets=self._secrets)
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
        """Return a choice with these members, explained by what was tried."""
        interpreter, shell = members.get("interpreter"), members.get("shell")
        explanation = Explanation(
            cwd=self._cwd,
            attempts=tuple(self._attempts),
            interpreter=interpreter or shell,
            kernelspec=members.get("kernelspec"),
            overlay=members.get("overlay"),
            environment=env,
            modules=self._modules,
        )
        members = {"backend": self._request.backend, "language": PYTHON, "modules": self._modules, **members}
        return Choice(cwd=self._cwd, key=key, explanation=explanation, env=env.env, **members)

    # -- one candidate after the other ---------------------------------------------------------------------------------

    async def _order(self) -> Sequence[Candidate]:
        """Return the candidates; a managed environment that was named is installed first, where that is allowed."""
        request, setting = self._request.interpreter or None, self._config.python or None
        if (request or setting) == MANAGED:
            if not self._config.managed:
                raise _managed_is_off(by_request=request is not None)
            if self._install:
                tools = await asyncio.to_thread(find_installers, self._path)
                install = managed_install(self._managed, tools)
                await self._installs.ensure(install, self._installer_env(), self._progress)
        return candidates(
            self._cwd,
            self._request.environ,
            path=self._environ.get("PATH") or DEFAULT_PATH,
            request=request,
            setting=setting,
            managed=str(self._managed) if self._config.managed else None,
            home=self._home,
        )

    async def _first_that_runs(self, order: Sequence[Candidate]) -> tuple[str, Activation, str | None] | None:
        """Return path, environment and overlay of the first that runs; what is said of each goes to the attempts."""
        looks = await asyncio.to_thread(lambda: [interpreters.find(each, self._cwd) for each in order])
        taken = None
        for candidate, look in zip(order, looks, strict=True):
            source = candidate.source
            if isinstance(look, Trouble):
                self.installable |= look.verdict is Verdict.NOT_BUILT and source.decisive
                place = candidate.name or candidate.paths[0]
                self._attempts.append(Attempt(source, place, look.verdict, look.detail))
            elif taken is not None:
                detail = "was not needed: an earlier one runs"
                self._attempts.append(Attempt(source, look, Verdict.NOT_NEEDED, detail))
            else:
                taken = await self._try(source, look)
        return taken

    async def _try(self, source: Source, path: str) -> tuple[str, Activation, str | None] | None:
        if self._config.skip_check:
            self._attempts.append(Attempt(source, path, Verdict.TAKEN, "exists; it was not asked, by setting"))
            return path, await asyncio.to_thread(interpreters.activation_of, path), None
        asked = await self._probe.ask(path, self._cwd, self._filtered(None, None).env, self._overlays)
        if isinstance(asked, Trouble):
            self._attempts.append(Attempt(source, path, asked.verdict, asked.detail))
            return None
        version = ".".join(str(part) for part in asked.version)
        if asked.version[:2] < OLDEST:
            detail = f"is Python {version}; kernels need {OLDEST[0]}.{OLDEST[1]} or newer"
            self._attempts.append(Attempt(source, path, Verdict.TOO_OLD, detail, version))
            return None
        if asked.lacking:
            why, remedy = await self._overlay_trouble(asked)
            if why is not None:
                lack = f"has no {asked.lacking[0]}, and {why}"
                self._attempts.append(Attempt(source, path, Verdict.NO_IPYKERNEL, lack, version, remedy))
                return None
        # a shim found on PATH gives way to what it leads to; what somebody named by its path stays
        path = asked.executable if asked.shim and source is Source.PATH else path
        overlay = asked.overlay if asked.lacking else None
        runs = f"runs, with the overlay {overlay}" if overlay else f"runs, with ipykernel {asked.ipykernel}"
        self._attempts.append(Attempt(source, path, Verdict.TAKEN, runs, version))
        return path, asked.activation, overlay

    async def _overlay_trouble(self, asked: Interpreter) -> tuple[str | None, str | None]:
        """Say why an interpreter has no overlay, which is installed if it may be, and the command that helps."""
        if await asyncio.to_thread(os.path.isdir, os.path.join(asked.overlay, "ipykernel")):
            return None, None
        tools = await asyncio.to_thread(find_installers, self._path)
        remedy = tools.add_ipykernel(asked.executable, has_pip=asked.pip)
        install = overlay_install(asked.executable, asked.overlay, tools, has_pip=asked.pip)
        if install is None or not self._install:
            self.installable |= install is not None
            return "there is no overlay for it", remedy
        try:
            await self._installs.ensure(install, self._installer_env(), self._progress)
        except InstallFailedError as error:
            return error.detail, remedy
        return None, None

    # -- environments --------------------------------------------------------------------------------------------------

    @property
    def _secrets(self) -> tuple[str, ...]:
        token = self._config.gateway.token
        return (token,) if token else ()

    def _filtered(self, activation: Activation | None, spec: Kernelspec | None) -> Filtered:
        extra = {**(spec.environment(self._source) if spec else {}), **self._request.extra}
        rules, own = self._config.env, self._own
        return filtered(self._source, rules, activation, extra=extra, own=own, secrets=self._secrets)

    def _installer_env(self) -> Environment:
        """Return what installers may see: as kernels, with a person's settings of them, without Python's."""
        rules = self._config.env
        wider = dataclasses.replace(
            rules,
            allow_prefixes=(*rules.allow_prefixes, *INSTALLER_SETTINGS),
            deny=(*rules.deny, "PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX"),
        )
        return Environment({**filtered(self._source, wider, secrets=self._secrets).env, "PYTHONUNBUFFERED": "1"})

    # -- when none runs ------------------------------------------------------------------------------------------------

    def _none_runs(self, spec: Kernelspec | None) -> PxError:
        """Return the error: what was named in a request is input, in a setting or a kernelspec configuration."""
        attempts = tuple(self._attempts)
        there = [each.sentence for each in attempts if each.passed_over]
        if len(attempts) == 1:
            detail = f"the interpreter {attempts[0].sentence}"
        elif there:
            detail = f"no Python for cells: {'; '.join(there)}"
        else:
            detail = f"no Python for cells: none of {', '.join(each.path for each in attempts)} is there"
        env = self._filtered(None, spec)
        name = spec.name if spec else None
        self.failed = Explanation(self._cwd, attempts, kernelspec=name, environment=env, failure=detail)
        source = attempts[0].source
        venv = shlex.quote(f"{self._cwd.rstrip('/')}/.venv")
        hint = next((each.remedy for each in attempts if each.remedy), None) or (
            "pxctl kernel start --explain"
            if source.decisive
            else f"python3 -m venv {venv} && {venv}/bin/python -m pip install ipykernel"
        )
        explanation = self.failed.document()
        match source:
            case Source.REQUEST:
                error: PxError = refused("/interpreter", detail, hint)
                error.extra["explanation"] = explanation
            case Source.SETTING:
                error = ConfigError(detail, hint=hint, key=source.value, explanation=explanation)
            case Source.KERNELSPEC:
                error = ConfigError(detail, hint=hint, kernelspec=name, explanation=explanation)
            case _:
                facts: dict[str, Any] = {"reason": "spawn_failed", "stage": "interpreter", "explanation": explanation}
                error = StartFailedError(detail, hint=hint, **facts)
        return error


def _managed_is_off(*, by_request: bool) -> PxError:
    detail = "the managed environment is turned off by [kernels] managed = false"
    hint = "PX_KERNELS__MANAGED=true, or name another interpreter"
    if by_request:
        return refused("/interpreter", detail, hint)
    return ConfigError(f"kernels.python = {MANAGED!r}, but {detail}", hint=hint, key=Source.SETTING.value)

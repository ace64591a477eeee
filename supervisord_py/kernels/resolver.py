"""With which interpreter, where, and with which environment is a kernel to be started, and why not
with another?

The first candidate that runs is taken; why the others were not is kept. What somebody named is
taken or refused, never replaced. An interpreter without ipykernel gets an overlay with it, which is
installed where that is allowed; else the next one has its turn. Nothing is installed in silence.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from supervisord_py.errors import (
    ConfigError,
    InvalidInputError,
    PxError,
    StartFailedError,
    TimedOutError,
)
from supervisord_py.kernels import interpreters
from supervisord_py.kernels.config import KernelsConfig, Offer, report
from supervisord_py.kernels.environment import (
    MARKS,
    Activation,
    EnvRules,
    Filtered,
    deactivated,
    filtered,
)
from supervisord_py.kernels.interpreters import (
    MANAGED,
    BuildPlace,
    BuildWatcher,
    Candidate,
    Install,
    Installs,
    Interpreter,
)
from supervisord_py.kernels.kernelspecs import NATIVE, Kernelspec, find_kernelspec
from supervisord_py.kernels.session import (
    BASH,
    DECISIVE,
    PYTHON,
    SPEC_PREFIX,
    Attempt,
    BackendName,
    CandidateVerdict,
    Choice,
    Source,
    StartRequest,
)
from supervisord_py.process.child_environment import DEFAULT_PATH, Environment
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.zygote.main import stamp

_ACTIVE = frozenset({*MARKS, "CONDA_DEFAULT_ENV"})


class InterpreterResolver:
    """Chooses; one for a control plane. `own`: variables of ours that kernels get (`PX_SOCKET`)."""

    def __init__(
        self,
        client: KeeperClient,
        *,
        environ: Mapping[str, str],
        own: Mapping[str, str] | None = None,
    ) -> None:
        self.environ = deactivated(environ)
        self.own = own or {}
        self.client = client
        self.installs = Installs(client)
        self.said: dict[str, Interpreter] = {}  # by path, while the files hold

    async def resolve(
        self,
        request: StartRequest,
        config: KernelsConfig,
        *,
        deadline: float | None = None,
        watcher: BuildWatcher | None = None,
    ) -> Choice:
        """Choose; install an overlay (and the managed environment, where it was named) if that may
        be.

        `watcher` sees what is installed for this; the time of that does not count towards
        `deadline`. Raises InvalidInputError, ConfigError: what the request or the settings name
        does not do; StartFailedError: none runs (`explanation`); TimedOutError: no interpreter has
        answered in time.
        """
        try:
            async with asyncio.timeout_at(deadline) as limit:
                resolution = Resolution(self, request, config, watcher, install=config.managed)
                resolution.limit = limit
                return await resolution.choice()
        except TimeoutError:
            raise TimedOutError(
                "the time of the call was over before there was an interpreter for it",
                hint="give the call more time with --timeout",
            ) from None

    async def explain(self, request: StartRequest, config: KernelsConfig) -> Choice:
        """Say what would be chosen and why, or why nothing.

        Installs nothing; that a start would is said.
        """
        resolution = Resolution(self, request, config)
        try:
            return await resolution.choice()
        except PxError:
            if resolution.failed is None:
                raise
            return resolution.failed

    async def capabilities(
        self, config: KernelsConfig, ask_gateway: Callable[[], Awaitable[object]], cwd: str | None
    ) -> dict[str, Any]:
        """Return which cells can be run in a folder; `ask_gateway` raises why an external
        gateway cannot be used.
        """
        shell = await asyncio.to_thread(
            interpreters.find_shell, self.environ.get("PATH") or DEFAULT_PATH
        )
        python = Offer(offered=False)
        if config.expose != BASH and BackendName(config.backend) is BackendName.GATEWAY_EXTERNAL:
            try:
                await ask_gateway()
                python = Offer(offered=True, reason="cells run at the external gateway")
            except PxError as error:
                python = Offer(offered=False, reason=error.detail, hint=error.hint)
        elif config.expose != BASH:
            resolution = Resolution(self, StartRequest(cwd=cwd), config)
            try:
                python = Offer(offered=True, program=(await resolution.choice()).interpreter)
            except (ConfigError, StartFailedError) as error:
                python = Offer(offered=False, reason=error.detail)
                if resolution.installable:
                    python = Offer(
                        offered=True, reason="what it lacks will be built with the first cell"
                    )
        return report(config.expose, python, shell, config.backend)


class Resolution:
    """Makes one choice.

    When none can be made, `failed` explains it and `installable` says if an install would do.
    """

    def __init__(
        self,
        resolver: InterpreterResolver,
        request: StartRequest,
        config: KernelsConfig,
        watcher: BuildWatcher | None = None,
        *,
        install: bool = False,
    ) -> None:
        self._resolver = resolver
        self._request = request
        self._backend = request.backend or BackendName(config.backend)
        self._config = config
        self._watcher = watcher or BuildWatcher()
        self._install = install
        self.limit: asyncio.Timeout | None = None  # for everything but installs
        self._caller = {**request.environ, **request.env}
        # a PATH of the caller's comes with what was active beside it
        daemon = {
            k: v
            for k, v in resolver.environ.items()
            if k not in _ACTIVE or "PATH" not in self._caller
        }
        self._source = {**daemon, **self._caller}
        self._path = self._source.get("PATH") or DEFAULT_PATH
        self._home = self._source.get("HOME") or "/"
        self._secrets = (config.gateway_token,) if config.gateway_token else ()
        self._rules = EnvRules(config.env_allow, config.env_deny)
        self._cwd = ""
        self._key = ""  # of the session, where that is not the interpreter's path
        self._modules: tuple[str, ...] = ()
        self._attempts: list[Attempt] = []
        self._notices: list[str] = []
        self._said: Interpreter | None = None  # by the one that was taken
        self.failed: Choice | None = None
        self.installable = False

    async def choice(self) -> Choice:
        request = self._request
        self._cwd = await asyncio.to_thread(interpreters.real_cwd, request.cwd, self._home)
        if request.is_bash:
            return await self._bash()
        if request.language != PYTHON:
            message = f"cells are in {PYTHON} or {BASH}, not in {request.language[:40]!r}"
            hint = f"say {PYTHON} or {BASH}, or name a kernelspec: `jupyter kernelspec list`"
            raise InvalidInputError.at("/language", message, hint)
        if self._backend is BackendName.GATEWAY_EXTERNAL:
            return self._elsewhere()
        spec = None
        if request.kernelspec is not None:
            spec = await asyncio.to_thread(find_kernelspec, request.kernelspec, self._path)
        if spec is None or spec.native:
            return await self._python(await self._order(), spec)
        if request.interpreter is not None:
            detail = (
                f"the kernelspec {spec.name} says itself what it runs; no other interpreter can be "
                "named beside it"
            )
            raise InvalidInputError.at("/interpreter", detail, "name the one or the other")
        key = f"{SPEC_PREFIX}{spec.name}"
        if spec.python is not None:
            return await self._python((Candidate(Source.KERNELSPEC, (spec.python,)),), spec, key)
        language = spec.language or spec.name
        return self._made(
            key, self._filtered(None, spec), spec, language=language, kernelspec_argv=spec.argv
        )

    # -- the kinds of choices ----------------------------------------------------------------------

    async def _python(
        self, order: Sequence[Candidate], spec: Kernelspec | None, key: str = ""
    ) -> Choice:
        self._key = key
        taken = await self._first_that_runs(order)
        if taken is None:
            raise self._none_runs(spec)
        executable = self._said.executable if self._said is not None else taken.path
        return self._made(
            key or interpreters.session_path(taken.path),
            self._filtered(interpreters.activation_of(executable), spec),
            spec,
            interpreter=taken.path,
            overlay=taken.overlay,
            notices=tuple(f"{each}; cells run with {taken.path} instead" for each in self._notices),
        )

    def _elsewhere(self) -> Choice:
        """Of an external gateway only the name of the kernelspec is known; nothing of this
        machine is sent there.
        """
        name = self._request.kernelspec or NATIVE
        found = filtered({}, self._rules, extra=self._request.env, secrets=self._secrets)
        env = Environment(
            {each: value for each, value in found.env.items() if each in self._request.env}
        )
        return self._made(f"{SPEC_PREFIX}{name}", Filtered(env, found.dropped), kernelspec=name)

    async def _bash(self) -> Choice:
        """Shell cells run where the project's environment is active, if it has one; nobody asks
        whether it runs.
        """
        shell = await asyncio.to_thread(interpreters.find_shell, self._path)
        if shell is None:
            detail = "there is no bash on PATH, nor in /bin or /usr/bin"
            raise StartFailedError(
                detail, hint="install bash", reason="spawn_failed", stage="shell"
            )

        def active() -> Activation | None:
            order = interpreters.candidates(self._cwd, self._caller)
            found = [
                interpreters.find(each, self._cwd)
                for each in order
                if each.source is not Source.PATH
            ]
            there = (each.path for each in found if each.verdict is CandidateVerdict.NOT_NEEDED)
            return next(map(interpreters.activation_of, there), None)

        env = self._filtered(await asyncio.to_thread(active), None)
        return self._made(BASH, env, interpreter=shell, backend=BackendName.BASH, language=BASH)

    def _made(
        self, key: str, env: Filtered, spec: Kernelspec | None = None, **members: Any
    ) -> Choice:
        if spec is not None:
            members |= {"kernelspec": spec.name, "interrupt_mode": spec.interrupt_mode}
        backend, attempts = members.pop("backend", self._backend), tuple(self._attempts)
        return Choice(self._cwd, key, backend, env, attempts, modules=self._modules, **members)

    # -- one candidate after the other -------------------------------------------------------------

    async def _order(self) -> Sequence[Candidate]:
        request, setting = self._request.interpreter or None, self._config.python or None
        managed = self._config.data_dir / "python"
        if (request or setting) == MANAGED and self._install:
            install = interpreters.managed_in(
                managed, await asyncio.to_thread(interpreters.find_uv, self._path)
            )
            await self._ensure(install, f"{managed}/bin/python")
        return interpreters.candidates(
            self._cwd,
            self._caller,
            path=self._resolver.environ.get("PATH") or DEFAULT_PATH,
            request=request,
            setting=setting,
            managed=str(managed)
            if self._config.managed or (request or setting) == MANAGED
            else None,
            home=self._home,
        )

    async def _first_that_runs(self, order: Sequence[Candidate]) -> Attempt | None:
        def look_around() -> list[Attempt]:
            self._modules = interpreters.module_folders(str(self._config.modules_dir), self._cwd)
            return [interpreters.find(each, self._cwd) for each in order]

        taken: Attempt | None = None
        for candidate, attempt in zip(order, await asyncio.to_thread(look_around), strict=True):
            if attempt.verdict is not CandidateVerdict.NOT_NEEDED:
                self.installable |= candidate.root is not None and candidate.source in DECISIVE
            elif taken is None:
                attempt = await self._asked(attempt)  # noqa: PLW2901
            self._attempts.append(attempt)
            if attempt.verdict is CandidateVerdict.TAKEN:
                taken = attempt
            # cells find another's packages now
            elif taken is None and attempt.verdict is CandidateVerdict.UNUSABLE:
                self._notices.append(
                    attempt.sentence + (f" ({attempt.remedy})" if attempt.remedy else "")
                )
        return taken

    async def _asked(self, found: Attempt) -> Attempt:
        if self._config.skip_check:
            return replace(
                found, verdict=CandidateVerdict.TAKEN, detail="exists; it was not asked, by setting"
            )
        said, unusable = (
            await self._ask(found.path),
            replace(found, verdict=CandidateVerdict.UNUSABLE),
        )
        if isinstance(said, str):
            return replace(unusable, detail=said)
        version, overlay, detail = (
            ".".join(map(str, said.version)),
            None,
            "runs, with ipykernel of its own",
        )
        if said.version[:2] < (3, 8):
            return replace(
                unusable, detail=f"is Python {version}; kernels need 3.8 or newer", version=version
            )
        if said.lacking:
            folder = self._config.data_dir / "overlays" / said.tag
            overlay, detail = str(folder), f"runs, with the overlay {folder}"
            if trouble := await self._overlay_trouble(said, folder, found.path):
                return replace(unusable, version=version, **trouble)
        self._said = said
        # a shim found on PATH gives way to what it leads to; what somebody named by its path stays
        path = said.executable if said.is_shim and found.source is Source.PATH else found.path
        return Attempt(found.source, path, CandidateVerdict.TAKEN, detail, version, overlay=overlay)

    async def _ask(self, path: str) -> Interpreter | str:
        """Have an interpreter say what it is; that holds until its files change.

        A dead one is asked each time.
        """
        known = self._resolver.said.get(path)
        if known is not None and await asyncio.to_thread(stamp, known.files) == known.stamp:
            return known
        asked = await interpreters.ask(
            self._resolver.client, path, self._cwd, self._filtered(None, None).env
        )
        # where a shim leads depends on files nobody knows
        if isinstance(asked, Interpreter) and not asked.is_shim:
            self._resolver.said[path] = asked
        return asked

    async def _overlay_trouble(
        self, said: Interpreter, overlay: Path, path: str
    ) -> dict[str, str] | None:
        """Return `detail` and `remedy` where an interpreter has no overlay; it is installed if
        it may be.
        """
        if await asyncio.to_thread(interpreters.is_complete, overlay, "ipykernel"):
            return None
        uv = await asyncio.to_thread(interpreters.find_uv, self._path)
        why, install = (
            "it may not be installed for cells",
            interpreters.overlay_for(said, overlay, uv),
        )
        if install is not None and self._install:
            try:
                await self._ensure(install, path)
                return None
            except StartFailedError as error:
                why = error.detail
        else:
            self.installable |= install is not None
        return {
            "detail": f"has no {said.lacking[0]}, and {why}",
            "remedy": interpreters.adding_ipykernel(said, uv),
        }

    async def _ensure(self, install: Install, python: str) -> None:
        """Have something installed for the interpreter `python`; the call's time stands still
        meanwhile.
        """
        place = BuildPlace(self._cwd, self._key or interpreters.session_path(python), self._backend)
        loop = asyncio.get_running_loop()
        began = loop.time()
        give_up_at = self.limit.when() if self.limit is not None else None
        if self.limit is not None:
            self.limit.reschedule(None)
        try:
            await self._resolver.installs.ensure(
                install, self._installer_env(), self._watcher, place
            )
        finally:
            waited = loop.time() - began
            self._watcher.seconds += waited
            if self.limit is not None and give_up_at is not None:
                self.limit.reschedule(give_up_at + waited)

    def _filtered(self, activation: Activation | None, spec: Kernelspec | None) -> Filtered:
        extra = {**(spec.environment(self._source) if spec else {}), **self._request.env}
        own, secrets = self._resolver.own, self._secrets
        return filtered(
            self._source, self._rules, activation, extra=extra, own=own, secrets=secrets
        )

    def _installer_env(self) -> Environment:
        """Return what installers may see: as kernels, with a person's settings of them, without
        Python's.
        """
        prefixes = *self._rules.allow_prefixes, *interpreters.INSTALLER_SETTINGS
        wider = EnvRules(self._rules.allow, (*self._rules.deny, "PYTHONPATH", *_ACTIVE), prefixes)
        return Environment(
            {**filtered(self._source, wider, secrets=self._secrets).env, "PYTHONUNBUFFERED": "1"}
        )

    def _none_runs(self, spec: Kernelspec | None) -> PxError:
        """Return the error: what was named in a request is input, in a setting or a kernelspec
        configuration.
        """
        self.installable = self.installable and self._config.managed
        attempts, source = self._attempts, self._attempts[0].source
        bad = [each for each in attempts if each.verdict is CandidateVerdict.UNUSABLE] or attempts
        detail = f"no Python for cells: {'; '.join(each.sentence for each in bad)}"
        failure = f"{detail}; a start builds what is lacking first" if self.installable else detail
        self.failed = self._made("", self._filtered(None, spec), spec, failure=failure)
        venv = shlex.quote(f"{self._cwd.rstrip('/')}/.venv")
        make = f"python3 -m venv {venv} && {venv}/bin/python -m pip install ipykernel"
        usual = "pxctl kernel start --explain" if source in DECISIVE else make
        hint = next((each.remedy for each in attempts if each.remedy), usual)
        members: dict[str, Any] = {"hint": hint, "explanation": self.failed.document()}
        match source:
            case Source.REQUEST:
                return InvalidInputError.at("/interpreter", detail, **members)
            case Source.SETTING:
                return ConfigError(detail, key=source.value, **members)
            case Source.KERNELSPEC:
                return ConfigError(detail, kernelspec=spec and spec.name, **members)
        return StartFailedError(detail, reason="spawn_failed", stage="interpreter", **members)

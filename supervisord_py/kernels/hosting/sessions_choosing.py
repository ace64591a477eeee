"""Between what is asked of the room and the choosing of interpreters: requests in, sessions with a choice out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import ConflictError
from supervisord_py.kernels.cell import Notice
from supervisord_py.kernels.choosing.choice import BASH, ChooseRequest
from supervisord_py.kernels.choosing.resolver import Choosing, ignore
from supervisord_py.kernels.choosing.selection import Build
from supervisord_py.kernels.exposure import Expose
from supervisord_py.kernels.hosting.launching import SPEC_PREFIX
from supervisord_py.kernels.hosting.recent_choices import RecentChoices
from supervisord_py.kernels.session import BackendName, SessionKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisord_py.kernels.backends import Backends
    from supervisord_py.kernels.cell import CallEvent, CallRequest
    from supervisord_py.kernels.choosing.capabilities import CapabilityReport
    from supervisord_py.kernels.choosing.choice import Choice, Explanation
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.hosting.live_session import LiveSession
    from supervisord_py.kernels.hosting.session_register import SessionRegister
    from supervisord_py.kernels.room_requests import Owner, StartRequest
    from supervisord_py.process.placement import Placement


class SessionsChoosing:
    """Chooses for sessions. `config` gives the settings in force; the rest as in `Choosing`."""

    def __init__(
        self,
        placement: Placement,
        config: Callable[[], KernelsConfig],
        *,
        environ: Mapping[str, str],
        own: Mapping[str, str],
    ) -> None:
        self._config = config
        self._recent = RecentChoices()
        self._choosing = Choosing(placement, environ=environ, own=own)

    async def open(self) -> None:
        """End what an earlier control plane was asking interpreters."""
        await self._choosing.open()

    async def close(self) -> None:
        """End what is under way."""
        await self._choosing.close()

    async def choose_for_call(
        self, request: CallRequest, known: LiveSession | None, deadline: float, tell: Callable[[CallEvent], None]
    ) -> Choice:
        """Choose for a call; `known` is a session whose key is to be followed where the call leaves things open."""
        backend, language = self._backend(request.backend, request.language)
        asked = ChooseRequest(
            cwd=request.cwd or (known.key.cwd if known else None),
            interpreter=request.interpreter,
            kernelspec=request.kernelspec,
            backend=backend,
            language=language,
            environ=request.environ,
            deadline=deadline,
        )
        if known is not None and request.interpreter is None and request.kernelspec is None:
            asked = _of_session(known, deadline)
        return await self._choose(asked, lambda line: tell(Notice(line)))

    async def _choose(self, asked: ChooseRequest, progress: Callable[[str], None]) -> Choice:
        config = self._config()
        choice = self._recent.get(asked, config)
        if choice is None:
            choice = await self._choosing.choose(asked, config, progress=progress)
            self._recent.put(asked, config, choice)
        return choice

    async def choose_for_start(
        self, request: StartRequest, deadline: float, tell: Callable[[CallEvent], None]
    ) -> Choice:
        """Choose for a start."""
        return await self._choose(self._request(request, deadline), lambda line: tell(Notice(line)))

    async def explain(self, request: StartRequest) -> Explanation:
        """Say what would be chosen, and why."""
        return await self._choosing.explain(self._request(request, None), self._config())

    def _request(self, request: StartRequest, deadline: float | None) -> ChooseRequest:
        backend, language = self._backend(request.backend, request.language)
        return ChooseRequest(
            cwd=request.cwd,
            interpreter=request.interpreter,
            kernelspec=request.kernelspec,
            backend=backend,
            language=language,
            extra=request.env,
            environ=request.environ,
            deadline=deadline,
        )

    async def choose_again(self, session: LiveSession) -> None:
        """Put a choice into a session that has none."""
        deadline = asyncio.get_running_loop().time() + self._config().start_seconds
        adopt(session, await self._choosing.choose(_of_session(session, deadline), self._config(), progress=ignore))

    async def prospect(self, session: LiveSession) -> Choice:
        """Say what a session's next kernel would be started from; nothing is built for that, and nothing kept."""
        deadline = asyncio.get_running_loop().time() + self._config().start_seconds
        return await self._choosing.choose(_of_session(session, deadline), self._config(), build=Build.NEVER)

    async def capabilities(self, backends: Backends, cwd: str | None, environ: Mapping[str, str]) -> CapabilityReport:
        """Say which kinds of cells are offered."""

        async def ask_gateway() -> str | None:
            gateway: Any = await backends.get(BackendName.GATEWAY_EXTERNAL)
            return str(told) if (told := await gateway.health()) is not None else None

        return await self._choosing.capabilities(self._config(), ask_gateway, cwd=cwd, environ=environ)

    async def specs(self, backends: Backends) -> Mapping[str, Mapping[str, Any]]:
        """Return the kernelspecs that can be asked for: ours, or those of the external gateway where that is set."""
        if self._config().backend is BackendName.GATEWAY_EXTERNAL:
            gateway: Any = await backends.get(BackendName.GATEWAY_EXTERNAL)
            return dict(await gateway.specs())
        return await self._choosing.specs()

    def _backend(self, asked: BackendName | None, language: str) -> tuple[BackendName, str]:
        """Return the backend for a kind of cells that is offered.

        Raises:
            ConflictError: The settings turn that kind of cells off.
        """
        config = self._config()
        is_bash = language == BASH or asked is BackendName.BASH
        off = Expose.PYTHON if is_bash else Expose.BASH
        if config.expose is off:
            kind = "Bash" if is_bash else "Python"
            raise ConflictError(
                f"{kind} cells are turned off: kernels.expose is {config.expose.value}.",
                hint="Set [kernels] expose to both (PX_PY=both), or send the other kind of cells.",
            )
        return (BackendName.BASH, BASH) if is_bash else (asked or config.backend, language)

    @staticmethod
    def session_of(register: SessionRegister, name: str, choice: Choice, owner: Owner) -> LiveSession:
        """Return the session that a name and a choice make, with the choice for its next start."""
        key = SessionKey(name, choice.cwd, choice.key, choice.backend)
        session = register.ensure(key, choice.language, owner)
        adopt(session, choice)
        return session


def adopt(session: LiveSession, choice: Choice) -> None:
    """Have the next kernel of a session be started from a choice; what its present one is, stays."""
    session.choice = choice
    if session.life is None or session.life.handle is None:
        session.language = choice.language
        session.kernelspec = choice.kernelspec
        session.interrupt_mode = choice.interrupt_mode


def _of_session(session: LiveSession, deadline: float) -> ChooseRequest:
    key = session.key
    spec = key.interpreter.removeprefix(SPEC_PREFIX) if key.interpreter.startswith(SPEC_PREFIX) else None
    is_bash = key.backend is BackendName.BASH
    return ChooseRequest(
        cwd=key.cwd,
        interpreter=None if spec or is_bash else key.interpreter,
        kernelspec=spec,
        backend=key.backend,
        language=BASH if is_bash else "python",
        extra=session.extra,
        environ=session.environ,
        deadline=deadline,
    )

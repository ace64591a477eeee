"""How a kernel comes up, is taken over, and goes: what kernels add to the one mechanism of `process`.

A kernel is an instance of the supervisor's, whoever runs it. A direct one is the keeper's child, with a row. One behind
a gateway has no process of ours, and a session of shell cells has one for each cell only: for these the backend alone
starts and ends what there is. The note that is kept with each is enough for a later control plane to go on with it; the
cell that it was at is found in the ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.config.settings import MIB
from supervisord_py.errors import ConflictError, InvalidInputError, KeeperLostError, PxError, ReadinessTimeoutError
from supervisord_py.kernels import messages
from supervisord_py.kernels.backend import Launch
from supervisord_py.kernels.choice import SPEC_PREFIX
from supervisord_py.kernels.live_session import KernelInstance, LiveSession, own_of
from supervisord_py.kernels.session import BackendName, SessionKey
from supervisord_py.process.instance import End, Phase
from supervisord_py.process.lifecycle import outcome
from supervisord_py.process.model import tree_limits
from supervisord_py.process.supervisor import Driver

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from supervisord_py.kernels.backend import Backends
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.live_session import KernelNote
    from supervisord_py.kernels.resolver import InterpreterResolver
    from supervisord_py.kernels.session_register import SessionRegister
    from supervisord_py.process.instance import Note
    from supervisord_py.process.model import Child, ChildSpec
    from supervisord_py.process.supervisor import Supervisor

GATEWAY_UNIT = "kernel:gateway"  # the shared gateway's own process: its backend looks after it
_log = structlog.get_logger(__name__)


class KernelDriver(Driver[KernelInstance]):
    """The driver of all kernels. `on_gone` is told of each that has ended."""

    kind = "kernel"

    def __init__(
        self,
        supervisor: Supervisor,
        backends: Backends,
        register: SessionRegister,
        resolver: Callable[[], InterpreterResolver],
        config: Callable[[], KernelsConfig],
        on_gone: Callable[[KernelInstance], None],
    ) -> None:
        self.backends = backends
        self.revived: list[KernelInstance] = []  # what the keeper held when we began
        self.unsure: set[BackendName] = set()  # backends that could not say of a kernel whether it is there
        self._supervisor = supervisor
        self._register = register
        self._resolver = resolver
        self._config = config
        self._on_gone = on_gone

    # -- up ----------------------------------------------------------------------------------------------------------

    async def prepare(self, instance: KernelInstance) -> ChildSpec | None:
        """Decide everything about a kernel; return what is to be spawned, None where the backend starts it.

        Raises PxError: there is no interpreter for it, or no place.
        """
        config, session = self._config(), instance.session
        instance.stop_seconds = config.stop_seconds
        if instance.launch is None:
            if session.choice is None:
                deadline = asyncio.get_running_loop().time() + config.start_seconds
                session.adopt(await self._resolver().resolve(session.choose_request(deadline), config))
            instance.launch = await asyncio.to_thread(launch_of, instance, config)
        instance.backend = await self.backends.get(instance.session.key.backend)
        spec: ChildSpec | None = await instance.backend.spec(instance.launch)
        instance.give_up_at = asyncio.get_running_loop().time() + config.start_seconds
        return spec

    async def ready(self, instance: KernelInstance) -> None:
        """Return when it answers.

        Raises StartFailedError, ReadinessTimeoutError, ConfigError: why it does not, with evidence.
        """
        assert instance.launch is not None
        starting = asyncio.ensure_future(
            instance.backend.start(instance.launch, instance.child, deadline=instance.give_up_at)
        )
        signs: list[asyncio.Future[Any]] = [starting]
        if instance.child is not None:
            signs.append(asyncio.ensure_future(self._supervisor.wait(instance)))
        try:
            await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in signs:
                each.cancel()
            await asyncio.gather(*signs, return_exceptions=True)
            if not starting.cancelled() and starting.exception() is None:
                instance.handle = starting.result()
        if instance.child is not None and not signs[1].cancelled():
            record, words = signs[1].result(), await self._supervisor.last_words(instance)
            raise messages.early_exit(instance.launch, End(outcome(record, None, ready=False), record, words))
        try:
            starting.result()
        except ReadinessTimeoutError as error:
            error.extra.setdefault("stderr_tail", await self._supervisor.tail(instance))
            raise
        instance.cold_start_ms = max(1, round((asyncio.get_running_loop().time() - instance.asked_at) * 1000))

    # -- adoption ----------------------------------------------------------------------------------------------------

    def revive(self, child: Child, note: Note | None) -> KernelInstance | None:
        """Return the instance of a held kernel; None for gateways and shell cells, which are looked after elsewhere."""
        own = own_of(note)
        if child.unit == GATEWAY_UNIT or (own is not None and own.session.backend == BackendName.BASH):
            return None
        instance = self.found(child, own)
        self.revived.append(instance)
        return instance

    def found(self, child: Child, own: KernelNote | None) -> KernelInstance:
        session = self._register.restored(own.session) if own is not None else None
        if own is None or session is None:  # nobody's: it is only stopped
            nobody = SessionKey(child.unit.partition(":")[2], "", "", BackendName.DIRECT)
            return KernelInstance(child.key, LiveSession(nobody, "", child.started_at), unit=child.unit)
        instance = KernelInstance(child.key, session, unit=child.unit)
        instance.child, instance.started_at = child, child.started_at
        instance.stop_seconds = self._config().stop_seconds
        instance.cold_start_ms, instance.method = own.cold_start_ms, own.method
        return instance

    async def adopt(self, instance: KernelInstance, note: Note) -> bool:
        """Say whether to go on with a kernel: the newest of its session, if it answers."""
        own = own_of(note)
        newest = next(it for it in self.revived if it.session.id == instance.session.id)
        return own is not None and newest is instance and await self.take_over(instance, own)

    async def take_over(self, instance: KernelInstance, own: KernelNote) -> bool:
        """Attach to a kernel and give it its session; False when it does not answer or cannot be."""
        session, child = instance.session, instance.child
        session.interrupt_mode, instance.is_ours = own.interrupt_mode, session.key.backend is BackendName.DIRECT
        try:
            instance.launch = await asyncio.to_thread(launch_of, instance, self._config())
            instance.backend = await self.backends.get(session.key.backend)
            instance.handle = await instance.backend.attach(instance.launch, child)
        except KeeperLostError:
            raise
        except PxError as error:
            self.unsure.add(session.key.backend)
            _log.warning("kernel_not_attached", unit=instance.unit, instance=instance.key, detail=error.detail)
        except Exception:
            _log.exception("adoption_failed", unit=instance.unit, instance=instance.key)
        if instance.handle is None:
            return False
        if not instance.is_ours:
            instance.child = None
        instance.ready_at, instance.phase = instance.ready_at or instance.started_at, Phase.READY
        session.kernel = instance
        self._register.sessions[session.id] = session
        return True

    # -- down --------------------------------------------------------------------------------------------------------

    def fail_waiters(self, instance: KernelInstance) -> None:
        """Keep how it ended; whoever waits for a cell on it hears of it by `instance.over`."""
        if instance.end is not None:
            instance.explain(instance.end)

    async def release(self, instance: KernelInstance) -> None:
        """Close the connections to it, and remove its folder unless a replacement has it by now."""
        if instance.handle is not None:
            await instance.handle.close()
        if instance.is_ours:
            from supervisord_py.kernels import connection_file

            folder = connection_file.folder_of(self._config().run_dir, instance.name)
            await asyncio.to_thread(connection_file.give_back, folder, instance.key)

    def gone(self, instance: KernelInstance) -> None:
        self._on_gone(instance)


# -- from a session and what was chosen for it to the launch of a kernel -----------------------------------------------


def folder_of_cells(cells_dir: Path, session_id: str) -> Path:
    """Return the folder of a session's cell files, made where it is not there, private with all above it. Blocking."""
    folder = cells_dir / session_id
    missing: list[Path] = []
    at = folder
    while not at.is_dir():
        missing.append(at)
        at = at.parent
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
        each.chmod(0o700)  # also under a umask that takes more away
    return folder


def check_folder(session: LiveSession) -> None:
    """Check that a kernel can be started where the session lives. Blocking.

    Raises:
        InvalidInputError: Its working directory is gone; whatever runs there goes on.
    """
    cwd = session.key.cwd
    if os.path.isdir(cwd) and os.access(cwd, os.X_OK):
        return
    gone = "is not there any more" if not os.path.isdir(cwd) else "cannot be entered any more"
    message = f"The session's working directory {gone}: {cwd}"
    raise InvalidInputError(
        message,
        hint=f"Put it back, or take a session of another folder with `--cwd` (`pxctl kernel stop {session.id}` "
        "ends this one).",
        unit=session.unit,
        errors=[{"pointer": "/cwd", "message": message}],
    )


def refuse_stopped(instance: KernelInstance) -> None:
    """Raise ConflictError where somebody has stopped the process (SIGSTOP): a cell would wait for its whole time."""
    import psutil

    with contextlib.suppress(psutil.Error):
        if instance.pid is not None and psutil.Process(instance.pid).status() == psutil.STATUS_STOPPED:
            raise ConflictError(
                f"The process of {instance.unit} (pid {instance.pid}) was stopped by a signal: it runs nothing.",
                hint=f"`kill -CONT {instance.pid}` lets it go on; `pxctl restart {instance.unit}` replaces it.",
                unit=instance.unit,
                pid=instance.pid,
            )


def launch_of(instance: KernelInstance, config: KernelsConfig) -> Launch:
    """Return the launch of a kernel, by what was chosen for its session; makes its folder of cells. Blocking."""
    session = instance.session
    choice, key = session.choice, session.key
    fallback = None if key.interpreter.startswith(SPEC_PREFIX) else key.interpreter
    return Launch(
        session_id=session.id,
        instance=instance.key,
        interpreter=choice.interpreter if choice else fallback,
        cwd=key.cwd,
        env=dict(choice.env) if choice else {},
        cells_dir=folder_of_cells(config.cells_dir, session.id),
        kernelspec=choice.kernelspec if choice else session.kernelspec,
        kernelspec_argv=choice.kernelspec_argv if choice else None,
        limits=tree_limits(config.processes, config.cpu_percent),
        max_rss_bytes=config.hard_memory_mb * MIB or None,
        memory_grace_seconds=config.memory_grace_seconds,
        overlay=choice.overlay if choice else None,
        modules=choice.modules if choice else (),
        tag=instance.note(),
        interrupt_mode=session.interrupt_mode,
        arguments=session.arguments,
    )

"""The room of kernels: everything that the daemon asks of it. One per daemon."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from supervisord_py.errors import (
    ConflictError,
    InterruptedRunError,
    PxError,
    ShuttingDownError,
    StartFailedError,
    TimedOutError,
    UnknownUnitError,
)
from supervisord_py.kernels import messages
from supervisord_py.kernels.backend import Backends, KernelHandle
from supervisord_py.kernels.call import KernelCall, follow, timeout_of
from supervisord_py.kernels.config import KernelsConfig
from supervisord_py.kernels.kernel_pool import GATEWAY_UNIT, KernelPool
from supervisord_py.kernels.live_session import HOLD_SECONDS, KernelWaiter, LiveSession, SessionView
from supervisord_py.kernels.session import (
    PROGRAMS,
    BackendName,
    CellStatus,
    Owner,
    SessionKey,
    Step,
    session_name,
)
from supervisord_py.kernels.session_set import Want, WhyRefused
from supervisord_py.ledger import instances
from supervisord_py.ledger.store import Ledger
from supervisord_py.process import clock, program
from supervisord_py.process.events import EventStream
from supervisord_py.process.instance import Phase
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.process.model import Reason
from supervisord_py.process.supervisor import Supervisor
from supervisord_py.process.zygote_pool import UNITS, ZygoteView

if TYPE_CHECKING:
    from supervisord_py.kernels.resolver import InterpreterResolver
    from supervisord_py.kernels.session import (
        CallEvent,
        CallRequest,
        CallResult,
        Choice,
        StartRequest,
    )

STEP_SECONDS = 5.0  # how long an interrupt waits for the step that it asked for
# how long the end of the room waits for calls to say what became of them
LAST_ANSWERS_SECONDS = 10.0


class GatewayView(Struct, frozen=True):
    """The shared gateway as a unit. Times are Unix seconds."""

    unit: str = GATEWAY_UNIT
    kind: str = "kernel"
    name: str = "gateway"
    state: str = "stopped"
    reason: Reason | None = None  # why it stops, or why the last one ended
    pid: int | None = None
    started_at: float | None = None
    instance: str | None = None
    kernels: int = 0  # in it


class Kernels:
    """Sessions, their kernels, and calls. `open` it where the loop runs; end it with `close` or
    `detach`.

    `environ` is the daemon's environment, to pick from; `own` are harmless variables of ours that
    every kernel gets.
    """

    def __init__(
        self,
        placement: KeeperClient,
        ledger: Ledger,
        config: KernelsConfig,
        events: EventStream,
        *,
        environ: Mapping[str, str],
        own: Mapping[str, str] | None = None,
    ) -> None:
        self._placement, self._environ, self._own = placement, environ, own
        self._events, self._ledger = events, ledger
        self.supervisor = Supervisor(placement, ledger, events)
        """Of what backends run for themselves: it ends behind the kernels."""
        backends = Backends(self.supervisor, lambda: self.config)
        self.pool = KernelPool(
            Supervisor(placement, ledger, events),
            ledger,
            events,
            backends,
            config,
            lambda: self.resolver,
        )
        self.register, self.cell_store = self.pool.register, self.pool.cell_store
        self._calls: set[asyncio.Task[CallResult]] = set()  # those that run
        # done once another control plane is to go on with the calls
        self._replaced: asyncio.Future[None]
        # where calls went, and what decided it
        self._recent: dict[tuple[object, ...], tuple[LiveSession, object]] = {}
        self._ending: PxError | None = None
        self._has_had_gateway = False

    @property
    def config(self) -> KernelsConfig:
        return self.pool.config

    @cached_property
    def resolver(self) -> InterpreterResolver:
        """What chooses interpreters; made when one is first wanted."""
        from supervisord_py.kernels.resolver import InterpreterResolver

        return InterpreterResolver(self._placement, environ=self._environ, own=self._own)

    # -- beginning and end -------------------------------------------------------------------------

    async def open(self) -> None:
        """Take over what the keeper holds and follow cells in flight; begin to look after time
        and memory.
        """
        self._replaced = asyncio.get_running_loop().create_future()
        await self.register.open()
        # what an earlier control plane asked or installed
        await program.stop_left_over(self._placement, PROGRAMS)
        for in_flight in await self.pool.adopt_all():
            self.pool.supervisor.task(follow(self.pool, *in_flight))
        await self.register.settle_the_rest()
        self._has_had_gateway = bool(await instances.latest(self._ledger, GATEWAY_UNIT))
        if await self._placement.list(UNITS):
            backend = await self.pool.backends.get(BackendName.DIRECT)
            self.pool.supervisor.task(backend.zygotes.end_left_over())
        self.pool.supervisor.task(self.pool.keep_watch())
        self.pool.supervisor.task(
            self.cell_store.keep_small(self.pool.running, self.register.sessions)
        )

    async def close(self) -> None:
        """Stop every kernel, all at once; calls in flight hear of the shutdown."""
        self._ending = ShuttingDownError("The daemon is stopping.", hint="Ask again once it runs.")
        self.pool.perform(self.pool.set.close(clock.now()))
        for kernel in tuple(self.pool.kernels):
            await kernel.stopped.wait()  # nothing is left of it, or has survived a stop
        if self._calls:
            await asyncio.wait(self._calls, timeout=LAST_ANSWERS_SECONDS)
        await self._let_go(stop=True)

    async def detach(self) -> None:
        """End without stopping anything: another control plane will adopt the kernels, cells in
        flight go on.
        """
        told = (
            "The control plane is being replaced; kernels, their variables and cells in flight go "
            "on."
        )
        self._ending = InterruptedRunError(
            told, hint="`pxctl kernel list` shows sessions; then ask again."
        )
        self._replaced.set_result(None)
        await self._let_go(stop=False)

    async def _let_go(self, *, stop: bool) -> None:
        handles = [it.handle for it in self.pool.kernels if it.handle is not None]
        self.register.write_used()
        self.pool.is_let_go = True
        await self.pool.supervisor.close()
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        await asyncio.gather(*(it.close() for it in handles), return_exceptions=True)
        await self.pool.backends.close(stop=stop)
        await self.supervisor.close()
        if "resolver" in self.__dict__:
            await self.resolver.installs.close()

    def reconfigure(self, config: KernelsConfig) -> None:
        self._recent.clear()
        self.pool.reconfigure(config)

    # -- looking -----------------------------------------------------------------------------------

    def snapshot(self) -> tuple[SessionView, ...]:
        return tuple(session.view() for _, session in sorted(self.register.sessions.items()))

    def gateway(self) -> GatewayView | None:
        """Return the shared gateway as it is now; None where there has been none since its last
        log was removed.
        """
        local = self.pool.backends.made.get(BackendName.GATEWAY_LOCAL)
        if local is None:
            return GatewayView() if self._has_had_gateway else None
        instance = local.gateway
        if instance is None:
            return GatewayView(reason=local.last_reason)
        return GatewayView(
            state=instance.phase.value,
            reason=instance.wanted,
            pid=instance.pid,
            started_at=instance.started_at,
            instance=instance.key,
            kernels=sum(
                1 for it in self.pool.kernels if it.session.key.backend is BackendName.GATEWAY_LOCAL
            ),
        )

    async def stop_gateway(self) -> tuple[int, ...]:
        """Stop the shared gateway, and before it the kernels in it; return the pids that
        survived.
        """
        kernels = [
            it for it in self.pool.kernels if it.session.key.backend is BackendName.GATEWAY_LOCAL
        ]
        for kernel in kernels:
            self.pool.stop(kernel.session, Reason.STOPPED)
        for kernel in kernels:
            await self._placement.unless_silent(
                kernel.stopped.wait(), f"{kernel.unit} stopped", unit=kernel.unit
            )
        local = self.pool.backends.made.get(BackendName.GATEWAY_LOCAL)
        if local is None:
            return ()
        ending = local.end(Reason.STOPPED)
        survivors: tuple[int, ...] = await self._placement.unless_silent(
            ending, "the shared gateway ended"
        )
        return survivors

    async def start_gateway(self) -> None:
        """Have the shared gateway run, as it ran last.

        Raises ConflictError: it never did; PxError: it does not.
        """
        local = await self.pool.backends.get(BackendName.GATEWAY_LOCAL)
        if local.gateway is None:
            await local.restart()

    async def gateway_trouble(self) -> str | None:
        """Say why the shared gateway cannot start kernels; None where nothing is known against
        it.
        """
        local = self.pool.backends.made.get(BackendName.GATEWAY_LOCAL)
        instance = None if local is None else local.gateway
        if instance is None or instance.phase is not Phase.READY:
            return None
        if not await instance.answers():
            return "it does not answer"
        known = await asyncio.to_thread(instance.descriptors)
        if known is not None and await asyncio.to_thread(instance.is_short):
            return f"it has run out of file descriptors: {known[0]} of {known[1]} are open"
        return None

    async def look_again(self) -> None:
        """Find out what can only be asked for: whether kernels that nothing runs in answer."""
        await self.pool.ask_idle_ones()

    def zygotes(self) -> tuple[ZygoteView, ...]:
        direct = self.pool.backends.made.get(BackendName.DIRECT)
        return () if direct is None else direct.zygotes.views()

    def find(self, name_or_id: str, cwd: str | None = None) -> SessionView:
        return self.register.find(name_or_id, cwd and os.path.realpath(cwd)).view()

    def handle(self, session_id: str) -> KernelHandle | None:
        session = self.register.sessions.get(session_id)
        kernel = session and session.kernel
        return (
            kernel.handle if kernel and kernel.ready_at is not None and not kernel.ending else None
        )

    def touch(self, session_id: str) -> None:
        session = self.register.known(session_id)
        self.register.use(session)
        session.used_at, session.is_fresh = clock.now(), False
        session.held_until = session.used_at + HOLD_SECONDS

    async def find_kept(self, name_or_id: str, cwd: str | None = None) -> SessionView:
        """Return the session that a user means, also by the id of one that only the ledger
        remembers.

        Raises UnknownUnitError, AmbiguousNameError.
        """
        try:
            return self.find(name_or_id, cwd)
        except UnknownUnitError:
            session = await self.register.remembered(name_or_id)
            if session is None:
                raise
            return session.view()

    async def export(self, session_id: str) -> dict[str, Any]:
        session = await self.register.remembered(session_id)
        return await self.cell_store.export(session or self.register.known(session_id))

    async def specs(self) -> Mapping[str, Mapping[str, Any]]:
        if BackendName(self.config.backend) is BackendName.GATEWAY_EXTERNAL:
            gateway = await self.pool.backends.get(BackendName.GATEWAY_EXTERNAL)
            return dict(await gateway.specs())
        from supervisord_py.kernels import kernelspecs

        return await asyncio.to_thread(kernelspecs.documents)

    async def capabilities(self, cwd: str | None = None) -> dict[str, Any]:
        return await self.resolver.capabilities(self.config, self.specs, cwd)

    async def explain(self, request: StartRequest) -> Choice:
        """Say which interpreter and environment would be taken, and why not others; nothing is
        started.
        """
        self._refuse_what_is_off(request)
        return await self.resolver.explain(request, self.config)

    # -- sessions ----------------------------------------------------------------------------------

    async def start(
        self, request: StartRequest, tell: Callable[[CallEvent], None] = lambda _: None
    ) -> tuple[bool, SessionView]:
        """Have a session with a living kernel; say whether it was started for that.

        `tell` as in `execute`.
        """
        self._refuse_at_the_end()
        patience = (
            self.config.start_seconds
            if request.timeout_seconds is None
            else request.timeout_seconds
        )
        deadline = asyncio.get_running_loop().time() + patience
        session, _ = await self._session_of(request, deadline, tell)
        session.extra = dict(request.env) or session.extra
        session.arguments = request.arguments or session.arguments
        return await self._acquire(session, Want.START, patience, tell), session.view()

    async def _acquire(
        self,
        session: LiveSession,
        want: Want,
        patience: float,
        tell: Callable[[CallEvent], None] = lambda _: None,
    ) -> bool:
        waiter = KernelWaiter(session=session, want=want, tell=tell)
        await self.pool.acquire(waiter, asyncio.get_running_loop().time() + patience)
        return waiter.is_cold

    async def stop(self, session_id: str, reason: Reason = Reason.STOPPED) -> tuple[int, ...]:
        """Stop a session's kernel, busy or not; return the pids that survived.

        Raises UnknownUnitError; KeeperTimeoutError: the keeper does not answer, the stop goes on.
        """
        session = self.register.known(session_id)
        kernel = session.kernel
        self.pool.stop(session, reason)
        await self._end_preparation(session)
        if kernel is None:
            return ()
        await self._placement.unless_silent(
            kernel.stopped.wait(), f"{kernel.unit} stopped", unit=kernel.unit
        )
        return tuple(each.pid for each in kernel.report.survivors)

    async def _end_preparation(self, session: LiveSession) -> None:
        """Have nobody wait any more for what is installed for a session; an install that nobody
        wants is ended.
        """
        build = session.build
        if build is None:
            return
        session.build = None
        leaving = tuple(session.preparations)
        for preparation in leaving:
            preparation.stop()
        for preparation in leaving:
            await preparation.has_left.wait()
        if not build.watchers:
            build.task.cancel()
            await asyncio.wait({build.task})

    async def restart(self, session_id: str) -> SessionView:
        """Have a fresh kernel in a session, busy or not.

        Raises PxError: refused, or the start failed.
        """
        self._refuse_at_the_end()
        session = self.register.known(session_id)
        await asyncio.to_thread(session.check_folder)
        again = self._acquire(
            session, Want.RESTART, self.config.start_seconds + self.config.stop_seconds
        )
        await self._placement.unless_silent(again, f"{session.unit} restarted", unit=session.unit)
        return session.view()

    async def interrupt(
        self, session_id: str, *, cell: str | None = None
    ) -> tuple[str | None, tuple[Step, ...]]:
        """Have the running cell end; asked again, the next step is taken at once.

        Without a cell of ours a start under way ends, or what the kernel may be doing for another
        client. `cell`: only if this one is running; what else runs is left alone. Returns the id of
        what was running, and the steps so far.
        """
        session = self.register.known(session_id)
        kernel = session.kernel
        run = kernel.run if kernel is not None else None
        if cell is not None and (run is None or run.cell_id != cell):
            return (run.cell_id if run is not None else None), ()
        if run is not None:
            known = len(run.steps)
            run.cut(CellStatus.CANCELLED)
            await run.until_climbed(known, STEP_SECONDS)
            return run.cell_id, run.steps
        if kernel is None or kernel.ending:
            return None, ()
        if kernel.ready_at is None or kernel.handle is None:
            self.pool.stop(session, Reason.CANCELLED)
            return None, (Step("end_start", 0.0, "its start was ended"),)
        return None, (Step(await kernel.handle.interrupt(), 0.0),)

    # -- calls -------------------------------------------------------------------------------------

    async def execute(self, request: CallRequest, tell: Callable[[CallEvent], None]) -> CallResult:
        """Run cells in a session; cancelling this cancels the call. `tell` hears what happens, and
        must not block.

        Raises PxError: the call never ran a cell; its detail says also that the timeout was
        changed, if so.
        """
        try:
            return await self._execute(request, tell)
        except PxError as error:
            _, clamped = timeout_of(request.timeout_seconds, self.config)
            if clamped is not None and isinstance(error, TimedOutError):
                error.detail = f"{error.detail} Its {clamped}"
            raise

    async def _execute(self, request: CallRequest, tell: Callable[[CallEvent], None]) -> CallResult:
        session, installed_for = await self._session_to_call(request, tell)
        self._refuse_at_the_end()
        call = KernelCall(self.pool, session, request, tell, installed_for)
        self._calls.add(call.task)
        call.task.add_done_callback(self._calls.discard)
        signs: set[asyncio.Future[Any]] = {call.task, self._replaced}
        try:
            await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            # nobody waits for it
            call.task.add_done_callback(lambda task: task.cancelled() or task.exception())
            if not self._replaced.done():
                call.cancel()
            raise
        if not call.task.done() or call.task.cancelled():
            self._refuse_at_the_end()
        return call.task.result()

    async def _session_to_call(
        self, request: CallRequest, tell: Callable[[CallEvent], None]
    ) -> tuple[LiveSession, float]:
        """Return the session of a call; that of the last one like it, as long as its kernel and the
        folders stay.

        With it comes how many seconds were spent on an install, which the call's time does not
        count.
        """
        place = (request.name, request.cwd, request.interpreter, request.backend, request.language)
        is_own = request.owner is Owner.PER_CALL
        is_usual = not (is_own or request.reset or request.kernelspec or request.cwd is None)
        places = [
            str(request.cwd),
            f"{request.cwd}/.venv/bin",
            f"{request.cwd}/venv/bin",
            request.interpreter or "",
        ]
        places += [
            f"{request.environ.get(name, '')}/bin" for name in ("VIRTUAL_ENV", "CONDA_PREFIX")
        ]
        # Looked at here: the way to a thread and back would take longer.
        seen = tuple(
            os.stat(it).st_mtime_ns if is_usual and os.path.exists(it) else 0  # noqa: ASYNC240
            for it in places
        )
        last, decided_by = self._recent.get(place, (None, None))
        if is_usual and last is not None and decided_by == (request.environ, seen) and last.kernel:
            return last, 0.0
        seconds, _ = timeout_of(request.timeout_seconds, self.config)
        session, installed_for = await self._session_of(request, request.arrived_at + seconds, tell)
        if request.reset:
            await asyncio.to_thread(session.check_folder)
        if is_usual:
            self._recent = {key: it for key, it in self._recent.items() if it[0].kernel}
            self._recent[place] = session, (request.environ, seen)
        return session, installed_for

    async def _session_of(
        self, request: StartRequest, deadline: float, tell: Callable[[CallEvent], None]
    ) -> tuple[LiveSession, float]:
        """Return the session that a request means, and how many seconds of the call's time an
        install took.
        """
        known = self.register.sessions.get(request.name)
        if known is not None and request.owner is not Owner.PER_CALL:
            if known.kernel is None:
                await asyncio.to_thread(known.check_folder)
            return known, 0.0
        name = session_name(request.name)
        self._refuse_what_is_off(request)
        if request.owner is Owner.PER_CALL:
            name = f"{name[:50]}.{secrets.token_hex(4)}"
        choice, seconds = await self._choice_for(request, name, deadline, tell)
        key = SessionKey(name, choice.cwd, choice.key, choice.backend)
        session = self.register.ensure(key, choice.language, request.owner)
        session.adopt(choice)
        for other in tuple(self.register.sessions.values()):
            # What an earlier call was told of the same name and folder, when nothing could be
            # installed, is over.
            is_same = (other.key.name, other.key.cwd) == (
                key.name,
                key.cwd,
            ) and other is not session
            if is_same and other.preparation_problem is not None:
                self.register.forget_unused(other)
        session.environ = dict(request.environ)
        return session, seconds

    async def _choice_for(
        self, request: StartRequest, name: str, deadline: float, tell: Callable[[CallEvent], None]
    ) -> tuple[Choice, float]:
        """Choose what a session's kernel is started from; return also how many seconds an install
        took.

        A session that only an install made is forgotten where the choice fell on another
        interpreter, or where the session was this call's own; otherwise it says why there is no
        choice. Raises CancelledRunError: the session was stopped.
        """
        from supervisord_py.kernels.preparation import CallerPreparation

        preparation = CallerPreparation(self._events, tell, self.register, name, request.owner)
        resolving = asyncio.create_task(
            self.resolver.resolve(request, self.config, deadline=deadline, watcher=preparation)
        )
        chosen: SessionKey | None = None
        try:
            signs: set[asyncio.Future[Any]] = {resolving, preparation.stopped}
            await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
            if not resolving.done():
                raise messages.refusal(
                    WhyRefused.STOPPED, preparation.sessions[-1].unit, self.config
                )
            choice = resolving.result()
            chosen = SessionKey(name, choice.cwd, choice.key, choice.backend)
            return choice, preparation.seconds
        except StartFailedError as error:
            for session in preparation.sessions:
                session.preparation_problem = error.problem()
            raise
        finally:
            resolving.cancel()
            await asyncio.wait({resolving})
            preparation.on_caller_left()
            for session in preparation.sessions:
                is_chosen = chosen is not None and session.key == chosen
                if not is_chosen and (chosen is not None or request.owner is Owner.PER_CALL):
                    self.register.forget_unused(session)

    def _refuse_what_is_off(self, request: StartRequest) -> None:
        expose = self.config.expose
        if expose == ("python" if request.is_bash else "bash"):
            raise ConflictError(
                f"{'Bash' if request.is_bash else 'Python'} cells are turned off: kernels.expose "
                f"is {expose}.",
                hint="Set [kernels] expose to both (PX_PY=both), or send the other kind of cells.",
            )

    def _refuse_at_the_end(self) -> None:
        if self._ending is not None:
            raise self._ending.fresh()

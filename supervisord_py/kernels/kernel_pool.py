"""The sessions at work and their kernels: takes events to the set and performs what it decides. One
per daemon.

A kernel is an instance of the supervisor's, whoever runs it. A direct one is the keeper's child,
with a row. One behind a gateway has no process of ours, and a session of shell cells has one for
each cell only: for these the backend alone starts and ends what there is. The note that is kept
with each is enough for a later control plane to go on with it: same process, same variables, and
the cell that it was at, which is found in the ledger.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.errors import (
    KeeperLostError,
    KeeperTimeoutError,
    PxError,
    ReadinessTimeoutError,
)
from supervisord_py.keeper import procfs
from supervisord_py.kernels import connection_file, messages
from supervisord_py.kernels.backend import Backends, KernelGoneError
from supervisord_py.kernels.cell_store import CellStore
from supervisord_py.kernels.config import KernelsConfig
from supervisord_py.kernels.live_session import (
    KernelInstance,
    KernelWaiter,
    LiveSession,
    SessionRegister,
    own_of,
)
from supervisord_py.kernels.session import BackendName, Owner, SessionKey
from supervisord_py.kernels.session_set import (
    Action,
    KernelStart,
    KernelStop,
    SessionSet,
    Waiter,
    WhyRefused,
)
from supervisord_py.ledger.kernels import KernelCellRow
from supervisord_py.ledger.store import Ledger
from supervisord_py.process import clock
from supervisord_py.process.events import EventStream
from supervisord_py.process.instance import End, Note, Phase, outcome, read_note, stopping_tag
from supervisord_py.process.model import Child, ChildSpec, Reason
from supervisord_py.process.supervisor import SHORT, Driver, Supervisor

if TYPE_CHECKING:
    from supervisord_py.kernels.live_session import KernelNote
    from supervisord_py.kernels.resolver import InterpreterResolver
    from supervisord_py.kernels.session import CallEvent

PERIOD_SECONDS = 1.0  # how often age, output, memory, and what others do with kernels are looked at
# how often whoever waits beyond its time looks whether the install is over
BUILD_LOOK_SECONDS = 0.5
ANSWER_SECONDS = 1.0  # how long an idle kernel may take to say that it is there
# how long a cell whose kernel has ended may take to say so; it knows as soon as we do
CELL_SECONDS = 5.0
# how long a gateway may take to say what it has of ours, before the doors open without it
REMOTE_SECONDS = 10.0
GATEWAY_UNIT = "kernel:gateway"  # the shared gateway's own process: its backend looks after it
# ends that are no cause of the next start
_ASKED_FOR = frozenset({Reason.STOPPED, Reason.SHUTDOWN})
_log = structlog.get_logger(__name__)


class KernelPool(Driver[KernelInstance]):
    """Starts, keeps and stops kernels; the driver of all of them."""

    kind = "kernel"

    def __init__(
        self,
        supervisor: Supervisor,
        ledger: Ledger,
        events: EventStream,
        backends: Backends,
        config: KernelsConfig,
        resolver: Callable[[], InterpreterResolver],
    ) -> None:
        self.placement, self.supervisor = supervisor.placement, supervisor
        self.backends, self.config = backends, config
        self.register = SessionRegister(ledger)
        self.cell_store = CellStore(ledger, lambda: self.config)
        self.set = SessionSet(config)
        # of which something is left, in the order of their starts
        self.kernels: dict[KernelInstance, None] = {}
        self._resolver = resolver
        self._events = events
        self._revived: list[KernelInstance] = []  # what the keeper held when we began
        # what they were at then
        self._in_flight: list[tuple[KernelInstance, KernelCellRow, Waiter]] = []
        # backends that could not say of a kernel whether it is there
        self._unsure: set[BackendName] = set()
        self._has_kernels = asyncio.Event()
        self._machine_bytes = procfs.machine_memory()
        self.is_let_go = False  # nothing is decided any more: another control plane goes on

    # -- beginning and end -------------------------------------------------------------------------

    def reconfigure(self, config: KernelsConfig) -> None:
        self.config = config
        if (direct := self.backends.made.get(BackendName.DIRECT)) is not None:
            direct.zygotes.trim()
        self.set.limits = config
        self.perform(self.set.settle(clock.now()))

    async def keep_watch(self) -> None:
        while True:
            self._has_kernels.clear()
            if not self.kernels:
                await self._has_kernels.wait()
            await clock.tick(PERIOD_SECONDS)
            self.look_at_foreign_use()
            self.register.write_used()
            self.perform(self.set.settle(clock.now()))
            busy = {it: it.run for it in self.kernels if it.run is not None}
            for run in busy.values():
                await asyncio.to_thread(run.hold_to_cap)
            await self.measure(*busy)

    def look_at_foreign_use(self) -> None:
        """Note what clients that are not ours (JupyterLab, a console) did meanwhile."""
        for kernel in self.kernels:
            handle, session = kernel.handle, kernel.session
            if handle is None or kernel.ready_at is None or kernel.ending:
                continue
            used, busy = handle.foreign_used_at, handle.foreign_busy
            if used is not None and used != kernel.foreign_used_at:
                kernel.foreign_used_at, session.last_used, session.is_fresh = (
                    used,
                    time.time(),
                    False,
                )
                session.used_at = max(session.used_at, clock.now() - max(0.0, time.time() - used))
            if busy is not session.foreign_busy:
                session.foreign_busy, session.is_fresh, session.used_at = busy, False, clock.now()

    async def ask_idle_ones(self) -> None:
        """Find out which kernels that nothing is known to run in do not answer; those are not
        idle.
        """

        async def ask(kernel: KernelInstance) -> None:
            if kernel.handle is not None:
                kernel.is_silent = not await kernel.handle.answers(ANSWER_SECONDS)

        idle = [
            it
            for it in self.kernels
            if it.session.phase is Phase.READY and it.run is None and not it.ending
        ]
        await asyncio.gather(*map(ask, idle))

    def running(self) -> set[tuple[str, str]]:
        return {(it.session.id, it.run.cell_id) for it in self.kernels if it.run is not None}

    # -- who asks ----------------------------------------------------------------------------------

    async def acquire(self, waiter: KernelWaiter, deadline: float) -> KernelInstance:
        """Wait for a session's kernel, until that time of the loop; `give_back` it.

        Raises PxError: there is none.
        """
        if waiter.session.phase is not Phase.READY:
            self.look_at_foreign_use()  # somebody may be evicted for this
        self.perform(self.set.ask(waiter, clock.now()))
        if waiter.granted.done():
            return waiter.granted.result()
        try:
            return await self._until_granted(waiter, deadline)
        except BaseException as error:
            self.perform(self.set.end(waiter, clock.now()))
            if isinstance(error, TimeoutError):
                raise messages.waited_in_vain(
                    waiter.session.unit, waiter.waits_for, self.config
                ) from None
            raise

    async def _until_granted(self, waiter: KernelWaiter, deadline: float) -> KernelInstance:
        """Wait until that time of the loop; what is installed meanwhile does not count.

        Raises TimeoutError.
        """
        session = waiter.session
        loop = asyncio.get_running_loop()
        before = session.installed_for
        while True:
            is_over = loop.time() >= deadline + session.installed_for - before
            if is_over and session.build is None:
                raise TimeoutError
            left = deadline + session.installed_for - before - loop.time()
            await asyncio.wait(
                {waiter.granted}, timeout=max(left, BUILD_LOOK_SECONDS if is_over else 0.0)
            )
            waiter.installed_for = session.installed_for - before
            if waiter.granted.done():
                return waiter.granted.result()

    def give_back(
        self, waiter: Waiter, kernel: KernelInstance, *, over_memory: bool = False
    ) -> None:
        """A call is over: the next one may have its kernel, unless the code has left that, or it
        is too large.
        """
        self.perform(self.set.end(waiter, clock.now(), over_memory=over_memory))
        if kernel.exiting:
            self.died(kernel)

    def stop(self, session: LiveSession, reason: Reason) -> None:
        self.perform(self.set.stop(session, reason, clock.now()))

    # -- what the set decides ----------------------------------------------------------------------

    def perform(self, actions: Sequence[Action]) -> None:
        if self.is_let_go:
            return
        cause: int | None = None
        for action in actions:  # starts come first: they are what others are evicted for
            match action:
                case KernelStart(LiveSession() as session):
                    cause = self._start(session)
        for action in actions:
            match action:
                case KernelStop(LiveSession(kernel=KernelInstance() as kernel), reason):
                    kernel.wanted = kernel.wanted or reason
                    kernel.event = (
                        cause
                        if reason is Reason.EVICTED_LRU and cause is not None
                        else kernel.event
                    )
                    self.supervisor.task(self.supervisor.stop(self, kernel, reason))
                # One that gave up in this very moment says so itself.
                case KernelWaiter(session=session, granted=granted) as waiter if not granted.done():
                    if waiter.refused is not None:
                        granted.set_exception(self._refusal(session, waiter.refused))
                    elif waiter.is_served and session.kernel is not None:
                        granted.set_result(session.kernel)
                    elif waiter.waits_for is Phase.STARTING:
                        told = {"kernel": session.id, "interpreter": session.key.interpreter}
                        waiter.tell({"event": "starting", **told})
                    else:
                        waiter.tell({"event": "queued", "position": waiter.position})

    def _refusal(self, session: LiveSession, why: WhyRefused) -> PxError:
        if why is WhyRefused.START_FAILED:
            given_up = KeeperLostError(f"The start of {session.unit} was given up.")
            return ((session.kernel and session.kernel.error) or given_up).fresh()
        if why is WhyRefused.HARD_FAILURE and session.failure is not None:
            return messages.hard_failure(session.deaths, session.failure, session.unit)
        return messages.refusal(why, session.unit, self.config)

    def _start(self, session: LiveSession) -> int:
        # at rest, it may have been forgotten meanwhile
        self.register.sessions[session.id] = session
        session.kernel = kernel = KernelInstance(self.placement.new_key(), session)
        self.kernels[kernel] = None
        self._has_kernels.set()
        event = self.supervisor.say("starting", kernel, cause=session.ended_by)
        session.ended_by = None
        kernel.life = self.supervisor.task(self._live(kernel))
        return event

    # -- one kernel: up ----------------------------------------------------------------------------

    async def _live(self, kernel: KernelInstance) -> None:
        session = kernel.session
        try:
            await self.supervisor.start(self, kernel)
        except PxError as error:
            short = error.extra.get("errno") in SHORT
            self.perform(self.set.start_failed(session, clock.now(), no_descriptors=short))
            return
        await self.supervisor.became_ready(kernel, cold_start_ms=kernel.cold_start_ms)
        session.reason = None
        session.notices = session.choice.notices if session.choice else ()
        self.perform(self.set.ready(session, clock.now()))
        self.register.write(session)
        await self._watch(kernel)

    async def prepare(self, instance: KernelInstance) -> ChildSpec | None:
        """Decide everything about a kernel; return what is to be spawned, None where the backend
        starts it.
        """
        instance.stop_seconds = self.config.stop_seconds
        if instance.launch is None:
            await self._choose(instance.session)
            instance.launch = await asyncio.to_thread(instance.plan, self.config)
        instance.backend = await self.backends.get(instance.session.key.backend)
        spec: ChildSpec | None = await instance.backend.spec(instance.launch)
        return spec

    async def _choose(self, session: LiveSession) -> None:
        if session.choice is None:
            from supervisord_py.kernels.preparation import KernelPreparation

            def tell(event: CallEvent) -> None:
                for waiter in session.line:
                    if isinstance(waiter, KernelWaiter):
                        waiter.tell(event)

            give_up_at = asyncio.get_running_loop().time() + self.config.start_seconds
            preparation = KernelPreparation(self._events, tell, session)
            try:
                choice = await self._resolver().resolve(
                    session.request(), self.config, deadline=give_up_at, watcher=preparation
                )
            finally:
                preparation.on_caller_left()
                session.installed_for += preparation.seconds
            session.adopt(choice)

    async def ready(self, instance: KernelInstance) -> None:
        launch, child, loop = instance.launch, instance.child, asyncio.get_running_loop()
        assert launch is not None
        try:
            give_up_at = loop.time() + self.config.start_seconds
            instance.handle = await instance.backend.start(launch, child, deadline=give_up_at)
        except KernelGoneError:
            if child is None:
                raise
            record, words = (
                await self.supervisor.wait(instance),
                await self.supervisor.last_words(instance),
            )
            ended = End(outcome(record, None, ready=False), record, words)
            raise messages.early_exit(launch, ended) from None
        except ReadinessTimeoutError as error:
            error.extra.setdefault("stderr_tail", await self.supervisor.tail(instance))
            raise
        instance.cold_start_ms = max(1, round((loop.time() - instance.asked_at) * 1000))

    # -- one kernel: down --------------------------------------------------------------------------

    async def _watch(self, kernel: KernelInstance) -> None:
        """Wait for the end of a ready kernel, and for its cell: whether the end was its wish, it
        alone knows.
        """
        assert kernel.handle is not None
        kernel.record = await asyncio.shield(kernel.handle.died) or kernel.record
        if kernel.run is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CELL_SECONDS):
                    await kernel.run.judged.wait()
        self.died(kernel)

    def died(self, kernel: KernelInstance) -> None:
        """It ended unasked; what is left of its tree is still to be stopped."""
        if kernel.ending or kernel.session.kernel is not kernel:
            return
        is_asked_for = bool(kernel.exiting or kernel.wanted)
        is_blameless = kernel.handle is not None and kernel.handle.is_blameless
        # A front end restarts its kernel itself, and would kill ours in the middle of the next
        # cell.
        is_front_ends = kernel.session.owner is Owner.JUPYTER
        is_crash = not (kernel.is_clean_end or is_asked_for or is_blameless or is_front_ends)
        self.perform(
            self.set.died(kernel.session, clock.now(), kernel.problem if is_crash else None)
        )

    def fail_waiters(self, instance: KernelInstance) -> None:
        if (end := instance.end) is not None:
            instance.problem.update(end.facts(), detail=f"The kernel {messages.how_it_ended(end)}.")

    async def release(self, instance: KernelInstance) -> None:
        if instance.handle is not None:
            await instance.handle.close()
        if instance.is_ours:
            folder = connection_file.folder_of(self.config.run_dir, instance.name)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def gone(self, instance: KernelInstance) -> None:
        self.kernels.pop(instance, None)
        session, end = instance.session, instance.end
        if isinstance(instance.error, KeeperLostError) and not self.set.is_closed:
            # nothing can be started or stopped any more: refuse everyone
            self.perform(self.set.close(clock.now()))
        if session.kernel in {instance, None} and end is not None:
            # the next start looks again: what was chosen may have changed
            session.kernel = session.choice = None
            session.reason = end.reason
            session.ended_by = None if end.reason in _ASKED_FOR else instance.event
            if instance.has_run and session.keeps_variables:
                how = (
                    "was ended by exit() in a cell"
                    if instance.exiting
                    else messages.how_it_ended(end)
                )
                session.lost = f"The session's last kernel {how}; its variables are gone."
            self.perform(self.set.gone(session, clock.now()))
        if self.register.sessions.get(session.id) is session:
            self.register.settle(session)

    # -- what an earlier control plane left --------------------------------------------------------

    async def adopt_all(self) -> Sequence[tuple[KernelInstance, KernelCellRow, Waiter]]:
        """Go through everything that is held; return the cells in flight, each to be followed, and
        close all others.

        Direct kernels are the supervisor's to adopt; the keeper has no process for shells' sessions
        and gateways'.
        """
        for instance in await self.supervisor.adopt(self):
            await self._go_on(instance)
        held = await self.placement.list("kernel:")
        alive = {child.unit.partition(":")[2] for child in held}
        await asyncio.to_thread(connection_file.sweep, self.config.run_dir, alive)
        for child in sorted(held, key=lambda it: it.started_at, reverse=True):
            await self._adopt_shell(child)
        if any(child.unit == GATEWAY_UNIT for child in held):
            gateway: Any = await self.backends.get(BackendName.GATEWAY_LOCAL)
            await gateway.find()
        notes = self.config.gateway_dir / "held"
        if await asyncio.to_thread(lambda: notes.is_dir() and any(notes.iterdir())):
            gateways = (BackendName.GATEWAY_LOCAL, BackendName.GATEWAY_EXTERNAL)
            await asyncio.gather(*(self._adopt_from(name) for name in gateways))
        left = [it for it in self._revived if it.session.kernel is not it]
        ends = {it.key: it.end or End(it.wanted or Reason.REPLACED) for it in left}
        await self.cell_store.close_cut_off({sent.id for _, sent, _ in self._in_flight}, ends)
        return self._in_flight

    def revive(self, child: Child, note: Note | None) -> KernelInstance | None:
        """Return the instance of a held kernel; None for a gateway and shell cells."""
        own = own_of(note)
        if child.unit == GATEWAY_UNIT or (
            own is not None and own.session.backend == BackendName.BASH
        ):
            return None
        instance = self._found(child, own)
        self._revived.append(instance)
        return instance

    def _found(self, child: Child, own: KernelNote | None) -> KernelInstance:
        session = self.register.restored(own.session) if own is not None else None
        if own is None or session is None:  # nobody's: it is only stopped
            nobody = SessionKey(child.unit.partition(":")[2], "", "", BackendName.DIRECT)
            session = LiveSession(nobody, "", child.started_at)
        instance = KernelInstance(child.key, session, unit=child.unit)
        instance.child, instance.started_at, instance.stop_seconds = (
            child,
            child.started_at,
            self.config.stop_seconds,
        )
        if own is not None:
            instance.cold_start_ms, instance.start_method = own.cold_start_ms, own.method
            instance.folder = own.folder
        return instance

    async def adopt(self, instance: KernelInstance, note: Note) -> bool:
        """Say whether to go on with a kernel: the newest of its session, if it answers."""
        own = own_of(note)
        newest = next(it for it in self._revived if it.session.id == instance.session.id)
        return own is not None and newest is instance and await self._take_over(instance, own)

    async def _take_over(self, instance: KernelInstance, own: KernelNote) -> bool:
        session, child = instance.session, instance.child
        session.interrupt_mode, instance.is_ours = (
            own.interrupt_mode,
            session.key.backend is BackendName.DIRECT,
        )
        try:
            if not session.keeps_variables:  # a shell's next cells are spawned from this launch
                await self._choose(session)
            instance.launch = await asyncio.to_thread(instance.plan, self.config)
            instance.backend = await self.backends.get(session.key.backend)
            instance.handle = await instance.backend.attach(instance.launch, child)
        except (KeeperLostError, KeeperTimeoutError):
            raise
        except Exception:
            self._unsure.add(session.key.backend)
            _log.exception("kernel_not_attached", unit=instance.unit, instance=instance.key)
        if instance.handle is None:
            return False
        if not instance.is_ours:
            instance.child = None
        instance.ready_at, instance.phase = instance.ready_at or instance.started_at, Phase.READY
        session.kernel = instance
        self.register.sessions[session.id] = session
        return True

    async def _adopt_shell(self, child: Child) -> None:
        """Go on with the newest cell of each session of shells; also with one that ended
        meanwhile, to close it.
        """
        note = read_note(child.tag)
        own = own_of(note)
        if note is None or own is None or own.session.backend != BackendName.BASH:
            return
        lives_on = child.exit is None and note.stopping is None
        is_open = lives_on or await self.cell_store.open_row(own.session.id, None) is not None
        if not is_open or not await self._take_remote(child, own):
            instance = self._found(child, None)
            instance.record = child.exit
            instance.kept_tag = stopping_tag(child.tag, note, note.stopping or Reason.REPLACED)
            self.supervisor.task(
                self.supervisor.stop(self, instance, None if child.exit else Reason.REPLACED)
            )

    async def _adopt_from(self, name: BackendName) -> None:
        """Take over what one gateway has of ours; what it lost is swept, unless it could not be
        asked.
        """
        try:
            async with asyncio.timeout(REMOTE_SECONDS):
                backend: Any = await self.backends.get(name)
                for child in await backend.held():
                    note = read_note(child.tag)
                    own = own_of(note)
                    if (
                        note
                        and not note.stopping
                        and own is not None
                        and own.session.backend == name
                    ):
                        await self._take_remote(child, own)
        except (PxError, OSError, TimeoutError) as error:
            _log.warning("gateway_not_asked", backend=name.value, detail=str(error))
        else:
            if name not in self._unsure:
                self.supervisor.task(backend.sweep())

    async def _take_remote(self, child: Child, own: KernelNote) -> bool:
        """Go on with a kernel that is not the supervisor's, unless its session has another."""
        session = self.register.sessions.get(own.session.id)
        instance = self._found(child, own)
        if (session is not None and session.kernel is not None) or not await self._take_over(
            instance, own
        ):
            return False
        self.supervisor.say("adopted", instance, pid=child.identity.pid or None)
        await self._go_on(instance)
        return True

    async def _go_on(self, kernel: KernelInstance) -> None:
        session = kernel.session
        # A shell is a process of its own for each cell: its row was written before there was one to
        # name.
        sent = await self.cell_store.open_row(
            session.id, kernel.key if session.keeps_variables else None
        )
        if sent is not None or session.newest == kernel.key:
            # the variables of the session's last cells are this kernel's
            kernel.has_run, session.lost = True, None
        session.used_at = clock.now() - max(
            0.0, time.time() - (session.last_used or kernel.started_at)
        )
        running = Waiter(session) if sent is not None else None
        self.kernels[kernel] = None
        self._has_kernels.set()
        self.perform(self.set.adopt(session, clock.now(), running))
        kernel.life = self.supervisor.task(self._watch(kernel))
        if sent is not None and running is not None:
            self._in_flight.append((kernel, sent, running))

    # -- memory: the hard limit is the keeper's, the soft one is here ------------------------------

    async def is_over_memory(self, kernel: KernelInstance) -> bool:
        """Measure a kernel after a cell: one without children is measured here, the keeper knows
        whole trees.

        Forked workers share pages with it: before any verdict these are counted once, which takes
        longer.
        """
        limit, pid = self.config.soft_memory_bytes(self._machine_bytes), kernel.pid
        if limit and pid is not None and procfs.children(pid) == set():
            kernel.rss_bytes = procfs.resident(pid)
            if kernel.rss_bytes <= limit:
                return False
        is_large = limit > 0 and await self.measure(kernel) > limit
        return is_large and await self.measure(kernel, shared_once=True) > limit

    async def measure(self, *kernels: KernelInstance, shared_once: bool = False) -> int:
        """Measure kernels; return the largest, in bytes, 0 where nothing of them is ours to
        measure.
        """
        keys, largest = {key: it for it in kernels if (key := it.process_key) is not None}, 0
        with contextlib.suppress(KeeperLostError, KeeperTimeoutError):
            stats = await self.placement.stat(tuple(keys), shared_once=shared_once) if keys else {}
            for key, stat in stats.items():
                keys[key].rss_bytes = stat.rss_bytes
                largest = max(largest, stat.rss_bytes)
        return largest

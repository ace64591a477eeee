"""The set of sessions at work: takes events to it and performs what it decides. One per daemon."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from supervisord_py.config.settings import MIB
from supervisord_py.errors import KeeperLostError, PxError
from supervisord_py.keeper import procfs
from supervisord_py.kernels import messages
from supervisord_py.kernels.cell import KernelStarting, Queued
from supervisord_py.kernels.kernel_driver import KernelDriver
from supervisord_py.kernels.live_session import KernelInstance, LiveSession
from supervisord_py.kernels.session import Owner
from supervisord_py.kernels.session_set import (
    Action,
    KernelStart,
    KernelStop,
    SessionSet,
    Waiter,
    WaitsFor,
    WhyRefused,
)
from supervisord_py.process import clock
from supervisord_py.process.host import SHORT
from supervisord_py.process.instance import End, Phase
from supervisord_py.process.lifecycle import outcome
from supervisord_py.process.model import Reason
from supervisord_py.process.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisord_py.kernels.backend import Backends
    from supervisord_py.kernels.cell import CallEvent
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.resolver import InterpreterResolver
    from supervisord_py.kernels.session_register import SessionRegister
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.process.events import EventStream
    from supervisord_py.process.keeper_client import KeeperClient

PERIOD_SECONDS = 1.0  # how often age, output, memory, and what others do with kernels are looked at
CELL_SECONDS = 5.0  # how long a cell whose kernel has ended may take to say so; it knows as soon as we do
_ASKED_FOR = frozenset({Reason.STOPPED, Reason.SHUTDOWN})  # ends that are no cause of the next start


def ignore(_event: CallEvent) -> None:
    """Tell nobody."""


class KernelWaiter(Waiter, eq=False, kw_only=True):
    """One who waits for a kernel, and is told of what it waits for."""

    session: LiveSession
    granted: asyncio.Future[KernelInstance]
    tell: Callable[[CallEvent], None] = ignore


class KernelPool:
    """Starts, keeps and stops kernels. `open` it where the loop runs."""

    def __init__(
        self,
        placement: KeeperClient,
        ledger: Ledger,
        events: EventStream,
        backends: Backends,
        register: SessionRegister,
        config: KernelsConfig,
        resolver: Callable[[], InterpreterResolver],
    ) -> None:
        self.placement = placement
        self.supervisor = Supervisor(placement, ledger, events)
        self.config = config
        self.set, self.register = SessionSet(config), register
        self.driver = KernelDriver(self.supervisor, backends, register, resolver, lambda: self.config, self._gone)
        self.kernels: dict[KernelInstance, None] = {}  # of which something is left, in the order of their starts
        self._has_kernels = asyncio.Event()
        self._let_go = False

    # -- beginning and end -------------------------------------------------------------------------------------------

    async def stop_all(self) -> None:
        """Stop every kernel, all at once; returns when nothing is left, or what is left has survived a stop."""
        self.perform(self.set.close(clock.now()))
        for kernel in tuple(self.kernels):
            await kernel.stopped.wait()

    async def let_go(self) -> None:
        self._let_go = True
        await self.supervisor.close()

    def reconfigure(self, config: KernelsConfig) -> None:
        """Take new settings: limits of the set at once, the rest for what starts from now on."""
        self.config = config
        self.driver.backends.reconfigure(config)
        self.set.limits = config
        self.perform(self.set.settle(clock.now()))

    async def keep_watch(self) -> None:
        """Look at age, output, memory, and what others do with kernels; asleep while there are none."""
        while True:
            self._has_kernels.clear()
            if not self.kernels:
                await self._has_kernels.wait()
            await asyncio.sleep(PERIOD_SECONDS)
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
                kernel.foreign_used_at, session.last_used, session.is_fresh = used, time.time(), False
                session.used_at = max(session.used_at, clock.now() - max(0.0, time.time() - used))
            if busy is not session.foreign_busy:
                session.foreign_busy, session.is_fresh, session.used_at = busy, False, clock.now()

    # -- who asks ----------------------------------------------------------------------------------------------------

    async def acquire(self, waiter: KernelWaiter, deadline: float) -> KernelInstance:
        """Wait for a session's kernel, until that time of the loop; `release` it.

        Raises PxError: refused, too late, or the start failed.
        """
        if waiter.session.phase is not Phase.READY:
            self.look_at_foreign_use()  # somebody may be evicted for this
        self.perform(self.set.ask(waiter, clock.now()))
        if waiter.granted.done():
            return waiter.granted.result()
        try:
            async with asyncio.timeout_at(deadline):
                return await waiter.granted
        except TimeoutError:
            self.perform(self.set.end(waiter, clock.now()))
            session = waiter.session
            raise messages.waited_in_vain(session.unit, waiter.waits_for, self.config) from None
        except BaseException:
            self.perform(self.set.end(waiter, clock.now()))
            raise

    def release(self, waiter: Waiter, kernel: KernelInstance, *, over_memory: bool = False) -> None:
        """A call is over: the next one may have its kernel, unless the code has left that, or it is too large."""
        self.perform(self.set.end(waiter, clock.now(), over_memory=over_memory))
        if kernel.exiting:
            self.died(kernel)

    def stop(self, session: LiveSession, reason: Reason) -> None:
        self.perform(self.set.stop(session, reason, clock.now()))

    # -- what the set decides ----------------------------------------------------------------------------------------

    def perform(self, actions: Sequence[Action]) -> None:
        if self._let_go:
            return
        cause: int | None = None
        for action in actions:  # starts come first: they are what others are evicted for
            if isinstance(action, KernelStart):
                cause = self._start(action)
        for action in actions:
            match action:
                case KernelStop(LiveSession(kernel=KernelInstance() as kernel), reason):
                    kernel.wanted = kernel.wanted or reason
                    kernel.event = cause if reason is Reason.EVICTED_LRU and cause is not None else kernel.event
                    self.supervisor.task(self.supervisor.stop(self.driver, kernel, reason))
                case KernelWaiter(session=session, granted=granted) as waiter if not granted.done():
                    if waiter.refused is not None:
                        granted.set_exception(self._refusal(session, waiter.refused))
                    elif waiter.is_served and session.kernel is not None:
                        granted.set_result(session.kernel)
                    elif waiter.waits_for is WaitsFor.START:
                        waiter.tell(KernelStarting(session.id, session.key.interpreter))
                    else:
                        waiter.tell(Queued(waiter.position))
                case _:  # it gave up in this very moment, and says so itself
                    pass

    def _refusal(self, session: LiveSession, why: WhyRefused) -> PxError:
        if why is WhyRefused.START_FAILED:
            given_up = KeeperLostError(f"The start of {session.unit} was given up.")
            return ((session.kernel and session.kernel.error) or given_up).fresh()
        if why is WhyRefused.HARD_FAILURE and session.failure is not None:
            return messages.hard_failure(session.failure, session.unit)
        return messages.refusal(why, session.unit, self.config)

    def _start(self, start: KernelStart) -> int:
        session = start.session
        assert isinstance(session, LiveSession)
        session.kernel = kernel = KernelInstance(self.placement.new_key(), session)
        self._add(kernel)
        event = self.supervisor.say("starting", kernel, cause=session.ended_by, why=start.cause.value)
        session.ended_by = None
        kernel.life = self.supervisor.task(self._live(kernel))
        return event

    def _add(self, kernel: KernelInstance) -> None:
        self.kernels[kernel] = None
        self._has_kernels.set()

    # -- one kernel --------------------------------------------------------------------------------------------------

    def adopt(self, kernel: KernelInstance, running: Waiter | None) -> None:
        """Count an adopted kernel in; `running` stands for the cell that it is at."""
        self._add(kernel)
        self.perform(self.set.adopt(kernel.session, clock.now(), running))
        kernel.life = self.supervisor.task(self._watch(kernel))

    async def _live(self, kernel: KernelInstance) -> None:
        session = kernel.session
        try:
            await self.supervisor.start(self.driver, kernel)
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

    async def _watch(self, kernel: KernelInstance) -> None:
        """Wait for the end of a ready kernel, and for its cell: whether the end was its wish, it alone knows."""
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
        if kernel.record is not None:
            kernel.explain(End(outcome(kernel.record, kernel.wanted, ready=True), kernel.record))
        is_clean = kernel.record is not None and kernel.record.code == 0 and kernel.run is None
        # A front end restarts its kernel itself, and would kill ours in the middle of the next cell.
        is_crash = not (is_clean or kernel.exiting or kernel.wanted or kernel.session.owner is Owner.JUPYTER)
        self.perform(self.set.died(kernel.session, clock.now(), kernel.problem if is_crash else None))

    def _gone(self, kernel: KernelInstance) -> None:
        """Nothing of it is left, or nothing more can be done about it."""
        self.kernels.pop(kernel, None)
        session, end = kernel.session, kernel.end
        if isinstance(kernel.error, KeeperLostError) and not self.set.is_closed:
            self.perform(self.set.close(clock.now()))  # nothing can be started or stopped any more: refuse everyone
        if session.kernel in {kernel, None} and end is not None:
            session.kernel = session.choice = None  # the next start looks again: what was chosen may have changed
            session.reason = end.reason
            session.ended_by = None if end.reason in _ASKED_FOR else kernel.event
            if kernel.has_run and session.keeps_variables:
                how = "was ended by exit() in a cell" if kernel.exiting else messages.how_it_ended(end)
                session.lost = f"The session's last kernel {how}; its variables are gone."
            self.perform(self.set.gone(session, clock.now()))
        if self.register.sessions.get(session.id) is session:
            self.register.settle(session)

    # -- memory: the hard limit is the keeper's, the soft one is here ------------------------------------------------

    async def is_over_memory(self, kernel: KernelInstance) -> bool:
        """Measure a kernel after a cell; say whether it is over the soft limit.

        One without children is measured here; the keeper knows whole trees. Forked workers share pages with the kernel:
        before any verdict these are counted once, which takes longer.
        """
        limit, pid = self.config.soft_memory_mb * MIB, kernel.pid
        if not limit:
            return False
        if pid is not None and not procfs.has_children(pid):
            kernel.rss_bytes = procfs.resident(pid)
            if kernel.rss_bytes <= limit:
                return False
        size = await self.measure(kernel)
        if size is None or size <= limit:
            return False
        size = await self.measure(kernel, shared_once=True)
        return size is not None and size > limit

    async def measure(self, *kernels: KernelInstance, shared_once: bool = False) -> int | None:
        """Measure kernels; return the largest, in bytes, None where nothing of them is ours to measure."""
        keys = {key: it for it in kernels if (key := it.process_key) is not None}
        if not keys:
            return None
        try:
            stats = await self.placement.stat(tuple(keys), shared_once=shared_once)
        except KeeperLostError:
            return None
        for key, stat in stats.items():
            keys[key].rss_bytes = stat.rss_bytes
        return max((stat.rss_bytes for stat in stats.values()), default=None)

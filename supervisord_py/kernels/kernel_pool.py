"""The set of sessions at work: takes events to it and performs what it decides. One per daemon."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

from supervisord_py.errors import KeeperLostError, PxError
from supervisord_py.kernels.cell import KernelStarting, Queued
from supervisord_py.kernels.kernel_driver import KernelDriver, KernelInstance
from supervisord_py.kernels.messages import how_it_ended, refusal_error
from supervisord_py.kernels.session import Owner
from supervisord_py.kernels.session_set import (
    Death,
    Fail,
    Fault,
    Grant,
    Placed,
    Refuse,
    Start,
    StartCause,
    Stop,
    WaitsFor,
)
from supervisord_py.process import clock
from supervisord_py.process.host import SHORT
from supervisord_py.process.instance import End
from supervisord_py.process.lifecycle import outcome
from supervisord_py.process.model import Reason
from supervisord_py.process.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Concatenate, ParamSpec

    from supervisord_py.kernels.backend import Backends
    from supervisord_py.kernels.cell import CallEvent
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.resolver import InterpreterResolver
    from supervisord_py.kernels.session_register import LiveSession, SessionRegister
    from supervisord_py.kernels.session_set import Ask, Instruction
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.process.events import EventStream
    from supervisord_py.process.keeper_client import KeeperClient

    P = ParamSpec("P")

LONGEST_TIMER_SECONDS = 60.0
"""The loop's clock stands still during suspend, the set's does not: look at it again after that at the latest."""
PERIOD_SECONDS = 1.0  # how often kernels that run cells are measured
CELL_SECONDS = 5.0  # how long a cell whose kernel has ended may take to say so; it knows as soon as we do
_ASKED_FOR = frozenset({Reason.STOPPED, Reason.SHUTDOWN})  # ends that are no cause of the next start
_log = structlog.get_logger(__name__)


class Granted(Struct, frozen=True):
    """A kernel that is there for whoever asked. `cold`: it was started meanwhile."""

    life: KernelInstance
    cold: bool


class Waiter(Struct, frozen=True):
    """One who waits for a kernel."""

    session: LiveSession
    granted: asyncio.Future[Granted]
    tell: Callable[[CallEvent], None]


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
        self.set, self.register = register.set, register
        self.driver = KernelDriver(self.supervisor, backends, register, resolver, lambda: self.config, self._gone)
        self._by_serial: dict[int, KernelInstance] = {}
        self._has_lives = asyncio.Event()
        self._waiters: dict[int, Waiter] = {}
        self._tickets = 0
        self._timer: asyncio.TimerHandle | None = None
        self._let_go = False

    # -- beginning and end -------------------------------------------------------------------------------------------

    async def stop_all(self) -> None:
        """Stop every kernel, all at once; returns when nothing is left, or what is left has survived a stop."""
        self.report(self.set.close)
        for life in self.lives_present():
            await life.stopped.wait()

    async def let_go(self) -> None:
        """End every task; nothing is stopped by that."""
        self._let_go = True
        if self._timer is not None:
            self._timer.cancel()
        await self.supervisor.close()

    def reconfigure(self, config: KernelsConfig) -> None:
        """Take new settings: limits of the set at once, the rest for what starts from now on."""
        self.config = config
        self.driver.backends.reconfigure(config)
        self.report(self.set.bound, config.sessions)

    # -- the set -----------------------------------------------------------------------------------------------------

    def report(self, happened: Callable[Concatenate[float, P], None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Tell the set, by one of its methods, what happened, and perform what it decides."""
        if not self._let_go:
            happened(clock.now(), *args, **kwargs)
            self._perform_all()

    def _look_again(self) -> None:
        """Time has passed."""
        self.look_at_foreign_use()
        self._perform_all()

    def look_at_foreign_use(self) -> None:
        """Tell the set what clients that are not ours (JupyterLab, a console) did meanwhile."""
        for life in tuple(self._by_serial.values()):
            handle = life.handle
            if handle is None or life.ready_at is None or life.ending:
                continue
            used, busy = handle.foreign_used_at, handle.foreign_busy
            if used is not None and used != life.foreign_used_at:
                life.foreign_used_at, life.session.last_used = used, time.time()
                self.report(self.set.used, life.session.id, clock.now() - max(0.0, time.time() - used))
            if busy != life.foreign_busy:
                life.foreign_busy = busy
                self.report(self.set.works_for_others, life.session.id, busy=busy)

    def _perform_all(self) -> None:
        cause: int | None = None
        instructions = self.set.decide(clock.now())
        for instruction in instructions:  # starts come first: they are what others are evicted for
            if isinstance(instruction, Start):
                cause = self._start(instruction)
        for instruction in instructions:
            self._perform(instruction, cause)
        self._arm()

    def _arm(self) -> None:
        deadline = self.set.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            delay = min(max(0.0, deadline - clock.now()), LONGEST_TIMER_SECONDS)
            self._timer = asyncio.get_running_loop().call_later(delay, self._look_again)

    def _perform(self, instruction: Instruction, cause: int | None) -> None:
        match instruction:
            case Stop(_, serial, reason):
                life = self._by_serial[serial]
                if reason is not None and cause is not None:
                    life.event = cause
                self.supervisor.task(self.supervisor.stop(self.driver, life, reason))
            case Grant(ticket, _, serial, cold):
                self._settle(ticket, Granted(self._by_serial[serial], cold))
            case Refuse(ticket, session_id):
                self._settle(ticket, refusal_error(instruction, self.config.sessions, f"kernel:{session_id}"))
            case Fail(ticket, session_id, serial):
                given_up = KeeperLostError(f"The start of kernel:{session_id} was given up.")
                self._settle(ticket, (self._by_serial[serial].error or given_up).fresh())
            case Placed(ticket, session_id, position, waits_for):
                if (waiter := self._waiters.get(ticket)) is not None:
                    starting = KernelStarting(session_id, waiter.session.key.interpreter)
                    waiter.tell(starting if waits_for is WaitsFor.START else Queued(position))

    def _settle(self, ticket: int, result: Granted | PxError) -> None:
        waiter = self._waiters.get(ticket)
        if waiter is None or waiter.granted.done():
            return  # it gave up in this very moment, and says so itself
        if isinstance(result, Granted):
            waiter.granted.set_result(result)
        else:
            waiter.granted.set_exception(result)

    def _start(self, start: Start) -> int:
        session = self.register.known(start.session)
        life = KernelInstance(self.placement.new_key(), session, start.serial)
        self._by_serial[start.serial] = session.life = life
        self._has_lives.set()
        if start.cause is StartCause.RESTARTED:
            session.restarts += 1
        event = self.supervisor.say("starting", life, cause=session.ended_by, why=start.cause.value)
        session.ended_by = None
        life.life = self.supervisor.task(self._live(life))
        return event

    # -- who asks ----------------------------------------------------------------------------------------------------

    def new_ticket(self) -> int:
        """Return a fresh ticket."""
        self._tickets += 1
        return self._tickets

    async def acquire(
        self, asked: Ask, session: LiveSession, tell: Callable[[CallEvent], None] = lambda _: None
    ) -> Granted:
        """Wait for a session's kernel. Raises PxError: refused, or the start failed."""
        waiter = Waiter(session, asyncio.get_running_loop().create_future(), tell)
        self._waiters[asked.ticket] = waiter
        try:
            self.look_at_foreign_use()  # somebody may be evicted for this
            self.report(self.set.ask, asked)
            return await waiter.granted
        except BaseException:
            self.report(self.set.ended, asked.ticket)
            raise
        finally:
            del self._waiters[asked.ticket]

    def give_back(self, life: KernelInstance, ticket: int) -> None:
        """A call is over: the next one may have its kernel, unless the code has left that."""
        self.report(self.set.ended, ticket)
        if life.exiting:
            self.life_died(life)
        self.register.used(life.session)

    def lives_present(self) -> tuple[KernelInstance, ...]:
        """Return every life of which something is left."""
        return tuple(self._by_serial.values())

    def serial_of_instance(self, instance: str | None) -> int | None:
        """Return the serial of the life that bears an instance key, None where it is none of ours."""
        return next((it.serial for it in self._by_serial.values() if instance in {it.key, *it.shells}), None)

    # -- memory: the hard limit is the keeper's, the soft one is here --------------------------------------------------

    async def is_over_memory(self, life: KernelInstance) -> bool:
        """Measure a kernel after a cell; say whether it is over the soft limit.

        Forked workers share pages with the kernel: before any verdict these are counted once, which takes longer.
        """
        limit = self.config.limits.soft_memory_bytes
        largest = await self.measure(life)
        if limit is None or largest is None or largest <= limit:
            return False
        largest = await self.measure(life, shared_once=True)
        return largest is not None and largest > limit

    async def measure(self, *lives: KernelInstance, shared_once: bool = False) -> int | None:
        """Measure kernels; return the largest, in bytes, None where nothing of them is ours to measure."""
        keys = {it.key: it for it in lives if it.is_ours} | {shell: it for it in lives for shell in it.shells}
        if not keys:
            return None
        try:
            stats = await self.placement.stat(tuple(keys), shared_once=shared_once)
        except KeeperLostError:
            return None
        for key, stat in stats.items():
            keys[key].rss_bytes = stat.rss_bytes
        return max((stat.rss_bytes for stat in stats.values()), default=None)

    async def keep_watch(self) -> None:
        """Once a second, measure what runs and look at what others do with kernels; asleep while there are none."""
        while True:
            self._has_lives.clear()
            if not self._by_serial:
                await self._has_lives.wait()
            await asyncio.sleep(PERIOD_SECONDS)
            self.look_at_foreign_use()
            if busy := [it for it in self.lives_present() if it.busy]:
                await self.measure(*busy)

    # -- lives of kernels --------------------------------------------------------------------------------------------

    def adopt(self, life: KernelInstance, *, last_used: float, ticket: int | None, per_call: bool) -> None:
        """Count an adopted kernel in; `last_used` as `clock.now`, `ticket` of the cell that it is at."""
        life.serial = self.set.next_serial()
        self._by_serial[life.serial] = life
        self._has_lives.set()
        self.report(self.set.adopt, life.session.id, life.serial, last_used, ticket, per_call=per_call)
        life.life = self.supervisor.task(self._watch(life))

    async def _live(self, life: KernelInstance) -> None:
        """Bring a kernel up and watch it to its end."""
        try:
            await self.supervisor.start(self.driver, life)
        except PxError as error:
            self.report(self.set.start_failed, life.session.id, life.serial, fault_of(life, error), error.problem())
            return
        self.supervisor.became_ready(life, cold_start_ms=life.cold_start_ms)
        session = life.session
        session.reason = None
        session.notices = session.choice.notices if session.choice else ()
        self.report(self.set.ready, session.id, life.serial)
        self.register.write(session)
        await self._watch(life)

    async def _watch(self, life: KernelInstance) -> None:
        """Wait for the end of a ready kernel, and for its cell: whether the end was its wish, it alone knows."""
        assert life.handle is not None
        life.record = await asyncio.shield(life.handle.died) or life.record
        if life.busy:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CELL_SECONDS):
                    await life.judged.wait()
        self.life_died(life)

    def life_died(self, life: KernelInstance) -> None:
        """It ended unasked; what is left of its tree is still to be stopped."""
        if life.death_reported or life.ending:
            return
        life.death_reported = True
        if life.record is not None:
            life.explain(End(outcome(life.record, life.wanted, ready=True), life.record))
        how = death_of(life)
        if how is Death.CRASHED and life.session.owner is Owner.JUPYTER:
            how = Death.EXITED  # its front end restarts it, and would kill ours in the middle of the next cell
        self.report(self.set.died, life.session.id, life.serial, how, life.problem)

    def _gone(self, life: KernelInstance) -> None:
        """Nothing of it is left, or nothing more can be done about it."""
        self._by_serial.pop(life.serial, None)
        session, end = life.session, life.end
        if isinstance(life.error, KeeperLostError) and not self.set.is_closed:
            self.report(self.set.close)  # nothing can be started or stopped any more: refuse everyone
        if session.life in {life, None} and end is not None:
            session.life = session.choice = None  # the next start looks again: what was chosen may have changed
            session.reason = end.reason
            session.ended_by = None if end.reason in _ASKED_FOR else life.event
            if life.cell is not None and session.keeps_variables:
                how = "was ended by exit() in a cell" if life.exiting else how_it_ended(end)
                session.lost = f"The session's last kernel {how}; its variables are gone."
        if life.serial:
            self.report(self.set.gone, session.id, life.serial)
        if self.register.get(session.id) is session:
            self.register.settle(session)

    def note(self, life: KernelInstance) -> None:
        """Have the note of a kernel brought up to date; nobody waits for that."""
        if not self._let_go:
            self.supervisor.task(self.supervisor.annotate(life))


def death_of(life: KernelInstance) -> Death:
    """Say how a ready kernel ended, as far as the set cares."""
    if life.wanted is not None:
        return Death.KILLED
    if life.exiting:
        return Death.EXITED
    clean = life.record is not None and life.record.code == 0
    return Death.EXITED if clean and not life.busy else Death.CRASHED


def fault_of(life: KernelInstance, error: PxError) -> Fault:
    """Say whose fault a failed start is."""
    if error.extra.get("errno") in SHORT:
        return Fault.NO_DESCRIPTORS
    if life.wanted is not None or isinstance(error, KeeperLostError):
        return Fault.FOREIGN
    return Fault.OWN

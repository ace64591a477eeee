"""The set of sessions at work: takes events to it and performs what it decides. One per daemon."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct

from supervisord_py.errors import KeeperLostError, PxError
from supervisord_py.kernels.cell import KernelStarting, Queued
from supervisord_py.kernels.hosting.kernel_lives import KernelLives
from supervisord_py.kernels.hosting.launching import launch_of, tag_of
from supervisord_py.kernels.lives.kernel_life import KernelLife
from supervisord_py.kernels.messages import KernelEnd, how_it_ended, refusal_error
from supervisord_py.kernels.room_requests import Owner
from supervisord_py.kernels.sessions import session_events as ev
from supervisord_py.kernels.sessions.session_events import Death, Fault, StartCause, WaitsFor
from supervisord_py.kernels.sessions.session_set import SessionSet
from supervisord_py.process import clock
from supervisord_py.process.host import SHORT
from supervisord_py.process.lifecycle import outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator

    from supervisord_py.kernels.backend import KernelBackend, Launch
    from supervisord_py.kernels.backends import Backends
    from supervisord_py.kernels.cell import CallEvent
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.hosting.live_session import LiveSession
    from supervisord_py.kernels.hosting.session_register import SessionRegister
    from supervisord_py.kernels.lives.kernel_chronicle import KernelChronicle
    from supervisord_py.kernels.resolver import InterpreterResolver
    from supervisord_py.kernels.session import BackendName
    from supervisord_py.process.keeper_client import KeeperClient
    from supervisord_py.process.model import Reason

LONGEST_TIMER_SECONDS = 60.0
"""The loop's clock stands still during suspend, the set's does not: look at it again after that at the latest."""
_WEIGHS_USE = (ev.Asked, ev.StartAsked, ev.RestartAsked, ev.TimePassed)
"""Events after which somebody may be evicted."""
_log = structlog.get_logger(__name__)


class Granted(Struct, frozen=True):
    """A kernel that is there for whoever asked. `cold`: it was started meanwhile."""

    ticket: int
    life: KernelLife
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
        chronicle: KernelChronicle,
        register: SessionRegister,
        config: KernelsConfig,
        resolver: InterpreterResolver,
    ) -> None:
        self.placement = placement
        self.chronicle = chronicle
        self.config = config
        self.set = SessionSet(config.sessions)
        self.register = register
        self.backends: Backends
        self.lives = KernelLives(self)
        self._resolver = resolver
        self._by_serial: dict[int, KernelLife] = {}
        self._waiters: dict[int, Waiter] = {}
        self._failures: dict[int, PxError] = {}
        self._tickets = 0
        self._timer: asyncio.TimerHandle | None = None
        self._let_go = False
        self._group: asyncio.TaskGroup
        self._owner: asyncio.Task[None] | None = None

    # -- beginning and end -------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Begin: tasks may run from now on."""
        grouped = asyncio.Event()
        self._owner = asyncio.create_task(self._hold_group(grouped), name="kernels")
        await grouped.wait()

    async def _hold_group(self, grouped: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as self._group:
            grouped.set()
            await asyncio.Event().wait()  # until `let_go` cancels the group with all that is in it

    async def stop_all(self) -> None:
        """Stop every kernel, all at once; returns when nothing is left, or what is left has survived a stop."""
        self.report(ev.Closed())
        for life in self.lives_present():
            await life.stopped.wait()

    async def let_go(self) -> None:
        """End every task; nothing is stopped by that."""
        self._let_go = True
        if self._timer is not None:
            self._timer.cancel()
        if self._owner is not None:
            self._owner.cancel()
            await asyncio.wait([self._owner])

    def run_task(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Run something in the room's group; what it raises is logged. While all ends, who asks is cancelled, too."""
        guarded = _guarded(work)
        try:
            task = self._group.create_task(guarded)
        except RuntimeError:
            guarded.close()
            work.close()
            raise asyncio.CancelledError from None
        task.add_done_callback(lambda _: work.close())  # cancelled before its first step, nobody else would
        return task

    def reconfigure(self, config: KernelsConfig) -> None:
        """Take new settings: limits of the set at once, the rest for what starts from now on."""
        self.config = config
        self.backends.reconfigure(config)
        self.report(ev.Bounded(config.sessions))

    # -- the set -----------------------------------------------------------------------------------------------------

    def report(self, event: ev.Event) -> None:
        """Take an event to the set and perform what it decides."""
        if self._let_go:
            return
        if isinstance(event, _WEIGHS_USE):
            self.look_at_foreign_use()
        self._take(event)

    def look_at_foreign_use(self) -> None:
        """Tell the set what clients that are not ours did meanwhile."""
        for event in tuple(_foreign_news(self._by_serial.values())):
            if isinstance(event, ev.Used):
                self.register.known(event.session).last_used = time.time()
            self._take(event)

    def _take(self, event: ev.Event) -> None:
        cause: int | None = None
        instructions = self.set.apply(event, clock.now())
        for instruction in instructions:
            if isinstance(instruction, ev.Start):
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
            self._timer = asyncio.get_running_loop().call_later(delay, self.report, ev.TimePassed())

    def _perform(self, instruction: ev.Instruction, cause: int | None) -> None:
        match instruction:
            case ev.Start():
                pass  # performed before the others: it is the cause of the evictions beside it
            case ev.Stop(_, serial, reason):
                self._stop(self._by_serial[serial], reason, cause)
            case ev.Run(ticket, _, serial, cold) | ev.Up(ticket, _, serial, cold):
                self._settle(ticket, Granted(ticket, self._by_serial[serial], cold))
            case ev.Refuse():
                self._settle(instruction.ticket, self._refusal(instruction))
            case ev.Fail(ticket, session, serial):
                self._settle(ticket, self._failure(session, serial))
            case ev.Lose():
                pass  # whoever runs a cell on it hears of it from the kernel itself
            case ev.Placed(ticket, session, position, waits_for):
                self._placed(ticket, session, position, waits_for)

    def _refusal(self, refuse: ev.Refuse) -> PxError:
        session = self.register.get(refuse.session)
        return refusal_error(refuse, self.config.sessions, session.unit if session else f"kernel:{refuse.session}")

    def _failure(self, session_id: str, serial: int) -> PxError:
        error = self._failures.get(serial)
        if error is None:
            return KeeperLostError(f"The start of kernel:{session_id} was given up.", unit=f"kernel:{session_id}")
        return error.fresh()

    def _settle(self, ticket: int, result: Granted | PxError) -> None:
        waiter = self._waiters.get(ticket)
        if waiter is None or waiter.granted.done():
            return  # it gave up in this very moment, and says so itself
        if isinstance(result, Granted):
            waiter.granted.set_result(result)
        else:
            waiter.granted.set_exception(result)

    def _placed(self, ticket: int, session_id: str, position: int, waits_for: WaitsFor) -> None:
        if (waiter := self._waiters.get(ticket)) is None:
            return
        if waits_for is WaitsFor.START:
            waiter.tell(KernelStarting(session_id, waiter.session.key.interpreter))
        else:
            waiter.tell(Queued(position))

    def _start(self, start: ev.Start) -> int:
        session = self.register.known(start.session)
        loop = asyncio.get_running_loop()
        life = KernelLife(start.serial, self.placement.new_key(), session.key, loop.time(), time.time())
        self._by_serial[start.serial] = session.life = life
        if start.cause is StartCause.RESTARTED:
            session.restarts += 1
        event = self.chronicle.say("starting", life, why=start.cause.value)
        life.task = self.run_task(self.lives.live(life))
        return event

    def _stop(self, life: KernelLife, reason: Reason | None, cause: int | None) -> None:
        if reason is not None and cause is not None:
            life.event = cause
        self.run_task(self.lives.end(life, reason))

    # -- who asks ----------------------------------------------------------------------------------------------------

    def new_ticket(self) -> int:
        """Return a fresh ticket."""
        self._tickets += 1
        return self._tickets

    async def acquire(
        self, asking: ev.Asking, session: LiveSession, tell: Callable[[CallEvent], None] = lambda _: None
    ) -> Granted:
        """Wait for a session's kernel.

        Raises:
            PxError: refused, or the start failed.
        """
        waiter = Waiter(session, asyncio.get_running_loop().create_future(), tell)
        self._waiters[asking.ticket] = waiter
        try:
            self.report(asking)
            return await waiter.granted
        except BaseException:
            self.report(ev.GaveUp(asking.ticket))
            raise
        finally:
            del self._waiters[asking.ticket]

    def lives_present(self) -> tuple[KernelLife, ...]:
        """Return every life of which something is left."""
        return tuple(self._by_serial.values())

    def serial_of_instance(self, instance: str | None) -> int | None:
        """Return the serial of the life that bears an instance key, None where it is none of ours."""
        return next((it.serial for it in self._by_serial.values() if instance in {it.key, *it.shells}), None)

    def adopt(self, life: KernelLife, event: ev.Adopted) -> None:
        """Count an adopted kernel in."""
        self._by_serial[life.serial] = life
        self.report(event)

    # -- what lives need and tell ----------------------------------------------------------------------------------

    @property
    def start_seconds(self) -> float:
        """Bound of one start."""
        return self.config.start_seconds

    @property
    def stop_seconds(self) -> float:
        """From TERM to KILL in an orderly stop."""
        return self.config.stop_seconds

    async def backend(self, name: BackendName) -> KernelBackend:
        """Return a backend, made when it is first asked for."""
        return await self.backends.get(name)

    async def launch_of(self, life: KernelLife) -> Launch:
        """Decide everything about a kernel that is to be started."""
        session = self.register.known(life.session.id)
        if session.choice is None:
            deadline = asyncio.get_running_loop().time() + self.config.start_seconds
            session.adopt(await self._resolver.resolve(session.choose_request(deadline), self.config))
        return await asyncio.to_thread(launch_of, session, life, self.config)

    def tag_of(self, life: KernelLife) -> str:
        """Return the note that the keeper is to hold with a life."""
        return tag_of(self.register.known(life.session.id), life).encode()

    def life_ready(self, life: KernelLife) -> None:
        """It may take cells."""
        session = self.register.known(life.session.id)
        session.reason = None
        session.notices = (*(session.choice.notices if session.choice else ()), *self._phases(life))
        self.report(ev.BecameReady(life.session.id, life.serial))
        self.register.write(session)

    def _phases(self, life: KernelLife) -> tuple[str, ...]:
        """Return how long each phase of the start took, where the settings ask for it."""
        if not self.config.debug_startup or life.handle is None:
            return ()
        phases = life.handle.started.phases
        told = ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in phases.items())
        _log.info("kernel_startup", unit=life.unit, cold_start_ms=life.cold_start_ms, phases=dict(phases))
        return (f"The kernel started in {life.cold_start_ms} ms: {told or 'no phases known'}.",)

    def life_failed(self, life: KernelLife, error: PxError) -> None:
        """It never became ready; what is left of it is still to be stopped."""
        self._failures[life.serial] = error
        session = self.register.known(life.session.id)
        self.report(ev.StartFailed(session.id, life.serial, fault_of(life, error), error.problem()))

    def life_died(self, life: KernelLife) -> None:
        """It ended unasked; what is left of its tree is still to be stopped."""
        if life.death_reported or life.ending:
            return
        life.death_reported = True
        if life.record is not None:
            life.explain(KernelEnd(outcome(life.record, life.wanted, ready=True), life.record))
        how = death_of(life)
        if how is Death.CRASHED and self.register.known(life.session.id).owner is Owner.JUPYTER:
            how = Death.EXITED  # its front end restarts it, and would kill ours in the middle of the next cell
        self.report(ev.Died(life.session.id, life.serial, how, life.problem))

    def life_gone(self, life: KernelLife) -> None:
        """Nothing of it is left, or nothing more can be done about it."""
        self._by_serial.pop(life.serial, None)
        session = self.register.known(life.session.id)
        if session.life is life:
            session.life = session.choice = None  # the next start looks again: what was chosen may have changed
        if life.ended is not None:
            session.reason = life.ended.reason
            if life.cell is not None and session.keeps_variables:
                how = "was ended by exit() in a cell" if life.exiting else how_it_ended(life.ended)
                session.lost = f"The session's last kernel {how}; its variables are gone."
        self.report(ev.Gone(life.session.id, life.serial))
        self._failures.pop(life.serial, None)
        self.register.settle(session)

    def keeper_lost(self) -> None:
        """Nothing can be started or stopped any more: refuse everyone, bring nothing back."""
        if not self.set.is_closed:
            self.report(ev.Closed())

    def note(self, life: KernelLife) -> None:
        """Have the keeper's note of a life brought up to date; nobody waits for that."""
        self.run_task(self.lives.annotate(life))


def death_of(life: KernelLife) -> Death:
    """Say how a ready kernel ended, as far as the set cares."""
    if life.wanted is not None:
        return Death.KILLED
    if life.exiting:
        return Death.EXITED
    clean = life.record is not None and life.record.code == 0
    return Death.EXITED if clean and not life.busy else Death.CRASHED


def fault_of(life: KernelLife, error: PxError) -> Fault:
    """Say whose fault a failed start is."""
    if error.extra.get("errno") in SHORT:
        return Fault.NO_DESCRIPTORS
    if life.wanted is not None or isinstance(error, KeeperLostError):
        return Fault.FOREIGN
    return Fault.OWN


async def _guarded(work: Coroutine[None, None, None]) -> None:
    try:
        await work
    except KeeperLostError:
        _log.warning("keeper_lost")
    except Exception:
        _log.exception("kernels_task_failed")


def _foreign_news(lives: Iterable[KernelLife]) -> Iterator[ev.Event]:
    """Yield what the set has not heard yet of what other clients (JupyterLab, a console) do with kernels."""
    for life in lives:
        handle = life.handle
        if handle is None or life.ready_at is None or life.ending:
            continue
        used = handle.foreign_used_at
        if used is not None and used != life.foreign_used_at:
            life.foreign_used_at = used
            yield ev.Used(life.session.id, clock.now() - max(0.0, time.time() - used))
        if handle.foreign_busy != life.foreign_busy:
            life.foreign_busy = handle.foreign_busy
            yield ev.ForeignBusy(life.session.id, life.foreign_busy)

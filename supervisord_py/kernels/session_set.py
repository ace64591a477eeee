"""Which sessions there are, who uses them, and who must go. Told what happened, it answers with instructions.

Pure: no clock, no I/O. Laws, each checked by the state machine of the tests:

- One kernel of a session at a time, one call at a time on it. A new kernel starts when the old one is gone.
- Calls of a session run in the order of their arrival; a place that comes free among sessions goes to the session whose
  head came first. One that is between two kernels keeps its turn for a place.
- Starting and ready kernels count against `max_sessions`; stopping ones apart (at most as many again), so that a start
  begins while its victim is still on the way out.
- Evicted is only what is idle: nothing runs, nobody waits, no Jupyter client has work on it, and it is not starting.
  The victim is the least recently used; if there is none, one waits.
- A kernel that crashed comes back once by itself, at nobody's cost; a second crash without a cell that succeeded in
  between is a hard failure, as are so many failed starts within their window. A hard failure refuses calls until
  somebody asks: start, restart, reset. What is asked for is tried.
- A start that only calls waited for ends with the last of them; one that was asked for goes on.
- A call that lost its kernel is told so, once, and never run again. A failed start fails everyone who waits for it.
- A start that failed for want of descriptors costs one idle session, for the next one's sake; it is nobody's failure.

A *ticket* stands for one call, or one request to start or restart; a *serial* for one kernel's life. Both grow, so that
their order is the order of arrival. Times are seconds on one clock that never goes back and counts suspend (law 10).
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct, field

from supervisord_py.kernels.session import SessionState
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from supervisord_py.kernels.config import SessionLimits


class Phase(StrEnum):
    """Where the one kernel of a session is. Busy is not a phase: it is `READY` with a call on it."""

    COLD = "cold"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class Refusal(StrEnum):
    """Why a call gets no kernel."""

    QUEUE_FULL = "queue_full"
    OWN_SESSION = "own_session"
    HARD_FAILURE = "hard_failure"
    DEADLINE = "deadline"
    STOPPED = "stopped"
    CLOSING = "closing"


class WaitsFor(StrEnum):
    """What a call waits for: its turn in the session, a free place among sessions, a start, or the end of a kernel."""

    TURN = "turn"
    PLACE = "place"
    START = "start"
    STOP = "stop"


class StartCause(StrEnum):
    """Why a kernel is started; `RESTARTED` by itself after a death."""

    CALL = "call"
    ASKED = "asked"
    REPLACED = "replaced"
    RESTARTED = "restarted"
    RECYCLED = "recycled"


class Fault(StrEnum):
    """Whose fault a failed start is. Only its own ones count towards a hard failure."""

    OWN = "own"
    NO_DESCRIPTORS = "no_descriptors"
    FOREIGN = "foreign"


class Death(StrEnum):
    """How a ready kernel ended.

    `CRASHED`: unasked, also by a memory limit, or its server says that its state is lost. `EXITED`: by exit() in a
    cell, or a Jupyter client shut it down. `KILLED`: by our own ladder.
    """

    CRASHED = "crashed"
    EXITED = "exited"
    KILLED = "killed"


class FailureKind(StrEnum):
    """Why a session is not started any more until somebody asks for it."""

    DEATHS = "deaths"
    STARTS = "starts"


class Failure(Struct, frozen=True):
    """A hard failure: deaths in a row, or failed starts within the window; `problem` is of the last."""

    kind: FailureKind
    count: int
    problem: Mapping[str, object] | None = None


class Want(StrEnum):
    """What is asked for: a turn on the kernel, to have it up, or a fresh one now, busy or not.

    The last two clear a hard failure; calls in line stay.
    """

    CALL = "call"
    START = "start"
    RESTART = "restart"


class Ask(Struct, frozen=True):
    """Somebody wants a session's kernel."""

    ticket: int
    session: str
    deadline: float  # after which it does not wait any more; once a call runs, time is the caller's matter
    want: Want = Want.CALL
    reset: bool = False  # replace the kernel before the call; counts as an explicit request
    per_call: bool = False  # the session is this call's own and ends with it
    caller: int | None = None  # serial of the kernel whose cell makes this call


# -- instructions ------------------------------------------------------------------------------------------------------


class Start(Struct, frozen=True):
    """Start a kernel; tell `ready` or `start_failed`."""

    session: str
    serial: int
    cause: StartCause


class Stop(Struct, frozen=True):
    """Stop what is there of a kernel; tell `gone`. A call on it loses it, and its end is not awaited."""

    session: str
    serial: int
    reason: Reason | None  # None when it ended by itself


class Grant(Struct, frozen=True):
    """A call has the kernel until it tells `ended`; a request to start has been served."""

    ticket: int
    session: str
    serial: int
    cold: bool  # it waited for this kernel's start


class Refuse(Struct, frozen=True):
    """The call gets nothing."""

    ticket: int
    session: str
    refusal: Refusal
    waits_for: WaitsFor | None = None  # in vain, where it waited
    failure: Failure | None = None  # the hard failure that stands


class Fail(Struct, frozen=True):
    """It waited for this start, which failed."""

    ticket: int
    session: str
    serial: int


class Placed(Struct, frozen=True):
    """Where one stands now; told at its arrival if it has to wait, and at each change. `position` 1 is next."""

    ticket: int
    session: str
    position: int
    waits_for: WaitsFor


Instruction = Start | Stop | Grant | Refuse | Fail | Placed
LIVE = (Phase.STARTING, Phase.READY)


class Slot(Struct):
    """All that is known of one session. To be read by everyone, and changed by the set alone."""

    session: str
    per_call: bool = False
    phase: Phase = Phase.COLD
    serial: int = 0
    running: int | None = None  # ticket of the call that has the kernel
    line: dict[int, Ask] = field(default_factory=dict)  # calls that wait, in order of arrival
    askers: dict[int, Ask] = field(default_factory=dict)  # requests to start or restart that wait
    cold: set[int] = field(default_factory=set)  # those of them that waited for the present kernel's start
    fresh: bool = False  # nothing has run on the present kernel yet
    recycle: bool = False  # to be replaced once nothing runs on it
    revival: StartCause | None = None  # why it is to be started again once it is gone, although maybe nobody waits
    stays: bool = False  # the start under way is not for its waiters alone: it goes on when nobody waits any more
    foreign_busy: bool = False
    last_used: float = 0.0
    stopping_for: Reason | None = None
    deaths: int = 0
    start_failures: tuple[float, ...] = ()
    restarts: int = 0
    failure: Failure | None = None

    @property
    def is_awaited(self) -> bool:
        """Somebody waits for it."""
        return bool(self.line or self.askers)

    @property
    def is_idle(self) -> bool:
        """Stopping its kernel would disturb nobody: who waits in line of a ready kernel waits for a call."""
        return self.phase is Phase.READY and self.running is None and not self.foreign_busy

    @property
    def is_hungry(self) -> bool:
        """Somebody waits for a kernel that is not even starting."""
        return self.is_awaited and self.phase not in LIVE

    @property
    def is_forgettable(self) -> bool:
        """A slot made anew would be as good."""
        if self.phase is not Phase.COLD or self.is_awaited or self.revival is not None:
            return False
        return self.per_call or not (self.failure or self.deaths or self.start_failures)

    @property
    def head(self) -> Ask:
        """Who waits longest; only while somebody does."""
        return min(self.waiting(), key=lambda it: it.ticket)

    @property
    def present(self) -> int | None:
        """The kernel that is there, also while it starts or stops."""
        return None if self.phase is Phase.COLD else self.serial

    def waiting(self) -> Iterator[Ask]:
        """Yield who waits, calls in their order, then requests."""
        yield from self.line.values()
        yield from self.askers.values()

    def use(self, at: float) -> None:
        """Note a use; one that is told late does not turn the clock back."""
        self.last_used = max(self.last_used, at)

    def retires_for(self, now: float, idle_seconds: float) -> Reason | None:
        """Return why its kernel is to go though nobody asked for that; None when it is not."""
        if self.per_call and self.phase in LIVE and self.running is None and not self.is_awaited:
            return Reason.STOPPED
        if self.phase is Phase.STARTING and not self.stays and not self.is_awaited:
            return Reason.CANCELLED
        return Reason.EVICTED_TTL if self.is_idle and self.last_used + idle_seconds <= now else None

    def absolve(self) -> None:
        """Forget failures: somebody asks for it explicitly."""
        self.failure, self.deaths, self.start_failures = None, 0, ()

    @property
    def state(self) -> SessionState:
        """What is shown of it."""
        match self.phase:
            case Phase.READY:
                return SessionState.BUSY if self.running is not None or self.foreign_busy else SessionState.IDLE
            case Phase.COLD:
                return SessionState.FAILED if self.failure else SessionState.STOPPED
            case Phase.STARTING:
                return SessionState.STARTING
        return SessionState.STOPPING


class SessionSet:
    """The sessions. Tell it what happened by one method, then perform, in order, what `decide` returns."""

    def __init__(self, limits: SessionLimits) -> None:
        self.limits = limits
        self.is_closed = False
        self.slots: dict[str, Slot] = {}
        self._holders: dict[int, Slot] = {}
        self._told: dict[int, tuple[int, WaitsFor]] = {}
        self._newcomer: Ask | None = None
        self._serial = 0
        self._out: list[Instruction] = []

    def next_serial(self) -> int:
        """Return a fresh serial."""
        self._serial += 1
        return self._serial

    def next_deadline(self) -> float | None:
        """Return when `decide` is due next though nothing happens, or None."""
        idle = self.limits.idle_seconds
        times = [slot.last_used + idle for slot in self.slots.values() if slot.is_idle]
        times += [asked.deadline for slot in self.slots.values() for asked in slot.waiting()]
        return min((time for time in times if not math.isinf(time)), default=None)

    # -- what callers want -------------------------------------------------------------------------------------------

    def ask(self, now: float, asked: Ask) -> None:
        """Take a call, or a request to start or restart; it is answered by Grant, Fail or Refuse."""
        del now
        slot = self.slots.setdefault(asked.session, Slot(asked.session, asked.per_call))
        if self.is_closed:
            self._refuse(slot, asked.ticket, Refusal.CLOSING)
            return
        if asked.reset or asked.want is not Want.CALL:
            slot.absolve()
        if asked.caller is not None and slot.running is not None and slot.serial == asked.caller:
            self._refuse(slot, asked.ticket, Refusal.OWN_SESSION)
            return
        if slot.failure is not None:
            self._refuse(slot, asked.ticket, Refusal.HARD_FAILURE)
            return
        self._holders[asked.ticket] = slot
        if asked.want is Want.CALL:
            slot.line[asked.ticket] = self._newcomer = asked
            return
        slot.askers[asked.ticket], slot.stays = asked, True
        if asked.want is Want.RESTART:
            if slot.phase in LIVE:
                self._stop(slot, Reason.REPLACED)
            slot.revival = None if slot.phase is Phase.COLD else StartCause.REPLACED

    def ended(self, now: float, ticket: int) -> None:
        """A call is over and its last cell has ended in the kernel, or whoever asked does not wait any more."""
        slot = self._holders.get(ticket)
        if slot is not None:
            self._leave(slot, ticket)
            if slot.running == ticket:
                slot.running = None
                slot.use(now)

    def succeeded(self, now: float, ticket: int) -> None:
        """A cell of a running call ended well: earlier deaths are forgotten."""
        del now
        if (slot := self._holders.get(ticket)) is not None and slot.running == ticket:
            slot.deaths = 0

    def stop(self, now: float, session: str, reason: Reason, refusal: Refusal = Refusal.STOPPED) -> None:
        """Somebody wants the session's kernel stopped now, busy or not; who waits for it is refused."""
        del now
        if (slot := self.slots.get(session)) is not None:
            for asked in tuple(slot.waiting()):
                self._refuse(slot, asked.ticket, refusal)
            if slot.phase in LIVE:
                self._stop(slot, reason)
            slot.revival = None

    def close(self, now: float) -> None:
        """The daemon stops: refuse everything, stop everything."""
        self.is_closed = True
        for session in tuple(self.slots):
            self.stop(now, session, Reason.SHUTDOWN, Refusal.CLOSING)

    def bound(self, now: float, limits: SessionLimits) -> None:
        """The limits were changed."""
        del now
        self.limits = limits

    # -- what is observed; of a kernel that is not there any more it changes nothing -----------------------------------

    def ready(self, now: float, session: str, serial: int) -> None:
        """A kernel answers."""
        if (slot := self._present(session, serial, Phase.STARTING)) is not None:
            slot.phase, slot.start_failures = Phase.READY, ()
            slot.use(now)
            slot.cold = {asked.ticket for asked in slot.waiting()}

    def start_failed(
        self,
        now: float,
        session: str,
        serial: int,
        fault: Fault = Fault.OWN,
        problem: Mapping[str, object] | None = None,
    ) -> None:
        """A kernel never became ready. What is left of it is still to be stopped."""
        slot = self._present(session, serial, Phase.STARTING)
        if slot is None:
            return
        if fault is Fault.OWN:
            slot.start_failures = (*self._recent_failures(slot, now), now)
            if len(slot.start_failures) >= self.limits.start_failures:
                slot.failure = Failure(FailureKind.STARTS, len(slot.start_failures), problem)
        for asked in tuple(slot.waiting()):
            self._leave(slot, asked.ticket)
            self._out.append(Fail(asked.ticket, session, serial))
        self._stop(slot, None)
        if fault is Fault.NO_DESCRIPTORS:
            self._evict(self.victims()[:1])

    def died(
        self,
        now: float,
        session: str,
        serial: int,
        how: Death = Death.CRASHED,
        problem: Mapping[str, object] | None = None,
    ) -> None:
        """A ready kernel ended by itself, or by the ladder. What is left of its tree is still to be stopped."""
        del now
        slot = self._present(session, serial, Phase.READY)
        if slot is None:
            return
        if how is Death.CRASHED:
            slot.deaths += 1
            if slot.deaths > self.limits.restarts:
                slot.failure = Failure(FailureKind.DEATHS, slot.deaths, problem)
            else:
                slot.revival = StartCause.RESTARTED
        elif how is Death.EXITED:
            slot.deaths = 0
        self._stop(slot, None)
        for asked in tuple(slot.line.values()) if slot.failure is not None else ():
            if asked.reset:  # it asks for it, and so for all behind it
                slot.absolve()
                return
            self._refuse(slot, asked.ticket, Refusal.HARD_FAILURE)

    def gone(self, now: float, session: str, serial: int) -> None:
        """Nothing of a kernel is left, or nothing more can be done about it."""
        del now
        if (slot := self._present(session, serial, Phase.STOPPING)) is not None:
            slot.phase = Phase.COLD

    def adopt(
        self,
        now: float,
        session: str,
        serial: int,
        last_used: float,
        ticket: int | None = None,
        *,
        per_call: bool = False,
    ) -> None:
        """A kernel of an earlier control plane is held. `ticket`: of a cell in flight; tell `ended` at its end."""
        del now
        slot = self.slots.setdefault(session, Slot(session, per_call))
        slot.phase, slot.serial, slot.fresh, slot.stays = Phase.READY, serial, False, True
        slot.last_used, slot.running = last_used, ticket
        if ticket is not None:
            self._holders[ticket] = slot

    def used(self, now: float, session: str, at: float) -> None:
        """A client that is not ours used the kernel, at that moment; the kernel is not fresh any more."""
        if (slot := self.slots.get(session)) is not None and slot.phase is Phase.READY:
            slot.use(min(at, now))
            slot.fresh = False

    def works_for_others(self, now: float, session: str, *, busy: bool) -> None:
        """The kernel works, or does not work any more, for a client that is not ours. While it does, it stays."""
        slot = self.slots.get(session)
        if slot is not None and slot.phase is Phase.READY and slot.foreign_busy is not busy:
            slot.foreign_busy, slot.fresh = busy, False
            slot.use(now)

    def recycle(self, now: float, session: str, serial: int) -> None:
        """The kernel is over its soft memory limit: it is replaced once the running call, if any, has ended."""
        del now
        if (slot := self._present(session, serial, Phase.READY)) is not None:
            slot.recycle = True

    # -- what follows ------------------------------------------------------------------------------------------------

    def decide(self, now: float) -> tuple[Instruction, ...]:
        """Return what is to be done: about what was told since the last time, and because time has passed."""
        for asked in [each for slot in self.slots.values() for each in slot.waiting() if each.deadline <= now]:
            self._refuse(self._holders[asked.ticket], asked.ticket, Refusal.DEADLINE)
        for slot in self.slots.values():  # serve, retire, start, revive, shrink: nobody is evicted who could be served
            if slot.phase is Phase.READY:
                self._serve(slot)
            if (reason := slot.retires_for(now, self.limits.idle_seconds)) is not None:
                self._stop(slot, reason)
        while (slot_to_start := self._make_place()) is not None:
            self._start(slot_to_start, now)
        self._revive(now)
        self._evict(self.victims()[: max(0, self.count(*LIVE) - self.limits.max_sessions)])
        self._bound_line()
        for slot in tuple(self.slots.values()):
            slot.start_failures = self._recent_failures(slot, now)
            if slot.is_forgettable:
                del self.slots[slot.session]
        self._tell_places()
        out, self._out = self._out, []
        return tuple(out)

    def _serve(self, slot: Slot) -> None:
        """Answer requests, replace what is to be replaced, and give a free kernel to the head of the line."""
        for ticket in tuple(slot.askers):
            self._grant(slot, ticket)
        if slot.running is not None:
            return
        head = next(iter(slot.line.values()), None)
        if slot.recycle and not slot.foreign_busy:
            slot.revival = StartCause.RECYCLED
            self._stop(slot, Reason.MEMORY_LIMIT)
        elif head is not None and head.reset and not slot.fresh:
            slot.revival = StartCause.REPLACED
            self._stop(slot, Reason.REPLACED)
        elif head is not None:
            self._grant(slot, head.ticket)
            self._holders[head.ticket] = slot
            slot.running, slot.fresh = head.ticket, False

    def _grant(self, slot: Slot, ticket: int) -> None:
        cold = ticket in slot.cold
        self._leave(slot, ticket)
        self._out.append(Grant(ticket, slot.session, slot.serial, cold))

    def _make_place(self) -> Slot | None:
        """Evict for whoever is to be started next, and return it; None when nobody can be started."""
        kept = 0
        for slot in self.hungry():
            if slot.phase is Phase.STOPPING:
                kept += 1
                continue
            missing = max(0, self.count(*LIVE) + kept + 1 - self.limits.max_sessions)
            going = self.victims()[:missing]
            if len(going) < missing or self.count(Phase.STOPPING) + missing > self.limits.max_sessions:
                return None
            self._evict(going)
            return slot
        return None

    def _revive(self, now: float) -> None:
        """Start what is to come back though nobody waits, where there is a free place; else the next call will."""
        for slot in self.slots.values():
            if slot.revival is None or slot.phase is not Phase.COLD or slot.is_awaited:
                continue
            if not slot.per_call and self.count(*LIVE) + len(self.hungry()) < self.limits.max_sessions:
                self._start(slot, now)
            else:
                slot.revival = None

    def _start(self, slot: Slot, now: float) -> None:
        cause = slot.revival
        if cause is None:
            cause = StartCause.CALL if slot.head.want is Want.CALL else StartCause.ASKED
        slot.restarts += cause is StartCause.RESTARTED
        by_itself = cause in {StartCause.RESTARTED, StartCause.RECYCLED}
        slot.stays = by_itself or bool(slot.askers) or not slot.line
        slot.phase, slot.serial, slot.fresh = Phase.STARTING, self.next_serial(), True
        slot.revival = slot.stopping_for = None
        slot.use(now)
        self._out.append(Start(slot.session, slot.serial, cause))

    def _stop(self, slot: Slot, reason: Reason | None) -> None:
        """Let go of a kernel. The call on it is lost with it; who waits in line waits on."""
        if slot.running is not None:
            self._holders.pop(slot.running, None)
        slot.phase, slot.stopping_for, slot.running = Phase.STOPPING, reason, None
        slot.foreign_busy = slot.recycle = False
        self._out.append(Stop(slot.session, slot.serial, reason))

    def _evict(self, going: list[Slot]) -> None:
        for victim in going:
            self._stop(victim, Reason.EVICTED_LRU)

    def _bound_line(self) -> None:
        """Once all room is given away, hold the newcomer that is left to the bound of its line."""
        asked, self._newcomer = self._newcomer, None
        slot = self.slots[asked.session] if asked is not None else None
        if asked is None or slot is None or asked.ticket not in slot.line:
            return
        is_next_on_a_kernel = slot.running is None and slot.phase is not Phase.COLD
        if len(slot.line) - is_next_on_a_kernel > self.limits.queue_max:
            self._refuse(slot, asked.ticket, Refusal.QUEUE_FULL)

    def _refuse(self, slot: Slot, ticket: int, refusal: Refusal) -> None:
        _, waited_for = self._told.get(ticket, (0, None))
        self._leave(slot, ticket)
        failure = slot.failure if refusal is Refusal.HARD_FAILURE else None
        self._out.append(Refuse(ticket, slot.session, refusal, waited_for, failure))

    def _leave(self, slot: Slot, ticket: int) -> None:
        slot.line.pop(ticket, None)
        slot.askers.pop(ticket, None)
        slot.cold.discard(ticket)
        self._holders.pop(ticket, None)
        self._told.pop(ticket, None)

    def _present(self, session: str, serial: int, phase: Phase) -> Slot | None:
        slot = self.slots.get(session)
        return slot if slot is not None and slot.serial == serial and slot.phase is phase else None

    def _recent_failures(self, slot: Slot, now: float) -> tuple[float, ...]:
        return tuple(at for at in slot.start_failures if at > now - self.limits.start_failure_seconds)

    # -- places among sessions ---------------------------------------------------------------------------------------

    def count(self, *phases: Phase) -> int:
        """Return how many are in one of these phases."""
        return sum(slot.phase in phases for slot in self.slots.values())

    def victims(self) -> list[Slot]:
        """Return what may be evicted, the least recently used first."""
        return sorted((slot for slot in self.slots.values() if slot.is_idle), key=lambda it: (it.last_used, it.serial))

    def hungry(self) -> list[Slot]:
        """Return the sessions in which somebody waits and no kernel is even starting; who came first, first."""
        return sorted((it for it in self.slots.values() if it.is_hungry), key=lambda it: it.head.ticket)

    def _tell_places(self) -> None:
        line = [it.session for it in self.hungry() if it.phase is Phase.COLD]
        for slot in self.slots.values():
            ahead = line.index(slot.session) if slot.session in line else 0
            for number, asked in enumerate(slot.line.values()):
                self._tell_place(slot, asked.ticket, ahead + number + 1, is_head=number == 0)
            for asker in slot.askers.values():
                self._tell_place(slot, asker.ticket, ahead + 1, is_head=True)

    def _tell_place(self, slot: Slot, ticket: int, position: int, *, is_head: bool) -> None:
        if not is_head:
            waits_for = WaitsFor.TURN
        else:
            places = {Phase.READY: WaitsFor.TURN, Phase.STARTING: WaitsFor.START, Phase.STOPPING: WaitsFor.STOP}
            waits_for = places.get(slot.phase, WaitsFor.PLACE)
        if self._told.get(ticket) != (position, waits_for):
            self._told[ticket] = (position, waits_for)
            self._out.append(Placed(ticket, slot.session, position, waits_for))

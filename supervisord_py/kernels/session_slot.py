"""What the set knows of each session, who gets a place among them, and who must go for it.

Values and what follows from them; the set alone changes them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct, field

from supervisord_py.kernels.session import SessionState
from supervisord_py.kernels.session_events import (
    Asked,
    Failure,
    FailureKind,
    Phase,
    StartCause,
    WaitsFor,
)
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from supervisord_py.kernels import session_events as ev
    from supervisord_py.kernels.config import SessionLimits

LIVE = (Phase.STARTING, Phase.READY)
_BY_ITSELF = frozenset({StartCause.RESTARTED, StartCause.RECYCLED})
_STATES = {Phase.STARTING: SessionState.STARTING, Phase.STOPPING: SessionState.STOPPING}


class Running(Struct, frozen=True):
    """The call that has the kernel, and which kernel's cell made it."""

    ticket: int
    caller: int | None = None


class Slot(Struct):
    """All that is known of one session.

    Attributes:
        line: Calls that wait, in order of arrival. `askers`: requests to start or restart that wait.
        cold: Those of them that waited for the present kernel's start.
        fresh: Nothing has run on the present kernel yet.
        recycle: It is to be replaced once nothing runs on it.
        revival: Why it is to be started again once it is gone, although maybe nobody waits.
        after: (session, serial) of the kernel whose end the next start waits for.
        retried: The start under way is the second one after a lack of descriptors.
        stays: The start under way is not for its waiters alone: it goes on when nobody waits any more.
    """

    session: str
    phase: Phase = Phase.COLD
    serial: int = 0
    running: Running | None = None
    line: dict[int, ev.Asked] = field(default_factory=dict)
    askers: dict[int, ev.StartAsked | ev.RestartAsked] = field(default_factory=dict)
    cold: set[int] = field(default_factory=set)
    fresh: bool = False
    recycle: bool = False
    revival: StartCause | None = None
    after: tuple[str, int] | None = None
    retried: bool = False
    stays: bool = False
    foreign_busy: bool = False
    last_used: float | None = None
    stopping_for: Reason | None = None
    deaths: int = 0
    start_failures: tuple[float, ...] = ()
    restarts: int = 0
    failure: Failure | None = None
    per_call: bool = False

    @property
    def is_awaited(self) -> bool:
        """True while somebody waits for it."""
        return bool(self.line or self.askers)

    @property
    def is_idle(self) -> bool:
        """True when stopping its kernel would disturb nobody: who waits in line of a ready kernel waits for a call."""
        return self.phase is Phase.READY and self.running is None and not self.foreign_busy

    @property
    def is_hungry(self) -> bool:
        """True while somebody waits for a kernel that is not even starting."""
        return self.is_awaited and self.phase not in LIVE

    @property
    def is_given_up(self) -> bool:
        """True when it starts, or is to be tried again, for calls only, and each of them has given up."""
        starts = self.phase is Phase.STARTING or self.revival is StartCause.RETRIED
        return starts and not self.stays and not self.is_awaited

    @property
    def is_forgettable(self) -> bool:
        """True when a slot made anew would be as good."""
        if self.phase is not Phase.COLD or self.is_awaited or self.revival is not None:
            return False
        return self.per_call or not (self.failure or self.deaths or self.start_failures)

    @property
    def head(self) -> ev.Asking:
        """Who waits longest; only while somebody does."""
        return min((next(iter(line.values())) for line in (self.line, self.askers) if line), key=lambda it: it.ticket)

    @property
    def present(self) -> int | None:
        """The kernel that is there, also while it starts or stops."""
        return None if self.phase is Phase.COLD else self.serial

    def waiting(self) -> Iterator[ev.Asking]:
        """Yield who waits, calls in their order, then requests."""
        yield from self.line.values()
        yield from self.askers.values()

    def expires_at(self, idle_seconds: float) -> float:
        """Return when an idle kernel is too old; infinity for one that is not idle."""
        return math.inf if not self.is_idle or self.last_used is None else self.last_used + idle_seconds

    def retires_for(self, now: float, idle_seconds: float) -> Reason | None:
        """Return why its kernel is to go though nobody asked for that; None when it is not."""
        if self.per_call and self.phase in LIVE and self.running is None and not self.is_awaited:
            return Reason.STOPPED
        if self.phase is Phase.STARTING and self.is_given_up:
            return Reason.CANCELLED
        return Reason.EVICTED_TTL if self.expires_at(idle_seconds) <= now else None

    def use(self, at: float) -> None:
        """Note a use; one that is told late does not turn the clock back."""
        self.last_used = at if self.last_used is None else max(self.last_used, at)

    def release(self, ticket: int, now: float) -> None:
        """Take the kernel back from a call, if it has it."""
        if self.is_run_by(ticket):
            self.running = None
            self.use(now)

    def is_run_by(self, ticket: int) -> bool:
        """Say whether a call has the kernel."""
        return self.running is not None and self.running.ticket == ticket

    def adopt(self, event: ev.Adopted) -> None:
        """Become a kernel that an earlier control plane started."""
        self.phase = Phase.READY
        self.serial, self.fresh, self.last_used, self.stays = event.serial, False, event.last_used, True
        self.running = None if event.ticket is None else Running(event.ticket)

    def begin(self, serial: int) -> StartCause:
        """Become a starting kernel; return why."""
        cause = self.revival
        if cause is None:
            cause = StartCause.CALL if isinstance(self.head, Asked) else StartCause.ASKED
        self.restarts += cause is StartCause.RESTARTED
        self.retried = cause is StartCause.RETRIED
        self.stays = cause in _BY_ITSELF or bool(self.askers) or not self.line or (self.retried and self.stays)
        self.phase, self.serial, self.fresh = Phase.STARTING, serial, True
        self.revival = self.after = self.stopping_for = None
        return cause

    def end(self, reason: Reason | None) -> None:
        """Become a stopping kernel that nobody uses."""
        self.phase, self.stopping_for, self.running = Phase.STOPPING, reason, None
        self.foreign_busy = self.recycle = False

    def age(self, now: float, limits: SessionLimits) -> None:
        """Forget failed starts that lie behind their window."""
        since = now - limits.start_failure_seconds
        self.start_failures = tuple(at for at in self.start_failures if at > since)

    def absolve(self) -> None:
        """Forget failures: somebody asks for it explicitly."""
        self.failure, self.deaths, self.start_failures = None, 0, ()

    def count_death(self, limits: SessionLimits, problem: Mapping[str, object] | None) -> None:
        """Note a crash: come back by itself, or fail hard when there were too many in a row."""
        self.deaths += 1
        if self.deaths > limits.restarts:
            self.failure = Failure(FailureKind.DEATHS, self.deaths, problem)
        else:
            self.revival = StartCause.RESTARTED

    def count_failed_start(self, now: float, limits: SessionLimits, problem: Mapping[str, object] | None) -> None:
        """Note a start that failed by its own fault."""
        self.age(now, limits)
        self.start_failures = (*self.start_failures, now)
        if len(self.start_failures) >= limits.start_failures:
            self.failure = Failure(FailureKind.STARTS, len(self.start_failures), problem)

    @property
    def state(self) -> SessionState:
        """What is shown of it."""
        if self.phase is Phase.READY:
            return SessionState.BUSY if self.running or self.foreign_busy else SessionState.IDLE
        if self.phase is Phase.COLD:
            return SessionState.FAILED if self.failure else SessionState.STOPPED
        return _STATES[self.phase]


# -- places among sessions ---------------------------------------------------------------------------------------------


def count(slots: Mapping[str, Slot], *phases: Phase) -> int:
    """Return how many are in one of these phases."""
    return sum(1 for slot in slots.values() if slot.phase in phases)


def victims(slots: Mapping[str, Slot]) -> list[Slot]:
    """Return what may be evicted, the least recently used first."""
    idle = (slot for slot in slots.values() if slot.is_idle)
    return sorted(idle, key=lambda it: (it.last_used or 0.0, it.serial))


def surplus(slots: Mapping[str, Slot], limits: SessionLimits) -> list[Slot]:
    """Return what goes because there are too many, after a lower limit or an adoption."""
    return victims(slots)[: max(0, count(slots, *LIVE) - limits.max_sessions)]


def next_start(slots: Mapping[str, Slot], limits: SessionLimits) -> tuple[Slot, list[Slot]] | None:
    """Return who is to be started next and who goes for it; None when nobody can be started."""
    kept = 0
    for slot in hungry(slots):
        if slot.phase is Phase.STOPPING or slot.after is not None:
            kept += 1
            continue
        missing = max(0, count(slots, *LIVE) + kept + 1 - limits.max_sessions)
        going = victims(slots)[:missing]
        if len(going) < missing or count(slots, Phase.STOPPING) + missing > limits.max_sessions:
            return None
        return slot, going
    return None


def is_place_free(slots: Mapping[str, Slot], limits: SessionLimits) -> bool:
    """Say whether a kernel may come back though nobody waits for it: at nobody's cost."""
    return count(slots, *LIVE) + len(hungry(slots)) < limits.max_sessions


def hungry(slots: Mapping[str, Slot]) -> list[Slot]:
    """Return the sessions in which somebody waits and no kernel is even starting; who came first, first."""
    return sorted((it for it in slots.values() if it.is_hungry), key=lambda it: it.head.ticket)


def places(slots: Mapping[str, Slot]) -> Iterator[tuple[int, str, int, WaitsFor]]:
    """Yield (ticket, session, position, what it waits for) of all who wait."""
    line = [it.session for it in hungry(slots) if it.phase is Phase.COLD]
    for slot in slots.values():
        ahead = line.index(slot.session) if slot.session in line else 0
        for position, asked in enumerate(slot.line.values(), 1):
            yield asked.ticket, slot.session, ahead + position, what(slot, is_head=position == 1)
        for asker in slot.askers.values():
            yield asker.ticket, slot.session, ahead + 1, what(slot, is_head=True)


def what(slot: Slot, *, is_head: bool) -> WaitsFor:
    """Return what one who waits in a session waits for."""
    if not is_head or slot.phase is Phase.READY:
        return WaitsFor.TURN
    if slot.phase is Phase.STARTING:
        return WaitsFor.START
    if slot.phase is Phase.STOPPING or slot.after is not None:
        return WaitsFor.STOP
    return WaitsFor.PLACE

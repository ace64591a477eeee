"""Which sessions have a kernel, who waits for one, and who must go. Pure: no clock, no I/O.

Each method tells the set what happened and returns what is to be done about it, to be performed in
order and reported back. `now` is seconds on one clock that never goes back and counts suspend.

Laws, each checked by the state machine of the tests:

- One kernel of a session at a time, one call at a time on it. A new kernel starts when the old one
  is gone.
- Calls of a session run in the order of their arrival; a place that comes free among sessions goes
  to the session whose head came first.
- Starting and ready kernels count against `max_sessions`; stopping ones apart (at most as many
  again), so that a start begins while its victim is still on the way out.
- What a living front end of Jupyter holds takes none of these places, and goes for no other one.
- Evicted is only what is idle: nothing runs, nobody waits, no Jupyter client has work on it. A
  starting one that nobody waits for any more is as good as idle. The victim is the least recently
  used; if there is none, one waits.
- A kernel that crashed comes back once by itself, at nobody's cost; a second crash without a cell
  that succeeded in between is a hard failure: calls are refused until somebody asks (start,
  restart, reset). What is asked for is tried.
- A kernel that is still starting is replaced at once for a call that resets, or after the files
  changed that it loads.
- A call that lost its kernel is never run again. A failed start fails everyone who waits for it,
  and nobody else.
- A start that failed for want of descriptors costs one idle session, for the next one's sake.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct

from supervisord_py.config.settings import KernelsSettings
from supervisord_py.kernels.session import SessionState
from supervisord_py.process.instance import Phase
from supervisord_py.process.model import Reason

LIVE = (Phase.STARTING, Phase.READY)
RESTARTS = 1  # how often a crashed kernel comes back by itself before a cell succeeds


class WhyRefused(StrEnum):
    QUEUE_FULL = "queue_full"
    HARD_FAILURE = "hard_failure"
    START_FAILED = "start_failed"
    STOPPED = "stopped"
    CLOSING = "closing"


class Want(StrEnum):
    """What is asked for: a turn on the kernel, to have it up, or a fresh one now, busy or not."""

    CALL = "call"
    START = "start"
    RESTART = "restart"


class Waiter(Struct, eq=False):
    """One who wants a session's kernel: it waits, then has it until `end`, or is refused."""

    session: KernelSlot
    want: Want = Want.CALL
    reset: bool = False  # replace the kernel before the call; counts as asking for it
    # replace a kernel that is still starting, in what it may hang for ever
    is_renewing: bool = False
    number: int = 0  # order of arrival
    position: int = 0  # 1 is next
    # what a kernel is in that it waits for: ready for those before, cold for a place
    waits_for: Phase | None = None
    is_cold: bool = False  # it waited for a start
    is_served: bool = False  # a call has the kernel; a request to start has its wish
    refused: WhyRefused | None = None


class KernelSlot:
    """What the set knows of one session; changed by the set alone, except where that is said."""

    def __init__(self, *, per_call: bool = False) -> None:
        self.per_call = per_call  # it is one call's own and ends with it
        self.phase = Phase.COLD
        self.running: Waiter | None = None  # the call that has the kernel
        self.line: list[Waiter] = []  # in order of arrival
        self.used_at = 0.0  # the last use, as `now`; its owner may put it forward
        self.held_until = 0.0  # a front end of Jupyter holds it so long, as `now`; set by its owner
        self.foreign_busy = False  # a Jupyter client has work on the kernel; set by its owner
        # nothing has run on the present kernel; its owner clears it when a Jupyter client did
        self.is_fresh = False
        self.comes_back = False  # it is started once it is gone, also where nobody waits
        self.deaths = 0  # crashes since the last cell that succeeded
        self.restarts = 0  # how often it was to come back by itself after a crash
        # problem of the last death: not started until somebody asks
        self.failure: Mapping[str, object] | None = None

    @property
    def is_idle(self) -> bool:
        return (
            self.phase in LIVE and self.running is None and not self.line and not self.foreign_busy
        )

    @property
    def state(self) -> SessionState:
        if self.phase is Phase.READY:
            return (
                SessionState.BUSY
                if self.running is not None or self.foreign_busy
                else SessionState.IDLE
            )
        if self.phase is Phase.COLD:
            return SessionState.FAILED if self.failure is not None else SessionState.STOPPED
        return SessionState(self.phase.value)

    def clear_failures(self) -> None:
        self.failure, self.deaths = None, 0


class KernelStart(Struct, frozen=True):
    """Start a kernel; tell `ready` or `start_failed`."""

    session: KernelSlot


class KernelStop(Struct, frozen=True):
    """Stop what is there of a kernel; tell `gone`.

    A call on it has lost it. No reason: it ended by itself.
    """

    session: KernelSlot
    reason: Reason | None


Action = KernelStart | KernelStop | Waiter
"""A waiter is told what has become of it: it has the kernel, is refused, or its place has
changed.
"""


class SessionSet:
    """The sessions that have a kernel, or in which somebody waits for one."""

    def __init__(self, limits: KernelsSettings) -> None:
        self.limits = limits
        self.is_closed = False
        self.active: dict[KernelSlot, None] = {}
        self._arrivals = 0
        # somebody waits for a place, or there are more kernels than places
        self._is_crowded = False
        self._out: list[Action] = []

    # -- what callers want -------------------------------------------------------------------------

    def ask(self, waiter: Waiter, now: float) -> list[Action]:
        slot = waiter.session
        if self.is_closed:
            return [_refuse(waiter, WhyRefused.CLOSING)]
        if waiter.reset or waiter.want is not Want.CALL:
            slot.clear_failures()
        if slot.failure is not None:
            return [_refuse(waiter, WhyRefused.HARD_FAILURE)]
        if waiter.want is Want.CALL:
            is_free = slot.phase is Phase.READY and slot.running is None and not slot.line
            if is_free and (slot.is_fresh or not waiter.reset):
                slot.running, slot.is_fresh, waiter.is_served = waiter, False, True
                return [waiter]  # warm: nobody else is concerned
            if len(slot.line) >= self.limits.queue_max:
                return [_refuse(waiter, WhyRefused.QUEUE_FULL)]
        self._arrivals += 1
        waiter.number = self._arrivals
        slot.line.append(waiter)
        self.active[slot] = None
        if waiter.want is Want.RESTART and slot.phase is not Phase.COLD:
            slot.comes_back = True
            if slot.phase in LIVE:
                self._stop(slot, Reason.REPLACED)
        # One of several who want that is enough: the others get the new kernel, or one of their own
        # in their turn.
        is_first_to_renew = waiter.is_renewing and not any(
            it.is_renewing for it in slot.line if it is not waiter
        )
        if is_first_to_renew and slot.phase is Phase.STARTING:
            self._stop(slot, Reason.REPLACED)
        return self.settle(now)

    def end(self, waiter: Waiter, now: float, *, over_memory: bool = False) -> list[Action]:
        """Note that a call is over, or that whoever asked does not wait any more.

        `over_memory`: the kernel is to be replaced, unless somebody else has work on it.
        """
        slot = waiter.session
        if waiter in slot.line:
            slot.line.remove(waiter)
        elif slot.running is waiter:
            slot.running, slot.used_at = None, now
            if over_memory and not slot.foreign_busy:
                slot.comes_back = True
                self._stop(slot, Reason.MEMORY_LIMIT)
            elif not (slot.line or slot.per_call or self._is_crowded):
                return []  # it stays warm, and nobody wants its place
        return self.settle(now)

    def stop(self, slot: KernelSlot, reason: Reason, now: float) -> list[Action]:
        self._end(slot, reason, WhyRefused.STOPPED)
        return self.settle(now)

    def close(self, now: float) -> list[Action]:
        self.is_closed = True
        for slot in self.active:  # all of them, before anybody could have another's place
            self._end(slot, Reason.SHUTDOWN, WhyRefused.CLOSING)
        return self.settle(now)

    def _end(self, slot: KernelSlot, reason: Reason, why: WhyRefused) -> None:
        self._refuse_all(slot, why)
        slot.comes_back = False
        if slot.phase in LIVE:
            self._stop(slot, reason)

    # -- what is observed of the present kernel ----------------------------------------------------

    def ready(self, slot: KernelSlot, now: float) -> list[Action]:
        if slot.phase is Phase.STARTING:
            slot.phase, slot.used_at = Phase.READY, now
            for waiter in slot.line:
                waiter.is_cold = True
        return self.settle(now)

    def start_failed(
        self, slot: KernelSlot, now: float, *, no_descriptors: bool = False
    ) -> list[Action]:
        if slot.phase is Phase.STARTING:
            self._refuse_all(slot, WhyRefused.START_FAILED)
            self._stop(slot, None)
            for victim in self.victims(now)[:no_descriptors]:
                self._stop(victim, Reason.EVICTED_LRU)
        return self.settle(now)

    def died(
        self, slot: KernelSlot, now: float, problem: Mapping[str, object] | None = None
    ) -> list[Action]:
        """Note that it ended by itself. What is left of its tree is still to be stopped.

        `problem`: it crashed, or its state is lost. None where a cell said exit(), or somebody had
        wanted its end.
        """
        if slot.phase is Phase.READY:
            if problem is not None:
                slot.deaths += 1
                if slot.deaths > RESTARTS:
                    slot.failure = problem
                    self._refuse_all(slot, WhyRefused.HARD_FAILURE)
                else:
                    slot.comes_back = True
                    slot.restarts += 1
            self._stop(slot, None)
        return self.settle(now)

    def gone(self, slot: KernelSlot, now: float) -> list[Action]:
        if slot.phase is Phase.STOPPING:
            slot.phase = Phase.COLD
        return self.settle(now)

    def adopt(self, slot: KernelSlot, now: float, running: Waiter | None = None) -> list[Action]:
        """Note a kernel of an earlier control plane.

        `running` stands for a cell in flight: tell `end` of it.
        """
        slot.phase, slot.running, slot.is_fresh = Phase.READY, running, False
        self.active[slot] = None
        return self.settle(now)

    # -- the decision ------------------------------------------------------------------------------

    def settle(self, now: float) -> list[Action]:
        """Serve, retire, start, bring back, shrink, forget; in this order: nobody is evicted who
        could be served.

        To be called as well when time has passed, limits were changed, or Jupyter's clients did
        something.
        """
        for slot in self.active:
            if slot.phase is Phase.READY:
                self._give(slot)
            if slot.phase in LIVE and slot.per_call and slot.running is None and not slot.line:
                self._stop(slot, Reason.STOPPED)
            elif (
                slot.phase is Phase.READY
                and slot.is_idle
                and slot.used_at + self.limits.idle_seconds <= now
            ):
                self._stop(slot, Reason.EVICTED_TTL)
        cold = [slot for slot in self.active if slot.line and slot.phase is Phase.COLD]
        cold.sort(key=lambda it: (it.held_until <= now, it.line[0].number))
        while cold and (cold[0].held_until > now or self._make_place(now)):
            self._start(cold.pop(0), now)
        for slot in self.active:
            if slot.comes_back and slot.phase is Phase.COLD and not slot.line:
                slot.comes_back = False  # where there is no place the next call starts it
                if self.taken(now) < self.limits.max_sessions and not slot.per_call:
                    self._start(slot, now)
        for victim in self.victims(now)[: max(0, self.taken(now) - self.limits.max_sessions)]:
            self._stop(victim, Reason.EVICTED_LRU)
        self._is_crowded = bool(cold) or self.taken(now) > self.limits.max_sessions
        for slot in tuple(self.active):
            if slot.phase is Phase.COLD and not slot.line:
                del self.active[slot]
        self._tell_places(cold)
        out, self._out = self._out, []
        return out

    def _give(self, slot: KernelSlot) -> None:
        """Answer requests to start, replace what is to be replaced, and give a free kernel to
        the head of the line.
        """
        served = [it for it in slot.line if it.want is not Want.CALL]
        slot.line = [it for it in slot.line if it.want is Want.CALL]
        if slot.running is None and slot.line and slot.line[0].reset and not slot.is_fresh:
            self._stop(slot, Reason.REPLACED)
        elif slot.running is None and slot.line:
            slot.running, slot.is_fresh = slot.line.pop(0), False
            served.append(slot.running)
        for waiter in served:
            waiter.is_served = True
        self._out += served

    def _make_place(self, now: float) -> bool:
        missing = max(0, self.taken(now) + 1 - self.limits.max_sessions)
        victims, stopping = (
            self.victims(now)[:missing],
            sum(slot.phase is Phase.STOPPING for slot in self.active),
        )
        if len(victims) < missing or stopping + missing > self.limits.max_sessions:
            return False
        for victim in victims:
            self._stop(victim, Reason.EVICTED_LRU)
        return True

    def _start(self, slot: KernelSlot, now: float) -> None:
        slot.phase, slot.used_at, slot.is_fresh, slot.comes_back = Phase.STARTING, now, True, False
        self._out.append(KernelStart(slot))

    def _stop(self, slot: KernelSlot, reason: Reason | None) -> None:
        """Let go of a kernel. The call on it is lost with it; who waits in line waits on."""
        slot.phase, slot.running = Phase.STOPPING, None
        slot.foreign_busy = False
        self._out.append(KernelStop(slot, reason))

    def _refuse_all(self, slot: KernelSlot, why: WhyRefused) -> None:
        self._out += [_refuse(waiter, why) for waiter in slot.line]
        slot.line.clear()

    def _tell_places(self, cold: list[KernelSlot]) -> None:
        for slot in self.active:
            ahead = cold.index(slot) if slot in cold else 0
            for number, waiter in enumerate(slot.line):
                place = (ahead + number + 1, Phase.READY if number else slot.phase)
                if place != (waiter.position, waiter.waits_for):
                    waiter.position, waiter.waits_for = place
                    self._out.append(waiter)

    def taken(self, now: float) -> int:
        return sum(slot.phase in LIVE and slot.held_until <= now for slot in self.active)

    def victims(self, now: float) -> list[KernelSlot]:
        """Return what may be evicted for another one, the least recently used first."""
        free = (slot for slot in self.active if slot.is_idle and slot.held_until <= now)
        return sorted(free, key=lambda slot: slot.used_at)


def _refuse(waiter: Waiter, why: WhyRefused) -> Waiter:
    waiter.refused = why
    return waiter

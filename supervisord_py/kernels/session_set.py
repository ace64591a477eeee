"""Which sessions there are, who uses them, and who must go: events in, instructions out. No clock, no I/O.

Laws, each checked by the state machine of the tests:

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
- Want of descriptors costs one idle session and one retry; it is nobody's failure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, assert_never

from supervisord_py.kernels import session_events as ev
from supervisord_py.kernels.session_events import Death, Fault, Phase, Refusal, StartCause, WaitsFor
from supervisord_py.kernels.session_slot import LIVE, Running, Slot, is_place_free, next_start, places, surplus, victims
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from supervisord_py.kernels.config import SessionLimits


class SessionSet:
    """The sessions. `apply` is its only door; what it returns must be performed, in order, and reported as events."""

    def __init__(self, limits: SessionLimits) -> None:
        self.limits = limits
        self.is_closed = False
        self._slots: dict[str, Slot] = {}
        self._holders: dict[int, Slot] = {}
        self._told: dict[int, tuple[int, WaitsFor]] = {}
        self._serial = 0
        self._out: list[ev.Instruction] = []

    def reserve_serial(self) -> int:
        """Return a fresh serial, for a kernel that is adopted."""
        self._serial += 1
        return self._serial

    def slot(self, session: str) -> Slot | None:
        """Return what is known of a session, to be read only; None when there is nothing to know."""
        return self._slots.get(session)

    def next_deadline(self) -> float | None:
        """Return when TimePassed is due next, or None."""
        times = [slot.expires_at(self.limits.idle_seconds) for slot in self._slots.values()]
        times += [asked.deadline for slot in self._slots.values() for asked in slot.waiting()]
        soonest = min(times, default=math.inf)
        return None if math.isinf(soonest) else soonest

    def apply(self, event: ev.Event, now: float) -> tuple[ev.Instruction, ...]:
        """Take an event in and return what is to be done about it."""
        self._out = []
        self._take(event, now)
        self._settle(now)
        if isinstance(event, ev.Asked):
            self._bound_line(event)
        self._forget(now)
        self._tell_places()
        return tuple(self._out)

    def _take(self, event: ev.Event, now: float) -> None:
        match event:
            case ev.Asked():
                self._on_asked(event)
            case ev.StartAsked() | ev.RestartAsked():
                self._on_up_asked(event)
            case ev.GaveUp(ticket) | ev.Ended(ticket):
                self._on_ended(ticket, now)
            case ev.Succeeded(ticket):
                if (slot := self._holders.get(ticket)) is not None and slot.is_run_by(ticket):
                    slot.deaths = 0
            case ev.StopAsked(session, reason):
                self._on_stop_asked(session, reason, Refusal.STOPPED)
            case ev.BecameReady(session, serial):
                self._on_ready(session, serial, now)
            case ev.StartFailed():
                self._on_start_failed(event, now)
            case ev.Died():
                self._on_died(event, now)
            case ev.Gone(session, serial):
                self._on_gone(session, serial)
            case ev.Adopted():
                self._on_adopted(event)
            case ev.Used(session, at):
                if (slot := self._ready(session)) is not None:
                    slot.use(min(at, now))
                    slot.fresh = False
            case ev.ForeignBusy(session, busy):
                if (slot := self._ready(session)) is not None and slot.foreign_busy is not busy:
                    slot.foreign_busy, slot.fresh = busy, False
                    slot.use(now)
            case ev.RecycleAsked(session, serial):
                if (slot := self._ready(session)) is not None:
                    slot.recycle = slot.recycle or slot.serial == serial
            case ev.Bounded(limits):
                self.limits = limits
            case ev.Closed():
                self.is_closed = True
                for session in tuple(self._slots):
                    self._on_stop_asked(session, Reason.SHUTDOWN, Refusal.CLOSING)
            case ev.TimePassed():
                for asked in [each for slot in self._slots.values() for each in slot.waiting()]:
                    if asked.deadline <= now:
                        self._refuse(self._holders[asked.ticket], asked.ticket, Refusal.DEADLINE)
            case _:  # pragma: no cover - the union is closed
                assert_never(event)

    def _ready(self, session: str) -> Slot | None:
        slot = self._slots.get(session)
        return slot if slot is not None and slot.phase is Phase.READY else None

    # -- what callers want -------------------------------------------------------------------------------------------

    def _on_asked(self, asked: ev.Asked) -> None:
        slot = self._slots.setdefault(asked.session, Slot(asked.session, per_call=asked.per_call))
        if asked.reset and not self.is_closed:
            slot.absolve()
        if self.is_closed:
            self._refuse(slot, asked.ticket, Refusal.CLOSING)
        elif asked.caller is not None and slot.running is not None and slot.serial == asked.caller:
            self._refuse(slot, asked.ticket, Refusal.OWN_SESSION)
        elif slot.failure is not None:
            self._refuse(slot, asked.ticket, Refusal.HARD_FAILURE)
        else:
            slot.line[asked.ticket] = asked
            self._holders[asked.ticket] = slot

    def _on_up_asked(self, asked: ev.StartAsked | ev.RestartAsked) -> None:
        slot = self._slots.setdefault(asked.session, Slot(asked.session))
        if self.is_closed:
            self._refuse(slot, asked.ticket, Refusal.CLOSING)
            return
        slot.absolve()
        slot.askers[asked.ticket], slot.stays = asked, True
        self._holders[asked.ticket] = slot
        if isinstance(asked, ev.RestartAsked):
            if slot.phase in LIVE:
                self._stop(slot, Reason.REPLACED)
            slot.revival = None if slot.phase is Phase.COLD else StartCause.REPLACED

    def _bound_line(self, asked: ev.Asked) -> None:
        """Once all room is given away, hold the newcomer that is left to the bound of its line."""
        slot = self._slots[asked.session]
        if asked.ticket not in slot.line:
            return
        is_next_on_a_kernel = slot.running is None and slot.phase is not Phase.COLD
        if len(slot.line) - is_next_on_a_kernel > self.limits.queue_max:
            self._refuse(slot, asked.ticket, Refusal.QUEUE_FULL)

    def _refuse(self, slot: Slot, ticket: int, refusal: Refusal) -> None:
        _, waited_for = self._told.get(ticket, (0, None))
        self._leave(slot, ticket)
        failure = slot.failure if refusal is Refusal.HARD_FAILURE else None
        self._out.append(ev.Refuse(ticket, slot.session, refusal, waited_for, failure))

    def _refuse_all(self, slot: Slot, refusal: Refusal) -> None:
        for asked in tuple(slot.waiting()):
            self._refuse(slot, asked.ticket, refusal)

    def _leave(self, slot: Slot, ticket: int) -> None:
        slot.line.pop(ticket, None)
        slot.askers.pop(ticket, None)
        slot.cold.discard(ticket)
        self._holders.pop(ticket, None)
        self._told.pop(ticket, None)

    def _on_ended(self, ticket: int, now: float) -> None:
        slot = self._holders.get(ticket)
        if slot is not None:
            self._leave(slot, ticket)
            slot.release(ticket, now)

    def _on_stop_asked(self, session: str, reason: Reason, refusal: Refusal) -> None:
        slot = self._slots.get(session)
        if slot is not None:
            self._refuse_all(slot, refusal)
            if slot.phase in LIVE:
                self._stop(slot, reason)
            slot.revival = None

    # -- what is observed --------------------------------------------------------------------------------------------

    def _present(self, session: str, serial: int, *phases: Phase) -> Slot | None:
        slot = self._slots.get(session)
        return slot if slot is not None and slot.serial == serial and slot.phase in phases else None

    def _on_ready(self, session: str, serial: int, now: float) -> None:
        slot = self._present(session, serial, Phase.STARTING)
        if slot is not None:
            slot.phase, slot.start_failures = Phase.READY, ()
            slot.use(now)
            slot.cold = {asked.ticket for asked in slot.waiting()}

    def _on_start_failed(self, event: ev.StartFailed, now: float) -> None:
        slot = self._present(event.session, event.serial, Phase.STARTING)
        if slot is None:
            return
        if event.fault is Fault.NO_DESCRIPTORS and self._make_room(slot):
            return
        if event.fault is Fault.OWN:
            slot.count_failed_start(now, self.limits, event.problem)
        for asked in tuple(slot.waiting()):
            self._leave(slot, asked.ticket)
            self._out.append(ev.Fail(asked.ticket, slot.session, slot.serial))
        self._stop(slot, None)

    def _make_room(self, slot: Slot) -> bool:
        """Free the descriptors of one idle session for a second try; False when there is none, or it was the second."""
        victim = next(iter(victims(self._slots)), None)
        if slot.retried or victim is None:
            return False
        self._evict([victim])
        slot.after = (victim.session, victim.serial)
        slot.revival = StartCause.RETRIED
        self._stop(slot, None)
        return True

    def _on_died(self, event: ev.Died, now: float) -> None:
        slot = self._present(event.session, event.serial, Phase.READY)
        if slot is None:
            return
        if event.how is Death.CRASHED:
            slot.count_death(self.limits, event.problem)
        elif event.how is Death.EXITED:
            slot.deaths = 0
        self._stop(slot, None)
        if slot.failure is not None:
            self._refuse_until_reset(slot)

    def _refuse_until_reset(self, slot: Slot) -> None:
        """Refuse who waits for a session that failed hard; a reset in line asks for it, and so for all behind it."""
        for asked in tuple(slot.line.values()):
            if asked.reset:
                slot.absolve()
                return
            self._refuse(slot, asked.ticket, Refusal.HARD_FAILURE)

    def _on_gone(self, session: str, serial: int) -> None:
        slot = self._present(session, serial, Phase.STOPPING)
        if slot is not None:
            slot.phase = Phase.COLD
        for each in self._slots.values():
            if each.after == (session, serial):
                each.after = None

    def _on_adopted(self, event: ev.Adopted) -> None:
        slot = self._slots.setdefault(event.session, Slot(event.session, per_call=event.per_call))
        slot.adopt(event)
        if event.ticket is not None:
            self._holders[event.ticket] = slot

    # -- what follows ------------------------------------------------------------------------------------------------

    def _stop(self, slot: Slot, reason: Reason | None) -> None:
        """Let go of a kernel. The call on it is lost with it; who waits in line waits on."""
        if slot.running is not None:
            self._holders.pop(slot.running.ticket, None)
        slot.end(reason)
        self._out.append(ev.Stop(slot.session, slot.serial, reason))

    def _settle(self, now: float) -> None:
        """Serve, retire, start, revive, shrink; in this order, so that nobody is evicted who could be served."""
        for slot in self._slots.values():
            if slot.phase is Phase.READY:
                self._serve(slot)
            if (reason := slot.retires_for(now, self.limits.idle_seconds)) is not None:
                self._stop(slot, reason)
        while (move := next_start(self._slots, self.limits)) is not None:
            slot, going = move
            self._evict(going)
            self._start(slot, now)
        self._revive(now)
        self._evict(surplus(self._slots, self.limits))

    def _serve(self, slot: Slot) -> None:
        """Answer requests, replace what is to be replaced, and give a free kernel to the head of the line."""
        for ticket in tuple(slot.askers):
            cold = ticket in slot.cold
            self._leave(slot, ticket)
            self._out.append(ev.Up(ticket, slot.session, slot.serial, cold))
        if slot.running is not None:
            return
        head = next(iter(slot.line.values()), None)
        if slot.recycle and not slot.foreign_busy:
            self._replace(slot, Reason.MEMORY_LIMIT, StartCause.RECYCLED)
        elif head is not None and head.reset and not slot.fresh:
            self._replace(slot, Reason.REPLACED, StartCause.REPLACED)
        elif head is not None:
            cold = head.ticket in slot.cold
            self._leave(slot, head.ticket)
            self._holders[head.ticket] = slot
            slot.running, slot.fresh = Running(head.ticket, head.caller), False
            self._out.append(ev.Run(head.ticket, slot.session, slot.serial, cold))

    def _replace(self, slot: Slot, reason: Reason, cause: StartCause) -> None:
        slot.revival = cause
        self._stop(slot, reason)

    def _evict(self, going: list[Slot]) -> None:
        for victim in going:
            self._stop(victim, Reason.EVICTED_LRU)

    def _revive(self, now: float) -> None:
        """Start what is to come back though nobody waits, where there is a free place; else the next call will."""
        for slot in self._slots.values():
            if slot.revival is None or slot.phase is not Phase.COLD or slot.is_awaited or slot.after is not None:
                continue
            if not slot.per_call and not slot.is_given_up and is_place_free(self._slots, self.limits):
                self._start(slot, now)
            else:
                slot.revival = None

    def _start(self, slot: Slot, now: float) -> None:
        self._serial += 1
        slot.use(now)
        self._out.append(ev.Start(slot.session, self._serial, slot.begin(self._serial)))

    def _forget(self, now: float) -> None:
        for slot in tuple(self._slots.values()):
            slot.age(now, self.limits)
            if slot.is_forgettable:
                del self._slots[slot.session]

    def _tell_places(self) -> None:
        for ticket, session, position, waits_for in places(self._slots):
            if self._told.get(ticket) != (position, waits_for):
                self._told[ticket] = (position, waits_for)
                self._out.append(ev.Placed(ticket, session, position, waits_for))

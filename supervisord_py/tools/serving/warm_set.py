"""Which instances there are, who uses them, and who must go: events in, instructions out. No clock, no I/O.

Laws, each checked by the state machine of the tests:

- One instance of a tool at a time: they share one listening socket, and a second would steal from the first. So a new
  one of the same tool starts only when the old one is gone.
- Starting and ready instances count against `warm_keep_max`; stopping ones apart (at most as many again), so that a
  new start begins while its victim is still on the way out: eviction is off the request path.
- A busy instance is never evicted. The victim is the least recently used idle, unpinned one; a starting one that
  nobody waits for any more is as good as idle. (A start that lost its waiters is otherwise left to finish.)
- Age counts from the end of the last activity. `keep_alive` replaces the tool's own age for one idle period, and can
  only lengthen it while the tool is pinned.
- A request waits in its tool's line, first come, first served; free places go to the line whose head came first.
- A failed start fails everyone who waits for it and nobody else. The next request starts anew, once the backoff is
  over: it waits for that in its line, and is refused only when its own time is shorter. Others may overtake meanwhile.
- A stale instance takes no new request; it is replaced once the last one ended.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, assert_never

from supervisord_py.process.backoff import Backoff, BackoffPolicy
from supervisord_py.process.spec import Reason
from supervisord_py.tools.serving import warm_events as ev
from supervisord_py.tools.serving.warm_events import Phase, Pin, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisord_py.tools.serving import warm_events as ev


RETRY_SECONDS = 1.0
"""When asking again makes sense while the pool is full: nobody can know better."""


class WarmSet:
    """The pool. `apply` is its only door; what it returns must be performed, in order, and reported back as events."""

    def __init__(self, bounds: ev.PoolBounds) -> None:
        self.bounds = bounds
        self.is_closed = False
        self._slots: dict[str, Slot] = {}
        self._pins: dict[str, Pin] = {}
        self._holders: dict[int, Slot] = {}
        self._hungry: dict[str, Slot] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._serial = 0
        self._out: list[ev.Instruction] = []

    def reserve_serial(self) -> int:
        """Return a fresh serial, for an instance that is adopted."""
        self._serial += 1
        return self._serial

    def slot(self, tool: str) -> Slot | None:
        """Return what is known of a tool, to look at; None when there is nothing to know."""
        return self._slots.get(tool)

    def slots(self) -> tuple[Slot, ...]:
        """Return everything known, to look at."""
        return tuple(self._slots.values())

    def pin_of(self, tool: str) -> Pin:
        """Return a tool's pin."""
        return self._pins.get(tool, Pin.NONE)

    def next_deadline(self) -> float | None:
        """Return when TimePassed is due next, or None."""
        while self._deadlines and not self._waits(self._deadlines[0][1]):
            heapq.heappop(self._deadlines)
        times = [self.expires_at(slot) for slot in self._slots.values()]
        times += [self._deadlines[0][0]] if self._deadlines else []
        times += [held for slot in self._hungry.values() if (held := slot.held_until) is not None]
        soonest = min(times, default=math.inf)
        return None if math.isinf(soonest) else soonest

    def expires_at(self, slot: Slot) -> float:
        """Return when an idle instance is too old; infinity for one that is not idle or not ready."""
        if slot.phase is not Phase.READY or not slot.is_idle or self.pin_of(slot.tool) is Pin.FOREVER:
            return math.inf
        keep = slot.keep_seconds
        return slot.last_used + (keep if self.pin_of(slot.tool) is Pin.NONE else max(keep, slot.rules.keep_seconds))

    def apply(self, event: ev.Event, now: float) -> tuple[ev.Instruction, ...]:
        """Take an event in and return what is to be done about it."""
        self._out = []
        self._take(event, now)
        self._settle(now)
        if isinstance(event, ev.Asked):
            self._bound_line(event)
        return tuple(self._out)

    def _take(self, event: ev.Event, now: float) -> None:
        match event:
            case ev.Asked():
                self._on_asked(event, now)
            case ev.GaveUp(ticket) | ev.Released(ticket):
                self._on_ended(ticket, now)
            case ev.BecameReady(tool, serial):
                self._on_ready(tool, serial, now)
            case ev.StartFailed(tool, serial):
                self._on_start_failed(tool, serial, now)
            case ev.Died(tool, serial):
                self._on_died(tool, serial)
            case ev.Doomed(tool, serial):
                self._on_doomed(tool, serial)
            case ev.Gone(tool, serial):
                self._on_gone(tool, serial)
            case ev.Measured(sizes):
                self._on_measured(dict(sizes))
            case ev.PinSet(tool, pin):
                self._pins[tool] = pin
            case ev.Declared(tool, rules):
                self._on_declared(tool, rules)
            case ev.Forgotten(tool):
                self._on_forgotten(tool)
            case ev.StopAsked(tool, reason):
                self._on_stop_asked(tool, reason, Refusal.STOPPED)
            case ev.Adopted():
                self._on_adopted(event)
            case ev.Bounded(bounds):
                self.bounds = bounds
            case ev.Closed():
                self._on_closed()
            case ev.TimePassed():
                self._on_time(now)
            case _:  # pragma: no cover - the union is closed
                assert_never(event)

    def _on_asked(self, asked: ev.Asked, now: float) -> None:
        slot = self._slots.setdefault(asked.tool, Slot(asked.tool, asked.rules))
        slot.declare(asked.rules)
        if self.is_closed:
            self._refuse(slot, asked.ticket, Refusal.CLOSING, RETRY_SECONDS)
        elif slot.is_held(now) and slot.backoff.wait_seconds(now) >= asked.deadline - now:
            self._refuse(slot, asked.ticket, Refusal.FAILING, slot.backoff.wait_seconds(now))
        else:
            slot.line[asked.ticket] = asked
            self._holders[asked.ticket] = slot
            self._hungry[slot.tool] = slot

    def _bound_line(self, asked: ev.Asked) -> None:
        """Once all room is given away, hold the newcomer that is left to the bounds of the line."""
        slot = self._slots.get(asked.tool)
        if slot is None or asked.ticket not in slot.line:
            return
        if slot.excess > self.bounds.queue_max:
            self._refuse(slot, asked.ticket, Refusal.QUEUE_FULL, RETRY_SECONDS)
        else:
            heapq.heappush(self._deadlines, (asked.deadline, asked.ticket))

    def _refuse(self, slot: Slot, ticket: int, refusal: Refusal, retry_after: float) -> None:
        self._leave_line(slot, ticket)
        self._out.append(ev.Refuse(ticket, slot.tool, refusal, retry_after))

    def _leave_line(self, slot: Slot, ticket: int) -> None:
        slot.line.pop(ticket, None)
        slot.cold.discard(ticket)
        self._holders.pop(ticket, None)
        if not slot.line:
            self._hungry.pop(slot.tool, None)

    def _waits(self, ticket: int) -> bool:
        slot = self._holders.get(ticket)
        return slot is not None and ticket in slot.line

    def _on_ended(self, ticket: int, now: float) -> None:
        slot = self._holders.get(ticket)
        if slot is None:
            return
        asked = slot.in_flight.pop(ticket, None)
        self._leave_line(slot, ticket)
        if asked is not None:
            slot.last_used = now
            slot.keep_seconds = asked.keep_after(slot.rules)

    def _present(self, tool: str, serial: int, *phases: Phase) -> Slot | None:
        slot = self._slots.get(tool)
        return slot if slot is not None and slot.serial == serial and slot.phase in phases else None

    def _on_ready(self, tool: str, serial: int, now: float) -> None:
        slot = self._present(tool, serial, Phase.STARTING)
        if slot is not None:
            slot.phase, slot.backoff = Phase.READY, slot.backoff.came_up(now)
            slot.last_used, slot.keep_seconds = now, slot.rules.keep_seconds
            slot.cold = set(slot.line)

    def _on_start_failed(self, tool: str, serial: int, now: float) -> None:
        slot = self._present(tool, serial, Phase.STARTING)
        if slot is None:
            return
        slot.count_failure(now, self.bounds.backoff)
        for ticket in tuple(slot.line):
            self._leave_line(slot, ticket)
            self._out.append(ev.Fail(ticket, tool, serial))
        self._stop(slot, None)

    def _on_died(self, tool: str, serial: int) -> None:
        slot = self._present(tool, serial, Phase.READY)
        if slot is not None:
            self._stop(slot, None)

    def _on_doomed(self, tool: str, serial: int) -> None:
        slot = self._present(tool, serial, Phase.READY)
        if slot is not None:
            slot.digest = ""  # stale from now on, whatever the declaration says

    def _on_gone(self, tool: str, serial: int) -> None:
        slot = self._present(tool, serial, Phase.STOPPING)
        if slot is not None:
            slot.phase, slot.rss_bytes, slot.digest = Phase.COLD, 0, ""

    def _on_adopted(self, event: ev.Adopted) -> None:
        self._slots[event.tool] = Slot(
            event.tool,
            event.rules,
            phase=event.phase,
            serial=event.serial,
            digest=event.digest,
            last_used=event.last_used,
            keep_seconds=event.rules.keep_seconds,
        )

    def _on_measured(self, sizes: dict[str, int]) -> None:
        for slot in self._slots.values():
            slot.rss_bytes = sizes.get(slot.tool, slot.rss_bytes)

    def _on_declared(self, tool: str, rules: ev.Rules) -> None:
        slot = self._slots.get(tool)
        if slot is not None:
            if slot.keep_seconds == slot.rules.keep_seconds:
                slot.keep_seconds = rules.keep_seconds
            slot.declare(rules)

    def _on_forgotten(self, tool: str) -> None:
        slot = self._slots.get(tool)
        if slot is not None:
            slot.forget()
            for ticket in tuple(slot.line):
                self._refuse(slot, ticket, Refusal.REMOVED, RETRY_SECONDS)

    def _on_stop_asked(self, tool: str, reason: Reason, refusal: Refusal) -> None:
        slot = self._slots.get(tool)
        if slot is None:
            return
        for ticket in tuple(slot.line):
            self._refuse(slot, ticket, refusal, RETRY_SECONDS)
        if slot.phase in LIVE:
            self._stop(slot, reason)

    def _on_closed(self) -> None:
        self.is_closed = True
        for tool in tuple(self._slots):
            self._on_stop_asked(tool, Reason.SHUTDOWN, Refusal.CLOSING)

    def _on_time(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            _, ticket = heapq.heappop(self._deadlines)
            if self._waits(ticket):
                slot = self._holders[ticket]
                starting = slot.phase is Phase.STARTING
                refusal = Refusal.DEADLINE_STARTING if starting else Refusal.DEADLINE
                self._refuse(slot, ticket, refusal, RETRY_SECONDS)

    def _stop(self, slot: Slot, reason: Reason | None) -> None:
        """Let go of an instance. Its requests are lost with it; what waits in line waits on."""
        for ticket in slot.in_flight:
            self._holders.pop(ticket, None)
        slot.in_flight.clear()
        slot.phase = Phase.STOPPING
        self._out.append(ev.Stop(slot.tool, slot.serial, reason))

    def _settle(self, now: float) -> None:
        """Grant, retire, start, shrink, forget; in this order, so that a request is never refused room that is free."""
        for slot in tuple(self._hungry.values()):
            self._grant(slot)
        for slot in tuple(self._slots.values()):
            self._retire(slot, now)
        for slot in sorted(
            (s for s in self._hungry.values() if s.phase is Phase.COLD and not s.is_held(now)),
            key=lambda s: next(iter(s.line)),
        ):
            if not self._start(slot, now):
                break
        self._shrink()
        for slot in tuple(self._slots.values()):
            slot.backoff = slot.backoff.settled(now)
            if slot.phase is Phase.COLD and not slot.line and not (slot.backoff.failures and slot.is_known):
                del self._slots[slot.tool]

    def _grant(self, slot: Slot) -> None:
        while slot.line and slot.free > 0:
            ticket, asked = next(iter(slot.line.items()))
            cold = ticket in slot.cold
            self._leave_line(slot, ticket)
            self._holders[ticket] = slot
            slot.in_flight[ticket] = asked
            self._out.append(ev.Grant(ticket, slot.tool, slot.serial, cold))

    def _retire(self, slot: Slot, now: float) -> None:
        if slot.phase is not Phase.READY or slot.in_flight:
            return
        if slot.is_stale:
            self._stop(slot, Reason.REPLACED)
        elif not slot.line and self.expires_at(slot) <= now:
            self._stop(slot, Reason.EVICTED_TTL)

    def _start(self, slot: Slot, now: float) -> bool:
        """Start an instance, at the cost of another if need be; False when there is no place."""
        if self._count(Phase.STOPPING) >= self.bounds.warm_keep_max:
            return False
        surplus = self._count(*LIVE) + 1 - self.bounds.warm_keep_max
        if surplus > 0:
            victims = tuple(self._victims())[:surplus]
            if len(victims) < surplus:
                self._refuse_if_hopeless()
                return False
            for victim in victims:
                self._stop(victim, Reason.EVICTED_LRU)
        self._serial += 1
        slot.serial, slot.phase, slot.digest = self._serial, Phase.STARTING, slot.rules.digest
        slot.last_used = now
        self._out.append(ev.Start(slot.tool, slot.serial))
        return True

    def _refuse_if_hopeless(self) -> None:
        """Refuse what waits for a place when only idle pinned instances hold them: no end of a request frees one."""
        if all(slot.is_idle for slot in self._slots.values() if slot.phase in LIVE):
            for slot in tuple(self._hungry.values()):
                if slot.phase is Phase.COLD:
                    for ticket in tuple(slot.line):
                        self._refuse(slot, ticket, Refusal.ALL_PINNED, RETRY_SECONDS)

    def _shrink(self) -> None:
        """Stop idle ones while there are too many, or while they are too large together."""
        while self._count(*LIVE) > self.bounds.warm_keep_max and (victim := next(self._victims(), None)):
            self._stop(victim, Reason.EVICTED_LRU)
        while self._is_over_budget() and (victim := next((v for v in self._victims() if v.rss_bytes), None)):
            self._stop(victim, Reason.EVICTED_LRU)

    def _is_over_budget(self) -> bool:
        budget = self.bounds.memory_budget_bytes
        return budget is not None and sum(s.rss_bytes for s in self._slots.values() if s.phase in LIVE) > budget

    def _count(self, *phases: Phase) -> int:
        return sum(1 for slot in self._slots.values() if slot.phase in phases)

    def _victims(self) -> Iterator[Slot]:
        idle = [s for s in self._slots.values() if s.is_idle and self.pin_of(s.tool) is Pin.NONE]
        return iter(sorted(idle, key=lambda s: (s.last_used, s.serial)))


LIVE = (Phase.STARTING, Phase.READY)
_MIDDLING = 0.5
"""Chance has no place here: requests are spread over time already."""


@dataclass(slots=True)
class Slot:
    """All that is known of one tool."""

    tool: str
    rules: ev.Rules
    phase: Phase = Phase.COLD
    serial: int = 0
    digest: str = ""
    in_flight: dict[int, ev.Asked] = field(default_factory=dict)
    line: dict[int, ev.Asked] = field(default_factory=dict)
    cold: set[int] = field(default_factory=set)
    last_used: float = 0.0
    keep_seconds: float = 0.0
    rss_bytes: int = 0
    backoff: Backoff = field(default_factory=Backoff)
    failed_digest: str = ""
    is_known: bool = True

    @property
    def is_stale(self) -> bool:
        """True when the declaration changed or vanished since the start."""
        return not self.is_known or self.digest != self.rules.digest

    @property
    def is_idle(self) -> bool:
        """True when stopping it would disturb nobody."""
        return self.phase in LIVE and not self.in_flight and not self.line

    @property
    def free(self) -> int:
        """How many requests the instance can take now."""
        return self.rules.concurrency - len(self.in_flight) if self.phase is Phase.READY and not self.is_stale else 0

    @property
    def excess(self) -> int:
        """How many wait beyond what the present or coming instance takes at once."""
        room = 0 if self.phase is Phase.COLD and self.held_until is None else self.rules.concurrency
        return len(self.line) - max(0, room - len(self.in_flight))

    @property
    def held_until(self) -> float | None:
        """When the next start may begin, while earlier ones that failed put it off; None when nothing does."""
        return None if self.phase in LIVE else self.backoff.blocked_until

    def is_held(self, now: float) -> bool:
        """Say whether the next start has to wait still."""
        return self.held_until is not None and self.backoff.wait_seconds(now) > 0

    def declare(self, rules: ev.Rules) -> None:
        """Take a tool's rules. Another declaration starts with a clean slate."""
        self.rules, self.is_known = rules, True
        if self.backoff.failures and rules.digest != self.failed_digest:
            self.backoff = Backoff()

    def forget(self) -> None:
        """Note that the tool is not declared any more. Declared again, it starts with a clean slate."""
        self.is_known, self.backoff = False, Backoff()

    def count_failure(self, now: float, policy: BackoffPolicy) -> None:
        """Note that its start failed; a start that outlived its declaration says nothing of the next one."""
        if not self.is_known:
            return
        self.failed_digest = self.digest
        self.backoff = replace(self.backoff, policy=policy).failed(now, _MIDDLING)

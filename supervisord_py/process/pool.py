"""Which instances of tools there are, who uses them, and who must go. Pure: no clock, no I/O.

Each method tells the pool what happened and returns what is to be done about it, to be performed in
order and reported back. A *ticket* is a number that stands for one request, a *serial* for one
instance; both grow, so that their order is the order of arrival. `now` is seconds on one clock that
never goes back and counts suspend.

Laws, each checked by the state machine of the tests:

- One instance of a unit at a time: a new one starts only when the old one is gone.
- Starting and ready instances count against `keep_max`; stopping ones apart (at most as many
  again), so that a new start begins while its victim is still on the way out: eviction is off the
  request path.
- A busy instance is never evicted. The victim is the least recently used idle, unpinned one, or
  with `by_cost` the one that took least to start; a starting one that nobody waits for any more is
  as good as idle. (A start that lost its waiters is otherwise left to finish.)
- Age counts from the end of the last activity. `keep_alive` replaces the unit's own age for one
  idle period, and can only lengthen it while the unit is pinned.
- A request waits in its unit's line, first come, first served; free places go to the line whose
  head came first. How long it waits is the affair of whoever asked: he reports the `end` of a
  request that he gives up.
- A failed start fails everyone who waits for it and nobody else. The next request starts anew, once
  the backoff is over: it waits for that in its line, and is refused only when its own time is
  shorter. Others may overtake meanwhile.
- A failure is never sticky. Each doubles the wait up to a cap; a period without failure, up or
  merely quiet, that is as long as `reset_seconds` makes the next failure count as the first.
- A stale instance takes no new request; it is replaced once the last one ended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from supervisord_py.process.instance import Phase
from supervisord_py.process.model import Reason

RETRY_SECONDS = 1.0  # when asking again makes sense while the pool is full: nobody can know better
LIVE = (Phase.STARTING, Phase.READY)
_EXPONENT_MAX = 64  # beyond this the cap holds anyway; it keeps a float from overflowing


class Pin(StrEnum):
    """How far a unit is exempt: `LRU` from eviction for capacity, `FOREVER` from age as well."""

    NONE = "none"
    LRU = "lru"
    FOREVER = "forever"


class Refusal(StrEnum):
    """Why a request gets no instance.

    The pool knows nothing of the two deadlines: who gives up says so.
    """

    QUEUE_FULL = "queue_full"
    DEADLINE = "deadline"
    DEADLINE_STARTING = "deadline_starting"
    ALL_PINNED = "all_pinned"
    FAILING = "failing"
    STOPPED = "stopped"
    REMOVED = "removed"
    CLOSING = "closing"


class BackoffPolicy(msgspec.Struct, frozen=True):
    initial_seconds: float = 0.5  # wait after the first failure; each is twice the one before
    max_seconds: float = 30.0  # no wait is longer
    reset_seconds: float = 60.0  # so long without a failure, and the next one counts as the first


class Backoff(msgspec.Struct, frozen=True):
    policy: BackoffPolicy = BackoffPolicy()
    failures: int = 0  # in a row
    blocked_until: float | None = None  # when the next try is due; None when nothing holds it back
    calm_since: float | None = None  # when it came up, or the wait ends; None before any failure

    def failed(self, now: float) -> Backoff:
        failures = self.settled(now).failures + 1
        wait = self.policy.initial_seconds * 2.0 ** min(failures - 1, _EXPONENT_MAX)
        until = now + min(self.policy.max_seconds, wait)
        return replace(self, failures=failures, blocked_until=until, calm_since=until)

    def came_up(self, now: float) -> Backoff:
        """Return the state after a success at `now`: nothing is blocked, and the stable period
        begins.
        """
        return replace(self, blocked_until=None, calm_since=now) if self.failures else self

    def settled(self, now: float) -> Backoff:
        if self.calm_since is not None and now >= self.calm_since + self.policy.reset_seconds:
            return Backoff(self.policy)
        if self.blocked_until is not None and now >= self.blocked_until:
            return replace(self, blocked_until=None)
        return self

    def wait_seconds(self, now: float) -> float:
        """Return how long the next try has to wait; 0 when it may begin now."""
        return 0.0 if self.blocked_until is None else max(0.0, self.blocked_until - now)


class Bounds(NamedTuple):
    keep_max: int = 5  # instances that may be starting, ready or busy at a time; at least 1
    memory_budget_bytes: int | None = None  # sum of the trees' resident memory, or None
    queue_max: int = 512  # requests of one unit that may wait beyond what its instance takes
    by_cost: bool = False  # evict what is cheap to bring back; else what was not used for longest
    # short: somebody waits for it
    backoff: BackoffPolicy = BackoffPolicy(initial_seconds=0.25, max_seconds=2.0)


class Rules(NamedTuple):
    """What the pool has to know of a unit: an instance started under another `digest` is stale."""

    digest: str
    concurrency: int
    keep_seconds: float


class Start(msgspec.Struct, frozen=True):
    """Spawn an instance and report `ready` or `start_failed`."""

    unit: str
    serial: int


class Stop(msgspec.Struct, frozen=True):
    """Stop what is there of an instance and report `gone`.

    `reason` is None when it ended by itself.
    """

    unit: str
    serial: int
    reason: Reason | None


class Grant(msgspec.Struct, frozen=True):
    """The request has the instance until its `end`. `cold`: it waited for the start."""

    ticket: int
    unit: str
    serial: int
    cold: bool


class Refuse(msgspec.Struct, frozen=True):
    """The request gets nothing; `retry_after` seconds is when asking again makes sense."""

    ticket: int
    unit: str
    refusal: Refusal
    retry_after: float = RETRY_SECONDS


class Fail(msgspec.Struct, frozen=True):
    """The request waited for this start, which failed."""

    ticket: int
    unit: str
    serial: int


Action = Start | Stop | Grant | Refuse | Fail


class Slot:
    def __init__(self, unit: str, rules: Rules, backoff: BackoffPolicy) -> None:
        self.unit = unit
        self.rules = rules
        self.phase = Phase.COLD
        self.serial = 0
        self.digest = ""  # of the declaration that the present instance was started from
        self.in_flight: dict[int, float | None] = {}  # tickets with their `keep_alive`
        self.line: dict[int, float | None] = {}  # the same, of those who wait
        self.newest_cold = 0  # the last ticket that waited for the present start
        self.last_used = 0.0
        self.start_seconds = 0.0  # that the present instance took; 0 where nobody saw it start
        self.keep_seconds = 0.0
        self.rss_bytes = 0
        # of starts that failed; a live instance is held back by nothing
        self.backoff = Backoff(backoff)
        self.failed_digest = ""
        self.is_known = True

    @property
    def is_stale(self) -> bool:
        return not self.is_known or self.digest != self.rules.digest

    @property
    def is_idle(self) -> bool:
        """True when stopping it would disturb nobody."""
        return self.phase in LIVE and not self.in_flight and not self.line

    @property
    def free(self) -> int:
        """How many requests the instance can take now: none of a stale one."""
        return (
            self.rules.concurrency - len(self.in_flight)
            if self.phase is Phase.READY and not self.is_stale
            else 0
        )

    @property
    def excess(self) -> int:
        """How many wait beyond what the present or coming instance takes at once."""
        room = (
            0
            if self.phase is Phase.COLD and self.backoff.blocked_until is None
            else self.rules.concurrency
        )
        return len(self.line) - max(0, room - len(self.in_flight))

    def declare(self, rules: Rules) -> None:
        """Take the unit's rules. Another declaration starts with a clean slate."""
        self.rules, self.is_known = rules, True
        if self.backoff.failures and rules.digest != self.failed_digest:
            self.backoff = Backoff(self.backoff.policy)


class Pool:
    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.is_closed = False
        self._slots: dict[str, Slot] = {}
        self._pins: dict[str, Pin] = {}
        self._serial = 0
        # there are still too many, or too large ones: those that could go are busy
        self._is_crowded = False
        self._out: list[Action] = []

    # -- to look at --------------------------------------------------------------------------------

    def slot(self, unit: str) -> Slot | None:
        return self._slots.get(unit)

    def slots(self) -> tuple[Slot, ...]:
        return tuple(self._slots.values())

    def pin_of(self, unit: str) -> Pin:
        return self._pins.get(unit, Pin.NONE)

    def next_deadline(self) -> float | None:
        times = [self.expires_at(slot) for slot in self._slots.values()]
        times += [
            until
            for slot in self._slots.values()
            if slot.line and (until := slot.backoff.blocked_until) is not None
        ]
        soonest = min(times, default=math.inf)
        return None if math.isinf(soonest) else soonest

    def expires_at(self, slot: Slot) -> float:
        """Return when an idle instance is too old; infinity for one that is not idle or not
        ready.
        """
        pin = self.pin_of(slot.unit)
        if slot.phase is not Phase.READY or not slot.is_idle or pin is Pin.FOREVER:
            return math.inf
        keep = slot.keep_seconds
        return slot.last_used + (keep if pin is Pin.NONE else max(keep, slot.rules.keep_seconds))

    # -- requests ----------------------------------------------------------------------------------

    def ask(
        self,
        ticket: int,
        unit: str,
        rules: Rules,
        deadline: float,
        keep_alive: float | None = None,
        *,
        now: float,
    ) -> list[Action]:
        """Note a request, which will wait until `deadline`.

        `keep_alive`: seconds to keep the instance after it, 0 not at all, -1 for ever, None as
        usual.
        """
        slot = self._slots.get(unit)
        if slot is None:
            slot = self._slots[unit] = Slot(unit, rules, self.bounds.backoff)
        elif (  # warm, and nobody else is concerned
            slot.phase is Phase.READY
            and slot.rules == rules
            and slot.digest == rules.digest
            and slot.is_known
            and not slot.line
            and len(slot.in_flight) < rules.concurrency
        ):
            slot.in_flight[ticket] = keep_alive
            return [Grant(ticket, unit, slot.serial, cold=False)]
        slot.declare(rules)
        slot.line[ticket] = keep_alive
        if self.is_closed:
            self._refuse(slot, ticket, Refusal.CLOSING)
        elif (held := slot.backoff.wait_seconds(now)) > 0 and held >= deadline - now:
            self._refuse(slot, ticket, Refusal.FAILING, held)
        actions = self._settle(now)
        # all room is given away by now
        if ticket in slot.line and slot.excess > self.bounds.queue_max:
            self._refuse(slot, ticket, Refusal.QUEUE_FULL)
            actions += self._taken()
        return actions

    def end(self, unit: str, ticket: int, now: float) -> list[Action]:
        """Note that a request has ended, or that whoever asked does not wait any more."""
        slot = self._slots.get(unit)
        if slot is None:
            return []
        if ticket in slot.in_flight:
            keep, usual = slot.in_flight.pop(ticket), slot.rules.keep_seconds
            slot.last_used = now
            slot.keep_seconds = keep = usual if keep is None else math.inf if keep == -1 else keep
            is_fresh = (
                slot.phase is Phase.READY and slot.is_known and slot.digest == slot.rules.digest
            )
            if (
                is_fresh
                and keep > 0
                and not (self._is_crowded or any(each.line for each in self._slots.values()))
            ):
                return []  # it stays warm, and nobody wants its place
        elif ticket in slot.line:
            del slot.line[ticket]
        return self._settle(now)

    def _refuse(
        self, slot: Slot, ticket: int, refusal: Refusal, retry_after: float = RETRY_SECONDS
    ) -> None:
        del slot.line[ticket]
        self._out.append(Refuse(ticket, slot.unit, refusal, retry_after))

    # -- instances ---------------------------------------------------------------------------------

    def reserve_serial(self) -> int:
        """Return a fresh serial, for an instance that is adopted."""
        self._serial += 1
        return self._serial

    def adopt(
        self,
        unit: str,
        serial: int,
        rules: Rules,
        *,
        digest: str,
        last_used: float,
        ready: bool,
        now: float,
    ) -> list[Action]:
        """Note an instance of an earlier control plane, ready or still starting."""
        slot = self._slots[unit] = Slot(unit, rules, self.bounds.backoff)
        slot.phase = Phase.READY if ready else Phase.STARTING
        slot.serial, slot.digest, slot.last_used, slot.keep_seconds = (
            serial,
            digest,
            last_used,
            rules.keep_seconds,
        )
        return self._settle(now)

    def ready(self, unit: str, serial: int, now: float) -> list[Action]:
        if slot := self._present(unit, serial, Phase.STARTING):
            slot.phase, slot.backoff = Phase.READY, slot.backoff.came_up(now)
            slot.start_seconds = now - slot.last_used
            slot.last_used, slot.keep_seconds = now, slot.rules.keep_seconds
            slot.newest_cold = max(slot.line, default=0)
        return self._settle(now)

    def start_failed(self, unit: str, serial: int, now: float) -> list[Action]:
        """Note that an instance never became ready. What is left of it is still to be stopped."""
        if slot := self._present(unit, serial, Phase.STARTING):
            if slot.is_known:  # a start that outlived its declaration says nothing of the next one
                slot.failed_digest, slot.backoff = slot.digest, slot.backoff.failed(now)
            for ticket in tuple(slot.line):
                del slot.line[ticket]
                self._out.append(Fail(ticket, unit, serial))
            self._stop(slot, None)
        return self._settle(now)

    def start_again(self, unit: str, serial: int, now: float) -> list[Action]:
        """Note that an instance never became ready, but may come up in another way.

        Whoever waits goes on waiting: once it is gone the next start begins at once, if anybody
        waits then. The caller sees to it that this comes to an end.
        """
        if slot := self._present(unit, serial, Phase.STARTING):
            self._stop(slot, None)
        return self._settle(now)

    def died(self, unit: str, serial: int, now: float) -> list[Action]:
        """Note that the leader of a ready instance ended unasked.

        What is left of its tree is still to be stopped.
        """
        if slot := self._present(unit, serial, Phase.READY):
            self._stop(slot, None)
        return self._settle(now)

    def condemn(self, unit: str, serial: int, now: float) -> list[Action]:
        """Note that a ready instance is about to be stopped for a fault of its own: it gets no
        new request.
        """
        if slot := self._present(unit, serial, Phase.READY):
            slot.digest = ""  # stale from now on, whatever the declaration says
        return self._settle(now)

    def gone(self, unit: str, serial: int, now: float) -> list[Action]:
        if slot := self._present(unit, serial, Phase.STOPPING):
            slot.phase, slot.rss_bytes, slot.digest = Phase.COLD, 0, ""
        return self._settle(now)

    def measured(self, sizes: Mapping[str, int], now: float) -> list[Action]:
        for slot in self._slots.values():
            slot.rss_bytes = sizes.get(slot.unit, slot.rss_bytes)
        return self._settle(now)

    def _present(self, unit: str, serial: int, phase: Phase) -> Slot | None:
        slot = self._slots.get(unit)
        return slot if slot is not None and slot.serial == serial and slot.phase is phase else None

    # -- what is wanted ----------------------------------------------------------------------------

    def pin(self, unit: str, pin: Pin, now: float) -> list[Action]:
        self._pins[unit] = pin
        return self._settle(now)

    def declare(self, unit: str, rules: Rules, now: float) -> list[Action]:
        if slot := self._slots.get(unit):
            if slot.keep_seconds == slot.rules.keep_seconds:
                slot.keep_seconds = rules.keep_seconds
            slot.declare(rules)
        return self._settle(now)

    def forget(self, unit: str, now: float) -> list[Action]:
        """Note that there is no such unit any more.

        Declared again, it starts with a clean slate.
        """
        if slot := self._slots.get(unit):
            slot.is_known, slot.backoff = False, Backoff(slot.backoff.policy)
            for ticket in tuple(slot.line):
                self._refuse(slot, ticket, Refusal.REMOVED)
        return self._settle(now)

    def stop(self, unit: str, reason: Reason, now: float) -> list[Action]:
        """Have a unit's instance stopped now, busy or not."""
        self._stop_unit(unit, reason, Refusal.STOPPED)
        return self._settle(now)

    def close(self, now: float) -> list[Action]:
        self.is_closed = True
        for unit in tuple(self._slots):
            self._stop_unit(unit, Reason.SHUTDOWN, Refusal.CLOSING)
        return self._settle(now)

    def bound(self, bounds: Bounds, now: float) -> list[Action]:
        self.bounds = bounds
        return self._settle(now)

    def tick(self, now: float) -> list[Action]:
        return self._settle(now)

    def _stop_unit(self, unit: str, reason: Reason, refusal: Refusal) -> None:
        if slot := self._slots.get(unit):
            for ticket in tuple(slot.line):
                self._refuse(slot, ticket, refusal)
            if slot.phase in LIVE:
                self._stop(slot, reason)

    def _stop(self, slot: Slot, reason: Reason | None) -> None:
        """Let go of an instance. Its requests are lost with it; what waits in line waits on."""
        slot.in_flight.clear()
        slot.phase = Phase.STOPPING
        self._out.append(Stop(slot.unit, slot.serial, reason))

    # -- the decision ------------------------------------------------------------------------------

    def _taken(self) -> list[Action]:
        out, self._out = self._out, []
        return out

    def _settle(self, now: float) -> list[Action]:
        """Grant, retire, start, shrink, forget; in this order, so that a request is never
        refused room that is free.
        """
        for slot in self._slots.values():
            self._grant(slot)
            self._retire(slot, now)
        cold = [
            s
            for s in self._slots.values()
            if s.line and s.phase is Phase.COLD and s.backoff.wait_seconds(now) == 0
        ]
        for slot in sorted(cold, key=lambda each: next(iter(each.line))):
            if not self._start(slot, now):
                break
        self._shrink()
        for slot in tuple(self._slots.values()):
            slot.backoff = slot.backoff.settled(now)
            if (
                slot.phase is Phase.COLD
                and not slot.line
                and not (slot.backoff.failures and slot.is_known)
            ):
                del self._slots[slot.unit]
        return self._taken()

    def _grant(self, slot: Slot) -> None:
        while slot.line and slot.free > 0:
            ticket, keep_alive = next(iter(slot.line.items()))
            del slot.line[ticket]
            slot.in_flight[ticket] = keep_alive
            self._out.append(Grant(ticket, slot.unit, slot.serial, cold=ticket <= slot.newest_cold))

    def _retire(self, slot: Slot, now: float) -> None:
        if slot.phase is Phase.READY and not slot.in_flight:
            if slot.is_stale:
                self._stop(slot, Reason.REPLACED)
            elif not slot.line and self.expires_at(slot) <= now:
                self._stop(slot, Reason.EVICTED_TTL)

    def _start(self, slot: Slot, now: float) -> bool:
        """Start an instance, at the cost of another if need be; False when there is no place."""
        if self._count(Phase.STOPPING) >= self.bounds.keep_max:
            return False
        surplus = self._count(*LIVE) + 1 - self.bounds.keep_max
        if surplus > 0:
            victims = self._victims()[:surplus]
            if len(victims) < surplus:
                self._refuse_if_hopeless()
                return False
            for victim in victims:
                self._stop(victim, Reason.EVICTED_LRU)
        slot.serial, slot.phase, slot.digest = (
            self.reserve_serial(),
            Phase.STARTING,
            slot.rules.digest,
        )
        slot.last_used = now
        self._out.append(Start(slot.unit, slot.serial))
        return True

    def _refuse_if_hopeless(self) -> None:
        """Refuse what waits for a place when only idle pinned instances hold them: no end of a
        request frees one.
        """
        if all(slot.is_idle for slot in self._slots.values() if slot.phase in LIVE):
            for slot in self._slots.values():
                if slot.phase is Phase.COLD:
                    for ticket in tuple(slot.line):
                        self._refuse(slot, ticket, Refusal.ALL_PINNED)

    def _shrink(self) -> None:
        for victim in self._victims():
            if self._count(*LIVE) > self.bounds.keep_max or (
                victim.rss_bytes and self._is_over_budget()
            ):
                self._stop(victim, Reason.EVICTED_LRU)
        self._is_crowded = self._count(*LIVE) > self.bounds.keep_max or self._is_over_budget()

    def _is_over_budget(self) -> bool:
        budget = self.bounds.memory_budget_bytes
        return (
            budget is not None
            and sum(s.rss_bytes for s in self._slots.values() if s.phase in LIVE) > budget
        )

    def _count(self, *phases: Phase) -> int:
        return sum(1 for slot in self._slots.values() if slot.phase in phases)

    def _victims(self) -> list[Slot]:
        idle = [s for s in self._slots.values() if s.is_idle and self.pin_of(s.unit) is Pin.NONE]
        return sorted(
            idle,
            key=lambda s: (s.start_seconds if self.bounds.by_cost else 0.0, s.last_used, s.serial),
        )

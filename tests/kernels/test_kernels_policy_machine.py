"""The laws of the set of sessions under its adversaries: the clock jumps, callers come and
vanish, kernels die.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from supervisord_py.config.settings import KernelsSettings
from supervisord_py.kernels import session_set as s
from supervisord_py.kernels.session import SessionState
from supervisord_py.kernels.session_set import (
    LIVE,
    KernelSlot,
    KernelStart,
    KernelStop,
    SessionSet,
    Waiter,
    Want,
)
from supervisord_py.process.instance import Phase
from supervisord_py.process.model import Reason

QUEUE_MAX = 3
IDLE_SECONDS = 100.0
EVICTED = {Reason.EVICTED_LRU, Reason.EVICTED_TTL}
RARELY = st.sampled_from([False, False, False, True])
numbers = st.integers(0, 2)
randoms = st.randoms(use_true_random=False)


class SessionSetMachine(RuleBasedStateMachine):
    """Performs what the set decides in a model world, and checks it against what that world
    knows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now, self.cap, self.arrivals = 1000.0, 2, 0
        self.set = SessionSet(self.limits())
        self.slots = [KernelSlot() for _ in range(3)]
        self.world: dict[KernelSlot, Phase] = {}  # kernels that are there
        self.waiting: dict[Waiter, int] = {}  # by arrival
        self.running: dict[KernelSlot, Waiter] = {}
        self.used: set[KernelSlot] = set()  # something ran on the present kernel
        self.deaths: dict[KernelSlot, int] = {}
        self.coming: set[KernelSlot] = set()  # may start though nobody waits

    def limits(self) -> KernelsSettings:
        return KernelsSettings(
            max_sessions=self.cap, idle_seconds=IDLE_SECONDS, queue_max=QUEUE_MAX
        )

    # -- the world ---------------------------------------------------------------------------------

    def perform(self, actions: list[s.Action]) -> list[s.Action]:
        for action in actions:
            match action:
                case KernelStart(slot):
                    assert slot not in self.world, "two kernels of one session"
                    assert slot.failure is None, "a hard failure was not obeyed"
                    assert slot in self.coming or self.line(slot), "for nobody"
                    self.coming.discard(slot)
                    self.used.discard(slot)
                    self.world[slot] = Phase.STARTING
                    assert self.holds(slot) or len(self.in_places()) <= self.cap, (
                        "a start over the cap"
                    )
                case KernelStop(slot, reason):
                    assert self.world[slot] in LIVE
                    if reason in {*EVICTED, Reason.MEMORY_LIMIT}:
                        assert slot not in self.running, "a kernel at work was taken away"
                        assert not slot.foreign_busy, "a kernel at work for others was taken away"
                    assert reason not in EVICTED or not self.line(slot), "evicted under a call"
                    if reason is Reason.EVICTED_LRU:
                        assert not self.holds(slot), (
                            "a kernel of an open front end went for another"
                        )
                        assert slot.used_at <= min(
                            [it.used_at for it in self.victims()], default=slot.used_at
                        )
                    assert (
                        reason is not Reason.EVICTED_TTL or slot.used_at + IDLE_SECONDS <= self.now
                    )
                    self.world[slot] = Phase.STOPPING
                    self.running.pop(slot, None)
                case Waiter(session=slot) as waiter if waiter.is_served:
                    arrival = self.waiting.pop(waiter)
                    assert self.world[slot] is Phase.READY
                    if waiter.want is Want.CALL:
                        assert slot not in self.running, "two calls at a time"
                        calls = [it for it in self.line(slot) if it.want is Want.CALL]
                        assert all(self.waiting[it] > arrival for it in calls), (
                            "somebody was overtaken"
                        )
                        assert not waiter.reset or slot not in self.used, (
                            "a reset got an old kernel"
                        )
                        self.running[slot] = waiter
                        self.used.add(slot)
                case Waiter(session=slot, refused=why) as waiter if why is not None:
                    del self.waiting[waiter]
                    assert (why is s.WhyRefused.HARD_FAILURE) is (slot.failure is not None)
                case waiter:
                    assert waiter in self.waiting
        return actions

    def live(self) -> list[KernelSlot]:
        return [slot for slot, phase in self.world.items() if phase in LIVE]

    def holds(self, slot: KernelSlot) -> bool:
        return slot.held_until > self.now

    def in_places(self) -> list[KernelSlot]:
        return [slot for slot in self.live() if not self.holds(slot)]

    def victims(self) -> list[KernelSlot]:
        return self.set.victims(self.now)

    def line(self, slot: KernelSlot) -> list[Waiter]:
        return [it for it in self.waiting if it.session is slot]

    def pick(self, choice: Random, phase: Phase) -> KernelSlot:
        return choice.choice([slot for slot, it in self.world.items() if it is phase])

    def ask(self, slot: KernelSlot, want: Want = Want.CALL, *, reset: bool = False) -> Waiter:
        waiter = Waiter(slot, want, reset)
        self.arrivals += 1
        self.waiting[waiter] = self.arrivals
        if (reset or want is not Want.CALL) and not self.set.is_closed:
            self.deaths.pop(slot, None)
        self.coming |= {slot} if want is Want.RESTART else set()
        self.perform(self.set.ask(waiter, self.now))
        return waiter

    def end_call(self, slot: KernelSlot, *, over_memory: bool = False) -> None:
        self.coming |= {slot} if over_memory else set()
        self.perform(self.set.end(self.running.pop(slot), self.now, over_memory=over_memory))
        assert not over_memory or self.world[slot] is Phase.STOPPING or slot.foreign_busy

    def go_on(self, slot: KernelSlot) -> None:
        """Have a kernel come up, or be gone."""
        if self.world.get(slot) is Phase.STOPPING:
            del self.world[slot]
            self.perform(self.set.gone(slot, self.now))
        elif self.world.get(slot) is Phase.STARTING:
            self.world[slot] = Phase.READY
            self.perform(self.set.ready(slot, self.now))

    # -- callers -----------------------------------------------------------------------------------

    @rule(each=st.lists(numbers, min_size=1, max_size=5), reset=RARELY)
    def call(self, each: list[int], reset: bool) -> None:
        for number in each:
            self.ask(self.slots[number], reset=reset)

    @rule()
    def call_once(self) -> None:
        self.ask(KernelSlot(per_call=True))

    @rule(number=numbers, want=st.sampled_from([Want.START, Want.RESTART]))
    def ask_for_it(self, number: int, want: Want) -> None:
        was_ready = self.world.get(self.slots[number]) is Phase.READY
        waiter = self.ask(self.slots[number], want)
        assert self.set.is_closed or (waiter not in self.waiting) is (
            was_ready and want is Want.START
        )

    @precondition(lambda self: self.running)
    @rule(choice=randoms, succeeded=st.booleans(), over_memory=RARELY)
    def end(self, choice: Random, succeeded: bool, over_memory: bool) -> None:
        slot = choice.choice(list(self.running))
        if succeeded:
            slot.clear_failures()
            self.deaths.pop(slot, None)
        self.end_call(slot, over_memory=over_memory)
        assert not slot.per_call or self.world.get(slot) in {None, Phase.STOPPING}, (
            "it outlives its call"
        )

    @precondition(lambda self: self.waiting)
    @rule(choice=randoms)
    def give_up(self, choice: Random) -> None:
        waiter = choice.choice(list(self.waiting))
        del self.waiting[waiter]
        self.perform(self.set.end(waiter, self.now))

    @rule(number=numbers)
    def stop(self, number: int) -> None:
        slot = self.slots[number]
        self.coming.discard(slot)
        self.perform(self.set.stop(slot, Reason.STOPPED, self.now))
        assert (self.line(slot), self.world.get(slot) in LIVE) == ([], False)

    @rule(cap=st.integers(1, 3))
    def bound(self, cap: int) -> None:
        self.cap = cap
        self.set.limits = self.limits()
        self.perform(self.set.settle(self.now))

    @rule(number=numbers, with_cell=st.booleans())
    def adopt(self, number: int, with_cell: bool) -> None:
        slot = self.slots[number]
        if slot in self.world or slot in self.set.active or slot.failure or self.set.is_closed:
            return
        self.world[slot], slot.used_at = Phase.READY, self.now - 10
        self.used.add(slot)
        if with_cell:
            self.running[slot] = Waiter(slot)
        self.perform(self.set.adopt(slot, self.now, self.running.get(slot)))

    # -- kernels -----------------------------------------------------------------------------------

    @precondition(lambda self: self.world)
    @rule(choice=randoms)
    def all_come_and_go(self, choice: Random) -> None:
        for slot in choice.sample(list(self.world), len(self.world)):
            self.go_on(slot)

    @precondition(lambda self: Phase.STARTING in self.world.values())
    @rule(choice=randoms, no_descriptors=st.booleans())
    def fail_start(self, choice: Random, no_descriptors: bool) -> None:
        slot, idle = self.pick(choice, Phase.STARTING), len(self.victims())
        waited = self.line(slot)
        actions = self.perform(self.set.start_failed(slot, self.now, no_descriptors=no_descriptors))
        assert self.world[slot] is Phase.STOPPING
        assert not [it for it in waited if it in self.waiting], "who waited did not hear of it"
        assert Reason.EVICTED_LRU in stops(actions) or not no_descriptors or not idle or not waited

    @precondition(lambda self: Phase.READY in self.world.values())
    @rule(choice=randoms, crashed=st.booleans())
    def die(self, choice: Random, crashed: bool) -> None:
        slot = self.pick(choice, Phase.READY)
        self.deaths[slot] = self.deaths.get(slot, 0) + crashed
        self.coming |= {slot} if crashed else set()
        self.perform(self.set.died(slot, self.now, {"detail": "a crash"} if crashed else None))
        assert slot not in self.running
        assert (slot.failure is not None) is (self.deaths[slot] > s.RESTARTS)

    @rule(number=numbers)
    def word_of_a_kernel_that_is_not_there_changes_nothing(self, number: int) -> None:
        slot = self.slots[number]
        if self.world.get(slot) is None:
            events = (self.set.ready, self.set.start_failed, self.set.died, self.set.gone)
            assert not [each for event in events for each in event(slot, self.now)]
            assert not self.set.end(Waiter(slot), self.now)

    @precondition(lambda self: Phase.READY in self.world.values())
    @rule(choice=randoms, busy=st.booleans())
    def others_use_it(self, choice: Random, busy: bool) -> None:
        slot = self.pick(choice, Phase.READY)
        slot.foreign_busy, slot.is_fresh, slot.used_at = busy, False, self.now
        self.used.add(slot)
        self.perform(self.set.settle(self.now))

    @rule(number=numbers)
    def a_front_end_holds_it(self, number: int) -> None:
        self.slots[number].held_until = self.now + 30.0
        self.perform(self.set.settle(self.now))

    @rule(seconds=st.sampled_from([0.01, 1.0, 1.0, 40.0, 500.0]))
    def jump(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.set.settle(self.now))
        ready = [slot for slot, phase in self.world.items() if phase is Phase.READY]
        assert not [it for it in ready if it.is_idle and it.used_at + IDLE_SECONDS <= self.now], (
            "too old"
        )

    @precondition(lambda self: self.arrivals > 60)
    @rule()
    def close(self) -> None:
        self.perform(self.set.close(self.now))
        assert (self.waiting, self.live()) == ({}, [])

    # -- always ------------------------------------------------------------------------------------

    @invariant()
    def the_set_knows_the_world(self) -> None:
        active = self.set.active
        assert {slot: slot.phase for slot in active if slot.phase is not Phase.COLD} == self.world
        assert {slot: slot.running for slot in active if slot.running} == self.running
        assert {it for slot in active for it in slot.line} == set(self.waiting)
        for slot in active:
            assert slot.line or slot in self.world, "kept for nothing"
            assert [it.number for it in slot.line] == sorted(it.number for it in slot.line)
        for slot in (*active, *self.slots):
            assert (slot.state is SessionState.FAILED) is (
                slot.failure is not None and slot not in self.world
            )

    @invariant()
    def places_are_given_and_bounded(self) -> None:
        assert len(self.in_places()) <= self.cap or not self.victims(), (
            "over the cap with a victim at hand"
        )
        missing, stopping = (
            max(0, len(self.in_places()) + 1 - self.cap),
            [*self.world.values()].count(Phase.STOPPING),
        )
        has_room = missing <= len(self.victims()) and stopping + missing <= self.cap
        wait = [it.session for it in self.waiting if it.session not in self.world]
        assert not has_room or not wait, "a free place"
        assert not any(map(self.holds, wait)), "a front end waits for a place"
        for slot in self.set.active:
            assert slot.running or slot.phase is not Phase.READY or not slot.line
            assert len([it for it in slot.line if it.want is Want.CALL]) <= QUEUE_MAX

    @invariant()
    def nobody_starves_and_everybody_is_told(self) -> None:
        moving = {Phase.STARTING, Phase.STOPPING} & set(self.world.values())
        is_held = self.running or moving or any(slot.foreign_busy for slot in self.world)
        assert is_held or not self.waiting, "a call waits for nothing"
        for slot in self.set.active:
            for number, waiter in enumerate(slot.line):
                assert waiter.position == slot.line[0].position + number
                assert waiter.waits_for is (Phase.READY if number else slot.phase)

    def teardown(self) -> None:
        """When kernels start, end and vanish as they should, everybody who waits is served in
        the end.
        """
        for slot in self.world:
            slot.foreign_busy = False
        self.perform(self.set.settle(self.now))
        for _ in range(3 * (self.arrivals + 10)):
            for slot in tuple(self.world):
                self.go_on(slot)
            for slot in tuple(self.running):
                self.end_call(slot)
        assert not self.waiting, "somebody was never served"


SessionSetMachine.TestCase.settings = settings(suppress_health_check=list(HealthCheck))
# measured, on a busy machine: over a minute
TestSessionSet = pytest.mark.timeout(600)(SessionSetMachine.TestCase)


def up(sessions: SessionSet, slot: KernelSlot, want: Want = Want.CALL) -> Waiter:
    waiter = Waiter(slot, want)
    sessions.ask(waiter, 0.0)
    sessions.ready(slot, 0.0)
    return waiter


def stops(actions: list[s.Action]) -> list[Reason | None]:
    return [it.reason for it in actions if isinstance(it, KernelStop)]


def test_a_second_crash_in_a_row_refuses_who_waits_and_who_comes_until_somebody_asks() -> None:
    sessions, slot = SessionSet(KernelsSettings(queue_max=1)), KernelSlot()
    up(sessions, slot)
    waiting, too_many, late = (Waiter(slot) for _ in range(3))
    sessions.ask(waiting, 0.0)
    sessions.ask(too_many, 0.0)
    assert too_many.refused is s.WhyRefused.QUEUE_FULL
    for _ in range(2):
        sessions.died(slot, 0.0, {})
        sessions.gone(slot, 0.0)
        sessions.ready(slot, 0.0)
    assert (slot.restarts, slot.state, waiting.refused) == (1, SessionState.FAILED, None), (
        "it had its turn in between"
    )
    assert (sessions.ask(late, 0.0), late.refused) == ([late], s.WhyRefused.HARD_FAILURE)
    assert sessions.ask(Waiter(slot, reset=True), 0.0)[0] == KernelStart(slot)
    assert slot.failure is None


def test_a_kernel_that_is_starting_is_replaced_once_for_all_who_want_that() -> None:
    sessions, slot = SessionSet(KernelsSettings()), KernelSlot()
    assert KernelStart(slot) in sessions.ask(Waiter(slot), 0.0)
    first, second = (Waiter(slot, is_renewing=True) for _ in range(2))
    assert KernelStop(slot, Reason.REPLACED) in sessions.ask(first, 0.0)
    assert not any(isinstance(action, KernelStop) for action in sessions.ask(second, 0.0))


def test_each_way_out_of_a_kernel_once_and_a_closed_set_starts_nothing() -> None:
    sessions = SessionSet(KernelsSettings(max_sessions=2, idle_seconds=IDLE_SECONDS))
    one, other, third = KernelSlot(), KernelSlot(), KernelSlot(per_call=True)
    for slot in (one, other):
        up(sessions, slot, Want.START)
    call = Waiter(third)
    assert stops(sessions.ask(call, 1.0)) == [Reason.EVICTED_LRU]
    sessions.gone(one, 1.0)
    assert stops(sessions.start_failed(third, 1.0, no_descriptors=True)) == [
        None,
        Reason.EVICTED_LRU,
    ]
    assert call.refused is s.WhyRefused.START_FAILED
    for slot in (other, third):
        sessions.gone(slot, 1.0)
    assert stops(sessions.end(up(sessions, one), 2.0, over_memory=True)) == [Reason.MEMORY_LIMIT]
    assert sessions.gone(one, 2.0) == [KernelStart(one)]
    sessions.ready(one, 3.0)
    warm = Waiter(one)
    assert (sessions.ask(warm, 3.0), sessions.end(warm, 3.0)) == ([warm], []), (
        "it concerns nobody else"
    )
    assert stops(sessions.settle(3.0 + IDLE_SECONDS)) == [Reason.EVICTED_TTL]
    sessions.gone(one, 200.0)
    assert stops(sessions.end(up(sessions, third), 200.0)) == [Reason.STOPPED]
    sessions.ask(Waiter(other), 200.0)
    assert stops(sessions.close(201.0)) == [Reason.SHUTDOWN]
    for want in Want:
        waiter = Waiter(KernelSlot(), want)
        assert (sessions.ask(waiter, 202.0), waiter.refused) == ([waiter], s.WhyRefused.CLOSING)

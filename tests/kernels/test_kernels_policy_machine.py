"""The laws of the set of sessions under its adversaries: the clock jumps, callers come and vanish, kernels die."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from policy_world import IDLE_SECONDS, QUEUE_MAX, WINDOW_SECONDS, Life, PolicyWorld
from supervisord_py.kernels.session_set import Ask, Death, Fault, Phase, Stop, Want
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from random import Random

SESSIONS = ("a", "b", "c")
RARELY = st.sampled_from([False, False, False, True])
sessions = st.sampled_from(SESSIONS)
randoms = st.randoms(use_true_random=False)


class SessionSetMachine(PolicyWorld, RuleBasedStateMachine):
    """The adversaries: callers, kernels, administrators, the clock."""

    def __init__(self) -> None:
        RuleBasedStateMachine.__init__(self)
        PolicyWorld.__init__(self)

    # -- callers -----------------------------------------------------------------------------------------------------

    def ask(self, session: str, patience: float, *, reset: bool = False, caller: int | None = None) -> None:
        if reset and not self.closed:
            self.absolve(session)
        self.stopped.discard(session)
        self.tickets += 1
        per_call = session.startswith("one-")
        asked = Ask(self.tickets, session, self.now + patience, Want.CALL, reset, per_call, caller)
        self.waiting[self.tickets] = asked
        self.callers[self.tickets] = caller
        self.send("ask", asked)

    @rule(session=sessions, patience=st.sampled_from([0.5, 30.0, 1000.0]), reset=RARELY)
    def call(self, session: str, patience: float, reset: bool) -> None:
        self.ask(session, patience, reset=reset)

    @rule(each=st.lists(sessions, min_size=2, max_size=5))
    def burst(self, each: list[str]) -> None:
        for session in each:
            self.ask(session, 1000.0)

    @rule()
    def call_once(self) -> None:
        self.names += 1
        self.ask(f"one-{self.names}", 1000.0)

    @precondition(lambda self: self.running)
    @rule(session=sessions, choice=randoms)
    def call_from_a_cell(self, session: str, choice: Random) -> None:
        caller = choice.choice(sorted(self.running.values()))
        self.ask(session, 1000.0, caller=caller[1])
        if session == caller[0]:
            assert self.tickets in self.over, "a call waits for itself"

    @rule(session=sessions, patience=st.sampled_from([0.5, 1000.0]), restart=RARELY)
    def ask_for_it(self, session: str, patience: float, restart: bool) -> None:
        self.tickets += 1
        asked = Ask(self.tickets, session, self.now + patience, Want.RESTART if restart else Want.START)
        self.stopped.discard(session)
        self.waiting[self.tickets] = asked
        if not self.closed:
            self.absolve(session)
            self.stays.add(session)
        before = [life for life in self.live() if life[0] == session]
        self.send("ask", asked)
        if self.closed:
            return
        assert not restart or not before or self.world[before[0]] is Phase.STOPPING
        is_up = any(self.world[life] is Phase.READY for life in before) and not restart
        assert (self.tickets in self.over) is is_up

    @precondition(lambda self: self.running)
    @rule(choice=randoms, succeeded=st.booleans())
    def end(self, choice: Random, succeeded: bool) -> None:
        ticket = choice.choice(sorted(self.running))
        if succeeded:
            self.succeed(ticket)
        self.finish_call(ticket)

    def succeed(self, ticket: int) -> None:
        self.deaths.pop(self.running[ticket][0], None)
        assert not self.send("succeeded", ticket)

    def finish_call(self, ticket: int) -> None:
        life = self.running.pop(ticket)
        self.used[life] = self.now
        self.finish(ticket)
        self.send("ended", ticket)
        assert not life[0].startswith("one-") or self.world.get(life) in {None, Phase.STOPPING}, "it outlives its call"

    @precondition(lambda self: self.waiting)
    @rule(choice=randoms)
    def give_up(self, choice: Random) -> None:
        ticket = choice.choice(sorted(self.waiting))
        del self.waiting[ticket]
        self.finish(ticket)
        self.send("ended", ticket)

    @rule(session=sessions, act=st.sampled_from(["stop", "bound", "late", "adopt"]), choice=randoms)
    def administrate(self, session: str, act: str, choice: Random) -> None:
        """Everything that happens now and then; one rule, so that it stays rare beside the traffic."""
        getattr(self, f"do_{act}")(session, choice)

    def do_stop(self, session: str, _: Random) -> None:
        self.send("stop", session, Reason.STOPPED)
        self.stopped.add(session)
        assert not [it for it in self.waiting.values() if it.session == session]
        assert all(phase is Phase.STOPPING for life, phase in self.world.items() if life[0] == session)

    def do_bound(self, _: str, choice: Random) -> None:
        self.cap = choice.choice([1, 2, 3])
        self.send("bound", self.limits())

    def do_late(self, session: str, choice: Random) -> None:
        """Word of a kernel that is not there any more changes nothing."""
        serial = choice.randint(0, 5)
        if (session, serial) not in self.world:
            for event in ("ready", "start_failed", "died", "gone", "recycle"):
                assert not self.send(event, session, serial)

    def do_adopt(self, session: str, choice: Random) -> None:
        known = {life[0] for life in self.world} | {it.session for it in self.waiting.values()} | self.failed
        if session in known or self.closed or session in self.deaths or session in self.failed_starts:
            return
        self.stopped.discard(session)
        life = (session, self.set.next_serial())
        self.used[life] = self.now - 10
        self.stays.add(session)
        self.world[life] = Phase.READY
        ticket = None
        if choice.random() < 0.5:
            self.tickets += 1
            ticket = self.tickets
            self.running[ticket] = life
        self.send("adopt", session, life[1], self.now - 10, ticket)

    # -- kernels -----------------------------------------------------------------------------------------------------

    def pick(self, choice: Random, *phases: Phase) -> Life:
        return choice.choice(sorted(life for life, phase in self.world.items() if phase in phases))

    def make_ready(self, life: Life) -> None:
        self.world[life] = Phase.READY
        self.used[life] = self.now
        self.failed_starts.pop(life[0], None)
        self.stopped.discard(life[0])
        waiting = {ticket for ticket, it in self.waiting.items() if it.session == life[0]}
        self.cold = {ticket for ticket in self.cold if ticket in self.waiting} | waiting
        self.send("ready", *life)

    @precondition(lambda self: Phase.STARTING in self.world.values())
    @rule(choice=randoms)
    def become_ready(self, choice: Random) -> None:
        self.make_ready(self.pick(choice, Phase.STARTING))

    @precondition(lambda self: self.world)
    @rule()
    def all_come_and_go(self) -> None:
        """The common case, so that busy and full sets are common, too."""
        self.bury_all()
        for life in sorted(self.live()):
            if self.world.get(life) is Phase.STARTING:
                self.make_ready(life)

    @precondition(lambda self: self.running)
    @rule()
    def all_end(self) -> None:
        """Quiet, so that there is somebody to evict."""
        for ticket in sorted(self.running):
            if ticket in self.running:
                self.finish_call(ticket)

    @precondition(lambda self: Phase.STARTING in self.world.values())
    @rule(choice=randoms, fault=st.sampled_from(Fault))
    def fail_start(self, choice: Random, fault: Fault) -> None:
        self.fail(self.pick(choice, Phase.STARTING), fault)

    @rule(session=sessions, fault=st.sampled_from([Fault.OWN, Fault.NO_DESCRIPTORS]))
    def fail_again_and_again(self, session: str, fault: Fault) -> None:
        """Rare by chance, so done on purpose."""
        for _ in range(3):
            if session not in self.failed:
                self.ask(session, 1000.0)
            for life in sorted(life for life in self.live() if life[0] == session):
                if self.world[life] is Phase.STARTING:
                    self.fail(life, fault)
            self.bury_all()

    @rule(choice=randoms)
    def lack_descriptors(self, choice: Random) -> None:
        """Rare by chance, so done on purpose: a start beside an idle session, told that there are none left."""
        if self.world:
            self.all_come_and_go()
        if self.running:
            self.all_end()
        absent = [it for it in SESSIONS if it not in self.failed and it not in {life[0] for life in self.world}]
        for session in absent[:1]:
            self.ask(session, 1000.0)
            for life in sorted(it for it in self.live() if it[0] == session and self.world[it] is Phase.STARTING):
                self.fail(life, Fault.NO_DESCRIPTORS)
            for life in choice.sample(sorted(self.world), len(self.world)):
                if self.world[life] is Phase.STOPPING:
                    self.bury(life)

    def fail(self, life: Life, fault: Fault) -> None:
        idle = self.evictable()
        if fault is Fault.OWN:
            recent = [at for at in self.failed_starts.get(life[0], ()) if at > self.now - WINDOW_SECONDS]
            self.failed_starts[life[0]] = [*recent, self.now]
            if len(self.failed_starts[life[0]]) >= 3:
                self.failed.add(life[0])
        waited = [t for t, it in self.waiting.items() if it.session == life[0]]
        instructions = self.send("start_failed", *life, fault)
        assert self.world[life] is Phase.STOPPING
        evicted = [it for it in instructions if isinstance(it, Stop) and it.reason is Reason.EVICTED_LRU]
        assert not [t for t in waited if t in self.waiting], "who waited did not hear of it"
        assert evicted or fault is not Fault.NO_DESCRIPTORS or not idle

    @precondition(lambda self: Phase.READY in self.world.values())
    @rule(choice=randoms, how=st.sampled_from(Death))
    def die(self, choice: Random, how: Death) -> None:
        self.kill(self.pick(choice, Phase.READY), how)

    @rule(session=sessions, line=st.sampled_from([(), (False, False), (False, False, True)]), succeeded=RARELY)
    def crash_again_and_again(self, session: str, line: tuple[bool, ...], succeeded: bool) -> None:
        """Rare by chance, so done on purpose; also with a reset in line, or with a cell that succeeds in between."""
        for reset in line:
            self.ask(session, 1000.0, reset=reset)
        for _ in range(2):
            for life in sorted(life for life in self.live() if life[0] == session):
                if self.world[life] is Phase.STARTING:
                    self.make_ready(life)
                for ticket in [ticket for ticket, it in self.running.items() if it == life and succeeded]:
                    self.succeed(ticket)
                if self.world[life] is Phase.READY:
                    self.kill(life, Death.CRASHED)
            self.bury_all()

    def bury_all(self) -> None:
        for life in sorted(life for life, phase in self.world.items() if phase is Phase.STOPPING):
            self.bury(life)

    def kill(self, life: Life, how: Death) -> None:
        if how is Death.CRASHED:
            self.deaths[life[0]] = self.deaths.get(life[0], 0) + 1
        elif how is Death.EXITED:
            self.deaths.pop(life[0], None)
        asked = [self.waiting[t] for t in self.calls_of(life[0])]
        is_over = self.deaths.get(life[0], 0) > 1
        if is_over:
            self.failed.add(life[0])
        self.send("died", *life, how)
        if is_over and any(it.reset for it in asked):
            self.absolve(life[0])
        elif is_over:
            assert not self.calls_of(life[0]), "somebody waits for a hard failure"
        assert life not in self.running.values()

    @precondition(lambda self: Phase.STOPPING in self.world.values())
    @rule(choice=randoms)
    def vanish(self, choice: Random) -> None:
        self.bury(self.pick(choice, Phase.STOPPING))

    def bury(self, life: Life) -> None:
        del self.world[life]
        self.send("gone", *life)
        if life[0].startswith("one-"):
            self.absolve(life[0])

    @precondition(lambda self: Phase.READY in self.world.values())
    @rule(choice=randoms, act=st.sampled_from(["used", "busy", "idle", "recycle"]))
    def happen(self, choice: Random, act: str) -> None:
        life = self.pick(choice, Phase.READY)
        if act == "recycle":
            self.to_recycle.add(life)
            self.send("recycle", *life)
            is_free = life not in self.running.values() and life not in self.foreign
            assert not is_free or self.world[life] is Phase.STOPPING
            return
        if act == "used":
            at = self.now - choice.choice([0.0, 5.0])
            self.used[life] = max(self.used[life], at)
            self.fresh.discard(life)
            self.send("used", life[0], at)
            return
        if (life in self.foreign) is not (act == "busy"):
            self.used[life] = self.now
            self.fresh.discard(life)
            self.foreign ^= {life}
        self.send("works_for_others", life[0], busy=act == "busy")

    # -- clock -------------------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.01, 1.0, 1.0, 40.0, 40.0, 500.0]))
    def jump(self, seconds: float) -> None:
        self.now += seconds
        self.send()
        overdue = [t for t, it in self.waiting.items() if it.deadline <= self.now]
        assert not overdue, "a deadline passed unnoticed"
        assert not [life for life in self.evictable() if self.used[life] + IDLE_SECONDS <= self.now], "too old"
        upcoming = self.set.next_deadline()
        assert upcoming is None or upcoming > self.now

    @precondition(lambda self: self.tickets > 60)
    @rule()
    def close(self) -> None:
        self.closed = True
        self.send("close")
        assert not self.waiting
        assert not self.running
        assert all(phase is Phase.STOPPING for phase in self.world.values())

    # -- always ------------------------------------------------------------------------------------------------------

    @invariant()
    def bounded(self) -> None:
        assert len(self.live()) <= self.cap or not self.evictable(), "over the cap with a victim at hand"
        for session in SESSIONS:
            assert len(self.calls_of(session)) <= QUEUE_MAX + 1

    @invariant()
    def knows_the_world(self) -> None:
        for session, serial in self.world:
            slot = self.set.slots.get(session)
            assert slot is not None
            assert slot.present == serial
        for slot in self.set.slots.values():
            assert slot.present is None or (slot.session, slot.present) in self.world
            assert len(slot.line) == len(self.calls_of(slot.session))
            assert (slot.failure is not None) is (slot.session in self.failed)
            mine = [t for t, life in self.running.items() if life == (slot.session, slot.present)]
            assert mine == ([] if slot.running is None else [slot.running])

    @invariant()
    def nothing_starts_for_nobody(self) -> None:
        awaited = {it.session for it in self.waiting.values()}
        starting = {session for (session, _), phase in self.world.items() if phase is Phase.STARTING}
        assert starting <= awaited | self.stays

    @invariant()
    def nobody_starves(self) -> None:
        """A call waits only where something will move, and its deadline is watched."""
        if self.waiting:
            phases = set(self.world.values())
            assert self.running or self.foreign or phases & {Phase.STARTING, Phase.STOPPING}, "a call waits for nothing"
            deadline = self.set.next_deadline()
            assert deadline is not None
            assert deadline <= min(it.deadline for it in self.waiting.values())

    @invariant()
    def places_are_told(self) -> None:
        for session in SESSIONS:
            told = [self.told[ticket][0] for ticket in self.calls_of(session)]
            assert told == list(range(told[0], told[0] + len(told))) if told else True

    def teardown(self) -> None:
        """When kernels start, end and vanish as they should, everybody who waits is served in the end."""
        for session, _ in sorted(self.foreign):
            self.foreign = {life for life in self.foreign if life[0] != session}
            self.send("works_for_others", session, busy=False)
        for _ in range(3 * (self.tickets + 10)):
            for life, phase in sorted(self.world.items()):
                if self.world.get(life) is phase is Phase.STOPPING:
                    self.bury(life)
                elif self.world.get(life) is phase is Phase.STARTING:
                    self.make_ready(life)
            for ticket in sorted(self.running):
                self.finish_call(ticket)
        assert not self.waiting, "somebody was never served"


SessionSetMachine.TestCase.settings = settings(suppress_health_check=list(HealthCheck))
TestSessionSet = pytest.mark.timeout(600)(SessionSetMachine.TestCase)  # measured, on a busy machine: over a minute

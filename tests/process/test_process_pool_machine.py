"""The laws of the pool under three adversaries: the clock jumps, clients come and vanish, the kernel kills."""

from __future__ import annotations

import math

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from supervisord_py.process.instance import Phase
from supervisord_py.process.model import Reason
from supervisord_py.process.pool import (
    Action,
    Bounds,
    Fail,
    Grant,
    Pin,
    Pool,
    Refusal,
    Refuse,
    Rules,
    Start,
    Stop,
)

TOOLS = ("a", "b", "c", "d")
QUEUE_MAX = 3
SHORTEST_HOLD = 0.2
LONGEST_HOLD = 2.0
tools = st.sampled_from(TOOLS)


class PoolMachine(RuleBasedStateMachine):
    """Performs the instructions in a model world and checks each one against what that world knows."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.cap = 2
        self.set = Pool(Bounds(keep_max=self.cap, queue_max=QUEUE_MAX))
        self.digests = dict.fromkeys(TOOLS, "v1")
        self.concurrency = {"a": 1, "b": 2, "c": 1, "d": 2}
        self.pins = dict.fromkeys(TOOLS, Pin.NONE)
        self.waiting: dict[int, str] = {}
        self.deadlines: dict[int, float] = {}
        self.running: dict[int, tuple[str, int]] = {}
        self.keep: dict[int, float | None] = {}
        self.world: dict[tuple[str, int], Phase] = {}
        self.started_with: dict[tuple[str, int], str] = {}
        self.tickets = 0
        self.used: dict[tuple[str, int], float] = {}
        self.closed = False
        self.failed: dict[str, tuple[float, str]] = {}
        self.removed: set[str] = set()

    def rules_of(self, tool: str) -> Rules:
        return Rules(self.digests[tool], self.concurrency[tool], 100.0)

    def send(self, *event: object) -> None:
        what, *about = event
        for instruction in getattr(self.set, str(what))(*about, now=self.now):
            self.perform(instruction, event)

    def perform(self, instruction: Action, event: tuple[object, ...]) -> None:
        match instruction:
            case Start(tool, serial):
                assert not self.closed
                assert not [key for key in self.world if key[0] == tool], "two instances of one tool"
                assert tool in self.waiting.values(), "a start that nobody asked for"
                at, digest = self.failed.get(tool, (-math.inf, ""))
                assert digest != self.digests[tool] or self.now >= at + SHORTEST_HOLD, "the backoff was not obeyed"
                self.world[tool, serial] = Phase.STARTING
                self.used[tool, serial] = self.now
                live = [p for p in self.world.values() if p in {Phase.STARTING, Phase.READY}]
                assert len(live) <= self.cap, "a start over the cap"
                self.started_with[tool, serial] = self.digests[tool]
            case Stop(tool, serial, reason):
                self.check_stop(tool, serial, reason, event)
                self.world[tool, serial] = Phase.STOPPING
                self.running = {t: i for t, i in self.running.items() if i != (tool, serial)}
            case Grant(ticket, tool, serial):
                assert self.waiting.pop(ticket) == tool
                assert self.world[tool, serial] is Phase.READY
                assert self.started_with[tool, serial] == self.digests[tool], "granted a stale instance"
                earlier = [t for t, name in self.waiting.items() if name == tool and t < ticket]
                assert not earlier, "somebody was overtaken in line"
                self.running[ticket] = (tool, serial)
            case Refuse(ticket, tool, refusal, retry_after):
                assert self.waiting.pop(ticket) == tool
                assert retry_after > 0
                if refusal in {Refusal.DEADLINE, Refusal.DEADLINE_STARTING}:
                    assert self.deadlines[ticket] <= self.now
                if refusal is Refusal.FAILING:
                    assert self.deadlines[ticket] <= self.now + retry_after <= self.now + LONGEST_HOLD
            case Fail(ticket, tool, serial):
                assert self.waiting.pop(ticket) == tool
                assert event == ("start_failed", tool, serial)

    def check_stop(self, tool: str, serial: int, reason: Reason | None, event: tuple[object, ...]) -> None:
        assert self.world[tool, serial] in {Phase.STARTING, Phase.READY}
        busy = (tool, serial) in self.running.values()
        if reason in {Reason.EVICTED_LRU, Reason.EVICTED_TTL, Reason.REPLACED}:
            assert not busy, "a busy instance was evicted"
        if reason is Reason.EVICTED_LRU:
            assert self.pins[tool] is Pin.NONE, "a pinned instance was evicted"
            used = self.used[tool, serial]
            assert all(used <= self.used[key] for key in self.evictable()), "not the least recently used one"
        if reason is Reason.EVICTED_TTL:
            assert self.pins[tool] is not Pin.FOREVER
        if reason is None:
            assert event[0] in {"died", "start_failed"}

    def evictable(self) -> list[tuple[str, int]]:
        """Return what could go: alive, unpinned, with nobody on it and nobody waiting for it."""
        return [
            key
            for key, phase in self.world.items()
            if phase in {Phase.STARTING, Phase.READY}
            and self.pins[key[0]] is Pin.NONE
            and key not in self.running.values()
            and key[0] not in self.waiting.values()
        ]

    # -- clients ---------------------------------------------------------------------------------------------

    @rule(tool=tools, patience=st.sampled_from([0.1, 0.5, 30.0, 1000.0]), keep=st.sampled_from([None, 0.0, 5.0, -1.0]))
    def ask(self, tool: str, patience: float, keep: float | None) -> None:
        self.tickets += 1
        self.removed.discard(tool)
        self.waiting[self.tickets] = tool
        self.deadlines[self.tickets] = self.now + patience
        self.keep[self.tickets] = keep
        self.send("ask", self.tickets, tool, self.rules_of(tool), self.now + patience, keep)

    @rule(each=st.lists(tools, min_size=2, max_size=5))
    def burst(self, each: list[str]) -> None:
        for tool in each:
            self.ask(tool, 1000.0, None)

    @precondition(lambda self: self.running)
    @rule(choice=st.randoms(use_true_random=False))
    def release(self, choice) -> None:
        ticket = choice.choice(sorted(self.running))
        tool, serial = self.running.pop(ticket)
        self.used[tool, serial] = self.now
        self.send("end", tool, ticket)
        slot = self.set.slot(tool)
        if self.keep[ticket] == 0 and self.pins[tool] is Pin.NONE and not self.waiting:
            alone = (tool, serial) not in self.running.values()
            assert not alone or slot is None or slot.phase is Phase.STOPPING, "keep_alive 0 was not obeyed"

    @precondition(lambda self: self.waiting)
    @rule(choice=st.randoms(use_true_random=False))
    def give_up(self, choice) -> None:
        ticket = choice.choice(sorted(self.waiting))
        self.send("end", self.waiting.pop(ticket), ticket)

    @rule(
        tool=tools,
        act=st.sampled_from(["stop", "edit", "remove", "bound", "measure", "late"]),
        choice=st.randoms(use_true_random=False),
    )
    def administrate(self, tool: str, act: str, choice) -> None:
        """Everything that people do now and then; one rule, so that it stays rare beside the traffic."""
        getattr(self, f"do_{act}")(tool, choice)

    @rule(tool=tools, pin=st.sampled_from(list(Pin)))
    def set_pin(self, tool: str, pin: Pin) -> None:
        self.pins[tool] = pin
        self.send("pin", tool, pin)

    def do_stop(self, tool: str, _: object) -> None:
        self.send("stop", tool, Reason.STOPPED)
        assert tool not in self.waiting.values()
        assert all(phase is Phase.STOPPING for key, phase in self.world.items() if key[0] == tool)

    def do_edit(self, tool: str, choice) -> None:
        self.digests[tool] = choice.choice(["v1", "v2"])
        if self.digests[tool] != self.failed.get(tool, (0.0, ""))[1]:
            self.failed.pop(tool, None)
        self.removed.discard(tool)
        self.send("declare", tool, self.rules_of(tool))

    def do_remove(self, tool: str, _: object) -> None:
        self.removed.add(tool)
        self.failed.pop(tool, None)
        self.send("forget", tool)
        assert tool not in self.waiting.values()

    def do_bound(self, _: str, choice) -> None:
        self.cap = choice.choice([1, 2, 3])
        self.send("bound", Bounds(keep_max=self.cap, queue_max=QUEUE_MAX))

    def do_measure(self, tool: str, choice) -> None:
        self.send("measured", {tool: choice.randint(0, 100)})

    def do_late(self, tool: str, choice) -> None:
        """Word of an instance that is not there any more changes nothing."""
        serial = choice.randint(0, 5)
        if (tool, serial) not in self.world:
            for event in ("ready", "start_failed", "died"):
                self.send(event, tool, serial)
            self.send("gone", tool, serial)

    # -- kernel ----------------------------------------------------------------------------------------------

    def pick(self, choice, *phases: Phase) -> tuple[str, int]:
        return choice.choice(sorted(key for key, phase in self.world.items() if phase in phases))

    @precondition(lambda self: Phase.STARTING in self.world.values())
    @rule(choice=st.randoms(use_true_random=False))
    def become_ready(self, choice) -> None:
        tool, serial = self.pick(choice, Phase.STARTING)
        self.world[tool, serial] = Phase.READY
        self.used[tool, serial] = self.now
        self.send("ready", tool, serial)

    @precondition(lambda self: Phase.STARTING in self.world.values())
    @rule()
    def all_become_ready(self) -> None:
        """The common case, so that busy and full pools are common, too."""
        for tool, serial in sorted(key for key, phase in self.world.items() if phase is Phase.STARTING):
            if self.world.get((tool, serial)) is Phase.STARTING:
                self.world[tool, serial] = Phase.READY
                self.used[tool, serial] = self.now
                self.send("ready", tool, serial)

    @precondition(lambda self: Phase.STARTING in self.world.values())
    @rule(choice=st.randoms(use_true_random=False))
    def fail_start(self, choice) -> None:
        tool, serial = self.pick(choice, Phase.STARTING)
        if tool not in self.removed:
            self.failed[tool] = (self.now, self.started_with[tool, serial])
        self.send("start_failed", tool, serial)
        assert self.world[tool, serial] is Phase.STOPPING
        assert tool not in self.waiting.values(), "a waiter did not hear of the failure"

    @precondition(lambda self: Phase.READY in self.world.values())
    @rule(choice=st.randoms(use_true_random=False))
    def die(self, choice) -> None:
        tool, serial = self.pick(choice, Phase.READY)
        self.send("died", tool, serial)

    @precondition(lambda self: Phase.READY in self.world.values())
    @rule(choice=st.randoms(use_true_random=False))
    def doom(self, choice) -> None:
        tool, serial = self.pick(choice, Phase.READY)
        self.started_with[tool, serial] = "doomed"
        self.send("condemn", tool, serial)

    @precondition(lambda self: Phase.STOPPING in self.world.values())
    @rule(choice=st.randoms(use_true_random=False))
    def vanish(self, choice) -> None:
        tool, serial = self.pick(choice, Phase.STOPPING)
        del self.world[tool, serial]
        self.send("gone", tool, serial)

    # -- clock -----------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.01, 0.1, 1.0, 40.0, 500.0]))
    def jump(self, seconds: float) -> None:
        self.now += seconds
        self.send("tick")
        for ticket in [t for t in self.waiting if self.deadlines[t] <= self.now]:
            if ticket in self.waiting:
                self.send("end", self.waiting.pop(ticket), ticket)
        upcoming = self.set.next_deadline()
        assert upcoming is None or upcoming > self.now

    @precondition(lambda self: self.tickets > 25)
    @rule()
    def close(self) -> None:
        self.closed = True
        self.send("close")
        assert not self.waiting
        assert all(phase is Phase.STOPPING for phase in self.world.values())

    # -- always ----------------------------------------------------------------------------------------------

    @invariant()
    def bounded(self) -> None:
        live = [k for k, p in self.world.items() if p in {Phase.STARTING, Phase.READY}]
        surplus = [k for k in live if k not in self.running.values() and self.pins[k[0]] is Pin.NONE]
        surplus = [k for k in surplus if k[0] not in self.waiting.values()]
        assert len(live) <= self.cap or not surplus, "over the cap with a victim at hand"
        for tool in TOOLS:
            using = sum(1 for name, _ in self.running.values() if name == tool)
            assert using <= self.concurrency[tool]
            lined = sum(1 for name in self.waiting.values() if name == tool)
            assert lined <= QUEUE_MAX + self.concurrency[tool]

    @invariant()
    def knows_the_world(self) -> None:
        for (tool, serial), phase in self.world.items():
            slot = self.set.slot(tool)
            assert slot is not None
            assert (slot.serial, slot.phase) == (serial, phase)
        for slot in self.set.slots():
            assert slot.phase is Phase.COLD or (slot.unit, slot.serial) in self.world
            assert set(slot.line) == {t for t, tool in self.waiting.items() if tool == slot.unit}

    @invariant()
    def nobody_starves(self) -> None:
        """A request waits only where something will move: a start, a stop, an end of a request, or a backoff's end."""
        for tool in set(self.waiting.values()):
            slot = self.set.slot(tool)
            assert slot is not None
            held = self.failed.get(tool, (-math.inf, ""))[0] + LONGEST_HOLD > self.now
            moving = any(p in {Phase.STARTING, Phase.STOPPING} for p in self.world.values()) or self.running
            assert moving or held, "a request waits for nothing"
            deadline = self.set.next_deadline()
            assert moving or (deadline or math.inf) <= self.now + LONGEST_HOLD, "nobody comes back after the backoff"


PoolMachine.TestCase.settings = settings(suppress_health_check=list(HealthCheck))
TestPool = PoolMachine.TestCase

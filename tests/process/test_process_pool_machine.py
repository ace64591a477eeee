"""The laws of the pool under three adversaries: the clock jumps, clients come and vanish, the
kernel kills.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

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
CONCURRENCY = {"a": 1, "b": 2, "c": 1, "d": 2}
LIVE = (Phase.STARTING, Phase.READY)
QUEUE_MAX = 3
SHORTEST_HOLD = 0.2
LONGEST_HOLD = 2.0
tools = st.sampled_from(TOOLS)
choices = st.randoms(use_true_random=False)


@dataclass
class Life:
    """What the model world knows of a tool's one instance."""

    serial: int
    digest: str
    used: float
    phase: Phase = Phase.STARTING


class PoolMachine(RuleBasedStateMachine):
    """Performs the instructions in a model world and checks each one against what that world
    knows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.cap = 2
        self.set = Pool(Bounds(keep_max=self.cap, queue_max=QUEUE_MAX))
        self.digests = dict.fromkeys(TOOLS, "v1")
        self.pins = dict.fromkeys(TOOLS, Pin.NONE)
        self.waiting: dict[int, str] = {}
        self.deadlines: dict[int, float] = {}
        self.running: dict[int, str] = {}
        self.keep: dict[int, float | None] = {}
        self.world: dict[str, Life] = {}
        self.tickets = 0
        self.closed = False
        self.failed: dict[str, tuple[float, str]] = {}
        self.removed: set[str] = set()

    def rules_of(self, tool: str) -> Rules:
        return Rules(self.digests[tool], CONCURRENCY[tool], 100.0)

    def live(self) -> list[str]:
        return [tool for tool, life in self.world.items() if life.phase in LIVE]

    def send(self, *event: object) -> None:
        what, *about = event
        for instruction in getattr(self.set, str(what))(*about, now=self.now):
            self.perform(instruction, event)

    def perform(self, instruction: Action, event: tuple[object, ...]) -> None:
        match instruction:
            case Start(tool, serial):
                assert not self.closed
                assert tool not in self.world, "two instances of one tool"
                assert tool in self.waiting.values(), "a start that nobody asked for"
                at, digest = self.failed.get(tool, (-math.inf, ""))
                assert digest != self.digests[tool] or self.now >= at + SHORTEST_HOLD, (
                    "the backoff was not obeyed"
                )
                self.world[tool] = Life(serial, self.digests[tool], self.now)
                assert len(self.live()) <= self.cap, "a start over the cap"
            case Stop(tool, serial, reason):
                self.check_stop(tool, serial, reason, event)
                self.world[tool].phase = Phase.STOPPING
                self.running = {
                    ticket: name for ticket, name in self.running.items() if name != tool
                }
            case Grant(ticket, tool, serial):
                assert self.waiting.pop(ticket) == tool
                life = self.world[tool]
                assert (life.serial, life.phase) == (serial, Phase.READY)
                assert life.digest == self.digests[tool], "granted a stale instance"
                earlier = [t for t, name in self.waiting.items() if name == tool and t < ticket]
                assert not earlier, "somebody was overtaken in line"
                self.running[ticket] = tool
            case Refuse(ticket, tool, refusal, retry_after):
                assert self.waiting.pop(ticket) == tool
                assert retry_after > 0
                if refusal is Refusal.FAILING:
                    assert (
                        self.deadlines[ticket] <= self.now + retry_after <= self.now + LONGEST_HOLD
                    )
            case Fail(ticket, tool, serial):
                assert self.waiting.pop(ticket) == tool
                assert event == ("start_failed", tool, serial)

    def check_stop(
        self, tool: str, serial: int, reason: Reason | None, event: tuple[object, ...]
    ) -> None:
        life = self.world[tool]
        assert life.serial == serial
        assert life.phase in LIVE
        if reason in {Reason.EVICTED_LRU, Reason.EVICTED_TTL, Reason.REPLACED}:
            assert tool not in self.running.values(), "a busy instance was evicted"
        if reason is Reason.EVICTED_LRU:
            assert self.pins[tool] is Pin.NONE, "a pinned instance was evicted"
            assert all(life.used <= self.world[other].used for other in self.evictable()), (
                "not the least recently used"
            )
        if reason is Reason.EVICTED_TTL:
            assert self.pins[tool] is not Pin.FOREVER
        if reason is None:
            assert event[0] in {"died", "start_failed"}

    def evictable(self) -> list[str]:
        """Return what could go: alive, unpinned, with nobody on it and nobody waiting for it."""
        busy = {*self.running.values(), *self.waiting.values()}
        return [tool for tool in self.live() if self.pins[tool] is Pin.NONE and tool not in busy]

    # -- clients -----------------------------------------------------------------------------------

    @rule(
        tool=tools,
        patience=st.sampled_from([0.1, 0.5, 30.0, 1000.0]),
        keep=st.sampled_from([None, 0.0, 5.0, -1.0]),
    )
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
    @rule(choice=choices)
    def release(self, choice) -> None:
        ticket = choice.choice(sorted(self.running))
        tool = self.running.pop(ticket)
        self.world[tool].used = self.now
        self.send("end", tool, ticket)
        if self.keep[ticket] == 0 and self.pins[tool] is Pin.NONE and not self.waiting:
            kept = tool in self.live() and tool not in self.running.values()
            assert not kept, "keep_alive 0 was not obeyed"

    @precondition(lambda self: self.waiting)
    @rule(choice=choices)
    def give_up(self, choice) -> None:
        ticket = choice.choice(sorted(self.waiting))
        self.send("end", self.waiting.pop(ticket), ticket)

    @rule(
        tool=tools,
        act=st.sampled_from(["stop", "edit", "remove", "bound", "measure", "late"]),
        choice=choices,
    )
    def administrate(self, tool: str, act: str, choice) -> None:
        """Everything that people do now and then; one rule, so that it stays rare beside the
        traffic.
        """
        match act:
            case "stop":
                self.send("stop", tool, Reason.STOPPED)
                assert tool not in self.waiting.values()
                assert tool not in self.live()
            case "edit":
                self.digests[tool] = choice.choice(["v1", "v2"])
                if self.digests[tool] != self.failed.get(tool, (0.0, ""))[1]:
                    self.failed.pop(tool, None)
                self.removed.discard(tool)
                self.send("declare", tool, self.rules_of(tool))
            case "remove":
                self.removed.add(tool)
                self.failed.pop(tool, None)
                self.send("forget", tool)
                assert tool not in self.waiting.values()
            case "bound":
                self.cap = choice.choice([1, 2, 3])
                self.send("bound", Bounds(keep_max=self.cap, queue_max=QUEUE_MAX))
            case "measure":
                self.send("measured", {tool: choice.randint(0, 100)})
            case "late":  # word of an instance that is not there any more changes nothing
                self.send("end", tool, 77_777)
                serial = choice.randint(0, 5)
                if tool not in self.world or self.world[tool].serial != serial:
                    for event in ("ready", "start_failed", "died", "condemn", "gone"):
                        self.send(event, tool, serial)

    @rule(tool=tools, pin=st.sampled_from(list(Pin)))
    def set_pin(self, tool: str, pin: Pin) -> None:
        self.pins[tool] = pin
        self.send("pin", tool, pin)

    # -- kernel ------------------------------------------------------------------------------------

    def some(self, phase: Phase) -> list[str]:
        return sorted(tool for tool, life in self.world.items() if life.phase is phase)

    @precondition(lambda self: self.some(Phase.STARTING))
    @rule(choice=choices, all_of_them=st.booleans())
    def become_ready(self, choice, *, all_of_them: bool) -> None:
        """All at once is the common case, so that busy and full pools are common, too."""
        starting = self.some(Phase.STARTING)
        for tool in starting if all_of_them else [choice.choice(starting)]:
            if (life := self.world[tool]).phase is Phase.STARTING:
                life.phase, life.used = Phase.READY, self.now
                self.send("ready", tool, life.serial)

    @precondition(lambda self: self.some(Phase.STARTING))
    @rule(choice=choices)
    def fail_start(self, choice) -> None:
        tool = choice.choice(self.some(Phase.STARTING))
        if tool not in self.removed:
            self.failed[tool] = (self.now, self.world[tool].digest)
        self.send("start_failed", tool, self.world[tool].serial)
        assert self.world[tool].phase is Phase.STOPPING
        assert tool not in self.waiting.values(), "a waiter did not hear of the failure"

    @precondition(lambda self: self.some(Phase.READY))
    @rule(choice=choices, event=st.sampled_from(["died", "condemn"]))
    def break_down(self, choice, event: str) -> None:
        tool = choice.choice(self.some(Phase.READY))
        if event == "condemn":
            self.world[tool].digest = "doomed"
        self.send(event, tool, self.world[tool].serial)

    @precondition(lambda self: self.some(Phase.STOPPING))
    @rule(choice=choices)
    def vanish(self, choice) -> None:
        tool = choice.choice(self.some(Phase.STOPPING))
        self.send("gone", tool, self.world.pop(tool).serial)

    # -- clock -------------------------------------------------------------------------------------

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
        assert not self.live()

    # -- always ------------------------------------------------------------------------------------

    @invariant()
    def bounded(self) -> None:
        assert len(self.live()) <= self.cap or not self.evictable(), (
            "over the cap with a victim at hand"
        )
        for tool in TOOLS:
            assert list(self.running.values()).count(tool) <= CONCURRENCY[tool]
            assert list(self.waiting.values()).count(tool) <= QUEUE_MAX + CONCURRENCY[tool]

    @invariant()
    def knows_the_world(self) -> None:
        for tool, life in self.world.items():
            slot = self.set.slot(tool)
            assert slot is not None
            assert (slot.serial, slot.phase) == (life.serial, life.phase)
        for slot in self.set.slots():
            assert slot.phase is Phase.COLD or slot.unit in self.world
            assert set(slot.line) == {
                ticket for ticket, tool in self.waiting.items() if tool == slot.unit
            }

    @invariant()
    def nobody_starves(self) -> None:
        """A request waits only where something will move: a start, a stop, an end of a request,
        or a backoff's end.
        """
        for tool in set(self.waiting.values()):
            held = self.failed.get(tool, (-math.inf, ""))[0] + LONGEST_HOLD > self.now
            moving = (
                any(life.phase is not Phase.READY for life in self.world.values()) or self.running
            )
            assert moving or held, "a request waits for nothing"
            deadline = self.set.next_deadline()
            assert moving or (deadline or math.inf) <= self.now + LONGEST_HOLD, (
                "nobody comes back after the backoff"
            )


PoolMachine.TestCase.settings = settings(suppress_health_check=list(HealthCheck))
TestPool = PoolMachine.TestCase

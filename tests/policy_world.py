"""A model of a world with kernels in it: what the set of sessions decides is performed here, and checked."""

from __future__ import annotations

import session_laws
from supervisord_py.kernels.config import SessionLimits
from supervisord_py.kernels.session_set import (
    Ask,
    Fail,
    Grant,
    Instruction,
    Phase,
    Placed,
    Refusal,
    Refuse,
    SessionSet,
    Start,
    StartCause,
    Stop,
    WaitsFor,
    Want,
)
from supervisord_py.process.model import Reason

QUEUE_MAX = 3
IDLE_SECONDS = 100.0
WINDOW_SECONDS = 60.0
Life = tuple[str, int]


class PolicyWorld:
    """Performs the instructions in a model world and checks each one against what that world knows."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.cap = 2
        self.set = SessionSet(self.limits())
        self.world: dict[Life, Phase] = {}
        self.fresh: set[Life] = set()
        self.used: dict[Life, float] = {}
        self.foreign: set[Life] = set()
        self.to_recycle: set[Life] = set()
        self.waiting: dict[int, Ask] = {}
        self.running: dict[int, Life] = {}
        self.callers: dict[int, int | None] = {}
        self.over: set[int] = set()
        self.cold: set[int] = set()
        self.stopped: set[str] = set()
        self.stays: set[str] = set()
        self.told: dict[int, tuple[int, WaitsFor]] = {}
        self.tickets = 0
        self.names = 0
        self.closed = False
        self.deaths: dict[str, int] = {}
        self.failed_starts: dict[str, list[float]] = {}
        self.failed: set[str] = set()
        self.event: tuple[object, ...] = ("",)

    def limits(self) -> SessionLimits:
        return SessionLimits(
            max_sessions=self.cap,
            idle_seconds=IDLE_SECONDS,
            queue_max=QUEUE_MAX,
            start_failures=3,
            start_failure_seconds=WINDOW_SECONDS,
        )

    def send(self, event: str = "", *args: object, **kwargs: object) -> list[Instruction]:
        """Tell the set by its method `event`, or that time has passed."""
        self.event = (event, *args)
        if event:
            getattr(self.set, event)(self.now, *args, **kwargs)
        instructions = list(self.set.decide(self.now))
        for instruction in instructions:
            self.perform(instruction)
        session_laws.check(self.set)
        return instructions

    def perform(self, instruction: Instruction) -> None:
        match instruction:
            case Start():
                self.check_start(instruction)
            case Stop(session, serial, reason):
                self.check_stop((session, serial), reason)
                self.world[session, serial] = Phase.STOPPING
                for ticket in [each for each, life in self.running.items() if life == (session, serial)]:
                    assert reason is None or reason in {Reason.STOPPED, Reason.REPLACED, Reason.SHUTDOWN}
                    del self.running[ticket]
                    self.finish(ticket)
                self.foreign.discard((session, serial))
                self.to_recycle.discard((session, serial))
            case Grant(ticket) if self.waiting[ticket].want is Want.CALL:
                self.check_run(instruction)
            case Grant(ticket, session, serial, cold):
                assert cold is (ticket in self.cold)
                del self.waiting[ticket]
                assert self.world[session, serial] is Phase.READY
                self.finish(ticket)
            case Refuse():
                self.check_refusal(instruction)
            case Fail(ticket, session, serial):
                assert self.waiting.pop(ticket).session == session
                assert self.event[:3] == ("start_failed", session, serial)
                self.finish(ticket)
            case Placed(ticket, session, position, waits_for):
                assert self.waiting[ticket].session == session
                assert self.told.get(ticket) != (position, waits_for), "told twice"
                self.told[ticket] = (position, waits_for)

    def finish(self, ticket: int) -> None:
        assert ticket not in self.over, "one ticket, two ends"
        self.over.add(ticket)

    def live(self) -> list[Life]:
        return [life for life, phase in self.world.items() if phase in {Phase.STARTING, Phase.READY}]

    def calls_of(self, session: str) -> list[int]:
        return [t for t, it in self.waiting.items() if it.session == session and it.want is Want.CALL]

    def check_start(self, start: Start) -> None:
        assert not self.closed
        assert not [life for life in self.world if life[0] == start.session], "two kernels of one session"
        assert start.session not in self.failed, "a hard failure was not obeyed"
        is_awaited = any(it.session == start.session for it in self.waiting.values())
        assert is_awaited or start.cause in set(StartCause) - {StartCause.CALL, StartCause.ASKED}
        assert is_awaited or not start.session.startswith("one-"), "a kernel for a call that is over"
        assert is_awaited or start.session not in self.stopped, "it came back after a stop"
        self.check_purpose(start, is_awaited=is_awaited)
        self.check_turn(start.session)
        life = (start.session, start.serial)
        self.world[life] = Phase.STARTING
        self.used[life] = self.now
        self.fresh.add(life)
        assert len(self.live()) <= self.cap, "a start over the cap"

    def check_purpose(self, start: Start, *, is_awaited: bool) -> None:
        """A start is for the calls that wait for it, unless it was asked for or comes by itself: then it stays."""
        waiting = self.waiting.values()
        is_asked_for = any(it.session == start.session and it.want is not Want.CALL for it in waiting)
        by_itself = start.cause in {StartCause.RESTARTED, StartCause.RECYCLED} or not is_awaited
        if is_asked_for or by_itself:
            self.stays.add(start.session)
        else:
            self.stays.discard(start.session)

    def check_turn(self, session: str) -> None:
        """Who came first has the place, also where it waits still for the end of its own old kernel."""
        heads: dict[str, int] = {}
        for ticket, asked in sorted(self.waiting.items()):
            heads.setdefault(asked.session, ticket)
        present = {life[0]: phase for life, phase in self.world.items()}
        mine = heads.get(session, self.tickets + 1)
        earlier = [it for it, ticket in heads.items() if ticket < mine]
        assert all(it in present for it in earlier), "a place went to one who came later"
        kept = [it for it in earlier if present.get(it) is Phase.STOPPING]
        assert len(self.live()) + len(kept) < self.cap, "a place was kept for another"

    def check_stop(self, life: Life, reason: Reason | None) -> None:
        assert self.world[life] in {Phase.STARTING, Phase.READY}
        if reason in {Reason.EVICTED_LRU, Reason.EVICTED_TTL}:
            assert life in self.evictable(), "something was evicted that is in use"
        if reason is Reason.EVICTED_LRU:
            assert life in self.evictable(), "the place of a front end that is there was given away"
            assert self.used[life] <= min(self.used[it] for it in self.evictable()), "not the least recently used one"
        if reason is Reason.EVICTED_TTL:
            assert self.used[life] + IDLE_SECONDS <= self.now
        if reason is Reason.CANCELLED:
            assert self.world[life] is Phase.STARTING
            assert life[0] not in self.stays, "a start that was asked for was given up"
            assert not [it for it in self.waiting.values() if it.session == life[0]], (
                "a start was given up under a call"
            )
        if reason is Reason.MEMORY_LIMIT:
            assert life in self.to_recycle
            assert life not in self.running.values(), "recycled under a call"
            assert life not in self.foreign, "recycled under a client that is not ours"
        if reason is None:
            assert self.event[:3] in {("died", *life), ("start_failed", *life)}

    def evictable(self) -> list[Life]:
        """Return what could go: ready, with nobody on it, nobody waiting for it, no foreign client at work."""
        awaited = {it.session for it in self.waiting.values()}
        return [
            life
            for life, phase in self.world.items()
            if phase is Phase.READY
            and life not in self.running.values()
            and life not in self.foreign
            and life[0] not in awaited
        ]

    def check_run(self, run: Grant) -> None:
        life = (run.session, run.serial)
        asked = self.waiting.pop(run.ticket)
        assert asked.session == run.session
        assert self.world[life] is Phase.READY
        assert life not in self.running.values(), "two calls at a time"
        assert life not in self.to_recycle or life in self.foreign, "not recycled before the next call"
        assert not [t for t in self.calls_of(run.session) if t < run.ticket], "somebody was overtaken"
        assert run.cold is (run.ticket in self.cold), "what it waited for was not told as it was"
        assert not asked.reset or life in self.fresh, "a reset got an old kernel"
        self.fresh.discard(life)
        self.running[run.ticket] = life

    def check_refusal(self, refuse: Refuse) -> None:
        asked = self.waiting.pop(refuse.ticket)
        assert asked.session == refuse.session
        assert (refuse.failure is not None) is (refuse.refusal is Refusal.HARD_FAILURE)
        match refuse.refusal:
            case Refusal.DEADLINE:
                assert asked.deadline <= self.now
                assert refuse.waits_for is self.told[refuse.ticket][1]
            case Refusal.QUEUE_FULL:
                assert len(self.calls_of(refuse.session)) >= QUEUE_MAX
            case Refusal.OWN_SESSION:
                assert asked.caller in {serial for _, serial in self.running.values()}
            case Refusal.HARD_FAILURE:
                assert refuse.session in self.failed
            case Refusal.STOPPED:
                assert self.event[0] == "stop"
            case Refusal.CLOSING:
                assert self.closed
        self.finish(refuse.ticket)

    def absolve(self, session: str) -> None:
        self.deaths.pop(session, None)
        self.failed_starts.pop(session, None)
        self.failed.discard(session)

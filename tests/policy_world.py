"""A model of a world with kernels in it: what the set of sessions decides is performed here, and checked."""

from __future__ import annotations

import session_laws
from supervisord_py.kernels import session_events as ev
from supervisord_py.kernels.config import SessionLimits
from supervisord_py.kernels.session_events import Phase, Refusal, StartCause, WaitsFor
from supervisord_py.kernels.session_set import SessionSet
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
        self.waiting: dict[int, ev.Asking] = {}
        self.running: dict[int, Life] = {}
        self.callers: dict[int, int | None] = {}
        self.over: set[int] = set()
        self.cold: set[int] = set()
        self.stopped: set[str] = set()
        self.retried: set[str] = set()
        self.stays: set[str] = set()
        self.victims: dict[str, Life] = {}
        self.told: dict[int, tuple[int, WaitsFor]] = {}
        self.tickets = 0
        self.names = 0
        self.closed = False
        self.deaths: dict[str, int] = {}
        self.failed_starts: dict[str, list[float]] = {}
        self.failed: set[str] = set()
        self.event: ev.Event = ev.TimePassed()

    def limits(self) -> SessionLimits:
        return SessionLimits(
            max_sessions=self.cap,
            idle_seconds=IDLE_SECONDS,
            queue_max=QUEUE_MAX,
            start_failures=3,
            start_failure_seconds=WINDOW_SECONDS,
        )

    def send(self, event: ev.Event) -> list[ev.Instruction]:
        self.event = event
        instructions = list(self.set.apply(event, self.now))
        for instruction in instructions:
            self.perform(instruction)
        session_laws.check(self.set)
        return instructions

    def perform(self, instruction: ev.Instruction) -> None:
        match instruction:
            case ev.Start():
                self.check_start(instruction)
            case ev.Stop(session, serial, reason):
                self.check_stop((session, serial), reason)
                self.world[session, serial] = Phase.STOPPING
                for ticket in [each for each, life in self.running.items() if life == (session, serial)]:
                    assert reason is None or reason in {Reason.STOPPED, Reason.REPLACED, Reason.SHUTDOWN}
                    del self.running[ticket]
                    self.finish(ticket)
                self.foreign.discard((session, serial))
                self.to_recycle.discard((session, serial))
            case ev.Run():
                self.check_run(instruction)
            case ev.Up(ticket, session, serial, cold):
                assert cold is (ticket in self.cold)
                assert not isinstance(self.waiting.pop(ticket), ev.Asked)
                assert self.world[session, serial] is Phase.READY
                self.finish(ticket)
            case ev.Refuse():
                self.check_refusal(instruction)
            case ev.Fail(ticket, session, serial):
                assert self.waiting.pop(ticket).session == session
                assert isinstance(self.event, ev.StartFailed)
                assert (self.event.session, self.event.serial) == (session, serial)
                self.finish(ticket)
            case ev.Placed(ticket, session, position, waits_for):
                assert self.waiting[ticket].session == session
                assert self.told.get(ticket) != (position, waits_for), "told twice"
                self.told[ticket] = (position, waits_for)

    def finish(self, ticket: int) -> None:
        assert ticket not in self.over, "one ticket, two ends"
        self.over.add(ticket)

    def live(self) -> list[Life]:
        return [life for life, phase in self.world.items() if phase in {Phase.STARTING, Phase.READY}]

    def calls_of(self, session: str) -> list[int]:
        return [t for t, it in self.waiting.items() if it.session == session and isinstance(it, ev.Asked)]

    def check_start(self, start: ev.Start) -> None:
        assert not self.closed
        assert not [life for life in self.world if life[0] == start.session], "two kernels of one session"
        assert start.session not in self.failed, "a hard failure was not obeyed"
        is_awaited = any(it.session == start.session for it in self.waiting.values())
        assert is_awaited or start.cause in set(StartCause) - {StartCause.CALL, StartCause.ASKED}
        assert is_awaited or not start.session.startswith("one-"), "a kernel for a call that is over"
        assert is_awaited or start.session not in self.stopped, "it came back after a stop"
        self.check_purpose(start, is_awaited=is_awaited)
        if start.cause is StartCause.RETRIED:
            assert self.world.get(self.victims.pop(start.session)) is None, "its victim still holds descriptors"
            self.retried.add(start.session)
        else:
            self.retried.discard(start.session)
            self.victims.pop(start.session, None)
        self.check_turn(start.session)
        life = (start.session, start.serial)
        self.world[life] = Phase.STARTING
        self.used[life] = self.now
        self.fresh.add(life)
        assert len(self.live()) <= self.cap, "a start over the cap"

    def check_purpose(self, start: ev.Start, *, is_awaited: bool) -> None:
        """A start is for the calls that wait for it, unless it was asked for or comes by itself: then it stays."""
        is_asked_for = any(it.session == start.session and not isinstance(it, ev.Asked) for it in self.waiting.values())
        is_again = start.cause is StartCause.RETRIED and start.session in self.stays
        assert is_awaited or is_again or start.cause is not StartCause.RETRIED, "tried again for nobody"
        by_itself = start.cause in {StartCause.RESTARTED, StartCause.RECYCLED} or not is_awaited
        if is_asked_for or is_again or by_itself:
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
        assert all(it in present or it in self.victims for it in earlier), "a place went to one who came later"
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
            assert isinstance(self.event, ev.Died | ev.StartFailed)
            assert (self.event.session, self.event.serial) == life

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

    def check_run(self, run: ev.Run) -> None:
        life = (run.session, run.serial)
        asked = self.waiting.pop(run.ticket)
        assert isinstance(asked, ev.Asked)
        assert asked.session == run.session
        assert self.world[life] is Phase.READY
        assert life not in self.running.values(), "two calls at a time"
        assert life not in self.to_recycle or life in self.foreign, "not recycled before the next call"
        assert not [t for t in self.calls_of(run.session) if t < run.ticket], "somebody was overtaken"
        assert run.cold is (run.ticket in self.cold), "what it waited for was not told as it was"
        assert not asked.reset or life in self.fresh, "a reset got an old kernel"
        self.fresh.discard(life)
        self.running[run.ticket] = life

    def check_refusal(self, refuse: ev.Refuse) -> None:
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
                assert isinstance(asked, ev.Asked)
                assert asked.caller in {serial for _, serial in self.running.values()}
            case Refusal.HARD_FAILURE:
                assert refuse.session in self.failed
            case Refusal.STOPPED:
                assert isinstance(self.event, ev.StopAsked)
            case Refusal.CLOSING:
                assert self.closed
        self.finish(refuse.ticket)

    def absolve(self, session: str) -> None:
        self.deaths.pop(session, None)
        self.failed_starts.pop(session, None)
        self.failed.discard(session)

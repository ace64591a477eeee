"""The loop on clocks that the test turns: what it starts, what it asks again, what it survives."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from supervisord_py.pipes.config import SchedulerLimits
from supervisord_py.pipes.due import Decision, Due, Never, Progress, Wait
from supervisord_py.pipes.schedule import At, Cron, Every, Manual, Schedule
from supervisord_py.pipes.scheduler import Candidate, Clocks, ClockWatch, Note, Scheduler, Skipped
from supervisord_py.process.backoff import BackoffPolicy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
HOUR, DAY = 3600.0, 86400.0
LIMITS = SchedulerLimits(stagger_seconds=0.0)
BERLIN = ZoneInfo("Europe/Berlin")
DEADLINE = 60.0


class Room:
    """Pipes, clocks, and what happened. It remembers what the scheduler's room would, unless `forgetful`."""

    def __init__(self, limits: SchedulerLimits = LIMITS) -> None:
        self.wall, self.boottime, self.awake = NOON, 5000.0, 100.0
        self.zone: tzinfo = UTC
        self.pipes: dict[str, Candidate] = {}
        self.runs: list[tuple[str, float]] = []
        self.notes: list[tuple[str, Note]] = []
        self.busy: set[str] = set()
        self.broken: set[str] = set()
        self.looks = 0
        self.fault: Exception | None = None
        self.forgetful = False
        clocks = Clocks(lambda: self.wall, lambda: self.boottime, lambda: self.awake)
        self.watch = ClockWatch(clocks, lambda: self.zone)
        self.scheduler = Scheduler(
            self.look,
            self.trigger,
            lambda name, note: self.notes.append((name, note)),
            limits,
            self.watch,
        )
        self.scheduler.restart_policy = BackoffPolicy(initial_seconds=0.001, max_seconds=0.001)

    def add(self, name: str, schedule: Schedule) -> None:
        self.pipes[name] = Candidate(name, schedule, Progress(self.wall, anchor_boot=self.boottime))

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.boottime += seconds
        self.awake += seconds

    def look(self) -> Iterable[Candidate]:
        self.looks += 1
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        return list(self.pipes.values())

    async def trigger(self, name: str, due: Due) -> str | None:
        if name in self.broken:
            raise OSError("disk full")
        started = name not in self.busy
        if started:
            self.runs.append((name, due.at))
        if not self.forgetful:
            pipe = self.pipes[name]
            known = replace(pipe.progress, last_due=due.at, occurrences=pipe.progress.occurrences + started)
            if started:
                known = replace(known, last_run_at=self.wall, touched_boot=self.boottime)
            self.pipes[name] = replace(pipe, progress=known)
        return None if started else "still running: execution 7; skipped"

    def decision(self, name: str) -> Decision | None:
        pipe = self.pipes.get(name)
        return None if pipe is None else self.scheduler.decision_on(pipe)

    def told(self, name: str) -> list[Note]:
        return [note for who, note in self.notes if who == name]


async def test_it_starts_what_is_due_and_sleeps_until_the_next() -> None:
    room = Room()
    room.add("hourly", Every(HOUR))
    room.add("soon", Cron("0 13 * * *"))
    room.add("hand", Manual())
    assert await room.scheduler.turn() == 0.0  # to decide anew about what it started
    assert await room.scheduler.turn() == 60.0  # bounded: somebody may set the clock
    assert room.runs == [("hourly", NOON)]
    assert isinstance(room.decision("soon"), Wait)
    assert room.decision("nobody") is None
    room.pass_(HOUR - 10)
    assert await room.scheduler.turn() == pytest.approx(10, abs=0.01)
    room.pass_(10.001)
    await room.scheduler.turn()
    assert room.runs[1:] == [("hourly", NOON + HOUR), ("soon", NOON + HOUR)]


async def test_a_room_that_lags_gets_one_execution_for_one_due_instant() -> None:
    """E3: what was served is remembered here, too."""
    room = Room()
    room.forgetful = True
    room.add("a", Every(HOUR))
    room.add("b", Cron("0 13 * * *"))
    for _ in range(3):
        await room.scheduler.turn()
    room.pass_(HOUR)
    for _ in range(3):
        await room.scheduler.turn()
        room.pipes["b"] = replace(room.pipes["b"], run_on_enable=False)  # told anew, and still without `last_due`
    assert room.runs == [("a", NOON), ("a", NOON + HOUR), ("b", NOON + HOUR)]


async def test_a_room_that_begins_anew_may_take_back_what_never_ran() -> None:
    """Its execution was taken out of the line; between two looks, so that nobody saw it disabled."""
    room = Room()
    room.add("a", Every(HOUR))
    await room.scheduler.turn()
    room.pass_(60)
    room.pipes["a"] = replace(room.pipes["a"], progress=Progress(room.wall))
    for _ in range(2):
        await room.scheduler.turn()
    assert room.runs == [("a", NOON), ("a", NOON + 60)]


async def test_the_trouble_of_one_pipe_is_not_the_others_and_is_tried_again() -> None:
    """Law 5: a failure is never sticky, and never a hot loop."""
    room = Room()
    room.broken.add("a")
    room.add("a", Every(HOUR))
    room.add("gone", Cron("0 13 * * *", "Mars/Olympus"))
    room.add("b", Every(HOUR))
    await room.scheduler.turn()
    assert await room.scheduler.turn() == pytest.approx(5, abs=0.01)
    assert room.runs == [("b", NOON)]
    trouble = room.told("a")[-1]
    assert isinstance(trouble, Skipped)
    assert trouble.why == "could not be decided or started: OSError: disk full; tried again in 5 s"
    assert isinstance(room.told("gone")[-1], Skipped)
    room.broken.clear()
    await room.scheduler.turn()
    assert len(room.runs) == 1
    room.add("gone", Every(HOUR))  # edited: its backoff is over
    await room.scheduler.turn()
    assert room.runs[1:] == [("gone", NOON)]
    room.pass_(6)
    await room.scheduler.turn()
    assert room.runs[2:] == [("a", NOON)]


async def test_a_clock_that_is_set_is_noticed_and_everything_decided_anew() -> None:
    room = Room()
    room.add("nine", Cron("0 9 * * *"))
    room.add("hourly", Every(HOUR))
    await room.scheduler.turn()
    room.wall += DAY
    for _ in range(2):
        await room.scheduler.turn()
    assert room.runs == [("hourly", NOON), ("nine", NOON + 21 * HOUR)]
    wait = room.decision("hourly")
    assert isinstance(wait, Wait)
    assert wait.until == NOON + DAY + HOUR
    room.wall -= 365 * DAY
    await room.scheduler.turn()
    nine = room.decision("nine")
    assert isinstance(nine, Wait)
    assert nine.until < room.wall + DAY


async def test_after_a_resume_what_was_missed_is_spread_and_then_runs() -> None:
    """#3625, B2: the clock that counts suspend went on, the one of being awake did not."""
    room = Room(SchedulerLimits(stagger_seconds=30.0))
    for each in range(5):
        room.add(f"p{each}", Cron("0 13 * * *"))
    await room.scheduler.turn()
    room.wall += 2 * HOUR
    room.boottime += 2 * HOUR
    await room.scheduler.turn()
    waits = [room.decision(name) for name in room.pipes]
    untils = {each.until for each in waits if isinstance(each, Wait)}
    assert len(untils) == 5
    assert room.wall < min(untils) < max(untils) < room.wall + 30
    room.pass_(30)
    await room.scheduler.turn()
    assert len(room.runs) == 5


# The running loop


@asynccontextmanager
async def running(room: Room) -> AsyncIterator[None]:
    task = asyncio.create_task(room.scheduler.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.001)


async def test_it_sleeps_while_nothing_is_due_and_wakes_when_told() -> None:
    room = Room()
    room.add("hand", Manual())
    async with running(room):
        await until(lambda: room.looks == 1)
        room.add("a", At(NOON + 1))
        room.pass_(2)
        room.scheduler.wake()
        await until(lambda: room.runs)
        assert room.scheduler.alive
        await until(lambda: room.looks == 3)
    assert not room.scheduler.alive
    assert room.told("hand") == [Never("runs only by hand or by an event")]


# The clocks alone


def test_the_clocks_tell_a_step_from_a_sleep_from_a_slew() -> None:
    room = Room()
    watch = room.watch
    room.pass_(100)
    quiet = watch.look()
    assert (quiet.stepped, quiet.slept, quiet.moved) == (0.0, 0.0, False)
    room.wall -= 7
    assert watch.now().wall == room.wall
    assert watch.look().stepped == -7
    assert watch.look().stepped == 0.0
    room.wall += 0.6
    assert watch.look().stepped == 0.0
    room.wall += 0.6
    assert watch.look().stepped == pytest.approx(1.2)
    room.wall += 50
    room.boottime += 50
    slept = watch.look()
    assert (slept.stepped, slept.slept, slept.now.resumed_at) == (0.0, 50.0, room.boottime)
    room.zone = BERLIN
    assert watch.look().moved
    assert not watch.look().moved

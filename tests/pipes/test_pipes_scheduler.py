"""The loop on clocks that the test turns: what it starts, what it asks again, what it survives."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from supervisord_py.pipes.due import Decision, Due, Wait
from supervisord_py.pipes.models import PipeDefinition
from supervisord_py.pipes.schedule import Cron, Every, Manual, Schedule
from supervisord_py.pipes.scheduler import Clocks, ClockWatch, Timetable
from supervisord_py.pipes.states import PipeStates

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC).timestamp()
HOUR, DAY = 3600.0, 86400.0
BERLIN = ZoneInfo("Europe/Berlin")
HERE = Path("/pipes/p")


class Room:
    """Pipes, clocks, and what happened; what is remembered of pipes is remembered as in the real room."""

    def __init__(self, clocks: Clocks | None = None) -> None:
        self.wall, self.boottime, self.awake = NOON, 5000.0, 100.0
        self.placement = SimpleNamespace(new_key=lambda: "key.1")
        self.config = SimpleNamespace(stagger_seconds=0.0, enabled=True)
        self.clocks = clocks or Clocks(lambda: self.wall, lambda: self.boottime, lambda: self.awake)
        unwritten: Any = SimpleNamespace(post=lambda _work: None)
        self.states = PipeStates(unwritten, self.clocks)
        self.pipes: dict[str, PipeDefinition] = {}
        self.runs: list[tuple[str, float]] = []
        self.broken: set[str] = set()
        self.refused: set[str] = set()
        self.watch = ClockWatch(self.clocks, lambda: UTC)
        self.now = self.watch.now
        room: Any = self
        self.timetable = Timetable(room)

    def add(self, name: str, schedule: Schedule) -> None:
        self.pipes[name] = PipeDefinition(name, HERE, HERE / "pipe.md", schedule, "as it is", "body")
        self.states.take(name, anchor_at=self.clocks.wall())

    def pass_(self, seconds: float) -> None:
        self.wall += seconds
        self.boottime += seconds
        self.awake += seconds

    def usable(self) -> Iterable[PipeDefinition]:
        return list(self.pipes.values())

    def is_leaving_line(self, _pipe: str) -> bool:
        return False

    async def start_due(self, name: str, due: Due) -> str | None:
        if name in self.broken:
            raise OSError("disk full")
        if name in self.refused:
            return "it is not there any more"
        self.runs.append((name, due.at))
        self.states.take(name, last_due=due.at)
        return None

    def decision(self, name: str) -> Decision | None:
        return self.timetable.decision_on(self.pipes[name])

    def told(self, name: str) -> str | None:
        return self.states.get(name).last_decision


async def test_it_starts_what_is_due_and_sleeps_until_the_next() -> None:
    room = Room()
    room.add("hourly", Every(HOUR))
    room.add("soon", Cron("0 13 * * *"))
    room.add("hand", Manual())
    assert await room.timetable.turn() == 0.0  # to decide anew about what it started
    assert await room.timetable.turn() == 60.0  # bounded: somebody may set the clock
    assert room.runs == [("hourly", NOON)]
    assert isinstance(room.decision("soon"), Wait)
    room.pass_(HOUR - 10)
    assert await room.timetable.turn() == pytest.approx(10, abs=0.01)
    room.pass_(10.001)
    await room.timetable.turn()
    assert room.runs[1:] == [("hourly", NOON + HOUR), ("soon", NOON + HOUR)]


async def test_what_nobody_takes_in_is_not_asked_about_in_a_hot_loop() -> None:
    """A pipe may go between the look and its start."""
    room = Room()
    room.add("a", Every(HOUR))
    room.refused.add("a")
    assert await room.timetable.turn() == 60.0
    assert room.told("a") == "it is not there any more"


async def test_the_trouble_of_one_pipe_is_not_the_others_and_is_tried_again() -> None:
    """Law 5: a failure is never sticky, and never a hot loop."""
    room = Room()
    room.broken.add("a")
    room.add("a", Every(HOUR))
    room.add("gone", Cron("0 13 * * *", "Mars/Olympus"))
    room.add("b", Every(HOUR))
    await room.timetable.turn()
    assert await room.timetable.turn() == pytest.approx(30, abs=0.01)
    assert room.runs == [("b", NOON)]
    assert room.told("a") == "could not be decided or started: OSError: disk full; tried again in 30 s"
    assert "could not be decided or started: ZoneInfoNotFoundError" in (room.told("gone") or "")
    room.broken.clear()
    await room.timetable.turn()
    assert len(room.runs) == 1
    room.add("gone", Every(HOUR))  # edited: it is asked at once
    await room.timetable.turn()
    assert room.runs[1:] == [("gone", NOON)]
    room.pass_(31)
    await room.timetable.turn()
    assert room.runs[2:] == [("a", NOON)]


def test_the_clocks_tell_a_step_and_a_sleep_from_a_slew() -> None:
    room = Room()
    zone: tzinfo = UTC
    watch = ClockWatch(room.clocks, lambda: zone)
    room.pass_(100)
    assert not watch.look()
    room.wall -= 7
    assert watch.now().wall == room.wall
    assert [watch.look(), watch.look()] == [True, False]
    for told in (False, True):  # what is slewed adds up
        room.wall += 0.6
        assert watch.look() is told
    room.wall += 50
    room.boottime += 50
    assert (watch.look(), watch.now().resumed_at) == (True, room.boottime)
    zone = BERLIN
    assert [watch.look(), watch.look()] == [True, False]

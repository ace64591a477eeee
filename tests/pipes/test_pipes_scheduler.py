"""The clocks, and what the loop survives."""

from __future__ import annotations

from datetime import UTC, tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from pipe_rig import TurnedClocks, eventually, pipe_house
from requirement_stage import ended
from supervisord_py.pipes import triggers
from supervisord_py.pipes.context import ClockWatch
from supervisord_py.pipes.due import Due
from supervisord_py.pipes.models import PipeDefinition
from supervisord_py.pipes.triggers import Timetable


def test_the_clocks_tell_a_step_and_a_sleep_from_a_slew() -> None:
    time = TurnedClocks()
    zone: tzinfo = UTC
    watch = ClockWatch(time.clocks, lambda: zone)
    time.pass_by(100)
    assert not watch.look()
    time.wall -= 7
    assert [watch.look(), watch.look()] == [True, False]
    for told in (False, True):  # what is slewed adds up
        time.wall += 0.6
        assert watch.look() is told
    before = watch.resumed_at
    time.sleep(50)
    assert (watch.look(), watch.resumed_at - before >= 50) == (True, True)
    zone = ZoneInfo("Europe/Berlin")
    assert [watch.look(), watch.look()] == [True, False]


async def test_the_trouble_of_one_pipe_is_not_the_others_and_is_tried_again(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 5: a failure is never sticky."""
    monkeypatch.setattr(triggers, "RETRY_SECONDS", 0.02)
    start, asked, is_full = Timetable.start, [], True

    async def refused(self: Timetable, pipe: PipeDefinition, due: Due) -> str:
        asked.append(pipe.name)
        if pipe.name == "a" and is_full:
            raise OSError("disk full")
        return await start(self, pipe, due)

    monkeypatch.setattr(Timetable, "start", refused)
    async with pipe_house(short_tmp, slots_scheduled=2) as rig:
        for name in ("a", "b"):
            rig.shell(name, "echo", "schedule: every 1h")
        rig.shell("lost", "echo", "schedule: at 2099-01-01T00:00:00Z")
        await rig.room.files.refresh()
        await ended(rig, "b")
        await eventually(lambda: asked.count("a") > 2, "it is tried again")
        told = rig.room.states.get("a").last_decision or ""
        assert told.startswith("could not be decided or started: OSError: disk full; tried again in ")
        is_full = False
        await ended(rig, "a")
        assert rig.room.get("lost").next_run == 4_070_908_800.0


async def test_a_last_run_in_the_future_counts_as_now(short_tmp: Path) -> None:
    """B4: the clock was wrong when it ran, or is wrong now."""
    async with pipe_house(short_tmp, scheduler=False) as rig:
        rig.shell("p", "echo", "schedule: every 1h")
        await rig.room.files.refresh()
        rig.room.states.change("p", last_run_at=rig.time.clocks.wall() + 400 * 86400)
        await rig.restart()
        assert abs((rig.room.get("p").next_run or 0.0) - rig.time.clocks.wall() - 3600) < 60

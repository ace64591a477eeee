"""What was wished of a pipe, what was decided about it, and what a new word of its file means for both."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pipe_rig import eventually, pipe_house

if TYPE_CHECKING:
    from pathlib import Path

    from pipe_rig import PipeRig


def in_an_hour(rig: PipeRig) -> str:
    """Return a schedule of one time."""
    return f"schedule: at {datetime.fromtimestamp(rig.time.clocks.wall() + 3600, UTC):%Y-%m-%dT%H:%M:%SZ}"


async def test_a_wish_is_over_for_good_once_the_file_says_something_new(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        for word, enabled in (("true", True), ("false", False), ("true", True)):
            rig.shell("p", "echo", f"enabled: {word}")
            await rig.room.refresh()
            assert rig.room.get("p").enabled is enabled
            if word == "true":
                await rig.room.disable("p")
                await rig.room.refresh()
                assert not rig.room.get("p").enabled


async def test_a_one_time_pipe_runs_again_at_another_time_and_a_disabled_one_does_not(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.shell("off", "echo", "schedule: at 2099-01-01T00:00:00Z")
        await rig.room.refresh()
        await rig.room.disable("off")
        for count in (1, 2):
            rig.shell("once", "echo", in_an_hour(rig))
            rig.shell("off", "echo", in_an_hour(rig))
            await rig.room.refresh()
            assert (rig.room.get("once").enabled, rig.room.get("off").enabled) == (True, False)
            rig.time.pass_by(3601)
            rig.room._all.timetable.wake()
            await eventually(lambda: not rig.room.get("once").enabled, "its time")
            await eventually(lambda: not rig.room._house.roster.of_pipe("once"), "its end")
            assert len(await rig.rows("once")) == count
        assert not await rig.rows("off")


async def test_a_skip_stays_the_last_decision_while_the_pipe_waits_for_its_next_time(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.shell("slow", "exec sleep 1000", "schedule: every 30m")
        rig.shell("later", "echo", "schedule: every 30m\nrun_on_enable: false")
        await rig.room.refresh()
        await eventually(lambda: rig.room.get("slow").pid, "the start")
        waits = await eventually(lambda: rig.room.get("later").last_decision, "a decision")
        assert "every 30 min" in waits.text
        rig.time.pass_by(1801)
        timetable = rig.room._all.timetable
        timetable.wake()
        await eventually(lambda: "still running" in rig.room.get("slow").last_decision.text, "a skip")
        timetable.wake()
        await eventually(lambda: type(timetable.decision("slow")).__name__ == "Wait", "what follows")
        assert "still running: execution" in rig.room.next("slow").last_decision.text
        rig.shell("slow", "exec sleep 1000", "schedule: every 40m")
        await rig.room.refresh()
        assert "still" not in rig.room.get("slow").last_decision.text
        await rig.room.cancel_pipe("slow")

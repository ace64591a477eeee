"""Schedules that settings turn off and on, and a one-time pipe in line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pipe_rig import eventually, pipe_house
from supervisord_py.ledger.pipe_executions import Status, Trigger

if TYPE_CHECKING:
    from pathlib import Path


FOR_LONG = "timeout: 80000"
"""Of what is to run on while the clocks are turned."""


async def test_a_reload_of_the_settings_turns_schedules_off_and_on(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.room.reconfigure(replace(rig.config, enabled=False))
        rig.shell("digest", "echo x", "schedule: every 1h")
        await rig.room.refresh()
        assert not rig.room.health().scheduler_running
        assert rig.room.next("digest").sentences[0] == "no pipe runs by itself here (pipes.enabled = false)"
        assert not list(rig.room.timetable._candidates())
        rig.room.reconfigure(rig.config)
        await eventually(lambda: rig.room.get("digest").last_run is not None, "a run by schedule")
        assert rig.room.health().scheduler_running
        assert [each.trigger for each in await rig.rows()] == [Trigger.SCHEDULED]


async def test_a_one_time_pipe_that_waits_in_line_is_not_taken_out_by_a_look_at_its_file(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        at_once = replace(rig.config.scheduler, stagger_seconds=0.0)
        rig.room.reconfigure(replace(rig.config, scheduler=at_once))
        rig.shell("first", "exec sleep 1000", f"schedule: every 1h\n{FOR_LONG}")
        await rig.room.refresh()
        await eventually(lambda: rig.room.get("first").running, "the only slot is taken")
        # After the start of the room: what was due before it is spread out over a minute.
        at = f"schedule: at {datetime.now(UTC) + timedelta(minutes=10):%Y-%m-%dT%H:%M:%SZ}"
        rig.shell("once", "echo x", at)
        await rig.room.refresh()
        rig.time.pass_by(601)
        rig.room.timetable.wake()
        await eventually(lambda: rig.room.get("once").queued, "it waits")
        assert not rig.room.get("once").enabled
        rig.shell("once", "echo x", f"{at}\ntitle: Changed")
        await rig.room.refresh()
        await rig.room.cancel_pipe("first")
        await eventually(lambda: not rig.room.get("once").queued, "its turn")
        await eventually(lambda: rig.room.get("once").running is None, "its end")
        assert [each.status for each in await rig.rows("once")] == [Status.COMPLETED]

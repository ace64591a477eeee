"""A run by hand, from the trigger to the final row; and schedules that settings turn off and on."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pipe_rig import eventually, pipe_house
from supervisord_py.ledger.pipe_executions import Status, Trigger

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_run_by_hand_goes_from_the_queue_to_a_final_row(short_tmp: Path) -> None:
    """Prompt on stdin, output in the row, chain of events, nothing left behind."""
    async with pipe_house(short_tmp) as rig:
        folder = rig.shell("greet", "cat; echo to-stderr >&2; printenv PX_EXECUTION_ID", body="Say {{name}}.\n")
        done = await rig.run("greet")
        assert (done.status, done.trigger, done.exit_code) == (Status.COMPLETED, Trigger.MANUAL, 0)
        assert done.stdout == f"{done.rendered_prompt}{done.id}\n"
        assert (done.rendered_prompt or "").endswith("\n\nSay {{name}}.")
        assert (done.stderr, done.stderr_bytes) == ("to-stderr\n", 10)
        assert None not in {done.pid, done.boot_id, done.start_time, done.instance, done.queue_wait_ms}
        assert not (folder / "output" / str(done.id)).exists()
        said = [it for it in await rig.said("pipe:greet") if it.event.startswith("execution_")]
        assert [it.event for it in said] == ["execution_queued", "execution_started", "execution_completed"]
        assert [it.cause for it in said] == [None, said[0].id, said[1].id]
        await eventually(lambda: not rig.placement.children(), "the release")
        kept = rig.room.folder(done.id)
        assert sorted(it.name for it in kept.iterdir()) == ["stderr", "stdout"]
        assert {kept.stat().st_mode & 0o777, (kept / "stdout").stat().st_mode & 0o777} == {0o700, 0o600}


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

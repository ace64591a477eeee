"""What starts pipes by itself: due times, events, and what keeps them from it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pipe_rig import eventually, pipe_house
from supervisord_py.ledger.pipe_executions import Group, Status, Trigger
from supervisord_py.pipes.models import PublishedEvent

if TYPE_CHECKING:
    from pathlib import Path

    from pipe_rig import PipeRig


FOR_LONG = "timeout: 86400"
"""Of what is to run on while the clocks are turned: its time counts what they show."""


async def row_of(rig: PipeRig, pipe: str, count: int = 1) -> list:
    """Return the executions of a pipe, once there are so many final ones whose slot is free."""
    async with asyncio.timeout(60):
        while True:
            rows = await rig.rows(pipe)
            at_work = {live.id for live in rig.room.of_pipe(pipe)}
            if len([it for it in rows if it.status.is_final and it.id not in at_work]) >= count:
                return rows
            await asyncio.sleep(0.01)


async def test_what_was_due_and_is_taken_out_of_the_line_unrun_is_due_again(short_tmp: Path) -> None:
    """By disabling or by another schedule; what somebody cancelled by hand was not wanted."""
    async with pipe_house(short_tmp) as rig:
        rig.shell("hold", "exec sleep 1000", "schedule: every 1h")
        await rig.room.upkeep.refresh()
        await eventually(lambda: rig.room.get("hold").pid, "the start")
        roster = rig.room
        for name in ("off", "edited", "hand"):
            rig.shell(name, "echo", "schedule: every 1h")
        await rig.room.upkeep.refresh()
        await eventually(lambda: all(roster.queued(it) for it in ("off", "edited", "hand")), "all in line")
        await rig.room.enable("off", enabled=False)
        said = f"execution {(await rig.rows('off'))[0].id} did not run: cancelled before it ran: it was disabled"
        assert rig.room.next("off").last_decision.text == said
        await rig.room.enable("off")
        await rig.room.files.configure("edited", {"schedule": "every 2h"})
        await rig.room.cancel_pipe("hand")
        await eventually(lambda: roster.queued("off") and roster.queued("edited"), "both in line again")
        assert "first run" in rig.room.next("off").last_decision.text
        await rig.room.enable("hand", enabled=False)
        await rig.room.enable("hand")
        wait = await eventually(lambda: rig.room.get("hand").next_run, "its next time")
        assert abs(wait - rig.time.clocks.wall() - 3600) < 60
        assert "did not run" in rig.room.next("hand").last_decision.text
        await rig.room.cancel_pipe("hold")
        await row_of(rig, "off", 2)
        await row_of(rig, "edited", 2)
        for name, ran in (("off", 1), ("edited", 1), ("hand", 0)):
            assert [it.started_at is not None for it in await rig.rows(name)] == [False, *[True] * ran]


async def test_an_end_starts_the_pipes_that_wait_for_it_and_never_in_a_circle(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.shell("a", "echo", "trigger: {events: ['pipe_completed:b']}")
        rig.shell("b", "cat", "trigger: {events: ['pipe_completed:a', 'pipe_completed:b']}")
        rig.shell("c", "echo", "trigger: {events: ['pipe_failed:*']}\nretries: 0")
        rig.shell("bad", "exit 1", "retries: 0")
        await rig.room.upkeep.refresh()
        first = await rig.run("a")
        second = (await row_of(rig, "b"))[0]
        assert (second.trigger, second.group, second.trigger_event) == (Trigger.EVENT, Group.EVENT, "pipe_completed:a")
        assert second.trigger_key == str(first.id)
        assert f'"execution": {first.id}' in ((await rig.room.execution(second.id, blobs=True)).rendered_prompt or "")
        await rig.run("bad")
        assert (await row_of(rig, "c"))[0].trigger_event == "pipe_failed:bad"
        assert [len(await rig.rows(name)) for name in ("a", "b", "c")] == [1, 1, 1]
        decided = await eventually(lambda: rig.room.get("a").last_decision, "the ring that was cut")
        assert decided.text.startswith("not started: pipe_completed:b would go round in a loop (a -> b -> a)")
        assert "pipe_event_suppressed" in [it.event for it in await rig.events.latest(unit="pipe:a", limit=20)]
        assert rig.room.get("b").last_decision.text == f"started by the event pipe_completed:a: execution {second.id}"


async def test_an_event_is_claimed_once_and_given_back_when_the_run_failed(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.shell("hook", "cat", "trigger: {events: [invoice]}\nretries: 0")
        rig.shell("off", "cat", "trigger: {events: [invoice]}\nenabled: false")
        await rig.room.upkeep.refresh()
        event = PublishedEvent("invoice", key="n-1", facts={"total": 3})
        claims = await rig.room.publish_event(event)
        assert [it.pipe for it in claims.claimed] == ["hook"]
        assert [(it.pipe, it.why) for it in claims.suppressed] == [("off", "it is disabled")]
        done = await rig.room.wait(claims.claimed[0].execution)
        assert '"total": 3' in (done.stdout or "")
        assert (await rig.room.publish_event(event)).claimed == ()
        await rig.restart()
        assert (await rig.room.publish_event(event)).claimed == ()
        rig.shell("hook", "exit 1", "trigger: {events: [invoice]}\nretries: 0")
        await rig.room.upkeep.refresh()
        other = PublishedEvent("invoice", key="n-2")
        failed = (await rig.room.publish_event(other)).claimed[0].execution
        assert (await rig.room.wait(failed)).status is Status.FAILED
        assert len((await rig.room.publish_event(other)).claimed) == 1


async def test_files_and_tools_that_fail_start_pipes(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        inbox = rig.shell("inbox", "cat", "trigger: {events: ['file_changed:in/*.txt']}") / "in"
        inbox.mkdir()
        rig.shell("nurse", "cat", "trigger: {events: ['tool_failed:fetch']}")
        await rig.room.upkeep.refresh()
        rig.events.publish("died", "tool:fetch", instance="i-1")
        nurse = (await row_of(rig, "nurse"))[0]
        assert nurse.trigger_event == "tool_failed:fetch"
        for instance, has_ended in (("i-1", True), ("i-2", False), ("i-2", False)):  # the first is the one that died
            rig.events.publish("run_failed", "tool:fetch", instance=instance, instance_ended=has_ended, status=500)
        assert len(await row_of(rig, "nurse", 3)) == 3
        (inbox / "new.txt").write_text("new")  # whether somebody listens already or not
        rows = [it for it in await row_of(rig, "inbox") if it.trigger_event]
        assert rows[0].trigger_event == f"file_changed:{inbox}/new.txt"

"""Requirements D (processes) and E (the schedule)."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pipe_rig import PipeRig, eventually, pipe_house
from requirement_stage import UNTIL_GATE, begun, ended, in_one_room
from supervisord_py.daemon.lock import AlreadyRunningError, sign_lock, take_lock
from supervisord_py.errors import ConflictError
from supervisord_py.ledger import pipes as ledger_pipes
from supervisord_py.ledger.pipes import PIPE_STATES, ErrorType, Execution, Status, Trigger
from supervisord_py.ledger.store import Ledger
from supervisord_py.ledger.table import together
from supervisord_py.pipes.due import Due, Now, Progress, Wait, decide
from supervisord_py.pipes.schedule import Cron
from supervisord_py.pipes.triggers import Timetable
from supervisord_py.process.backoff import BackoffPolicy
from supervisord_py.process.model import StopReport, Survivor
from waiting import alive

# -- D: processes ------------------------------------------------------------------------------------------------------


@in_one_room
async def test_d1_the_pid_is_known_while_it_runs(rig: PipeRig) -> None:
    """In the view, in the execution and in the ledger's row, with what tells it from a later process of that pid."""
    rig.shell("d1", "sleep 1000")
    number = await begun(rig, "d1")
    await rig.ledger.flush()
    row = await ledger_pipes.EXECUTIONS.get(rig.ledger, number)
    assert row is not None
    assert row.pid == rig.room.get("d1").pid == (await rig.room.execution(number)).pid
    assert row.pid is not None
    assert alive(row.pid)
    assert None not in {row.start_time, row.boot_id, row.instance}
    assert (await rig.room.cancel(number)).pid == row.pid


@in_one_room
async def test_d2_the_whole_tree_ends(rig: PipeRig) -> None:
    """Children in its group, in a session of their own, and those that nobody is the parent of any more."""
    script = "sleep 1000 & echo $! > a; setsid sleep 1000 & echo $! > b; (setsid sleep 1000 & echo $! > c); touch all"
    folder = rig.shell("d2", f"{script}; wait")
    number = await begun(rig, "d2")
    await eventually((folder / "all").exists, "the children")
    pids = [int((folder / name).read_text()) for name in "abc"]
    assert all(alive(pid) for pid in pids)
    assert (await rig.room.cancel(number)).status is Status.CANCELLED
    assert not any(alive(pid) for pid in pids)


@in_one_room
async def test_d3_who_ignores_term_is_killed(rig: PipeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """TERM, grace, KILL; and where even that fails the row is final and the slot is free, and the pid is told."""
    rig.shell("d3", "trap '' TERM; touch deaf; while :; do sleep 0.02; done")
    number = await begun(rig, "d3")
    await eventually((rig.config.pipes_dir / "d3" / "deaf").exists, "the trap")
    done = await rig.room.cancel(number)
    assert (done.status, done.signal) == (Status.CANCELLED, 9)
    rig.shell("d3-undead", "sleep 1000")
    number = await begun(rig, "d3-undead")
    pid, stop = rig.running(number), rig.placement.stop

    async def fails(key: str, **_: Any) -> StopReport:
        monkeypatch.setattr(rig.placement, "stop", stop)
        return StopReport((Survivor(pid, "sleep", 1),))

    monkeypatch.setattr("supervisord_py.process.supervisor.TRY_AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(rig.placement, "stop", fails)
    done = await rig.room.cancel(number)
    assert (done.status, f"survived the stop: pid {pid}" in (done.error_message or "")) == (Status.CANCELLED, True)
    assert rig.room.get("d3-undead").running is None
    await eventually(lambda: not alive(pid), "the next try")


@in_one_room
async def test_d4_a_vanished_program_is_named(rig: PipeRig) -> None:
    """Also where it is found and cannot be started: its interpreter is gone."""
    folder = rig.write("d4", "agent: command\ncommand: ./agent.sh\nretries: 0")
    absent = await rig.run("d4")
    (folder / "agent.sh").write_text("#!/nowhere/interpreter\n")
    (folder / "agent.sh").chmod(0o755)
    broken = await rig.run("d4")
    for done in (absent, broken):
        assert (done.status, done.error_type, done.pid) == (Status.FAILED, ErrorType.AGENT_NOT_FOUND, None)
        assert str(folder / "agent.sh") in (done.error_message or "")


@in_one_room
async def test_d5_another_version_is_noticed(rig: PipeRig) -> None:
    """One that cannot work is `agent_incompatible`, with both versions and the cure; an untested one is told."""
    program = rig.folder / "drifted"
    program.write_text("#!/bin/sh\necho drifted 1.4.0\n")
    program.chmod(0o755)
    version = f'[agents.NAME]\nargv = ["{program}"]\nprompt = "stdin"\nparser = "text"\n[agents.NAME.version]\n'
    version += f'argv = ["{program}", "--version"]\ncure = "get drifted 2"\n'
    with rig.config.agents_file.open("a") as agents:
        agents.write(f'{version.replace("NAME", "old")}want = ">=2"\n{version.replace("NAME", "new")}tested = "<1.2"\n')
    rig.write("d5-old", "agent: old")
    old = await rig.run("d5-old")
    assert (old.status, old.error_type) == (Status.FAILED, ErrorType.AGENT_INCOMPATIBLE)
    assert "old is 1.4.0, and this adapter needs >=2" in (old.error_message or "")
    assert "get drifted 2" in (old.error_message or "")
    rig.write("d5-new", "agent: new")
    new = await rig.run("d5-new")
    assert (new.status, new.agent_version) == (Status.COMPLETED, "1.4.0")
    started = next(it for it in await rig.said("pipe:d5-new") if it.event == "execution_started")
    assert "was tested with <1.2" in json.dumps(started.facts["warnings"])
    [told] = [it for it in await rig.room.validate("d5-new") if it.name == "agent"]
    assert (told.verdict, "was tested with <1.2" in told.detail) == ("warn", True)


@in_one_room
async def test_d6_two_daemons_exclude_each_other(rig: PipeRig, tmp_path: Path) -> None:
    """The second on a state directory is refused with the holder's pid; one on the same ledger, by the row itself."""
    held = take_lock(tmp_path / "pxd.lock")
    sign_lock(held)
    with pytest.raises(AlreadyRunningError, match=rf"pid {os.getpid()}\b"):
        take_lock(tmp_path / "pxd.lock")
    os.close(held)
    folder = rig.shell("d6", "touch started", "retries: 0")
    other = await Ledger.open(rig.folder / "state" / "pxd.db")
    try:
        theirs = await _queued(other, "d6")
        await other.write(ledger_pipes.mark_running(theirs, started_at=2.0))
        ours = await rig.run("d6")
        assert (ours.status, ours.pid, (folder / "started").exists()) == (Status.FAILED, None, False)
        assert str(theirs) in (ours.error_message or "")
        await other.write(ledger_pipes.finish(theirs, status=Status.COMPLETED, finished_at=3.0))
    finally:
        await other.close()
    assert (await rig.run("d6")).status is Status.COMPLETED


async def _queued(ledger: Ledger, pipe: str) -> int:
    """Add a row as another daemon would; return its id."""
    number = ledger.next_number("pipe_executions") + 100
    row = Execution(id=number, pipe_name=pipe, status=Status.QUEUED, queued_at=1.0)
    await ledger.write(ledger_pipes.EXECUTIONS.insert(row))
    return number


# -- E: schedules ------------------------------------------------------------------------------------------------------


async def test_e1_what_waits_for_an_old_schedule_is_dequeued(own_rig: PipeRig) -> None:
    """Disabled, or manual from now on: cancelled with the reason; the row says why it was in line."""
    own_rig.shell("hold", "sleep 1000", "schedule: every 1h")
    await own_rig.room.files.refresh()
    await eventually(lambda: own_rig.room.get("hold").pid, "the start of what holds the slot")
    for name in ("e1-off", "e1-manual"):
        own_rig.shell(name, "true", "schedule: every 1h")
    await own_rig.room.files.refresh()
    roster = own_rig.room
    await eventually(lambda: roster.queued("e1-off") and roster.queued("e1-manual"), "both in line")
    await own_rig.room.enable("e1-off", enabled=False)
    own_rig.shell("e1-manual", "true", "schedule: manual")
    await own_rig.room.files.refresh()
    for name, why in (("e1-off", "it was disabled"), ("e1-manual", "its schedule has changed")):
        row = (await ended(own_rig, name))[0]  # a look of the room's own may be at work with it
        assert (row.status, row.trigger, row.started_at) == (Status.CANCELLED, Trigger.SCHEDULED, None)
        assert why in (row.error_message or "")
    assert own_rig.room.health()["queued"] == 0


@in_one_room
async def test_e2_an_enabled_interval_runs_at_once_unless_told_not_to(rig: PipeRig) -> None:
    """`run_on_enable: false` waits one interval first; a calendar never runs for what was before."""
    rig.shell("e2-wait", "true", "schedule: every 1h\nenabled: false\nrun_on_enable: false\nallow_empty: true")
    rig.shell("e2-cron", "true", "schedule: '@yearly'\nenabled: false\nallow_empty: true")
    rig.shell("e2-now", "true", "schedule: every 1h\nenabled: false\nallow_empty: true")
    await rig.room.files.refresh()
    assert rig.room.get("e2-now").next_run is None
    for name in ("e2-wait", "e2-cron", "e2-now"):
        await rig.room.enable(name)
    assert (await ended(rig, "e2-now"))[0].trigger is Trigger.SCHEDULED
    waits = await eventually(lambda: rig.room.get("e2-wait").next_run, "the decision")
    assert abs(waits - rig.time.clocks.wall() - 3600) < 120
    assert await rig.rows("e2-wait") + await rig.rows("e2-cron") == []


@in_one_room
async def test_e3_two_triggers_at_once_are_one_run(rig: PipeRig) -> None:
    """`running` and `last_run_at` are written together or not at all."""
    rig.shell("e3", "sleep 1000")
    asked = await asyncio.gather(*(rig.room.run("e3") for _ in range(3)), return_exceptions=True)
    assert sum(isinstance(it, ConflictError) for it in asked) == 2
    number = (await rig.rows("e3"))[0].id
    await eventually(lambda: rig.running(number), "the start")
    await rig.ledger.flush()
    before = await PIPE_STATES.get(rig.ledger, "e3")
    assert before is not None
    second, change = await _queued(rig.ledger, "e3"), PIPE_STATES.merge("e3", last_run_at=9e9)
    with pytest.raises(ConflictError):
        await rig.ledger.write(together(ledger_pipes.mark_running(second, started_at=9e9), change))
    after = await PIPE_STATES.get(rig.ledger, "e3")
    assert after is not None
    assert before.last_run_at == after.last_run_at is not None
    await rig.room.cancel(number)


async def test_e4_a_scheduler_that_dies_is_started_again(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, with the last error, in health; and what is due runs."""
    monkeypatch.setattr(Timetable, "restart_policy", BackoffPolicy(0.01, 0.01, 60.0))
    candidates, crashes = Timetable._candidates, iter((RuntimeError("boom"),))

    def fails_once(self: Timetable) -> Any:
        for error in crashes:
            raise error
        return candidates(self)

    monkeypatch.setattr(Timetable, "_candidates", fails_once)
    async with pipe_house(short_tmp) as house:
        await eventually(lambda: house.room.health()["scheduler_restarts"], "the crash")
        house.shell("e4", "echo still", "schedule: every 1h")
        await house.room.files.refresh()
        assert (await ended(house, "e4"))[0].status is Status.COMPLETED
        health = house.room.health()
        assert (health["scheduler_running"], health["scheduler_restarts"]) == (True, 1)
        assert "boom" in str(health["scheduler_error"])


@in_one_room
async def test_e5_slower_than_its_schedule_is_warned_about(rig: PipeRig) -> None:
    """The average decides; a due time while it runs is a skip, not an error."""
    folder = rig.shell("e5", UNTIL_GATE, "schedule: every 10m\nenabled: false\nallow_empty: true")
    number = await begun(rig, "e5")
    due = Due(rig.time.clocks.wall(), "due")
    pipe = rig.room.definition_of("e5")
    assert pipe is not None
    assert await rig.room.timetable.start(pipe, due) == f"still running: execution {number}; skipped"
    (folder / "gate").touch()
    await rig.room.wait(number)
    assert rig.room.get("e5").warnings == ()
    rig.room.states.average_seconds["e5"] = 700.0
    assert "slower than its schedule" in rig.room.get("e5").warnings[-1]


def test_e6_a_clock_set_back_serves_no_due_time_twice() -> None:
    """Accepted by the spec as it is; here what was served lies ahead, and the next one is waited for."""
    nine = 1_795_251_600.0  # 2026-11-21 09:00 UTC
    served = Progress(nine - 86400, 0.0, last_due=nine)
    back = decide(Cron("0 9 * * *"), served, Now(nine - 1800, 1000.0))
    assert isinstance(back, Wait)
    assert back.until == nine + 86400

"""Requirements D (processes), E (schedule), F (files), G (the API and the provider), H (chat)
and I (the ends).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pipe_rig import PATIENCE, UNTIL_GATE, PipeRig, eventually, in_one_room, pipe_house
from supervisord_py.api.units import pipe_unit
from supervisord_py.errors import ConfigError, ConflictError, ShuttingDownError
from supervisord_py.ledger import pipes as ledger_pipes
from supervisord_py.ledger.pipes import PIPE_STATES, ErrorType, Execution, Status, Trigger
from supervisord_py.ledger.store import Ledger
from supervisord_py.pipes import triggers
from supervisord_py.pipes.due import Due, Now, Progress, Wait, decide
from supervisord_py.pipes.output import OutputStream
from supervisord_py.pipes.preflight import AgentShelf
from supervisord_py.pipes.schedule import Cron
from supervisord_py.pipes.triggers import Timetable
from supervisord_py.process.model import Child, ChildSpec, StopReport, Survivor
from waiting import alive

# -- D: processes ----------------------------------------------------------------------------------


@in_one_room
async def test_d1_the_pid_is_known_while_it_runs(rig: PipeRig) -> None:
    rig.shell("d1", "sleep 1000")
    number = await rig.begun("d1")
    await rig.ledger.flush()
    row = await ledger_pipes.EXECUTIONS.get(rig.ledger, number)
    assert row is not None
    assert row.pid == rig.room.get("d1").pid == (await rig.room.execution(number)).pid
    assert None not in {row.pid, row.start_time, row.boot_id, row.instance}
    assert alive(row.pid or 0)
    assert (await rig.room.cancel(number)).pid == row.pid


@in_one_room
async def test_d2_the_whole_tree_ends(rig: PipeRig) -> None:
    script = (
        "sleep 1000 & echo $! > a; setsid sleep 1000 & echo $! > b; (setsid sleep 1000 & echo $! > "
        "c); touch all"
    )
    folder = rig.shell("d2", f"{script}; wait")
    number = await rig.begun("d2")
    await eventually((folder / "all").exists, "the children")
    pids = [int((folder / name).read_text()) for name in "abc"]
    assert [alive(pid) for pid in pids] == [True] * 3
    assert (await rig.room.cancel(number)).status is Status.CANCELLED
    assert [alive(pid) for pid in pids] == [False] * 3


@in_one_room
async def test_d3_who_ignores_term_is_killed(rig: PipeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.shell("d3", "trap '' TERM; touch deaf; while :; do sleep 0.02; done")
    number = await rig.begun("d3")
    await eventually((rig.config.pipes_dir / "d3" / "deaf").exists, "the trap")
    done = await rig.room.cancel(number)
    assert (done.status, done.signal) == (Status.CANCELLED, 9)
    rig.shell("d3-undead", "sleep 1000")
    number = await rig.begun("d3-undead")
    pid, stop = rig.running(number), rig.placement.stop

    async def fails(key: str, **_: Any) -> StopReport:
        monkeypatch.setattr(rig.placement, "stop", stop)
        return StopReport((Survivor(pid, "sleep", 1),))

    monkeypatch.setattr("supervisord_py.process.supervisor.TRY_AGAIN_SECONDS", 0.02)
    monkeypatch.setattr(rig.placement, "stop", fails)
    done = await rig.room.cancel(number)
    assert (done.status, f"survived the stop: pid {pid}" in (done.error_message or "")) == (
        Status.CANCELLED,
        True,
    )
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
        assert (done.status, done.error_type, done.pid) == (
            Status.FAILED,
            ErrorType.AGENT_NOT_FOUND,
            None,
        )
        assert str(folder / "agent.sh") in (done.error_message or "")


@in_one_room
async def test_d5_another_version_is_noticed(rig: PipeRig) -> None:
    program = rig.folder / "drifted"
    program.write_text("#!/bin/sh\necho drifted 1.4.0\n")
    program.chmod(0o755)
    table = f'[agents.NAME]\nargv = ["{program}"]\nprompt = "stdin"\nparser = "text"\n[agents.NAME.version]\n'
    table += f'argv = ["{program}", "--version"]\ncure = "get drifted 2"\n'
    with rig.config.agents_file.open("a") as agents:
        agents.write(
            f'{table.replace("NAME", "old")}want = ">=2"\n{table.replace("NAME", "new")}tested = '
            '"<1.2"\n'
        )
    rig.write("d5-old", "agent: old")
    old = await rig.run("d5-old")
    assert (old.status, old.error_type) == (Status.FAILED, ErrorType.AGENT_INCOMPATIBLE)
    assert "old is 1.4.0, and this adapter needs >=2; get drifted 2" in (old.error_message or "")
    rig.write("d5-new", "agent: new")
    new = await rig.run("d5-new")
    assert (new.status, new.agent_version) == (Status.COMPLETED, "1.4.0")
    started = next(it for it in await rig.said("pipe:d5-new") if it.event == "execution_started")
    assert "was tested with <1.2" in json.dumps(started.facts["warnings"])


@in_one_room
async def test_d6_two_daemons_exclude_each_other(rig: PipeRig) -> None:
    """On one ledger, by the row itself; that there is one daemon on a state directory:
    tests/daemon.
    """
    folder = rig.shell("d6", "touch started", "retries: 0")
    other = await Ledger.open(rig.folder / "state" / "pxd.db")
    try:
        theirs = other.next_number() + 100
        row = Execution(id=theirs, pipe_name="d6", status=Status.QUEUED, queued_at=1.0)
        await other.write(ledger_pipes.EXECUTIONS.insert(row))
        await other.write(ledger_pipes.mark_running(theirs, started_at=2.0))
        ours = await rig.run("d6")
        assert (ours.status, ours.pid, (folder / "started").exists()) == (
            Status.FAILED,
            None,
            False,
        )
        assert str(theirs) in (ours.error_message or "")
        await other.write(ledger_pipes.finish(theirs, status=Status.COMPLETED, finished_at=3.0))
    finally:
        await other.close()
    assert (await rig.run("d6")).status is Status.COMPLETED


# -- E: schedules ----------------------------------------------------------------------------------


async def test_e1_what_waits_for_an_old_schedule_is_dequeued(own_rig: PipeRig) -> None:
    own_rig.room.reconfigure(replace(own_rig.config, slots_scheduled=1))
    own_rig.shell("hold", "sleep 1000", "schedule: every 1h")
    await own_rig.room.files.refresh()
    await eventually(lambda: own_rig.room.get("hold").pid, "the start of what holds the slot")
    for name in ("e1-off", "e1-manual"):
        own_rig.shell(name, "true", "schedule: every 1h")
    await own_rig.room.files.refresh()
    await eventually(lambda: own_rig.room.health()["queued"] == 2, "both in line")
    await own_rig.room.enable("e1-off", enabled=False)
    own_rig.shell("e1-manual", "true", "schedule: manual")
    await own_rig.room.files.refresh()
    for name, why in (("e1-off", "it was disabled"), ("e1-manual", "its schedule has changed")):
        row = (await own_rig.ended(name))[0]  # a look of the room's own may be at work with it
        assert (row.status, row.trigger, row.started_at) == (
            Status.CANCELLED,
            Trigger.SCHEDULED,
            None,
        )
        assert why in (row.error_message or "")
    assert own_rig.room.health()["queued"] == 0
    # The last decision says so; and what is on again is due, although it was due before.
    said = (
        f"execution {(await own_rig.rows('e1-off'))[0].id} did not run: cancelled before it ran: "
        "it was disabled"
    )
    assert own_rig.room.next("e1-off")["last_decision"]["text"] == said
    await own_rig.room.enable("e1-off")
    await eventually(lambda: own_rig.room.queued("e1-off"), "it is in line again")
    await own_rig.room.cancel_pipe("hold")
    assert [it.started_at is not None for it in await own_rig.ended("e1-off", 2)] == [False, True]


@in_one_room
async def test_e2_an_enabled_interval_runs_at_once_unless_told_not_to(rig: PipeRig) -> None:
    rig.shell(
        "e2-wait",
        "true",
        "schedule: every 1h\nenabled: false\nrun_on_enable: false\nallow_empty: true",
    )
    rig.shell("e2-cron", "true", "schedule: '@yearly'\nenabled: false\nallow_empty: true")
    rig.shell("e2-now", "true", "schedule: every 1h\nenabled: false\nallow_empty: true")
    await rig.room.files.refresh()
    assert rig.room.get("e2-now").next_run is None
    for name in ("e2-wait", "e2-cron", "e2-now"):
        await rig.room.enable(name)
    assert (await rig.ended("e2-now"))[0].trigger is Trigger.SCHEDULED
    waits = await eventually(lambda: rig.room.get("e2-wait").next_run, "the decision")
    assert abs(waits - rig.time.clocks.wall() - 3600) < 120
    assert await rig.rows("e2-wait") + await rig.rows("e2-cron") == []


@in_one_room
async def test_e3_two_triggers_at_once_are_one_run(rig: PipeRig) -> None:
    rig.shell("e3", "sleep 1000")
    asked = await asyncio.gather(*(rig.room.run("e3") for _ in range(3)), return_exceptions=True)
    assert sum(isinstance(it, ConflictError) for it in asked) == 2
    number = (await rig.rows("e3"))[0].id
    await eventually(lambda: rig.running(number), "the start")
    await rig.ledger.flush()
    state = await PIPE_STATES.get(rig.ledger, "e3")
    assert state is not None
    assert state.last_run_at is not None  # written with `running`, or not at all: tests/ledger
    await rig.room.cancel(number)


async def test_e4_a_scheduler_that_dies_is_started_again(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "CRASH_SECONDS", 0.0)
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
        assert (await house.ended("e4"))[0].status is Status.COMPLETED
        health = house.room.health()
        assert (health["scheduler_running"], health["scheduler_restarts"]) == (True, 1)
        assert "boom" in str(health["scheduler_error"])


@in_one_room
async def test_e5_slower_than_its_schedule_is_warned_about(rig: PipeRig) -> None:
    folder = rig.shell("e5", UNTIL_GATE, "schedule: every 10m\nenabled: false\nallow_empty: true")
    number = await rig.begun("e5")
    due = Due(rig.time.clocks.wall(), "due")
    pipe = rig.room.definition_of("e5")
    assert pipe is not None
    assert (
        await rig.room.timetable.start(pipe, due) == f"still running: execution {number}; skipped"
    )
    (folder / "gate").touch()
    await rig.room.wait(number)
    assert rig.room.get("e5").warnings == ()
    rig.room.states.average_seconds["e5"] = 700.0
    assert "slower than its schedule" in rig.room.get("e5").warnings[-1]


def test_e6_a_clock_set_back_serves_no_due_time_twice() -> None:
    """Accepted by the spec as it is; here what was served lies ahead, and the next one is waited
    for.
    """
    nine = 1_795_251_600.0  # 2026-11-21 09:00 UTC
    served = Progress(nine - 86400, 0.0, last_due=nine)
    back = decide(Cron("0 9 * * *"), served, Now(nine - 1800, 1000.0))
    assert isinstance(back, Wait)
    assert back.until == nine + 86400


# -- F: files --------------------------------------------------------------------------------------


@in_one_room
async def test_f1_an_edit_is_noticed_by_itself(rig: PipeRig) -> None:
    rig.shell("f1", "echo one", "title: One")
    await eventually(lambda: any(it.name == "f1" for it in rig.room.snapshot()), "the new pipe")
    rig.shell("f1", "echo two", "title: Two")
    assert (await rig.run("f1")).stdout == "two\n"
    rig.shell("f1", "echo three", "title: Three")
    await eventually(lambda: rig.room.get("f1").title == "Three", "the edit")


@in_one_room
async def test_f2_a_broken_file_is_listed_with_the_error(rig: PipeRig) -> None:
    rig.shell("f2", "echo good")
    rig.shell("f2-other", "echo fine")
    assert (await rig.run("f2")).status is Status.COMPLETED
    rig.write("f2", "agent: command\ncommand: cat\nschedule: */30 * * * *")
    await eventually(lambda: rig.room.get("f2").config_error, "the look at it")
    error = rig.room.get("f2").config_error or ""
    assert ("f2/pipe.md:4: " in error, "quote" in error) == (True, True)
    with pytest.raises(ConfigError):
        await rig.room.run("f2")
    assert (await rig.run("f2-other")).stdout == "fine\n"
    async with asyncio.timeout(PATIENCE):  # it is listed first, told then
        while (await rig.words("pipe:f2"))[-1] != "pipe_broken":
            await asyncio.sleep(0.01)


@in_one_room
async def test_f3_a_folder_deleted_mid_run_is_cancelled_first(rig: PipeRig) -> None:
    folder = rig.shell("f3", "sleep 1000")
    number = await rig.begun("f3")
    pid = rig.running(number)
    await rig.room.files.remove("f3")
    assert (alive(pid), folder.exists()) == (False, False)
    folder = rig.shell("f3-rm", "sleep 1000")
    other = await rig.begun("f3-rm")
    shutil.rmtree(folder)
    row = await rig.room.wait(other)
    assert (row.status, "its folder was deleted" in (row.error_message or "")) == (
        Status.CANCELLED,
        True,
    )
    assert (await rig.room.execution(number)).status is Status.CANCELLED


@in_one_room
async def test_f4_the_output_folder_is_there_before_the_spawn(rig: PipeRig) -> None:
    """Where it cannot be made, the run fails with the path.

    A file in its place does that for root as well.
    """
    folder = rig.shell("f4", 'test -d "$PX_OUTPUT_DIR" && echo there', "retries: 0")
    assert (await rig.run("f4")).stdout == "there\n"
    shutil.rmtree(folder / "output")
    (folder / "output").write_text("in the way")
    done = await rig.run("f4")
    assert (done.status, done.error_type, done.pid) == (Status.FAILED, ErrorType.CONFIG_ERROR, None)
    assert str(folder / "output") in (done.error_message or "")


@in_one_room
async def test_f5_what_is_installed_is_checked_and_disabled(rig: PipeRig) -> None:
    """An agent that nobody knows is told; never enabled by itself.

    What is refused: test_pipes_files.py.
    """
    source = rig.folder / "f5.md"
    source.write_text("---\nagent: hermes\nenabled: true\nschedule: every 1m\n---\nx\n")
    added = await rig.room.files.install(str(source))
    assert (added.enabled, added.next_run) == (False, None)
    assert "there is no agent 'hermes'" in added.warnings[-1]


# -- G: the API and the provider -------------------------------------------------------------------


async def test_g1_nothing_runs_before_the_api_listens(short_tmp: Path) -> None:
    async with pipe_house(short_tmp, scheduler=False) as house:
        house.shell("g1-due", "echo", "schedule: every 1h")
        house.shell("g1-asked", "echo")
        await house.room.files.refresh()
        [asked] = await house.room.run("g1-asked")
        assert (asked.status, asked.position) == (Status.QUEUED, 1)
        assert (house.room.health()["scheduler_running"], len(await house.rows())) == (False, 1)
        house.room.start_scheduler()
        assert (await house.room.wait(asked.id)).status is Status.COMPLETED
        assert (await house.ended("g1-due"))[0].trigger is Trigger.SCHEDULED


@in_one_room
async def test_g2_the_prompt_has_the_real_port(rig: PipeRig) -> None:
    rig.shell("g2", "cat; echo; echo token in ${PX_API_TOKEN_FILE-no file}")
    with rig.settings(api_port=4711, api_token_file="/state/api.token"):  # noqa: S106 - a path
        done = await rig.run("g2")
    told = (done.stdout or "").splitlines()
    assert "API: http://127.0.0.1:4711 (bearer token in the file $PX_API_TOKEN_FILE)" in told
    assert (done.api_port, told[-1]) == (4711, "token in /state/api.token")
    plain = await rig.run("g2")
    told = (plain.stdout or "").splitlines()
    assert f"API: unix socket {rig.config.socket}" in told
    assert (plain.api_port, told[-1]) == (None, "token in no file")


@in_one_room
async def test_g3_a_rate_limit_is_retried_when_the_provider_says(rig: PipeRig) -> None:
    rig.agent(
        "g3", "echo 'HTTP 429: rate_limit_exceeded, try again in 40s' >&2; exit 1", "retries: 1"
    )
    first = await rig.run("g3")
    assert (first.status, first.error_type) == (Status.FAILED, ErrorType.RATE_LIMITED)
    again = (await rig.rows("g3"))[1]
    assert (again.status, again.trigger, again.retry_of) == (Status.QUEUED, Trigger.RETRY, first.id)
    assert 39 <= (again.not_before or 0) - (first.finished_at or 0) < 60
    assert (await rig.room.cancel(again.id)).status is Status.CANCELLED


@in_one_room
async def test_g4_huge_and_garbled_output_is_capped_and_flagged(rig: PipeRig) -> None:
    rig.shell("g4", "printf '\\377head'; head -c 3000000 /dev/zero | tr '\\0' x; printf tail")
    with rig.settings(row_bytes=1000):
        done = await rig.run("g4")
    text = done.stdout or ""
    assert (text[:5], text[-4:], "bytes left out" in text, len(text) < 1200) == (
        "\ufffdhead",
        "tail",
        True,
        True,
    )
    assert (done.status, done.stdout_bytes, done.invalid_utf8) == (
        Status.COMPLETED,
        3_000_009,
        True,
    )
    page = await rig.room.output(done.id, OutputStream.STDOUT, 0, 5)
    assert (page.data, page.total_bytes, page.complete) == (b"\xffhead", 3_000_009, False)
    rig.shell("g4-flood", "yes", "retries: 0")
    with rig.settings(output_file_bytes=1_000_000):
        done = await rig.run("g4-flood")
        assert (done.status, done.error_type, done.incomplete) == (
            Status.FAILED,
            ErrorType.RESOURCE_LIMIT,
            True,
        )
        assert "wrote more than 1000000 bytes" in (done.error_message or "")
        assert ((done.stdout or "")[:4], done.stdout_bytes > 1_000_000) == ("y\ny\n", True)


# -- H: chat sessions; here kernels and tools ------------------------------------------------------


async def _chat(house: PipeRig, name: str) -> Child:
    """Start what stands for a session beside the pipes: a kernel's process, held by the same
    keeper.
    """
    spec = ChildSpec(f"kernel:{name}", ("/bin/sleep", "1000"), str(house.folder), {"PATH": "/bin"})
    return await house.placement.spawn(house.placement.new_key(), spec)


async def test_h1_sessions_are_kept_apart_from_pipes(own_rig: PipeRig) -> None:
    """There is no chat here; kernels and tools are units of another kind.

    No row of theirs is an execution, no start or stop of the pipes' room touches them; one keeper
    takes care of all.
    """
    chat = await _chat(own_rig, "chat")
    own_rig.shell("h1", "sleep 1000")
    number = await own_rig.begun("h1")
    assert [it.unit for it in await own_rig.placement.list("pipe:")] == ["pipe:h1"]
    assert pipe_unit(own_rig.room.get("h1")).kind == "pipe"
    await own_rig.restart()
    assert [(it.id, it.error_type) for it in await own_rig.rows()] == [(number, ErrorType.SHUTDOWN)]
    assert [it.key for it in await own_rig.placement.list()] == [chat.key]
    assert alive(chat.identity.pid)


async def test_h2_a_silent_agent_is_shown_and_can_be_cancelled(own_rig: PipeRig) -> None:
    own_rig.shell("h2", "echo hello; sleep 1000")
    number = await own_rig.begun("h2")
    await eventually(lambda: own_rig.room.get("h2").pid, "the pid")
    assert own_rig.room.get("h2").warnings == ()
    own_rig.time.pass_by(75)
    warning = own_rig.room.get("h2").warnings[-1]
    silent = re.search(
        rf"execution {number} \(pid {own_rig.running(number)}\) has said nothing for (\d+)", warning
    )
    assert silent, warning
    assert 75 <= int(silent[1]) < 75 + PATIENCE
    assert "may be delayed; `pxctl pipe cancel h2` ends it" in warning
    assert (await own_rig.room.cancel(number)).status is Status.CANCELLED


@in_one_room
async def test_h3_several_at_once_are_all_tracked(rig: PipeRig) -> None:
    names = [f"h3-{at}" for at in range(3)]
    for name in names:
        rig.shell(name, "sleep 1000")
    numbers = [await rig.begun(name) for name in names]
    shown = {it.id: it.pid for group in rig.room.queue() for it in group["running"]}
    assert len({shown[number] for number in numbers} - {None}) == 3
    for number in numbers:
        await rig.room.cancel(number)


async def test_h4_sessions_take_no_slot_of_pipes(own_rig: PipeRig) -> None:
    chat, _other = [await _chat(own_rig, name) for name in ("chat", "other")]
    own_rig.shell("h4-due", "sleep 1000", "schedule: every 1h")
    own_rig.shell("h4-hand", UNTIL_GATE)
    await own_rig.room.files.refresh()
    await eventually(lambda: own_rig.room.get("h4-due").pid, "the scheduled one")
    await own_rig.begun("h4-hand")
    assert [len(it["running"]) for it in own_rig.room.queue()] == [1, 0, 1], (
        "scheduled, event, manual"
    )
    keys = [chat.key, own_rig.room.get("h4-due").instance or ""]
    used = await own_rig.placement.stat(keys)
    assert [used[key].processes > 0 for key in keys] == [True, True]


# -- I: the ends -----------------------------------------------------------------------------------


async def test_i1_quitting_ends_what_runs_and_writes_it_down(short_tmp: Path) -> None:
    async with pipe_house(short_tmp, stop_seconds=0.1) as house:
        folder = house.shell("i1", "trap '' TERM; touch deaf; while :; do sleep 0.02; done")
        number = await house.begun("i1")
        await eventually((folder / "deaf").exists, "the trap")
        [waiting] = await house.room.run("i1", queue=True)
        pid = house.running(number)
        await house.room.close()
        assert not alive(pid)
        first, second = await house.rows("i1")
        assert (first.id, first.status, first.error_type) == (
            number,
            Status.FAILED,
            ErrorType.SHUTDOWN,
        )
        assert (first.finished_at is not None, second.id, second.status) == (
            True,
            waiting.id,
            Status.QUEUED,
        )
        with pytest.raises(ShuttingDownError):
            await house.room.run("i1")


async def test_i2_an_update_leaves_what_runs_alone(own_rig: PipeRig) -> None:
    """The control plane is replaced, the keeper holds the agents, the next one goes on with them.

    An update of the keeper itself is a stop, as in I1.
    """
    folder = own_rig.shell("i2", f"echo before; {UNTIL_GATE}; echo after")
    number = await own_rig.begun("i2")
    pid = own_rig.running(number)
    await own_rig.replace()
    assert (own_rig.running(number), alive(pid)) == (pid, True)
    (folder / "gate").touch()
    done = await own_rig.room.wait(number)
    assert (done.status, done.stdout) == (Status.COMPLETED, "before\nafter\n")


async def test_i3_a_store_that_is_being_written_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "presets.toml"
    file.write_text('[presets.i3]\nmodel = "hal')

    async def meanwhile(_seconds: float) -> None:
        file.write_text('[presets.i3]\nmodel = "half"\n')

    monkeypatch.setattr("asyncio.sleep", meanwhile)
    config: Any = SimpleNamespace(presets_file=file, agents_file=tmp_path / "agents.toml")
    placement: Any = None
    _agents, presets = await AgentShelf(config, placement, {}).look()
    assert (presets.file_problem, presets.by_id["i3"].model) == (None, "half")


async def test_i4_a_blocked_agent_ends_with_the_timeout(own_rig: PipeRig) -> None:
    """A dialog of the system is a matter of graphical programs; its effect, a call that nobody
    answers, is this.
    """
    folder = own_rig.shell("i4", "echo asking; read answer < question", "timeout: 900\nretries: 0")
    os.mkfifo(folder / "question")
    done = await own_rig.overdue("i4", len("asking\n"))
    assert (done.status, done.error_type, done.stdout) == (
        Status.TIMED_OUT,
        ErrorType.TIMEOUT,
        "asking\n",
    )
    assert (done.error_message, done.timeout_seconds) == (
        "did not end within 900 s (timeout)",
        900.0,
    )
    assert own_rig.room.get("i4").running is None

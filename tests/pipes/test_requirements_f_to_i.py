"""Requirements F (files of pipes), G (the API and the provider), H (chat, here kernels and tools) and I (the ends)."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pipe_rig import PATIENCE, PipeRig, eventually, pipe_house
from requirement_stage import UNTIL_GATE, begun, ended, in_one_room, settings
from supervisord_py.api.units import pipe_unit
from supervisord_py.errors import ConfigError, ShuttingDownError
from supervisord_py.ledger.pipes import ErrorType, Status, Trigger
from supervisord_py.pipes import executions
from supervisord_py.pipes.output import OutputStream
from supervisord_py.pipes.preflight import AgentShelf
from supervisord_py.process.model import Child, ChildSpec
from waiting import alive

# -- F: files ----------------------------------------------------------------------------------------------------------


@in_one_room
async def test_f1_an_edit_is_noticed_by_itself(rig: PipeRig) -> None:
    """Nobody asks for it; and a run by hand right after an edit runs what stands there now."""
    rig.shell("f1", "echo one", "title: One")
    await eventually(lambda: any(it.name == "f1" for it in rig.room.snapshot()), "the new pipe")
    rig.shell("f1", "echo two", "title: Two")
    assert (await rig.run("f1")).stdout == "two\n"
    rig.shell("f1", "echo three", "title: Three")
    await eventually(lambda: rig.room.get("f1").title == "Three", "the edit")


@in_one_room
async def test_f2_a_broken_file_is_listed_with_the_error(rig: PipeRig) -> None:
    """By name, with line and cure; the others run on, and an older, good content is not used in silence."""
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
    """By whoever: asked to remove a pipe, we wait for the end and delete then; by others, we end what runs in it."""
    folder = rig.shell("f3", "sleep 1000")
    number = await begun(rig, "f3")
    pid = rig.running(number)
    await rig.room.files.remove("f3")
    assert (alive(pid), folder.exists()) == (False, False)
    folder = rig.shell("f3-rm", "sleep 1000")
    other = await begun(rig, "f3-rm")
    shutil.rmtree(folder)
    row = await rig.room.wait(other)
    assert (row.status, "its folder was deleted" in (row.error_message or "")) == (Status.CANCELLED, True)
    assert (await rig.room.execution(number)).status is Status.CANCELLED


@in_one_room
async def test_f4_the_output_folder_is_there_before_the_spawn(rig: PipeRig) -> None:
    """Where it cannot be made, the run fails with the path. A file in its place does that for root as well."""
    folder = rig.shell("f4", 'test -d "$PX_OUTPUT_DIR" && echo there', "retries: 0")
    assert (await rig.run("f4")).stdout == "there\n"
    shutil.rmtree(folder / "output")
    (folder / "output").write_text("in the way")
    done = await rig.run("f4")
    assert (done.status, done.error_type, done.pid) == (Status.FAILED, ErrorType.CONFIG_ERROR, None)
    assert str(folder / "output") in (done.error_message or "")


@in_one_room
async def test_f5_what_is_installed_is_checked_and_disabled(rig: PipeRig) -> None:
    """An agent that nobody knows is told; never enabled by itself. What is refused: test_pipes_install.py."""
    source = rig.folder / "f5.md"
    source.write_text("---\nagent: hermes\nenabled: true\nschedule: every 1m\n---\nx\n")
    added = await rig.room.files.install(str(source))
    assert (added.enabled, added.next_run) == (False, None)
    assert "there is no agent 'hermes'" in added.warnings[-1]
    told = next(it for it in await rig.said("pipe:f5") if it.event == "pipe_installed")
    assert "hermes" in str(told.facts["warnings"])
    checks = {it.name: it for it in await rig.room.validate("f5")}
    assert (checks["agent"].verdict, "hermes" in checks["agent"].detail) == ("fail", True)


# -- G: the API and the provider ---------------------------------------------------------------------------------------


async def test_g1_nothing_runs_before_the_api_listens(short_tmp: Path) -> None:
    """Neither what is due nor what somebody asked for; the daemon opens the gate when its doors are open."""
    async with pipe_house(short_tmp, scheduler=False) as house:
        house.shell("g1-due", "echo", "schedule: every 1h")
        house.shell("g1-asked", "echo")
        await house.room.files.refresh()
        [asked] = await house.room.run("g1-asked")
        assert (asked.status, asked.position) == (Status.QUEUED, 1)
        assert (house.room.health()["scheduler_running"], len(await house.rows())) == (False, 1)
        house.room.start_scheduler()
        assert (await house.room.wait(asked.id)).status is Status.COMPLETED
        assert (await ended(house, "g1-due"))[0].trigger is Trigger.SCHEDULED


@in_one_room
async def test_g2_the_prompt_has_the_real_port(rig: PipeRig) -> None:
    """Or the socket, where there is no port; the row keeps which it was. The port's token is in a file it may read."""
    rig.shell("g2", "cat; echo; echo token in ${PX_API_TOKEN_FILE-no file}")
    with settings(rig, api_port=4711, api_token_file="/state/api.token"):  # noqa: S106 - a path
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
    """As a new row that names the one before, not before the time of the provider's hint."""
    rig.shell("g3", "echo 'HTTP 429: rate_limit_exceeded, try again in 40s' >&2; exit 1", "retries: 1")
    first = await rig.run("g3")
    assert (first.status, first.error_type) == (Status.FAILED, ErrorType.RATE_LIMITED)
    again = (await rig.rows("g3"))[1]
    assert (again.status, again.trigger, again.retry_of) == (Status.QUEUED, Trigger.RETRY, first.id)
    assert 39 <= (again.not_before or 0) - (first.finished_at or 0) < 60
    assert (await rig.room.cancel(again.id)).status is Status.CANCELLED


@in_one_room
async def test_g4_huge_and_garbled_output_is_capped_and_flagged(rig: PipeRig) -> None:
    """The row has its head and its tail; bytes that are no text are kept, and told; who writes without end is ended."""
    rig.shell("g4", "printf '\\377head'; head -c 3000000 /dev/zero | tr '\\0' x; printf tail")
    with settings(rig, row_bytes=1000):
        done = await rig.run("g4")
    text = done.stdout or ""
    assert (text[:5], text[-4:], "bytes left out" in text, len(text) < 1200) == ("\ufffdhead", "tail", True, True)
    assert (done.status, done.stdout_bytes, done.invalid_utf8) == (Status.COMPLETED, 3_000_009, True)
    page = await rig.room.output(done.id, OutputStream.STDOUT, 0, 5)
    assert (page.data, page.total_bytes, page.complete) == (b"\xffhead", 3_000_009, False)
    rig.shell("g4-flood", "yes", "retries: 0")
    with settings(rig, output_file_bytes=1_000_000):
        done = await rig.run("g4-flood")
        assert (done.status, done.error_type, done.incomplete) == (Status.FAILED, ErrorType.RESOURCE_LIMIT, True)
        assert "wrote more than 1000000 bytes" in (done.error_message or "")
        assert ((done.stdout or "")[:4], done.stdout_bytes > 1_000_000) == ("y\ny\n", True)


# -- H: chat sessions; here kernels and tools --------------------------------------------------------------------------


async def _chat(house: PipeRig, name: str) -> Child:
    """Start what stands for a session beside the pipes: a kernel's process, held by the same keeper."""
    spec = ChildSpec(f"kernel:{name}", ("/bin/sleep", "1000"), str(house.folder), {"PATH": "/bin"})
    return await house.placement.spawn(house.placement.new_key(), spec)


async def _end(house: PipeRig, *chats: Child) -> None:
    for chat in chats:
        await house.placement.stop(chat.key, grace_seconds=0, reason="stopped")
        house.placement.release(chat.key)


async def test_h1_sessions_are_kept_apart_from_pipes(own_rig: PipeRig) -> None:
    """There is no chat here; kernels and tools are units of another kind.

    No row of theirs is an execution, no start or stop of the pipes' room touches them; one keeper takes care of all.
    """
    chat = await _chat(own_rig, "chat")
    own_rig.shell("h1", "sleep 1000")
    number = await begun(own_rig, "h1")
    assert [it.unit for it in await own_rig.placement.list("pipe:")] == ["pipe:h1"]
    assert pipe_unit(own_rig.room.get("h1")).kind == "pipe"
    await own_rig.restart()
    assert [(it.id, it.error_type) for it in await own_rig.rows()] == [(number, ErrorType.SHUTDOWN)]
    assert [it.key for it in await own_rig.placement.list()] == [chat.key]
    assert alive(chat.identity.pid)
    await _end(own_rig, chat)


async def test_h2_a_silent_agent_is_shown_and_can_be_cancelled(own_rig: PipeRig) -> None:
    """After a minute without a word whoever looks is told so, with the pid and the command that ends it."""
    own_rig.shell("h2", "echo hello; sleep 1000")
    number = await begun(own_rig, "h2")
    await eventually(lambda: own_rig.room.get("h2").pid, "the pid")
    assert own_rig.room.get("h2").warnings == ()
    own_rig.time.pass_by(75)
    warning = own_rig.room.get("h2").warnings[-1]
    silent = re.search(rf"execution {number} \(pid {own_rig.running(number)}\) has said nothing for (\d+)", warning)
    assert silent is not None, warning
    assert 75 <= int(silent[1]) < 75 + PATIENCE
    assert "may be delayed; `pxctl pipe cancel h2` ends it" in warning
    assert (await own_rig.room.cancel(number)).status is Status.CANCELLED


@in_one_room
async def test_h3_several_at_once_are_all_tracked(rig: PipeRig) -> None:
    """Each with its own pid, in the list of what runs; two of one pipe never."""
    names = [f"h3-{at}" for at in range(3)]
    for name in names:
        rig.shell(name, "sleep 1000")
    numbers = [await begun(rig, name) for name in names]
    manual = next(it for it in rig.room.queue() if it["group"] == "manual")
    shown = {it.id: it.pid for it in manual["running"]}
    assert set(numbers) <= set(shown)
    assert len({shown[number] for number in numbers} - {None}) == 3
    for number in numbers:
        await rig.room.cancel(number)


async def test_h4_sessions_take_no_slot_of_pipes(own_rig: PipeRig) -> None:
    """Nor does a run by hand wait for what is scheduled; what each uses is measured by itself."""
    chats = [await _chat(own_rig, f"chat{at}") for at in range(2)]
    own_rig.shell("h4-due", "sleep 1000", "schedule: every 1h")
    own_rig.shell("h4-hand", UNTIL_GATE)
    await own_rig.room.files.refresh()
    await eventually(lambda: own_rig.room.get("h4-due").pid, "the scheduled one")
    await begun(own_rig, "h4-hand")
    assert [len(it["running"]) for it in own_rig.room.queue()] == [1, 0, 1], "scheduled, event, manual"
    keys = [chats[0].key, own_rig.room.get("h4-due").instance or ""]
    used = await own_rig.placement.stat(keys)
    assert [used[key].processes > 0 for key in keys] == [True, True]
    await _end(own_rig, *chats)


# -- I: the ends -------------------------------------------------------------------------------------------------------


async def test_i1_quitting_ends_what_runs_and_writes_it_down(short_tmp: Path) -> None:
    """TERM, grace, KILL; every row is final before the stop returns, and what waits waits on for the next start."""
    async with pipe_house(short_tmp, stop_seconds=0.1) as house:
        folder = house.shell("i1", "trap '' TERM; touch deaf; while :; do sleep 0.02; done")
        number = await begun(house, "i1")
        await eventually((folder / "deaf").exists, "the trap")
        [waiting] = await house.room.run("i1", queue=True)
        pid = house.running(number)
        await house.room.close()
        assert not alive(pid)
        rows = {it.id: it for it in await house.rows("i1")}
        assert (rows[number].status, rows[number].error_type) == (Status.FAILED, ErrorType.SHUTDOWN)
        assert rows[number].finished_at is not None
        assert rows[waiting.id].status is Status.QUEUED
        with pytest.raises(ShuttingDownError):
            await house.room.run("i1")


async def test_i2_an_update_leaves_what_runs_alone(own_rig: PipeRig) -> None:
    """The control plane is replaced, the keeper holds the agents, the next one goes on with them.

    An update of the keeper itself is a stop, as in I1.
    """
    folder = own_rig.shell("i2", f"echo before; {UNTIL_GATE}; echo after")
    number = await begun(own_rig, "i2")
    pid = own_rig.running(number)
    await own_rig.replace()
    assert (own_rig.running(number), alive(pid)) == (pid, True)
    (folder / "gate").touch()
    done = await own_rig.room.wait(number)
    assert (done.status, done.stdout) == (Status.COMPLETED, "before\nafter\n")


async def test_i3_a_store_that_is_being_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no TOML at the first look is looked at once more a moment later."""
    file = tmp_path / "presets.toml"
    file.write_text('[presets.i3]\nmodel = "hal')

    async def meanwhile(_seconds: float) -> None:
        file.write_text('[presets.i3]\nmodel = "half"\n')

    monkeypatch.setattr("asyncio.sleep", meanwhile)
    config: Any = SimpleNamespace(presets_file=file, agents_file=tmp_path / "agents.toml")
    placement: Any = None
    _agents, presets = await AgentShelf(config, placement, {}).look()
    assert (presets.file_problem, presets.by_id["i3"].model) == (None, "half")


async def test_i4_a_blocked_agent_ends_with_the_timeout(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dialog of the system is a matter of graphical programs; its effect, a call that nobody answers, is this."""
    monkeypatch.setattr(executions, "LOOK_SECONDS", 0.02)
    async with pipe_house(short_tmp) as house:
        folder = house.shell("i4", "echo asking; read answer < question", "timeout: 900\nretries: 0")
        os.mkfifo(folder / "question")
        done = await house.overdue("i4", len("asking\n"))
        assert (done.status, done.error_type, done.stdout) == (Status.TIMED_OUT, ErrorType.TIMEOUT, "asking\n")
        assert house.room.get("i4").running is None

"""Runs by hand, from the trigger to the final row, through a real keeper."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from pipe_rig import PATIENCE, eventually, pipe_house
from process.real_keeper import alive
from supervisord_py.errors import ConfigError, ConflictError, UnknownUnitError
from supervisord_py.pipes.execution import ErrorType, Status, Trigger
from supervisord_py.pipes.room_requests import ExecutionFilter, OutputStream, RunRequest
from supervisord_py.pipes.running import watching
from supervisord_py.pipes.views import FollowDone, FollowOutput, FollowStart

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
        assert (folder / "output" / str(done.id)).is_dir()
        said = [it for it in await rig.said("pipe:greet") if it.event.startswith("execution_")]
        assert [it.event for it in said] == ["execution_queued", "execution_started", "execution_completed"]
        assert [it.cause for it in said] == [None, said[0].id, said[1].id]
        await eventually(lambda: not rig.placement.children(), "the release")
        kept = rig.room._house.folder(done.id)
        assert sorted(it.name for it in kept.iterdir()) == ["stderr", "stdout"]
        assert {kept.stat().st_mode & 0o777, (kept / "stdout").stat().st_mode & 0o777} == {0o700, 0o600}


async def test_what_cannot_run_is_a_failed_row_at_once_and_leaves_nothing_in_line(short_tmp: Path) -> None:
    """A3, D4: a missing preset, an unknown agent, a missing program; each can be run again and is told again."""
    async with pipe_house(short_tmp) as rig:
        rig.write("lost", "agent: pi\npreset: gone")
        rig.write("typo", "agent: pii")
        rig.write("absent", "agent: command\ncommand: ./not-there --flag")
        rig.write("broken", "schedule: continuous")
        for _ in range(2):
            lost, typo, absent = [await rig.run(name) for name in ("lost", "typo", "absent")]
            assert (lost.status, lost.error_type) == (Status.FAILED, ErrorType.PRESET_NOT_FOUND)
            assert "gone" in (lost.error_message or "")
            assert (typo.error_type, "pii" in (typo.error_message or "")) == (ErrorType.CONFIG_ERROR, True)
            assert (absent.error_type, absent.status) == (ErrorType.AGENT_NOT_FOUND, Status.FAILED)
            assert str(rig.config.pipes_dir / "absent" / "not-there") in (absent.error_message or "")
        assert rig.room.get("lost").consecutive_failures == 2
        assert rig.room.get("lost").running is None
        with pytest.raises(ConfigError, match="continuous"):
            await rig.room.run("broken")
        with pytest.raises(UnknownUnitError, match="lost"):
            await rig.room.run("lots")
        assert (rig.room.health().broken, rig.room.health().queued, rig.room.health().running) == (4, 0, 0)


async def test_a_follower_sees_the_output_grow_and_another_resumes_at_an_offset(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        gate = short_tmp / "gate"
        rig.shell("slow", f"printf one; while [ ! -e {gate} ]; do sleep 0.01; done; printf two; printf err >&2")
        queued = await rig.room.run("slow")
        seen = []
        async with aclosing(rig.room.follow(queued.id)) as items:
            async for item in items:
                seen.append(item)
                if isinstance(item, FollowOutput) and item.data == b"one":
                    gate.touch()
        assert isinstance(seen[0], FollowStart)
        assert isinstance(seen[-1], FollowDone)
        assert seen[-1].execution.status is Status.COMPLETED
        out = [it for it in seen if isinstance(it, FollowOutput) and it.stream is OutputStream.STDOUT]
        assert [(it.offset, it.data) for it in out] == [(0, b"one"), (3, b"two")]
        again = [it async for it in rig.room.follow(queued.id, (OutputStream.STDOUT,), 2)]
        assert [(it.offset, it.data) for it in again if isinstance(it, FollowOutput)] == [(2, b"etwo")]
        page = await rig.room.output(queued.id, OutputStream.STDOUT, 1, 3)
        assert (page.data, page.offset, page.total_bytes, page.complete) == (b"net", 1, 6, False)
        assert (await rig.room.output(queued.id, OutputStream.STDERR)).complete


async def test_one_execution_of_a_pipe_at_a_time_others_are_refused_or_wait_in_line(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.shell("hold", "while [ ! -e gate ]; do sleep 0.01; done")
        first = await rig.room.run("hold")
        with pytest.raises(ConflictError, match=f"execution {first.id}") as refused:
            await rig.room.run("hold")
        assert (refused.value.extra["execution"], "pipe tail" in (refused.value.hint or "")) == (first.id, True)
        second = await rig.room.run("hold", RunRequest(queue=True))
        assert (second.status, second.position) == (Status.QUEUED, 1)
        with pytest.raises(ConflictError):
            await rig.room.run("hold")
        group = next(it for it in rig.room.queue().groups if it.group == "manual")
        assert ([it.id for it in group.running], [it.id for it in group.waiting]) == ([first.id], [second.id])
        (rig.config.pipes_dir / "hold" / "gate").touch()
        assert (await rig.room.wait(first.id)).status is Status.COMPLETED
        assert (await rig.room.wait(second.id)).status is Status.COMPLETED


async def test_while_it_runs_its_row_says_what_it_has_given_so_far(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "LOOK_SECONDS", 0.02)
    async with pipe_house(short_tmp) as rig:
        folder = rig.shell("slow", "echo one; echo two >&2; while [ ! -e gate ]; do sleep 0.01; done")
        number = (await rig.room.run("slow")).id
        async with asyncio.timeout(PATIENCE):
            while not ((so_far := await rig.room.execution(number, blobs=True)).stdout and so_far.stderr):
                await asyncio.sleep(0.005)
        assert (so_far.status, so_far.stdout, so_far.stderr) == (Status.RUNNING, "one\n", "two\n")
        assert (so_far.stdout_bytes, so_far.stderr_bytes) == (4, 4)
        (page,) = (await rig.room.executions(ExecutionFilter())).executions
        assert (page.stdout_bytes, page.stdout) == (4, None)
        (folder / "gate").touch()
        assert (await rig.room.wait(number)).stdout_bytes == 4


async def test_a_timeout_ends_the_whole_tree_keeps_the_output_and_marks_the_folder(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A6, B5, D3: TERM is ignored, a child has a session of its own."""
    monkeypatch.setattr(watching, "LOOK_SECONDS", 0.02)
    async with pipe_house(short_tmp, stop_seconds=0.1) as rig:
        script = "trap '' TERM; setsid sleep 1000 & echo $! > pid; echo partly; while :; do sleep 0.05; done"
        folder = rig.shell("stuck", script, "timeout: 900\nretries: 0")
        done = await rig.overdue("stuck", len("partly\n"))
        assert (done.status, done.error_type, done.incomplete) == (Status.TIMED_OUT, ErrorType.TIMEOUT, True)
        assert (done.stdout, done.signal) == ("partly\n", signal.SIGKILL)
        assert "900 s" in (done.error_message or "")
        assert (folder / "output" / str(done.id) / "INCOMPLETE").read_text().startswith("did not end")
        assert not alive(int((folder / "pid").read_text()))
        assert rig.room.health().running == 0


async def test_a_normal_exit_sweeps_what_tools_left_behind(short_tmp: Path) -> None:
    """Pi starts every tool in a session of its own; what it left must not outlive it."""
    async with pipe_house(short_tmp) as rig:
        folder = rig.shell("leave", "setsid sleep 1000 >/dev/null 2>&1 & echo $! > pid; (sleep 1000 &) ; echo done")
        done = await rig.run("leave")
        assert (done.status, done.stdout) == (Status.COMPLETED, "done\n")
        assert not alive(int((folder / "pid").read_text()))


async def test_cancel_ends_what_waits_and_what_runs(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.shell("long", "echo begun; sleep 1000")
        first = await rig.room.run("long")
        await eventually(lambda: rig.running(first.id), "the start")
        second = await rig.room.run("long", RunRequest(queue=True))
        waiting = await rig.room.cancel(second.id)
        assert (waiting.status, waiting.error_type, waiting.started_at) == (Status.CANCELLED, ErrorType.CANCELLED, None)
        ended = await rig.room.cancel(first.id)
        assert (ended.status, ended.error_type) == (Status.CANCELLED, ErrorType.CANCELLED)
        with pytest.raises(ConflictError, match="is over"):
            await rig.room.cancel(first.id)
        assert rig.room.get("long").consecutive_failures == 0
        third = await rig.room.run("long")
        assert [it.id for it in await rig.room.cancel_pipe("long")] == [third.id]
        assert (await rig.room.wait(third.id)).status is Status.CANCELLED


async def test_both_streams_are_drained_and_bytes_that_are_no_text_are_kept_and_flagged(short_tmp: Path) -> None:
    """Fault 3 of the original: an agent that floods stderr first must not block. G4: no UTF-8."""
    async with pipe_house(short_tmp) as rig:
        script = "head -c 3000000 /dev/zero | tr '\\0' e >&2; head -c 6000000 /dev/zero | tr '\\0' o; printf '\\377end'"
        rig.shell("flood", script)
        done = await rig.run("flood")
        assert (done.status, done.stdout_bytes, done.stderr_bytes) == (Status.COMPLETED, 6000004, 3000000)
        assert (done.invalid_utf8, done.lost_bytes) == (True, 0)
        assert "bytes left out" in (done.stdout or "")
        assert (done.stdout or "").endswith("\ufffdend")
        assert len(done.stdout or "") < rig.config.output.row_bytes + 200
        tail = await rig.room.output(done.id, OutputStream.STDOUT, 5999999, 100)
        assert (tail.data, tail.complete) == (b"o\xffend", True)
        listed = (await rig.rows("flood"))[0]
        assert (listed.stdout, listed.rendered_prompt, listed.stdout_bytes) == (None, None, 6000004)


async def test_an_agent_killed_from_outside_crashed_and_the_next_run_goes_on(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.shell("victim", "echo so far; sleep 1000", "retries: 0")
        queued = await rig.room.run("victim")
        pid = await eventually(lambda: rig.running(queued.id), "the start")
        os.kill(pid, signal.SIGKILL)
        done = await rig.room.wait(queued.id)
        assert (done.status, done.error_type, done.signal) == (Status.FAILED, ErrorType.CRASH, signal.SIGKILL)
        assert rig.room.get("victim").consecutive_failures == 1
        rig.shell("victim", "echo better")
        assert (await rig.run("victim")).status is Status.COMPLETED
        assert rig.room.get("victim").consecutive_failures == 0


async def test_keys_and_patterns_are_struck_out_of_everything_that_is_stored(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        script = 'printf %.4s "$API_KEY"; sleep 0.05; echo "${API_KEY#????}"; echo card 1234-5678 >&2; exit 3'
        folder = rig.shell("leaky", script, "redact: '\\d{4}-\\d{4}'\nretries: 0")
        (folder / ".env").write_text("API_KEY=sk-very-secret-value\n")
        done = await rig.run("leaky")
        assert (done.stdout, done.stderr) == ("[redacted]\n", "card [redacted]\n")
        assert "exit code 3: card [redacted]" in (done.error_message or "")
        kept = "".join(it.read_text() for it in rig.room._house.folder(done.id).iterdir())
        assert "sk-very" not in repr(done) + kept


async def test_a_ceiling_of_turns_ends_the_run_and_usage_is_summed_live(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.fake("endless", "endless", front="limits: {turns: 3}\nretries: 0")
        done = await rig.run("endless")
        assert (done.status, done.error_type) == (Status.FAILED, ErrorType.BUDGET_EXCEEDED)
        assert done.usage.turns >= 3
        rig.fake("spends", "usage:100/50/0.25", "answer:fine", "settle")
        paid = await rig.run("spends")
        assert (paid.status, paid.usage.total_tokens, paid.usage.cost) == (Status.COMPLETED, 150, 0.25)
        assert (paid.stdout or "").strip() == "fine"


async def test_an_agent_that_settled_but_does_not_exit_is_stopped_and_judged_by_its_answer(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.fake("stays", "answer:all-is-well", "settle", "stay")
        done = await rig.run("stays")
        assert (done.status, done.error_type, (done.stdout or "").strip()) == (Status.COMPLETED, None, "all-is-well")
        assert "execution_settled" in await rig.words("pipe:stays")
        page = await rig.room.output(done.id, OutputStream.EVENTS)
        assert b"message_end" in page.data
        assert b"message_update" not in page.data

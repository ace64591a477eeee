"""Runs by hand, from the trigger to the final row, through a real keeper."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import pytest

from pipe_rig import PATIENCE, eventually, pipe_house
from supervisord_py.errors import ConflictError
from supervisord_py.pipes.execution import ErrorType, Status, Trigger
from supervisord_py.pipes.room_requests import ExecutionFilter, RunRequest
from supervisord_py.pipes.running import watching

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
        kept = rig.room._house.folder(done.id)
        assert sorted(it.name for it in kept.iterdir()) == ["stderr", "stdout"]
        assert {kept.stat().st_mode & 0o777, (kept / "stdout").stat().st_mode & 0o777} == {0o700, 0o600}


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

"""What becomes of executions when control planes and keepers come and go."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipe_rig import PATIENCE, eventually, pipe_house
from process.real_keeper import alive
from supervisord_py.errors import InterruptedRunError
from supervisord_py.ledger import pipe_executions
from supervisord_py.pipes.execution import ErrorType, Status
from supervisord_py.pipes.room_requests import OutputStream
from supervisord_py.pipes.running.conclusion import Conclusion
from supervisord_py.pipes.running.stopping import Stopping
from supervisord_py.process import host

if TYPE_CHECKING:
    from pipe_rig import PipeRig


async def begun(rig: PipeRig, name: str) -> int:
    """Run a pipe, and wait until its process is there."""
    queued = await rig.room.run(name)
    await eventually(lambda: rig.running(queued.id), "the start")
    return queued.id


async def test_what_ended_while_nobody_was_there_is_judged_by_the_next_control_plane(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        folder = rig.shell("quick", "while [ ! -e gate ]; do sleep 0.01; done; echo done; exit 4", "retries: 0")
        number = await begun(rig, "quick")
        waiting = asyncio.ensure_future(rig.room.wait(number))
        await asyncio.sleep(0)
        await rig.room.detach()
        with pytest.raises(InterruptedRunError):
            await waiting
        (folder / "gate").touch()
        await eventually(lambda: any(it.exit for it in rig.placement.children()) or _exited(rig), "the exit")
        await rig.put_down()
        rig.time.pass_by(100)
        await rig.open()
        done = await rig.room.wait(number)
        assert (done.status, done.exit_code, done.stdout) == (Status.FAILED, 4, "done\n")
        assert (done.duration_ms or 0) < 100_000, "it ended when it ended, not when somebody looked"
        assert done.finished_at == pytest.approx((done.started_at or 0) + (done.duration_ms or 0) / 1000, abs=0.01)


def _exited(rig: PipeRig) -> bool:
    return all(not alive(it.identity.pid) for it in rig.placement.children())


async def test_a_row_that_runs_without_a_process_was_interrupted(short_tmp: Path) -> None:
    """B1, C6: failed, its words fixed, its folder marked, a survivor killed by its identity only."""
    async with pipe_house(short_tmp) as rig:
        folder = rig.shell("cut", "echo some; sleep 1000")
        number = await begun(rig, "cut")
        await eventually(lambda: rig.room._house.folder(number).joinpath("progress.json").exists(), "a note")
        other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        survivor = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        try:
            stranger = await _claim_by_hand(rig, other.pid, start_time=1)
            outlived = await _claim_by_hand(rig, survivor.pid, start_time=host.start_time(survivor.pid) or 0)
            await rig.room.detach()
            await _forget_child(rig)
            await rig.put_down()
            await rig.open()
            rows = {it.id: it for it in await rig.rows()}
            assert {(it.status, it.error_type) for it in rows.values()} == {(Status.FAILED, ErrorType.INTERRUPTED)}
            assert rows[number].error_message == "interrupted by system restart"
            assert rows[number].incomplete
            assert (folder / "output" / str(number) / "INCOMPLETE").exists()
            assert (await rig.room.execution(number, blobs=True)).stdout == "some\n"
            assert survivor.wait(PATIENCE) == -signal.SIGKILL
            assert other.poll() is None
            assert {stranger, outlived} <= set(rows)
            assert rig.room.get("cut").consecutive_failures == 0
        finally:
            for each in (other, survivor):
                each.kill()
                each.wait()


async def test_a_row_whose_reader_came_to_no_note_says_what_its_files_hold(short_tmp: Path) -> None:
    """Both were killed between the first bytes in the file and the first note of how far it was read."""
    async with pipe_house(short_tmp) as rig:
        rig.shell("cut", "echo some; sleep 1000")
        number = await begun(rig, "cut")
        files = rig.room._house.folder(number)
        await eventually(files.joinpath("progress.json").exists, "a note")
        await rig.room.detach()
        await _forget_child(rig)
        files.joinpath("progress.json").unlink()
        files.joinpath("stdout").write_text("some\nmore")
        await rig.put_down()
        await rig.open()
        found = await rig.room.execution(number, blobs=True)
        assert (found.error_type, found.stdout, found.stdout_bytes) == (ErrorType.INTERRUPTED, "some\nmore", 9)


async def test_what_a_run_printed_before_its_keeper_died_is_blotted_by_the_next_start(short_tmp: Path) -> None:
    """Nobody holds its keys any more: they are looked up again, in its `.env` and behind the preset's reference."""
    async with pipe_house(short_tmp) as rig:
        rig.config.presets_file.write_text('[presets.one]\nprovider = "acme"\napi_key = "$ACME_WORD"\n')
        folder = rig.shell("leak", "echo begun; until [ -e go ]; do sleep 0.01; done; cat go; touch done; sleep 1000",
                           "preset: one")  # fmt: skip
        (folder / ".env").write_text("SOME_API_KEY=sk-of-the-env\nACME_WORD=word-of-the-preset\n")
        number = await begun(rig, "leak")
        files = rig.room._house.folder(number)
        await eventually(lambda: files.joinpath("progress.json").exists(), "a note")
        await rig.room.detach()
        fresh = folder / "fresh"
        fresh.write_text("keys sk-of-the-env word-of-the-preset end\n")
        fresh.rename(folder / "go")
        await eventually((folder / "done").exists, "the print")
        await _forget_child(rig)
        await rig.put_down()
        log = rig.keeper.log_dir
        assert b"sk-of-the-env" in _logged(log)
        await rig.open()
        row = await rig.room.execution(number, blobs=True)
        assert (row.error_type, row.stdout) == (ErrorType.INTERRUPTED, "begun\nkeys [redacted] [redacted] end\n")
        assert (files / "stdout").read_text() == row.stdout
        assert _logged(log).endswith(b"begun\nkeys ************* ****************** end\n")


def _logged(log_dir: Path | str) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(Path(log_dir).glob("pipe/leak/*.log")))


async def _claim_by_hand(rig: PipeRig, pid: int, *, start_time: int) -> int:
    """Write a running row of a process that no keeper holds."""

    def build(number: int) -> pipe_executions.PipeExecutionRow:
        return pipe_executions.PipeExecutionRow(number, f"p{pid}", "queued", "manual", "manual", 1.0)

    row = (await pipe_executions.add(rig.ledger, build)).row
    await pipe_executions.mark_running(rig.ledger, row.id, pipe_executions.Running(2.0))
    facts = pipe_executions.Spawned(pid, start_time, host.boot_id(), 2.0)
    await pipe_executions.spawned(rig.ledger, row.id, facts)
    return row.id


async def _forget_child(rig: PipeRig) -> None:
    """Have the keeper lose what it holds, as one that was killed would."""
    for child in await rig.placement.list("pipe:"):
        await rig.placement.stop(child.key, grace_seconds=0, reason="stopped")
        await rig.placement.release(child.key)


async def test_a_refusal_is_counted_whenever_the_control_plane_ends(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it means for its pipe is of one piece with its row: nothing that comes later may be lost with us."""

    async def nothing(*_: object) -> None:
        return

    async with pipe_house(short_tmp) as rig:
        rig.shell("refused", "echo", "preset: absent")
        with monkeypatch.context() as dying:
            dying.setattr(Conclusion, "after_refusal", nothing)
            row = await rig.room.run("refused")
        assert row.error_type is ErrorType.PRESET_NOT_FOUND
        await rig.room.detach()
        await rig.put_down()
        await rig.open()
        assert rig.room.get("refused").consecutive_failures == 1
        await rig.room.wait((await rig.room.run("refused")).id)
        assert rig.room.get("refused").consecutive_failures == 2


async def test_what_follows_from_an_end_is_made_good_when_the_end_was_all_that_was_written(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between the final row and what follows: the retry and other pipes come all the same, once."""
    async with pipe_house(short_tmp) as rig:
        rig.shell("flaky", "echo 'HTTP 503: server_error' >&2; exit 1", "retries: {max: 1, delay: 1000}")
        with monkeypatch.context() as crash:
            crash.setattr(Conclusion, "after", _nothing)
            crash.setattr(Stopping, "release", _nothing)
            number = (await rig.room.run("flaky")).id
            async with asyncio.timeout(PATIENCE):
                while not (await rig.room._house.ledger.flush() and await _is_final(rig, number)):
                    await asyncio.sleep(0.005)
            await rig.room.detach()
        assert len(await rig.rows("flaky")) == 1
        for _ in range(2):
            await rig.put_down()
            await rig.open()
            await eventually(lambda: not rig.placement.children(), "the clearing away")
            assert [it.retry_of for it in await rig.rows("flaky")] == [None, number]
            assert (await rig.words("pipe:flaky")).count("execution_failed") == 1
            await rig.room.detach()
        await rig.put_down()
        await rig.open()


async def _nothing(*_: object, **__: object) -> None:
    """Be a control plane that was killed here."""


async def _is_final(rig: PipeRig, number: int) -> bool:
    row = await pipe_executions.get(rig.ledger, number, blobs=False)
    return row is not None and Status(row.status).is_final


async def test_output_of_a_redacted_run_stays_redacted_after_a_new_control_plane(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        script = 'printf %.4s "$API_KEY"; while [ ! -e gate ]; do sleep 0.01; done; echo "${API_KEY#????}"'
        folder = rig.shell("leaky", script)
        (folder / ".env").write_text("API_KEY=sk-very-secret-value\n")
        number = await begun(rig, "leaky")
        notes = rig.room._house.folder(number) / "progress.json"
        await eventually(notes.exists, "a note")
        await rig.replace()
        (folder / "gate").touch()
        done = await rig.room.wait(number)
        assert done.stdout == "[redacted]\n"
        assert (await rig.room.output(number, OutputStream.STDOUT)).data == b"[redacted]\n"

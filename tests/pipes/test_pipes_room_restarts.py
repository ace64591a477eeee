"""What becomes of executions when control planes and keepers come and go."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pipe_rig import PATIENCE, eventually, pipe_house
from process.real_keeper import alive
from supervisord_py.errors import InterruptedRunError
from supervisord_py.ledger import pipe_executions
from supervisord_py.ledger.pipe_executions import EXECUTIONS, ErrorType, Execution, Plan, Status
from supervisord_py.pipes.room import Pipes
from supervisord_py.process.keeper_client import KeeperClient

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


async def test_a_row_of_which_nothing_was_spawned_waits_in_line_again(short_tmp: Path) -> None:
    """The control plane died between the claim and the spawn: nothing of it has happened."""
    async with pipe_house(short_tmp) as rig:
        rig.shell("claimed", "echo fine")
        await rig.room.refresh()
        await rig.room.detach()
        number = rig.ledger.next_number("pipe_executions")
        row = Execution(id=number, pipe_name="claimed", status=Status.QUEUED, queued_at=1.0, plan=FINE, agent="command")
        await rig.ledger.write(pipe_executions.EXECUTIONS.insert(row))
        await rig.ledger.write(pipe_executions.mark_running(number, started_at=2.0, instance="gone.1"))
        await rig.put_down()
        await rig.open()
        done = await rig.room.wait(number)
        assert (done.status, done.stdout) == (Status.COMPLETED, "fine\n")
        assert (done.started_at or 0) > 2.0


async def test_what_a_run_printed_before_its_keeper_died_is_redacted_by_the_next_start(short_tmp: Path) -> None:
    """Nobody holds its keys any more: they are looked up again, in its `.env` and behind the preset's reference."""
    async with pipe_house(short_tmp) as rig:
        rig.config.presets_file.write_text('[presets.one]\nprovider = "acme"\napi_key = "$ACME_WORD"\n')
        folder = rig.shell("leak", "echo begun; until [ -e go ]; do sleep 0.01; done; cat go; touch done; sleep 1000",
                           "preset: one")  # fmt: skip
        (folder / ".env").write_text("SOME_API_KEY=sk-of-the-env\nACME_WORD=word-of-the-preset\n")
        number = await begun(rig, "leak")
        files = rig.room.folder(number)
        await rig.room.detach()
        fresh = folder / "fresh"
        fresh.write_text("keys sk-of-the-env word-of-the-preset end\n")
        fresh.rename(folder / "go")
        await eventually((folder / "done").exists, "the print")
        await _forget_child(rig)
        await rig.put_down()
        await rig.open()
        row = await rig.room.execution(number, blobs=True)
        assert (row.error_type, row.stdout) == (ErrorType.INTERRUPTED, "begun\nkeys [redacted] [redacted] end\n")
        assert {it.name: it.read_text() for it in files.iterdir()} == {"stdout": row.stdout, "stderr": ""}


FINE = Plan("command", ("/bin/echo", "fine"))


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
            dying.setattr(Pipes, "after", nothing)
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
            crash.setattr(Pipes, "after", _nothing)
            crash.setattr(KeeperClient, "release", _nothing)
            number = (await rig.room.run("flaky")).id
            async with asyncio.timeout(PATIENCE):
                while not (await rig.room.ledger.flush() and await _is_final(rig, number)):
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
    row = await EXECUTIONS.get(rig.ledger, number)
    return row is not None and row.status.is_final

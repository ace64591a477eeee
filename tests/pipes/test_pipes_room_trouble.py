"""What must not happen, however things go wrong: an open row, a slot that stays taken, a process that stays."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from pipe_rig import PATIENCE, eventually, pipe_house
from supervisord_py.ledger import pipe_executions
from supervisord_py.pipes.execution import ErrorType, Status
from supervisord_py.pipes.running import stopping
from supervisord_py.process.spec import StopReport, Survivor

if TYPE_CHECKING:
    from pathlib import Path


async def test_what_survives_a_stop_is_named_keeps_no_slot_and_is_stopped_again(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D3."""
    monkeypatch.setattr(stopping, "TRY_AGAIN_SECONDS", 0.02)
    async with pipe_house(short_tmp) as rig:
        rig.shell("undead", "sleep 1000")
        stop = rig.placement.stop
        tries: list[str] = []

        async def fails_twice(key: str, **how: Any) -> StopReport:
            tries.append(key)
            if len(tries) <= 2:
                return StopReport(key, (Survivor(rig.running(queued.id) or 1, "sleep", 1),))
            return await stop(key, **how)

        queued = await rig.room.run("undead")
        pid = await eventually(lambda: rig.running(queued.id), "the start")
        monkeypatch.setattr(rig.placement, "stop", fails_twice)
        done = await rig.room.cancel(queued.id)
        assert (done.status, f"survived the stop: pid {pid}" in (done.error_message or "")) == (Status.CANCELLED, True)
        assert rig.room.health().running == 0
        await eventually(lambda: not rig.placement.children(), "the third try")
        assert len(tries) == 3


async def test_a_second_daemon_that_runs_the_pipe_is_named_and_nothing_is_started(short_tmp: Path) -> None:
    """D6."""
    async with pipe_house(short_tmp) as rig:
        folder = rig.shell("shared", "touch started")

        def build(number: int) -> pipe_executions.PipeExecutionRow:
            return pipe_executions.PipeExecutionRow(number, "shared", "queued", "manual", "manual", 1.0)

        other = (await pipe_executions.add(rig.ledger, build)).row
        await pipe_executions.mark_running(rig.ledger, other.id, pipe_executions.Running(2.0))
        done = await rig.run("shared")
        assert (done.status, done.error_type, done.pid) == (Status.FAILED, ErrorType.UNKNOWN, None)
        assert str(other.id) in (done.error_message or "")
        assert not (folder / "started").exists()
        assert rig.room.health().running == 0


async def test_a_defect_of_ours_ends_the_run_and_frees_the_slot(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.shell("p", "echo x; sleep 1000", "retries: 0")

        def broken(_: object) -> None:
            raise RuntimeError("a defect")

        with monkeypatch.context() as patch:
            patch.setattr("supervisord_py.pipes.running.transcript.Transcript.step", broken)
            done = await rig.run("p")
        assert (done.status, done.error_type, done.error_message) == (
            Status.FAILED,
            ErrorType.UNKNOWN,
            "RuntimeError: a defect",
        )
        await eventually(lambda: not rig.placement.children(), "the end of the process")
        assert rig.room.health().running == 0
        with monkeypatch.context() as patch:
            patch.setattr("supervisord_py.pipes.running.starting.Starting._make_folder", broken)
            assert (await rig.run("p")).error_message is not None
        with monkeypatch.context() as patch:
            patch.setattr("supervisord_py.pipes.running.pipe_views.PipeViews.ended", broken)
            rig.shell("p", "echo fine")
            assert (await rig.run("p")).status is Status.COMPLETED
        assert rig.room.health().running == 0


async def test_an_agent_over_its_memory_limit_is_told_so(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        script = "python3 -c 'x = bytearray(200_000_000); import time; time.sleep(1000)'"
        rig.shell("fat", script, "limits: {memory: 60MB}\nretries: 0")
        done = await rig.run("fat")
        assert (done.status, done.error_type) == (Status.FAILED, ErrorType.RESOURCE_LIMIT)
        assert "memory" in (done.error_message or "")
        assert done.incomplete


async def test_folders_that_cannot_be_written_fail_the_run_and_name_the_path(short_tmp: Path) -> None:
    """F4. A file stands where a folder is to be: it fails for root as well."""
    async with pipe_house(short_tmp) as rig:
        folder = rig.shell("p", "echo", "retries: 0")
        (folder / "output").write_text("in the way")
        done = await rig.run("p")
        assert (done.status, done.error_type) == (Status.FAILED, ErrorType.CONFIG_ERROR)
        assert str(folder / "output") in (done.error_message or "")
        (folder / "output").unlink()
        leftover = rig.config.executions_dir / str(done.id + 1)
        leftover.mkdir()
        (leftover / "stdout").write_text("of an execution that was never recorded")
        again = await rig.run("p")
        assert (again.status, again.stdout) == (Status.COMPLETED, "\n")
        assert (rig.config.executions_dir / f"{again.id}.old0" / "stdout").exists()


async def test_groups_have_their_own_slots(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        for at in range(5):
            rig.shell(f"m{at}", "sleep 1000")
        queued = [await rig.room.run(f"m{at}") for at in range(5)]
        await eventually(lambda: all(rig.running(it.id) for it in queued[:4]), "four starts")
        assert rig.room.queue().groups[2].waiting[0].id == queued[4].id
        await rig.room.cancel(queued[0].id)
        await eventually(lambda: rig.running(queued[4].id), "the fifth")
        for it in queued[1:]:
            await rig.room.cancel(it.id)


async def test_many_runs_leave_no_descriptor_open_and_no_task_behind(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.fake("p", "answer:x")
        await rig.run("p")
        await eventually(lambda: not rig.placement.children(), "the release")
        before = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
        for _ in range(5):
            await rig.run("p")
        await eventually(lambda: not rig.placement.children(), "the release")
        await eventually(lambda: len(asyncio.all_tasks()) <= before[1], "the end of all tasks")
        # Threads that look at folders have some open, now and then.
        await eventually(lambda: len(os.listdir("/proc/self/fd")) <= before[0], "the close of all descriptors")


async def test_an_adopted_run_whose_terms_are_lost_is_judged_by_its_adapter(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        gate = short_tmp / "gate"
        rig.fake("p", f"waitfile:{gate}", "answer:well")
        queued = await rig.room.run("p")
        await eventually(lambda: rig.running(queued.id), "the start")
        await rig.ledger.call(lambda it: it.execute("UPDATE pipe_executions SET progress = NULL"))
        await rig.replace()
        gate.touch()
        done = await rig.room.wait(queued.id)
        assert (done.status, done.stdout) == (Status.COMPLETED, "well\n")


async def test_who_asks_and_goes_away_leaves_no_row_that_nobody_looks_after(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.shell("p", "echo")
        await rig.room.refresh()
        write = rig.ledger.write
        asking: asyncio.Future[Any]

        async def goes_away(operation: Any) -> Any:
            asking.cancel()
            return await write(operation)

        rig.ledger.write = goes_away  # type: ignore[method-assign]
        asking = asyncio.ensure_future(rig.room.run("p"))
        with pytest.raises(asyncio.CancelledError):
            await asking
        rig.ledger.write = write  # type: ignore[method-assign]
        async with asyncio.timeout(PATIENCE):
            while [it.status for it in await rig.rows("p")] != [Status.COMPLETED]:
                await asyncio.sleep(0.005)

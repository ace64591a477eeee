"""What must not happen, however things go wrong: an open row, a slot that stays taken, a process that stays."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import pytest

from pipe_rig import PATIENCE, eventually, pipe_house
from supervisord_py.ledger.pipe_executions import ErrorType, Status

if TYPE_CHECKING:
    from pathlib import Path


async def test_a_defect_of_ours_ends_the_run_and_frees_the_slot(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.shell("p", "echo x; sleep 1000", "retries: 0")

        def broken(*_: object) -> None:
            raise RuntimeError("a defect")

        with monkeypatch.context() as patch:
            patch.setattr("supervisord_py.pipes.run.Run._look", broken)
            patch.setattr("supervisord_py.pipes.run.LOOK_SECONDS", 0.02)
            done = await rig.run("p")
        assert (done.status, done.error_type, done.error_message) == (
            Status.FAILED,
            ErrorType.UNKNOWN,
            "RuntimeError: a defect",
        )
        await eventually(lambda: not rig.placement.children(), "the end of the process")
        assert rig.room.health().running == 0
        with monkeypatch.context() as patch:
            patch.setattr("supervisord_py.pipes.output.make_folder", broken)
            assert (await rig.run("p")).error_message is not None
        with monkeypatch.context() as patch:
            patch.setattr("supervisord_py.pipes.triggers.Triggers.ended", broken)
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


async def test_what_was_left_in_the_place_of_an_execution_is_put_aside(short_tmp: Path) -> None:
    async with pipe_house(short_tmp) as rig:
        rig.shell("p", "echo", "retries: 0")
        done = await rig.run("p")
        leftover = rig.config.executions_dir / str(done.id + 1)
        leftover.mkdir()
        (leftover / "stdout").write_text("of an execution that was never recorded")
        again = await rig.run("p")
        assert (again.status, again.stdout) == (Status.COMPLETED, "\n")
        assert (rig.config.executions_dir / f"{again.id}.old0" / "stdout").exists()


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

"""Small parts of running: what is read again, and what is given up."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

import pytest

from supervisord_py.pipes.execution import Execution, Group, Plan, Preset, Status, Trigger
from supervisord_py.pipes.outcome import Cause
from supervisord_py.pipes.running.agent_shelf import SETTLE_SECONDS, ReadAgain
from supervisord_py.pipes.running.live_run import LiveRun

if TYPE_CHECKING:
    from pathlib import Path


def live_run(number: int = 1, pipe: str = "p", status: Status = Status.QUEUED) -> LiveRun:
    return LiveRun(Execution(number, pipe, status, Trigger.MANUAL, Group.MANUAL, 0.0, Plan("command"), Preset()))


# -- what is read again ------------------------------------------------------------------------------------------------


def test_a_file_is_read_again_when_it_is_another_or_was_young(tmp_path: Path) -> None:
    file, wall, read = tmp_path / "file", [0.0], list[str]()

    def text(path: Path) -> str:
        read.append(path.read_text() if path.exists() else "none")
        return read[-1]

    again = ReadAgain(text, lambda: wall[0])
    assert [again.now(file), again.now(file), read] == ["none", "none", ["none"]]
    file.write_text("one")
    wall[0] = file.stat().st_ctime
    assert [again.now(file), again.now(file), read[1:]] == ["one", "one", ["one", "one"]], "young: once more, each time"
    wall[0] += SETTLE_SECONDS + 1
    assert [again.now(file), again.now(file), read[3:]] == ["one", "one", ["one"]]
    file.write_text("two!")
    os.utime(file, ns=(1, 1))
    assert again.now(file) == "two!", "whatever is done to the time of writing"
    assert again.now(tmp_path / "other") == "none"
    file.unlink()
    assert again.now(file) == "none"


# -- what is given up --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_late", [False, True])
async def test_what_is_attempted_is_given_up_when_it_turns(is_late: bool) -> None:
    live, begun, ended = live_run(), asyncio.Event(), list[str]()

    async def work() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleared away")
        return "done"

    if not is_late:
        live.end(Cause.CANCELLED)
    attempt = asyncio.ensure_future(live.attempt(work(), until=live.turn))
    await begun.wait()
    if is_late:
        live.end(Cause.CANCELLED)
    assert (await attempt).cancelled()
    assert ended == ["cleared away"], "its first step was taken, and it has ended when that is told"


async def test_what_is_attempted_until_it_is_let_go_is_not_given_up_by_a_wish_to_end() -> None:
    live, gate = live_run(), asyncio.Event()
    attempt = asyncio.ensure_future(live.attempt(gate.wait(), until=live.left))
    await asyncio.sleep(0)
    live.end(Cause.CANCELLED)
    gate.set()
    done = await attempt
    assert done.result() is True
    second = asyncio.ensure_future(live.attempt(asyncio.Event().wait(), until=live.left))
    await asyncio.sleep(0)
    live.let_go()
    assert (await second).cancelled()


async def test_who_is_cancelled_in_an_attempt_leaves_nothing_that_goes_on() -> None:
    live, begun, ended = live_run(), asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    attempt = asyncio.ensure_future(live.attempt(work(), until=live.turn))
    await begun.wait()
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert ended.is_set()

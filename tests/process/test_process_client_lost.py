"""The placement when the keeper is gone, mute or late: every call ends, every listener is told, no descriptor leaks."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from process.fake_keeper import DAEMON, FakeKeeper, child_message, exit_message
from supervisord_py.errors import KeeperLostError, StartFailedError
from supervisord_py.process.keeper_client import Timeouts
from supervisord_py.process.model import (
    ChildSpec,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from supervisord_py.process.keeper_client import KeeperClient

    Until = Callable[[Callable[[], object]], Awaitable[None]]
    Connect = Callable[..., Awaitable[KeeperClient]]


KEY = f"{DAEMON}.000000abcdef"


SPEC = ChildSpec(unit="tool:x", argv=("/bin/x", "--port", "1"), cwd="/tmp", env={"A": "1"})


async def test_the_end_of_the_keeper_ends_every_call_and_is_told_once(
    keeper: FakeKeeper, connect: Connect, until: Until
) -> None:
    keeper.verbs["spawn"] = lambda message, _f: {"child": child_message(message["key"])}
    keeper.verbs["stat"] = lambda _m, _f: None
    placement = await connect()
    await placement.spawn(KEY, SPEC)
    told: list[str] = []
    placement.on_lost(lambda: told.append("early"))
    pending = [asyncio.ensure_future(it) for it in (placement.wait(KEY), placement.stat([KEY]))]
    while "stat" not in keeper.verbs_asked():  # the keeper's thread has no event of this loop
        await asyncio.sleep(0.005)
    keeper.hang_up()
    for task in pending:
        with pytest.raises(KeeperLostError):
            await asyncio.wait_for(task, 60)
    assert placement.lost
    assert told == ["early"]
    with pytest.raises(KeeperLostError):
        await placement.ready()
    with pytest.raises(KeeperLostError):
        await placement.wait(KEY)


async def test_an_exit_that_was_told_before_the_loss_can_still_be_had(
    keeper: FakeKeeper, connect: Connect, until: Until
) -> None:
    placement = await connect()
    keeper.emit("exit", record=exit_message(KEY, code=4))
    keeper.hang_up()
    await until(lambda: placement.lost)
    assert (await placement.wait(KEY)).code == 4


async def test_closing_from_this_side_ends_calls_but_is_no_loss(keeper: FakeKeeper, connect: Connect) -> None:
    keeper.verbs["stat"] = lambda _m, _f: None
    keeper.verbs["spawn"] = lambda message, _f: {"child": child_message(message["key"])}
    placement = await connect()
    await placement.spawn(KEY, SPEC)
    told: list[int] = []
    placement.on_lost(lambda: told.append(1))
    pending = [asyncio.ensure_future(it) for it in (placement.wait(KEY), placement.stat([]))]
    while "stat" not in keeper.verbs_asked():  # the keeper's thread has no event of this loop
        await asyncio.sleep(0.005)
    placement.close()
    for task in pending:
        with pytest.raises(KeeperLostError, match="closed"):
            await asyncio.wait_for(task, 60)
    assert told == []


async def test_a_keeper_that_does_not_answer_is_a_lost_one(keeper: FakeKeeper, connect: Connect) -> None:
    keeper.verbs["stat"] = lambda _m, _f: None
    placement = await connect()
    placement._timeouts = Timeouts(call=0.05)  # only now: the greeting may take its time
    with pytest.raises(KeeperLostError, match="did not answer `stat`"):
        await placement.stat([KEY])


async def test_an_answer_that_comes_too_late_is_dropped_with_its_descriptor(
    keeper: FakeKeeper, connect: Connect, until: Until
) -> None:
    keeper.verbs["take_fd"] = lambda _m, _f: None
    placement = await connect()
    placement._timeouts = Timeouts(call=0.05)  # only now: the greeting may take its time
    with pytest.raises(KeeperLostError):
        await placement.take_fd("n")
    await until(lambda: "take_fd" in keeper.verbs_asked())  # we may have given up before the keeper's thread heard it
    read, write = os.pipe()
    keeper.send({"id": keeper.asked[-1]["id"], "ok": True, "fds": 1}, [write])
    keeper.send({"event": "gone", "key": "k", "fds": 1}, [write])
    keeper.send({"id": 999_999, "ok": True})
    os.close(write)
    seen: list[str] = []
    placement.on_gone(seen.append)
    await until(lambda: seen)
    assert os.read(read, 1) == b""  # every duplicate of the writing end is closed
    os.close(read)


async def test_who_gives_up_in_the_moment_of_the_answer_leaks_no_descriptor(
    keeper: FakeKeeper, connect: Connect
) -> None:
    read, write = os.pipe()
    keeper.verbs["take_fd"] = lambda _m, _f: None
    placement = await connect()
    task = asyncio.ensure_future(placement.take_fd("n"))
    while "take_fd" not in keeper.verbs_asked():  # the keeper's thread has no event of this loop
        await asyncio.sleep(0.005)
    keeper.send({"id": keeper.asked[-1]["id"], "ok": True, "fds": 1}, [write])
    os.close(write)
    placement._readable()  # the answer arrives, and before its asker runs again …
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert os.read(read, 1) == b""
    os.close(read)


@pytest.mark.parametrize("needed", [{"stdin_fd": 0}, {"stdout_fd": 1}])
async def test_what_an_older_keeper_cannot_do_is_refused_and_not_done_by_halves(
    keeper: FakeKeeper, connect: Connect, needed: dict[str, Any]
) -> None:
    keeper.verbs["spawn"] = lambda _m, _f: {"child": child_message(KEY)}
    placement = await connect()
    with pytest.raises(StartFailedError, match="older") as caught:
        await placement.spawn(KEY, msgspec.structs.replace(SPEC, **needed))
    assert caught.value.hint == "run `pxctl daemon restart --all` to replace both"
    assert "spawn" not in keeper.verbs_asked()
    await placement.spawn(KEY, SPEC)
    assert "stdio_fds" not in keeper.asked[-1]

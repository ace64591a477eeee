"""Variables that are gone: the first call after that is told, whichever control plane saw them go; and only then."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kernels.fake_backend import FakeBackend
from kernels.room_house import RoomHouse, eventually, room_house
from supervisord_py.kernels.session import SessionState, StartRequest
from supervisord_py.kernels.session_register import CUT_OFF, how_lost
from supervisord_py.ledger.kernels import Newest


@pytest.fixture
async def house(short_tmp: Path) -> AsyncIterator[RoomHouse]:
    """A room with real kernels."""
    async with room_house(short_tmp, stop_seconds=2.0) as made:
        yield made


def _gone(notices: tuple[str, ...]) -> bool:
    return any("variables are gone" in notice for notice in notices)


async def _crash(house: RoomHouse) -> None:
    """Kill the only kernel, and wait until it is back."""
    before = house.room.snapshot()[0].pid
    assert before is not None
    os.kill(before, signal.SIGKILL)

    def is_back() -> bool:
        view = house.room.snapshot()[0]
        return view.state is SessionState.IDLE and view.pid not in {None, before}

    await eventually(is_back)


async def test_a_kernel_that_came_back_and_changed_hands_still_tells_its_first_call(house: RoomHouse) -> None:
    await house.run("x = 1")
    await _crash(house)
    await house.replace()
    assert house.room.snapshot()[0].state is SessionState.IDLE, "taken over"
    notices = (await house.run("1")).notices
    assert "killed by SIGKILL" in notices[0]
    assert _gone(notices)
    await house.replace()
    assert not (await house.run("1")).notices, "told once"


async def test_a_kernel_that_only_changed_hands_tells_nothing_and_its_end_is_told(house: RoomHouse) -> None:
    await house.run("x = 1")
    await house.replace()
    await house.replace()
    await _crash(house)
    assert _gone((await house.run("1")).notices), "its cells were run under an earlier control plane"


async def test_a_kernel_whose_cells_were_swept_away_is_taken_over_as_idle(house: RoomHouse) -> None:
    await house.run("import time; time.sleep(0.3); x = 1")
    shutil.rmtree(house.config.cells_dir)
    await house.replace()
    assert house.room.snapshot()[0].state is SessionState.IDLE
    result = await house.run("x")
    assert (result.cells[0].text.strip(), result.notices) == ("1", ())


async def test_of_a_kernel_that_was_stopped_before_the_change_the_next_call_is_told(short_tmp: Path) -> None:
    backend = FakeBackend()
    async with room_house(short_tmp, backend.make, stop_seconds=0.5) as house:
        result = await house.run("ok")
        await house.room.stop(result.session_id)
        _, unused = await house.room.start(StartRequest("unused", cwd=str(house.cwd)))
        await house.room.stop(unused.id)
        await house.replace()
        told = await house.run("ok")
        assert "it was stopped on request; its variables are gone" in told.notices[-1]
        assert not (await house.run("ok", session="unused")).notices, "there were none"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("signal", "was killed by a signal; its variables are gone"),
        ("exit", "exited; its variables are gone"),
        ("evicted_ttl", "not used for its idle time; its variables are gone"),
        ("memory_limit", "over its memory limit; its variables are gone"),
        ("interrupted", CUT_OFF),
        ("a word of another version", CUT_OFF),
        (None, CUT_OFF),
    ],
)
def test_why_variables_are_gone_is_said_from_the_reason_alone(reason: str | None, words: str) -> None:
    assert words in how_lost(Newest("c", "k", reason), None)
    assert words in how_lost(Newest("c"), reason)


def test_a_record_that_is_there_says_it_exactly() -> None:
    assert "was killed by SIGSEGV" in how_lost(Newest("c", "k", "signal", None, 11), "stopped")
    assert "exited with code 3" in how_lost(Newest("c", "k", "exit", 3), None)

"""The room in trouble: a lost keeper, defects, a system that refuses, kernels that nobody can take over."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kernels.fake_backend import FakeBackend
from kernels.room_house import RoomHouse, room_house
from supervisord_py.errors import KeeperLostError, StartFailedError
from supervisord_py.kernels.cell import CellStarted, CellStatus
from supervisord_py.kernels.session import SessionState, StartRequest
from supervisord_py.ledger import kernels as kernel_rows
from supervisord_py.process.model import Reason


@pytest.fixture
async def house(short_tmp: Path, backend: FakeBackend) -> AsyncIterator[RoomHouse]:
    """A room whose kernels behave as told."""
    async with room_house(short_tmp, backend.make, stop_seconds=0.5) as made:
        yield made


async def test_when_the_keeper_is_lost_calls_end_and_so_does_the_room(short_tmp: Path) -> None:
    async with room_house(short_tmp) as house:
        started = asyncio.Event()

        def tell(event: object) -> None:
            if isinstance(event, CellStarted):
                started.set()

        call = asyncio.ensure_future(house.run("import time; time.sleep(600)", tell=tell))
        await asyncio.wait_for(started.wait(), 60)
        house.rig.keeper.process.kill()
        await asyncio.wait({call}, timeout=60)
        assert call.done()
        assert isinstance(call.exception(), KeeperLostError) or call.result().cells[0].status is CellStatus.ERROR
        await asyncio.wait_for(house.room.close(), 60)
        assert [each.event for each in await house.said()].count("starting") == 1, "nothing is brought back"


async def test_a_defect_of_a_backend_fails_the_start_and_nothing_else(house: RoomHouse, backend: FakeBackend) -> None:
    backend.fail_next.append(RuntimeError("a defect"))
    with pytest.raises(StartFailedError, match="a defect"):
        await house.run("ok")
    assert (await house.run("ok")).status is CellStatus.OK


@pytest.mark.parametrize(("number", "words"), [(errno.EMFILE, "file descriptors"), (errno.EACCES, "was not started")])
async def test_a_start_that_the_system_refuses_says_why(
    house: RoomHouse, backend: FakeBackend, number: int, words: str
) -> None:
    backend.fail_next.append(OSError(number, os.strerror(number)))
    with pytest.raises(StartFailedError, match=words) as refused:
        await house.run("ok")
    assert refused.value.extra["errno"] == number


async def test_a_start_without_room_for_descriptors_is_refused_before_it_begins(
    house: RoomHouse, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await house.run("ok", session="idle")
    monkeypatch.setattr("supervisord_py.process.host.descriptors_left", lambda: 3)
    with pytest.raises(StartFailedError, match="only 3 file descriptors"):
        await house.run("ok")
    assert len(backend.starts) == 1
    assert [reason for _, reason in backend.stopped if reason == "evicted_lru"] == ["evicted_lru"], "for the next one"


async def test_a_kernel_that_cannot_be_taken_over_is_stopped_and_recorded(short_tmp: Path) -> None:
    async with room_house(short_tmp) as house:
        result = await house.run("x = 1")
        pid = house.room.snapshot()[0].pid
        house.make_backend = FakeBackend().make
        await house.replace()
        row = await house.ended_row(str(result.instance))
        assert row.reason == "replaced"
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid or 0), 0)
        view = house.room.snapshot()[0]
        assert (view.state, view.pid) == (SessionState.STOPPED, None)
        assert view.reason in {Reason.REPLACED, Reason.INTERRUPTED}


async def test_a_child_with_a_note_of_another_version_is_stopped(short_tmp: Path) -> None:
    async with room_house(short_tmp) as house:
        result = await house.run("x = 1")
        await house.ledger.flush()  # its readiness is written down, and then noted: not behind our note
        await house.rig.placement.annotate(str(result.instance), '{"v": 99}')
        await house.replace()
        assert (await house.ended_row(str(result.instance))).reason == "replaced"
        assert (await house.run("1")).cold_start_ms is not None


async def test_a_session_that_was_alive_when_last_written_and_is_not_is_remembered_as_cut_off(
    house: RoomHouse, backend: FakeBackend
) -> None:
    session = (await house.run("ok")).session_id
    await house.replace()
    await house.ledger.flush()
    view = house.room.snapshot(session)[0]
    assert (view.state, view.reason) == (SessionState.STOPPED, Reason.INTERRUPTED)
    row = await kernel_rows.SESSIONS.get(house.ledger, session)
    assert row is not None
    assert (row.state, row.reason) == ("stopped", "interrupted")
    await house.replace()
    assert any("cut off with the daemon" in notice for notice in (await house.run("ok")).notices)
    assert backend.handle.ran == ["ok"]


# -- what can be asked without a kernel --------------------------------------------------------------------------------


async def test_the_room_says_what_it_would_take_and_what_it_offers_without_starting_anything(
    house: RoomHouse, backend: FakeBackend
) -> None:
    explained = await house.room.explain(StartRequest("any", cwd=str(house.cwd)))
    assert explained.document()["candidates"]
    offered = await house.room.capabilities(str(house.cwd))
    assert offered["bash"]["offered"]
    assert "python3" in await house.room.specs()
    assert backend.starts == []

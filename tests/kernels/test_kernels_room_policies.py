"""What the room does with calls and sessions, shown with kernels that behave as told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kernels.fake_backend import FakeBackend, no_descriptors
from kernels.passing_time import PATIENT
from kernels.room_house import RoomHouse, eventually, room_house
from supervisord_py.errors import (
    AmbiguousNameError,
    ConflictError,
    InterruptedRunError,
    InvalidInputError,
    StartFailedError,
    UnknownUnitError,
)
from supervisord_py.kernels.cell import (
    CellStatus,
)
from supervisord_py.kernels.session import Owner, SessionState, StartRequest
from supervisord_py.process.model import Reason

SWIFT = {"ladder_again_seconds": 0.02, "ladder_terminate_seconds": 0.04, "ladder_kill_seconds": 0.06}


@pytest.fixture
async def house(short_tmp: Path, backend: FakeBackend) -> AsyncIterator[RoomHouse]:
    """A room whose kernels behave as told."""
    async with room_house(short_tmp, backend.make, **PATIENT, stop_seconds=0.5) as made:
        yield made


def task(work: Any) -> asyncio.Task[Any]:
    return asyncio.ensure_future(work)


async def running(house: RoomHouse, backend: FakeBackend, *codes: str, **changes: Any) -> asyncio.Task[Any]:
    """Begin a call whose first cell holds, and return when it does."""
    backend.held.clear()
    call = task(house.run(*(codes or ("hold",)), **changes))
    await asyncio.wait_for(backend.held.wait(), 30)
    return call


# -- a call ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"cwd": "/nowhere/at/all"}, "/cwd"),
        ({"session": "no good"}, "/name"),
        ({"interpreter": "/nowhere/python"}, "/interpreter"),
    ],
)
async def test_what_cannot_be_is_refused_by_field_before_anything_starts(
    house: RoomHouse, backend: FakeBackend, changes: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        await house.run("ok", **changes)
    assert refused.value.extra["errors"][0]["pointer"] == pointer
    assert backend.starts == []


# -- cancelling --------------------------------------------------------------------------------------------------------


async def test_an_interrupt_meant_for_another_cell_touches_nothing(house: RoomHouse, backend: FakeBackend) -> None:
    call = await running(house, backend)
    view = house.room.snapshot()[0]
    report = await house.room.interrupt(view.id, cell="0" * 16)
    assert (report.running, report.steps) == (view.running, ())
    assert backend.handle.rungs == []
    assert (await house.room.interrupt(view.id, cell=view.running)).steps
    assert (await call).cells[0].status is CellStatus.CANCELLED
    assert (await house.room.interrupt(view.id, cell=view.running)).running is None
    assert backend.handle.rungs == ["interrupt"]


async def test_an_interrupt_without_a_cell_of_ours_reaches_what_others_run(
    house: RoomHouse, backend: FakeBackend
) -> None:
    result = await house.run("ok")
    report = await house.room.interrupt(result.session_id)
    assert report.running is None
    assert [step.action for step in report.steps] == ["sigint"]
    assert backend.handle.rungs == ["interrupt"]
    await house.room.stop(result.session_id)
    assert (await house.room.interrupt(result.session_id)).steps == ()


# -- the ends of kernels -----------------------------------------------------------------------------------------------


async def test_what_survives_a_stop_is_named_and_tried_again(
    house: RoomHouse, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisord_py.process.supervisor.TRY_AGAIN_SECONDS", 0.01)
    session = (await house.run("ok")).session_id
    backend.handle.survivors = (4711,)
    assert await house.room.stop(session) == (4711,)
    await eventually(lambda: house.room.snapshot(session)[0].state is SessionState.STOPPED)
    assert "survivors" in await house.words()


# -- the set of sessions -----------------------------------------------------------------------------------------------


async def test_a_kernel_at_work_for_somebody_else_is_not_evicted(short_tmp: Path, backend: FakeBackend) -> None:
    async with room_house(short_tmp, backend.make) as house:
        session = (await house.run("ok")).session_id
        backend.handle.foreign_busy, backend.handle.foreign_used_at = True, time.time()
        house.room.pool.look_at_foreign_use()
        house.reconfigure(idle_seconds=0.0)
        assert (await house.run("ok", session="other")).status is CellStatus.OK
        assert house.room.snapshot(session)[0].state in {SessionState.IDLE, SessionState.BUSY}
        backend.handles[0].foreign_busy = False
        house.room.pool.look_at_foreign_use()
        await eventually(lambda: house.room.snapshot(session)[0].state is SessionState.STOPPED)


async def test_sessions_are_found_by_id_name_folder_and_jupyter_id(house: RoomHouse) -> None:
    one = await house.run("ok")
    other = house.rig.folder / "elsewhere"
    other.mkdir()
    two = await house.run("ok", cwd=str(other))
    assert house.room.find(one.session_id).id == one.session_id
    assert house.room.find("default", str(other)).id == two.session_id
    assert house.room.find(house.room.find(two.session_id).key.jupyter_id).id == two.session_id
    with pytest.raises(AmbiguousNameError) as ambiguous:
        house.room.find("default")
    assert len(ambiguous.value.extra["candidates"]) == 2
    with pytest.raises(UnknownUnitError):
        house.room.find("nobody")
    by_id = await house.run("ok", session=one.session_id, cwd="/")
    assert by_id.session_id == one.session_id
    await house.run("ok", language="bash")
    assert house.room.find("default", str(house.cwd)).id == one.session_id, "a shell gives its name up to a Python"


async def test_a_start_says_whether_it_started_and_keeps_who_asked_for_it(
    house: RoomHouse, backend: FakeBackend
) -> None:
    request = StartRequest("made", cwd=str(house.cwd), owner=Owner.JUPYTER, env={"PX_TEST_EXTRA": "1", "MINE": "2"})
    started, view = await house.room.start(request)
    assert started
    assert (view.owner, view.state) == ("jupyter", SessionState.IDLE)
    assert backend.starts[0].env["MINE"] == "2"
    joined, again = await house.room.start(request)
    assert not joined
    assert again.instance == view.instance


async def test_a_crashed_kernel_of_a_front_end_is_left_to_its_restarter(house: RoomHouse, backend: FakeBackend) -> None:
    session = (await house.room.start(StartRequest("lab", cwd=str(house.cwd), owner=Owner.JUPYTER)))[1].id
    backend.handle.die(None, 11)
    await eventually(lambda: house.room.snapshot(session)[0].state is SessionState.STOPPED)
    assert house.room.snapshot(session)[0].reason is Reason.SIGNAL
    assert len(backend.starts) == 1
    assert "died" in await house.words()


# -- what is remembered ------------------------------------------------------------------------------------------------


# -- the end of the room -----------------------------------------------------------------------------------------------


async def test_a_control_plane_that_is_replaced_lets_calls_go_without_touching_kernels(
    short_tmp: Path, backend: FakeBackend
) -> None:
    async with room_house(short_tmp, backend.make) as house:
        call = await running(house, backend)
        waiting = task(house.run("ok"))
        await eventually(lambda: house.room.snapshot()[0].queued == 1)
        await house.room.detach()
        for each in (call, waiting):
            with pytest.raises(InterruptedRunError):
                await each
        assert backend.handle.rungs == []
        assert backend.stopped == []
        assert backend.handle.closed


def test_the_room_is_imported_without_zmq_jupyter_or_nbformat() -> None:
    """The control plane starts fast: heavy modules come with the first kernel."""
    code = (
        "import sys, supervisord_py.kernels.room\n"
        "heavy = 'zmq jupyter_client traitlets nbformat markdownify tornado'.split()\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_a_failed_start_is_told_to_everyone_who_waits_for_it(house: RoomHouse, backend: FakeBackend) -> None:
    backend.gate.clear()
    backend.fail_next.append(StartFailedError("no luck", reason="early_exit"))
    calls = [task(house.run("ok")) for _ in range(3)]
    await eventually(lambda: backend.starts and house.room.snapshot()[0].queued == 3)
    backend.gate.set()
    for call in calls:
        with pytest.raises(StartFailedError, match="no luck"):
            await call
    assert (await house.run("ok")).status is CellStatus.OK, "a failure is never sticky"


async def test_want_of_descriptors_costs_one_idle_session_for_the_next_start(
    house: RoomHouse, backend: FakeBackend
) -> None:
    idle = (await house.run("ok", session="idle")).session_id
    call = await running(house, backend, "hold", session="busy")
    backend.fail_next.append(no_descriptors())
    with pytest.raises(StartFailedError, match="no descriptors"):
        await house.run("ok", session="new")
    assert (idle, "evicted_lru") in backend.stopped
    assert (await house.run("ok", session="new")).status is CellStatus.OK
    backend.handles[1].release()
    assert (await call).status is CellStatus.OK


async def test_kinds_of_cells_that_are_turned_off_are_refused(house: RoomHouse) -> None:
    house.reconfigure(expose="bash")
    with pytest.raises(ConflictError, match="Python cells are turned off"):
        await house.run("ok")
    house.reconfigure(expose="python")
    with pytest.raises(ConflictError, match="Bash cells are turned off"):
        await house.run("ok", language="bash")

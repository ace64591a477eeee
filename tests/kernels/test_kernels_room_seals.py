"""Cells whose kernel cannot say any more that they ended: their files say it all the same; pagers come to an end."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kernels.cell_folder import log_of, writer_of
from kernels.fake_backend import FakeBackend
from kernels.passing_time import PassingTime
from kernels.room_house import RoomHouse, eventually, room_house
from supervisord_py.errors import TimedOutError
from supervisord_py.kernels.cell import CellError, CellStatus

ERROR = {"name": "KernelDied", "value": "gone", "traceback": []}


@pytest.fixture
async def house(short_tmp: Path, backend: FakeBackend) -> AsyncIterator[RoomHouse]:
    """A room whose kernels behave as told."""
    ladder = {"ladder_again_seconds": 0.1, "ladder_terminate_seconds": 0.2, "ladder_kill_seconds": 0.3}
    async with room_house(short_tmp, backend.make, stop_seconds=0.5, **ladder) as made:
        yield made


@pytest.mark.parametrize(("code", "status"), [("die", CellStatus.ERROR), ("deaf", CellStatus.TIMED_OUT)])
async def test_the_output_of_a_cell_is_complete_when_it_is_answered_though_its_kernel_died(
    house: RoomHouse, backend: FakeBackend, passing: PassingTime, code: str, status: CellStatus
) -> None:
    call = asyncio.ensure_future(house.run(code))
    if code == "deaf":
        await backend.held.wait()
        await passing.over(house)
    result = await call
    (cell,) = result.cells
    assert cell.status is status
    log = house.room.cell_store.log(result.session_id, cell.id)
    assert log.page(0).complete
    end = log.ended()
    assert end is not None
    assert end.error == cell.error


async def test_a_cell_that_was_given_up_is_complete_once_its_kernel_is_over(
    house: RoomHouse, backend: FakeBackend, passing: PassingTime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisord_py.kernels.execution.END_SECONDS", 0.1)
    monkeypatch.setattr("supervisord_py.process.supervisor.TRY_AGAIN_SECONDS", 600.0)
    call = asyncio.ensure_future(house.run("immortal"))
    await backend.held.wait()
    backend.handle.survivors = (4711,)
    await passing.over(house)
    result = await call
    log = house.room.cell_store.log(result.session_id, result.cells[0].id)
    assert not log.page(0).complete, "its kernel is still there"
    await passing.over(house, 600.0)
    await eventually(lambda: log.page(0).complete)


async def test_files_that_are_gone_stay_gone(house: RoomHouse, backend: FakeBackend) -> None:
    call = asyncio.ensure_future(house.run("hold"))
    await backend.held.wait()
    shutil.rmtree(house.config.cells_dir)
    backend.handle.die(None, 11)
    assert (await call).cells[0].status is CellStatus.ERROR
    assert not list(house.config.cells_dir.rglob("*.jsonl"))


def test_an_end_is_written_once_after_the_last_whole_line(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.write("stdout", b"before")
    writer.close()
    log = log_of(tmp_path)
    with log.records_path.open("ab") as file:
        file.write(b'{"kind":"result","data":{"text/plain":"' + b"x" * 100_000)
    log.seal(ERROR, 5.0)
    log.seal(None, 6.0)
    end = log.ended()
    assert end is not None
    assert (end.status, end.duration, end.error) == (CellStatus.ERROR, 5.0, CellError("KernelDied", "gone"))
    assert log.page(0).complete
    log_of(tmp_path, "none").seal(None, 1.0)
    assert not log_of(tmp_path, "none").exists(), "where nothing is kept nothing is written"


async def test_a_start_that_nobody_waits_for_any_more_goes_on_and_serves_the_next_call(
    house: RoomHouse, backend: FakeBackend, passing: PassingTime
) -> None:
    backend.gate.clear()
    call = asyncio.ensure_future(house.run("ok"))
    await eventually(lambda: backend.starts, "the start")
    await passing.over(house)
    with pytest.raises(TimedOutError, match="still starting"):
        await call
    backend.gate.set()
    result = await house.run("ok")
    assert (result.status, len(backend.starts)) == (CellStatus.OK, 1)
    assert not result.notices, "no variables were lost"

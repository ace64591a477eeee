"""The row of a cell is there before the cell is sent, and holds no cell up: a death at that moment loses nothing."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from kernels.fake_backend import FakeBackend
from kernels.passing_time import PATIENT
from kernels.room_house import RoomHouse, eventually, room_house
from supervisord_py.kernels import cell_store
from supervisord_py.kernels.backend import ExecuteRequest, Reply
from supervisord_py.kernels.cell import CellStatus


@pytest.fixture
async def house(short_tmp: Path, backend: FakeBackend) -> AsyncIterator[RoomHouse]:
    """A room whose kernels behave as told."""
    async with room_house(short_tmp, backend.make, **PATIENT) as made:
        yield made


@pytest.fixture
def slow_disk(house: RoomHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have cells wait for their rows also where the disk is slow, as those of other processes make it."""
    monkeypatch.setattr(cell_store, "ROW_SECONDS", 60.0)
    monkeypatch.setattr(house.ledger, "_limits", replace(house.ledger._limits, stall_seconds=60.0))


@pytest.mark.usefixtures("slow_disk")
async def test_the_row_is_on_disk_when_the_cell_is_sent(house: RoomHouse, backend: FakeBackend) -> None:
    """Another process would find it: a control plane that dies right after the sending leaves a cell that is known."""
    await house.run("ok")
    found: list[list[Any]] = []
    execute, disk = backend.handle.execute, sqlite3.connect(house.ledger.path)

    async def looking(request: ExecuteRequest, *, is_sent: bool = False) -> Reply:
        found.append(disk.execute("SELECT status FROM kernel_cells WHERE id = ?", (request.cell_id,)).fetchall())
        return await execute(request, is_sent=is_sent)

    backend.handle.execute = looking  # type: ignore[method-assign]
    for _ in range(3):
        await house.run("ok")
    disk.close()
    assert found == [[("running",)]] * 3


async def test_who_asks_after_an_answer_sees_its_cell_ended(house: RoomHouse, backend: FakeBackend) -> None:
    """The row is closed behind the answer's back; a disk that is busy does not make it look as if the cell ran on."""
    await house.run("ok")
    go, execute = threading.Event(), backend.handle.execute

    async def busy(request: ExecuteRequest, *, is_sent: bool = False) -> Reply:
        writing.append(asyncio.ensure_future(house.ledger.write(lambda _: go.wait(60))))
        return await execute(request, is_sent=is_sent)

    writing: list[asyncio.Future[Any]] = []
    backend.handle.execute = busy  # type: ignore[method-assign]
    result = await house.run("ok")
    asking = asyncio.ensure_future(house.room.cells(result.session_id))
    await asyncio.wait({asking}, timeout=0.2)
    go.set()
    assert [row.status for row in await asking] == ["ok", "ok"]
    await asyncio.gather(*writing)


@pytest.mark.parametrize(("problem", "told"), [("stalls", "cell_row_late"), ("refuses", "cell_row_not_written")])
async def test_a_row_that_cannot_be_written_holds_no_cell_up(
    house: RoomHouse, monkeypatch: pytest.MonkeyPatch, problem: str, told: str
) -> None:
    async def write(*_: object) -> None:
        if problem == "stalls":
            await asyncio.get_running_loop().create_future()
        "\ud800".encode()

    monkeypatch.setattr(cell_store, "ROW_SECONDS", 0.01)
    monkeypatch.setattr(house.ledger, "write", write)
    with capture_logs() as logs:
        result = await house.run("ok")
    assert result.cells[0].status is CellStatus.OK
    assert told in [it["event"] for it in logs]


async def test_a_cancel_while_the_row_is_written_ends_the_cell(
    house: RoomHouse, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not lost between two chairs: the cell is sent, and the ladder climbed at once."""
    await house.run("ok")
    waiting, go = asyncio.Event(), asyncio.Event()

    async def write(*_: object) -> None:
        waiting.set()
        await go.wait()

    monkeypatch.setattr(house.ledger, "write", write)
    running = asyncio.ensure_future(house.run("hold"))
    await waiting.wait()
    session = house.room.register.known(house.room.find("default").id)
    assert session.kernel is not None
    run = session.kernel.run
    assert run is not None
    cancelling = asyncio.ensure_future(house.room.interrupt(session.id))
    await eventually(lambda: run._cut_as is not None, "the cancel")
    go.set()
    (cell,) = (await running).cells
    await cancelling
    assert cell.status is CellStatus.CANCELLED
    assert backend.handle.rungs == ["interrupt"]

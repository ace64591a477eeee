"""Files and folders that are taken away behind our back: what is lost is told, and the next cell is kept again."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kernels.fake_backend import FakeBackend
from kernels.room_house import RoomHouse, room_house
from supervisord_py.kernels.cell import CellResult, CellStatus
from supervisord_py.kernels.kernel_driver import folder_of_cells


@pytest.fixture
async def house(short_tmp: Path, backend: FakeBackend) -> AsyncIterator[RoomHouse]:
    """A room whose kernels behave as told."""
    async with room_house(short_tmp, backend.make, stop_seconds=0.5) as made:
        yield made


async def _cell(house: RoomHouse, code: str, session: str = "default") -> CellResult:
    return (await house.run(code, session=session)).cells[0]


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_without_the_folder_of_all_cells_the_next_cell_of_every_session_is_kept(house: RoomHouse) -> None:
    cells = house.config.cells_dir
    for session in ("one", "other"):
        await _cell(house, "ok", session)
    shutil.rmtree(cells)
    for session in ("one", "other"):
        kept = await _cell(house, "say hello", session)
        assert (kept.text, kept.lossy, kept.notices) == ("hello", False, ())
    assert _mode(cells) == 0o700


async def test_a_cell_whose_files_go_while_it_runs_says_that_output_is_lost(
    house: RoomHouse, backend: FakeBackend
) -> None:
    call = asyncio.ensure_future(house.run("hold"))
    await backend.held.wait()
    shutil.rmtree(house.config.cells_dir)
    backend.handle.release()
    cell = (await call).cells[0]
    assert (cell.status, cell.lossy) == (CellStatus.ERROR, True)
    assert "Output of this cell is lost" in cell.notices[0]
    assert (await _cell(house, "say hello")).text == "hello"


async def test_where_no_folder_can_be_made_the_cell_runs_and_says_that_nothing_is_kept(house: RoomHouse) -> None:
    cells = house.config.cells_dir
    await _cell(house, "ok")
    shutil.rmtree(cells)
    cells.write_text("in the way")
    cell = await _cell(house, "say hello")
    assert (cell.status, cell.lossy) == (CellStatus.ERROR, True)
    assert str(cells) in cell.notices[0]


def test_a_folder_is_private_with_all_that_is_made_above_it_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0o277)
    try:
        folder = folder_of_cells(tmp_path / "state" / "cells", "a-1")
    finally:
        os.umask(before)
    assert [_mode(it) for it in (folder, folder.parent, folder.parent.parent)] == [0o700] * 3
    assert folder_of_cells(tmp_path / "state" / "cells", "a-1") == folder

"""Which cells' files go, and their going."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kernels.cell_folder import finish, log_of, writer_of
from supervisord_py.kernels.config import CellLimits
from supervisord_py.kernels.retention import DAY_SECONDS, FORGOTTEN_SECONDS, KeptCell, doomed, sweep

NOW = 2_000_000_000.0
LIMITS = CellLimits(session_bytes=100, total_bytes=150, keep_days=7.0)
USUAL = CellLimits()
CELLS = st.builds(
    KeptCell,
    session_id=st.sampled_from(["a", "b", "c"]),
    cell_id=st.uuids().map(str),
    size=st.integers(0, 90),
    changed_at=st.floats(NOW - 10 * DAY_SECONDS, NOW),
    running=st.booleans(),
)


@given(st.lists(CELLS, max_size=12), st.integers(0, 300), st.integers(0, 300))
def test_what_stays_is_within_the_quotas_and_nothing_went_without_need(
    cells: list[KeptCell], session_bytes: int, total_bytes: int
) -> None:
    limits = replace(LIMITS, session_bytes=session_bytes, total_bytes=total_bytes)
    going = doomed(cells, limits, NOW)
    stay = [cell for cell in cells if cell not in going]
    assert not any(cell.running for cell in going)
    assert all(cell.running or NOW - cell.changed_at <= 7 * DAY_SECONDS for cell in stay)
    assert sum(cell.size for cell in stay) <= total_bytes or all(cell.running or not cell.size for cell in stay)
    for session in "abc":
        mine = [cell for cell in stay if cell.session_id == session]
        assert sum(cell.size for cell in mine) <= session_bytes or all(cell.running or not cell.size for cell in mine)
    for cell in going:  # too old, or one of the quotas would be exceeded if it and what is younger had stayed
        if NOW - cell.changed_at > 7 * DAY_SECONDS:
            continue
        assert cell.size > 0
        younger = [other for other in cells if other.running or age_of(other) >= age_of(cell)]
        of_session = sum(other.size for other in younger if other.session_id == cell.session_id)
        assert of_session > session_bytes or sum(other.size for other in younger) > total_bytes
    assert list(going) == sorted(going, key=age_of)


def age_of(cell: KeptCell) -> tuple[float, str, str]:
    return (cell.changed_at, cell.session_id, cell.cell_id)


def cell(cells_dir: Path, session: str, cell_id: str, size: int, age: float) -> None:
    writer = writer_of(cells_dir / session, cell_id)
    writer.write("stdout", b"x" * size)
    finish(writer)
    (cells_dir / session / f"{cell_id}.0.png").write_bytes(b"png")
    for path in (cells_dir / session).glob(f"{cell_id}.*"):
        os.utime(path, (NOW - age, NOW - age))
    os.utime(cells_dir / session, (NOW - age, NOW - age))


async def swept(cells_dir: Path, limits: CellLimits = USUAL) -> int:
    return await sweep(cells_dir, limits, now=NOW, running=lambda: (), known=("s", "t"))


def left(cells_dir: Path) -> set[str]:
    return {f"{path.parent.name}/{path.name.partition('.')[0]}" for path in cells_dir.glob("*/*")}


async def test_old_cells_go_with_all_their_files_and_running_ones_stay(tmp_path: Path) -> None:
    for name in ("old", "runs", "begins"):
        cell(tmp_path, "s", name, 10, age=8 * DAY_SECONDS)
    cell(tmp_path, "s", "young", 10, age=1)
    answers = iter([[("s", "runs")], [("s", "runs"), ("s", "begins")]])  # one that starts during the sweep is spared
    assert await sweep(tmp_path, USUAL, now=NOW, running=lambda: next(answers), known={"s"}) == 2
    assert left(tmp_path) == {"s/runs", "s/begins", "s/young"}
    assert len(list((tmp_path / "s").iterdir())) == 9


async def test_quotas_count_what_the_disk_gives(tmp_path: Path) -> None:
    for age in (3, 2, 1):
        cell(tmp_path, "s", f"c{age}", 100_000, age=age)
    cell(tmp_path, "t", "other", 100_000, age=4)
    assert (await swept(tmp_path, CellLimits(session_bytes=250_000))) == 1
    assert left(tmp_path) == {"s/c2", "s/c1", "t/other"}
    assert (await swept(tmp_path, CellLimits(total_bytes=250_000))) == 1
    assert left(tmp_path) == {"s/c2", "s/c1"}


async def test_folders_of_forgotten_sessions_go_when_nothing_touches_them_any_more(tmp_path: Path) -> None:
    cell(tmp_path, "forgotten", "c", 10, age=FORGOTTEN_SECONDS + 1)
    cell(tmp_path, "fresh", "c", 10, age=1)
    cell(tmp_path, "s", "c", 10, age=FORGOTTEN_SECONDS + 1)
    (tmp_path / "a file").write_text("of somebody else")
    assert await swept(tmp_path) == 0
    assert left(tmp_path) == {"fresh/c", "s/c"}
    assert (tmp_path / "a file").exists()


async def test_the_record_goes_first_so_that_a_cut_off_sweep_leaves_no_half_truth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell(tmp_path, "s", "old", 10, age=8 * DAY_SECONDS)
    removed: list[str] = []
    unlink = type(tmp_path).unlink

    def once(path: Path, missing_ok: bool = False) -> None:
        if removed:
            raise PermissionError(1, "no")
        removed.append(path.suffix)
        unlink(path, missing_ok)

    monkeypatch.setattr(type(tmp_path), "unlink", once)
    await swept(tmp_path)
    assert removed == [".jsonl"]
    assert not log_of(tmp_path / "s", "old").exists()
    monkeypatch.undo()
    await swept(tmp_path)
    assert left(tmp_path) == set()


async def test_what_outgrows_its_cap_after_the_end_is_cut_back(tmp_path: Path) -> None:
    cell(tmp_path, "s", "c", 10_000, age=1)
    await swept(tmp_path, CellLimits(cell_bytes=4000))
    assert log_of(tmp_path / "s", "c").page(0, 99_999).data == b"x" * 4000

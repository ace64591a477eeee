"""Cells that nobody followed to their end: their rows say what became of them, not merely that nobody looked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kernels.cell_folder import config_in, finish, log_of, writer_of
from supervisord_py.kernels.cell_store import CellStore
from supervisord_py.ledger import instances
from supervisord_py.ledger import kernels as kernel_rows
from supervisord_py.ledger.instances import INSTANCES, InstanceRow
from supervisord_py.ledger.kernels import KernelCellRow, KernelSessionRow
from supervisord_py.ledger.store import Ledger
from supervisord_py.process.instance import End
from supervisord_py.process.model import Reason


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    made = await Ledger.open(tmp_path / "pxd.db")
    yield made
    await made.close()


async def test_every_open_row_that_nobody_follows_is_closed_by_what_is_known(tmp_path: Path, ledger: Ledger) -> None:
    await ledger.write(INSTANCES.insert(InstanceRow("k1", "kernel:s-1", 50.0)))
    await ledger.write(instances.ended("k1", 104.0, "signal", signal=11))
    await ledger.write(INSTANCES.insert(InstanceRow("k2", "kernel:s-1", 50.0)))
    kernel_rows.remember(ledger, KernelSessionRow("sh-1", "sh", "/", "bash", "bash", "bash", "session", 1.0, "busy"))

    async def sent(cell: str, instance: str | None, session: str = "s-1") -> None:
        row = KernelCellRow(cell, session, "call", 0, "1", "running", 90.0, 100.0, instance)
        await ledger.write(kernel_rows.CELLS.insert(row))
        writer = writer_of(tmp_path / session, cell)
        writer.write("stdout", b"12345")
        writer.close()

    await sent("told", "k1")
    finish(writer_of(tmp_path / "s-1", "told"), count=4)
    await sent("left", "k1")
    writer_of(tmp_path / "s-1", "left").end("error", execution_count=5, duration=1.0, ask_exit=True)
    await sent("sealed", "k1")
    log_of(tmp_path / "s-1", "sealed").seal({"name": "E", "value": "no", "traceback": ["line"]}, 103.0)
    await sent("followed", "k1")
    await sent("recorded", "k1")
    await sent("found", "k2")
    await sent("unknown", None)
    await sent("living", "k2")
    await sent("shell", "life", "sh-1")
    (tmp_path / "s-1/living.jsonl").unlink()
    await ledger.flush()
    found: dict[str, Any] = {"k2": End(Reason.REPLACED)}
    config = replace(config_in(tmp_path), cells_dir=tmp_path)
    await CellStore(ledger, lambda: config).close_cut_off({"followed"}, found)
    await ledger.flush()
    rows = {row.id: row for row in await kernel_rows.of_session(ledger, "s-1")}
    assert {cell: (row.status, row.variables) for cell, row in rows.items()} == {
        "told": ("ok", "kept"),
        "left": ("error", "lost"),
        "sealed": ("error", "lost"),
        "followed": ("running", None),
        "recorded": ("error", "lost"),
        "found": ("cancelled", "lost"),
        "unknown": ("error", "lost"),
        "living": ("aborted", "lost"),
    }
    told, recorded = rows["told"], rows["recorded"]
    assert (told.execution_count, told.total_bytes, told.duration_seconds) == (4, 5, 0.5)
    assert rows["sealed"].error == {"name": "E", "value": "no", "traceback": ["line"]}
    assert "SIGSEGV" in (recorded.error or {})["value"]
    assert (recorded.ended_at, recorded.duration_seconds, recorded.total_bytes) == (104.0, 4.0, 5)
    assert (rows["living"].error, rows["living"].duration_seconds) == (None, None)
    (shell,) = await kernel_rows.of_session(ledger, "sh-1")
    assert (shell.status, shell.variables) == ("error", "lost")
    assert "variables" not in (shell.error or {})["value"]

"""Cells as a kernel leaves them, written by the writer that kernels use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.kernels.cell_files import CellLog
from supervisord_py.kernels.inside.cell_writer import CellWriter

if TYPE_CHECKING:
    from pathlib import Path

CELL = "c0ffee0000000001"
CAP = 1 << 32


def writer_of(folder: Path, cell_id: str = CELL, cap: int = CAP) -> CellWriter:
    """Return the writer of a cell that has begun."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = CellWriter(str(folder), cell_id, cap)
    writer.begin("code", 7)
    return writer


def log_of(folder: Path, cell_id: str = CELL) -> CellLog:
    """Return its reader."""
    return CellLog(folder, cell_id)


def finish(writer: CellWriter, status: str = "ok", count: int = 1) -> None:
    """End the cell."""
    writer.end(status, execution_count=count, duration=0.5)

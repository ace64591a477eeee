"""Cells as a kernel leaves them, written by the writer that kernels use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from supervisord_py.kernels.cell_files import CellLog
from supervisord_py.kernels.config import KernelsConfig
from supervisord_py.kernels.inside.cell_writer import CellWriter

CELL = "c0ffee0000000001"
CAP = 1 << 32


def config_in(folder: Path, **changes: Any) -> KernelsConfig:
    places = {
        name: folder / name.removesuffix("_dir")
        for name in ("run_dir", "cells_dir", "data_dir", "modules_dir")
    }
    return KernelsConfig(**places, gateway_dir=folder / "gateway", **changes)


class Writer(CellWriter):
    def display(
        self,
        data: Any,
        metadata: Any = None,
        display_id: str | None = None,
        *,
        update: bool = False,
    ) -> None:
        kind = "update_display_data" if update else "display_data"
        self.message(
            kind, {"data": data, "metadata": metadata, "transient": {"display_id": display_id}}
        )

    def clear(self, wait: bool) -> None:
        self.message("clear_output", {"wait": wait})

    def error(self, name: str, value: str, traceback: list[str]) -> None:
        self.message("error", {"ename": name, "evalue": value, "traceback": traceback})


def writer_of(folder: Path, cell_id: str = CELL, cap: int = CAP) -> Writer:
    folder.mkdir(parents=True, exist_ok=True)
    writer = Writer(str(folder), cell_id, cap)
    writer.begin("code")
    return writer


def log_of(folder: Path, cell_id: str = CELL) -> CellLog:
    return CellLog(folder, cell_id)


def finish(writer: CellWriter, status: str = "ok", count: int = 1) -> None:
    writer.end(status, execution_count=count, duration=0.5)


def out_of(folder: Path, cell_id: str) -> bytes:
    path = folder / f"{cell_id}.out"
    return path.read_bytes() if path.exists() else b""


def records_of(folder: Path, cell_id: str, kind: str | None = None) -> list[dict[str, Any]]:
    path = folder / f"{cell_id}.jsonl"
    # the last one may just be written
    whole = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [found for line in whole if kind in (None, (found := json.loads(line))["kind"])]

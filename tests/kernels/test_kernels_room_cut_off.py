"""Cells that nobody followed to their end: their rows say what became of them, not merely that nobody looked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from kernels.cell_folder import writer_of
from supervisord_py.kernels.cell import CellError, CellStatus
from supervisord_py.kernels.cell_files import Record
from supervisord_py.kernels.cell_store import CellStore, Seen, closing
from supervisord_py.kernels.config import GatewayConfig, KernelsConfig
from supervisord_py.ledger import instances
from supervisord_py.ledger import kernels as kernel_rows
from supervisord_py.ledger.instances import INSTANCES, InstanceRow
from supervisord_py.ledger.kernels import KernelCellRow, KernelSessionRow
from supervisord_py.ledger.store import Ledger
from supervisord_py.process.instance import End
from supervisord_py.process.model import ExitRecord, Identity, Reason

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

ROW = KernelCellRow("c0", "s-1", "call", 0, "1+1", "running", 90.0, 100.0, instance="k1")
END = Record("end", 5, t=103.0, status=CellStatus.OK, execution_count=4, duration=2.5)
RECORD = ExitRecord("k1", "kernel:s-1", Identity(7, 1, "b"), 50.0, 104.0, None, 11, 0.0, 0.0, 0, 0, 0)
CRASH = End(Reason.SIGNAL, RECORD)


def closed(seen: Seen, end: End | None, *, is_shell: bool = False) -> kernel_rows.CellEnd:
    return closing(ROW, seen, end, is_shell=is_shell, now=200.0)


def test_a_cell_whose_files_tell_its_end_ended_as_they_say_whatever_became_of_its_kernel() -> None:
    found = closed(Seen(has_begun=True, end=END, size=5), CRASH)
    assert (found.status, found.variables, found.execution_count, found.total_bytes) == ("ok", "kept", 4, 5)
    assert (found.ended_at, found.duration_seconds) == (103.0, 2.5)
    error = CellError("ValueError", "no", ("line",))
    left = replace(END, duration=None, ask_exit=True, error=error)
    found = closed(Seen(has_begun=True, end=left), None)
    assert (found.duration_seconds, found.variables) == (3.0, "lost")
    assert found.error == {"name": "ValueError", "value": "no", "traceback": ["line"]}
    sealed = replace(END, status=CellStatus.ERROR, execution_count=None, error=error)
    assert closed(Seen(has_begun=True, end=sealed), None).variables == "lost", "its end was written for a dead kernel"


def test_a_cell_that_never_began_was_not_run() -> None:
    found = closed(Seen(), CRASH)
    assert (found.status, found.variables, found.error, found.duration_seconds) == ("aborted", "lost", None, None)
    assert closed(Seen(), None, is_shell=True).variables == "lost"


@pytest.mark.parametrize(
    ("end", "status", "name", "words", "ended_at"),
    [
        (CRASH, "error", "KernelDied", "SIGSEGV", 104.0),
        (End(Reason.MEMORY_LIMIT, RECORD), "error", "ResourceLimitExceeded", "memory limit", 104.0),
        (End(Reason.INTERRUPTED), "error", "KernelDied", "the daemon was cut off", 200.0),
        (End(Reason.STOPPED), "cancelled", "KernelStopped", "stopped on request", 200.0),
        (None, "error", "KernelDied", "the daemon was cut off", 200.0),
    ],
)
def test_a_cell_that_had_begun_ended_with_its_kernel(
    end: End | None, status: str, name: str, words: str, ended_at: float
) -> None:
    found = closed(Seen(has_begun=True, size=9), end)
    assert (found.status, found.variables, found.total_bytes) == (status, "lost", 9)
    assert found.error is not None
    assert found.error["name"] == name
    assert words in found.error["value"]
    assert (found.ended_at, found.duration_seconds) == (ended_at, ended_at - 100.0)


def test_a_shell_cell_keeps_no_variables_and_has_none_to_lose() -> None:
    found = closed(Seen(has_begun=True), None, is_shell=True)
    assert (found.status, found.variables) == ("error", "lost")
    assert found.error is not None
    assert "variables" not in found.error["value"]


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
        await kernel_rows.dispatch(
            ledger, KernelCellRow(cell, session, "call", 0, "1", "running", 90.0, 100.0, instance)
        )
        writer_of(tmp_path / session, cell).close()

    await sent("followed", "k1")
    await sent("recorded", "k1")
    await sent("found", "k2")
    await sent("unknown", None)
    await sent("living", "k2")
    await sent("shell", "life", "sh-1")
    (tmp_path / "s-1/living.jsonl").unlink()
    await ledger.flush()
    found: dict[str, Any] = {"k2": End(Reason.REPLACED)}
    config = KernelsConfig(tmp_path, tmp_path, tmp_path, tmp_path, GatewayConfig(tmp_path))
    await CellStore(ledger, lambda: config).close_cut_off({"followed"}, found)
    await ledger.flush()
    rows = {row.id: row for row in await kernel_rows.of_session(ledger, "s-1")}
    assert {cell: (row.status, row.variables) for cell, row in rows.items()} == {
        "followed": ("running", None),
        "recorded": ("error", "lost"),
        "found": ("cancelled", "lost"),
        "unknown": ("error", "lost"),
        "living": ("aborted", "lost"),
    }
    assert "SIGSEGV" in (rows["recorded"].error or {})["value"]
    assert rows["recorded"].ended_at == 104.0
    (shell,) = await kernel_rows.of_session(ledger, "sh-1")
    assert (shell.status, shell.variables) == ("error", "lost")

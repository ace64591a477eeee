"""Cells of an earlier control plane that nobody follows: closed by what their files and their kernel's end tell."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from msgspec import Struct

from supervisord_py.errors import UnknownUnitError
from supervisord_py.kernels.backend import KernelGoneError
from supervisord_py.kernels.call_rules import Judgement, judge
from supervisord_py.kernels.cell import CellError, CellStatus, Variables
from supervisord_py.kernels.execution import CellEnd
from supervisord_py.kernels.messages import end_in_row, how_it_ended
from supervisord_py.kernels.session import BackendName
from supervisord_py.ledger import instances
from supervisord_py.ledger import kernels as kernel_rows
from supervisord_py.process.instance import End
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from supervisord_py.kernels.cell_files import CellLog, WrittenEnd
    from supervisord_py.ledger.kernels import KernelCellRow
    from supervisord_py.ledger.store import Ledger


class Seen(Struct, frozen=True):
    """What the files of a cell tell. `size` in bytes of stream output."""

    has_begun: bool = False
    end: WrittenEnd | None = None
    size: int = 0


async def close(
    ledger: Ledger,
    log_of: Callable[[KernelCellRow], CellLog],
    followed: Collection[str],
    ends: Mapping[str, End],
    now: float,
) -> None:
    """Close every open row of a cell that nobody follows.

    Args:
        ledger: Where the rows are.
        log_of: Returns the files of a cell.
        followed: Ids of cells that are gone on with.
        ends: How kernels ended that were found dead or are being stopped, by instance.
        now: Unix seconds.
    """
    for row in await kernel_rows.open_cells(ledger):
        if row.id in followed:
            continue
        kernel_end = ends.get(row.instance or "")
        if kernel_end is None and row.instance is not None:
            life = await instances.INSTANCES.get(ledger, row.instance)
            if life is not None and life.ended_at is not None:
                kernel_end = end_in_row(life.reason, life.code, life.signal, life.ended_at)
        session = await kernel_rows.SESSIONS.get(ledger, row.session)
        is_shell = session is not None and session.backend == BackendName.BASH
        seen = await asyncio.to_thread(_look, log_of(row))
        closed = closing(row, seen, kernel_end, is_shell=is_shell, now=now)
        if seen.has_begun and seen.end is None:
            await asyncio.to_thread(log_of(row).seal, closed.error, closed.ended_at)
        kernel_rows.finish(ledger, row.id, closed)


def closing(
    row: KernelCellRow, seen: Seen, kernel_end: End | None, *, is_shell: bool, now: float
) -> kernel_rows.CellEnd:
    """Say how a cell ended of which only its traces are left.

    Args:
        row: The cell.
        seen: Its files.
        kernel_end: How its kernel ended; None where nobody knows.
        is_shell: It ran in a shell of its own: there were no variables to lose.
        now: Unix seconds.
    """
    if seen.end is not None:
        return _ended(row, seen, seen.end, is_shell=is_shell)
    if not seen.has_begun:
        return kernel_rows.CellEnd(CellStatus.ABORTED.value, now, variables=Variables.LOST.value)
    judged = _judged(kernel_end, is_shell=is_shell)
    record = kernel_end.record if kernel_end else None
    at = max(row.started_at, record.ended_at if record else now)
    return kernel_rows.CellEnd(
        status=judged.status.value,
        ended_at=at,
        duration_seconds=at - row.started_at,
        total_bytes=seen.size,
        error=error_members(judged.error),
        variables=Variables.LOST.value,
    )


def _ended(row: KernelCellRow, seen: Seen, end: WrittenEnd, *, is_shell: bool) -> kernel_rows.CellEnd:
    at = max(row.started_at, end.time)
    is_uncounted = end.status is CellStatus.ERROR and end.execution_count is None  # its kernel gave no reply
    kept = not (is_shell or end.asked_exit or is_uncounted)
    return kernel_rows.CellEnd(
        status=end.status.value,
        ended_at=at,
        duration_seconds=at - row.started_at if end.duration is None else end.duration,
        execution_count=end.execution_count,
        total_bytes=seen.size,
        error=error_members(end.error),
        variables=(Variables.KEPT if kept else Variables.LOST).value,
    )


def _judged(kernel_end: End | None, *, is_shell: bool) -> Judgement:
    end = kernel_end or End(Reason.INTERRUPTED)
    if is_shell:
        text = f"The shell {how_it_ended(end)} while the cell ran. The cell is not run again."
        return Judgement(CellStatus.ERROR, Variables.KEPT, CellError("KernelDied", text))
    gone = KernelGoneError("The kernel is gone.")
    return judge(CellEnd(None, gone, None, Variables.LOST), end)


def _look(log: CellLog) -> Seen:
    """Read what the files tell. Blocking."""
    try:
        has_begun = any(record.kind == "begin" for record in log.records_from()[0])
        return Seen(has_begun, log.ended(), log.size("stdout") + log.size("stderr"))
    except (UnknownUnitError, OSError):
        return Seen()


def error_members(error: CellError | None) -> dict[str, object] | None:
    """Return an error as files and rows have it: `{name, value, traceback}`."""
    if error is None:
        return None
    return {"name": error.name, "value": error.value, "traceback": list(error.traceback)}

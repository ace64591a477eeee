"""Where cells are kept: their rows, their files, how both become an answer or a history, and
when they go.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import structlog
from msgspec.structs import asdict, replace

from supervisord_py.kernels import messages, render
from supervisord_py.kernels.backend import KernelGoneError
from supervisord_py.kernels.cell_files import CellLog, folder_of_cells
from supervisord_py.kernels.config import KernelsConfig
from supervisord_py.kernels.inside.cell_writer import RECORDS
from supervisord_py.kernels.live_session import LiveSession
from supervisord_py.kernels.messages import CellOutcome
from supervisord_py.kernels.render import CellOutput, show
from supervisord_py.kernels.session import BackendName, CellError, CellResult, CellStatus, Variables
from supervisord_py.ledger import kernels as kernel_rows
from supervisord_py.ledger.kernels import KernelCellRow
from supervisord_py.ledger.store import Ledger
from supervisord_py.process.instance import End

SWEEP_SECONDS = 300.0
# how long nothing has changed in an empty folder of no session, before it goes
EMPTY_SECONDS = 3600.0
ROW_SECONDS = 1.0  # how long a cell waits for a disk that neither takes its row nor refuses it
DAY_SECONDS = 86_400.0
SMALL_BYTES = 16 * 1024  # read at once: the way to a thread and back takes longer
_log = structlog.get_logger(__name__)


class CellStore:
    def __init__(self, ledger: Ledger, config: Callable[[], KernelsConfig]) -> None:
        self._ledger = ledger
        self._config = config

    def log(self, session_id: str, cell_id: str) -> CellLog:
        return CellLog(self._config().cells_dir / session_id, cell_id)

    async def dispatch(self, cell: KernelCellRow) -> None:
        """Write the row of a cell that is to be sent, and see to its folder.

        A control plane that dies between the sending and the row would leave a cell that ran and
        that nobody knows of.
        """
        try:
            async with asyncio.timeout(ROW_SECONDS):
                await self._ledger.write(kernel_rows.CELLS.insert(cell))
        except Exception:  # where it is only late, it is queued: it follows in order
            _log.exception("cell_row_not_written", session=cell.session, cell=cell.id)
        # the cell runs all the same; that nothing is kept of it is told with its end
        with suppress(OSError):
            if not (self._config().cells_dir / cell.session).is_dir():
                folder_of_cells(self._config().cells_dir, cell.session)

    async def finish(
        self,
        sent: KernelCellRow,
        end: CellOutcome,
        duration_seconds: float | None,
        *,
        kernel_is_over: bool,
        ended_at: float | None = None,
    ) -> CellResult:
        """Return the answer of a cell, and close its row; also its files, where its kernel is over
        and cannot.

        Without a duration nobody saw it begin: it ended when its files say so, else at `ended_at`.
        """
        output, reply, ended_at = await self._shown(sent), end.reply, ended_at or time.time()
        written, log = output.end, self.log(sent.session, sent.id)
        if written is None and reply and not reply.lossy and reply.status is not CellStatus.ABORTED:
            lost = (
                f"Output of this cell is lost, not kept: its files in {log.folder} were removed or "
                "not written."
            )
            output = replace(output, unkept=output.unkept or lost)
        if duration_seconds is None and written is not None:
            duration_seconds, ended_at = written.duration, max(sent.started_at, written.t)
        if duration_seconds is None and end.status is not CellStatus.ABORTED:
            duration_seconds = ended_at - sent.started_at
        result = _result(sent, end, output, duration_seconds)
        if end.gone is not None and kernel_is_over:
            error = None if result.error is None else asdict(result.error)
            await asyncio.to_thread(log.seal, error, max(0.0, ended_at - sent.started_at))
        known = ("execution_count", "total_bytes", "truncated", "lossy", "error")
        kernel_rows.finish(
            self._ledger,
            sent.id,
            status=result.status.value,
            ended_at=ended_at,
            duration_seconds=duration_seconds,
            variables=(Variables.LOST if end.is_stateless else end.variables).value,
            steps=end.steps,
            **{name: getattr(result, name) for name in known},
        )
        return result

    async def _shown(self, sent: KernelCellRow) -> CellOutput:
        log, limits = self.log(sent.session, sent.id), self._config().output
        try:
            if not log.records_path.exists():  # its kernel died before it began
                return CellOutput()
            sizes = [log.records_path.stat().st_size, *(log.size(stream) for stream in log.paths)]
            if sum(sizes) <= SMALL_BYTES:
                return show(log, limits)
            return await asyncio.to_thread(show, log, limits)
        except OSError as error:
            return CellOutput(unkept=f"Its output cannot be read: {error}.")

    async def history(self, session_id: str) -> Sequence[KernelCellRow]:
        await self._ledger.flush()  # the end of a cell that was answered just now may be on its way
        return await kernel_rows.of_session(self._ledger, session_id)

    async def export(self, session: LiveSession) -> dict[str, Any]:
        rows, limits = await self.history(session.id), self._config().output
        about: Any = {
            "session_id": session.id,
            "language": session.language,
            "kernelspec": session.kernelspec,
        }
        return await asyncio.to_thread(
            render.export, rows, lambda row: self.log(session.id, row.id), limits, **about
        )

    # -- what an earlier control plane left --------------------------------------------------------

    async def open_row(self, session_id: str, instance: str | None) -> KernelCellRow | None:
        found = await kernel_rows.open_cells(self._ledger, session_id)
        return next(
            (row for row in reversed(found) if instance is None or row.instance == instance), None
        )

    async def close_cut_off(self, followed: Collection[str], ends: Mapping[str, End]) -> None:
        """Close the rows that an earlier control plane left open, by what is left of the cells.

        `followed`: ids of cells that are gone on with; `ends`: of kernels found dead or being
        stopped, by instance.
        """
        for row in await kernel_rows.open_cells(self._ledger):
            if row.id in followed:
                continue
            session, known = (
                await kernel_rows.SESSIONS.get(self._ledger, row.session),
                ends.get(row.instance or ""),
            )
            is_shell = session is not None and session.backend == BackendName.BASH
            outcome = await asyncio.to_thread(
                _outcome, self.log(row.session, row.id), known, is_shell=is_shell
            )
            at = max(
                row.started_at, known.record.ended_at if known and known.record else time.time()
            )
            await self.finish(row, outcome, None, kernel_is_over=True, ended_at=at)

    async def keep_small(
        self, running: Callable[[], Collection[tuple[str, str]]], known: Collection[str]
    ) -> None:
        """Sweep again and again; `running` returns `(session id, cell id)` of all that run,
        `known` are sessions.
        """
        while True:
            await asyncio.to_thread(_sweep, self._config(), known, running())
            await asyncio.sleep(SWEEP_SECONDS)


def _result(
    sent: KernelCellRow, end: CellOutcome, output: CellOutput, duration_seconds: float | None
) -> CellResult:
    status, error, lossy, count = end.status, end.error, output.unkept is not None, None
    if end.reply is not None:
        lossy, count = lossy or end.reply.lossy, end.reply.execution_count
    # nobody must take what there is for all of it
    if output.unkept is not None and status is CellStatus.OK:
        status, error = CellStatus.ERROR, CellError("OutputNotKept", output.unkept)
    elif status is not CellStatus.OK:
        # A kernel replies `NoneType` where a value's own `__repr__` raised; the traceback that it
        # showed knows better.
        told = [
            it
            for it in (error, output.end.error if output.end else None, output.error)
            if it is not None
        ]
        error = next((it for it in told if it.name != "NoneType"), told[0] if told else None)
    if count is None and output.end is not None:
        count = output.end.execution_count
    shown = ("text", "outputs", "truncated", "artifact", "total_bytes")
    return CellResult(
        sent.id,
        sent.title,
        status,
        error=error,
        duration_seconds=duration_seconds,
        execution_count=count,
        steps=end.steps,
        lossy=lossy,
        exit_code=end.exit_code,
        notices=(*filter(None, [output.unkept]), *output.notices, *end.notices),
        **{name: getattr(output, name) for name in shown},
    )


def _outcome(log: CellLog, kernel_end: End | None, *, is_shell: bool) -> CellOutcome:
    reply = log.reply()
    if reply is not None:
        # no kernel told of this end
        is_sealed = reply.status is CellStatus.ERROR and reply.execution_count is None
        left = Variables.LOST if is_sealed or is_shell else Variables.KEPT
        return messages.judge(CellOutcome(reply, variables=left), None)
    if not log.exists():
        return CellOutcome(status=CellStatus.ABORTED, variables=Variables.LOST)
    gone = KernelGoneError(
        "The control plane was cut off while the cell ran, and its kernel is gone."
    )
    return messages.judge(
        CellOutcome(gone=gone, variables=Variables.LOST, is_stateless=is_shell), kernel_end
    )


def _sweep(
    config: KernelsConfig, known: Collection[str], running: Collection[tuple[str, str]]
) -> None:
    """Remove the oldest cells, and empty folders of no session. Links are removed, not what they
    lead to.

    Cells go by age and for space alone: whose they were, and whether that session is remembered,
    does not matter.
    """
    cells: list[tuple[float, int, Path, str]] = []  # the last change, bytes, folder, id
    for folder in config.cells_dir.iterdir() if config.cells_dir.is_dir() else ():
        if folder.is_symlink() or not folder.is_dir():
            continue
        found, newest = defaultdict[str, list[os.stat_result]](list), time.time()
        with suppress(OSError):  # it may go while it is looked at
            for path in folder.iterdir():
                found[path.name.partition(".")[0]].append(path.lstat())
            newest = max(it.st_mtime for it in chain([folder.stat()], *found.values()))
        if not found:
            if folder.name not in known and time.time() - newest > EMPTY_SECONDS:
                with suppress(OSError):  # something was put there meanwhile
                    folder.rmdir()
            continue
        for cell, files in found.items():
            # A file that cells share (children print on) is as old as the newest of them, and each
            # has a part of it.
            size = sum(it.st_blocks * 512 // max(1, it.st_nlink) for it in files)
            alone = [it for it in files if it.st_nlink == 1] or files
            changed = max(it.st_mtime for it in alone)
            cells.append((changed, size, folder, cell))
    total, old = 0, time.time() - config.output.keep_days * DAY_SECONDS
    for changed, size, folder, cell in sorted(cells, reverse=True):
        total += size
        if (changed > old and total <= config.output.total_bytes) or (folder.name, cell) in running:
            continue
        for path in sorted(folder.glob(f"{cell}.*"), key=lambda path: path.suffix != RECORDS):
            with suppress(OSError):  # the first is the sign that a cell is kept
                path.unlink()

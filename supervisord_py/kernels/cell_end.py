"""Waiting for the end of one cell: its reply and the end of its output, or the death of the kernel, whatever comes.

This always ends. The reply is the kernel's word; where it is missing, the `end` record in the cell's files is; where
both are missing and the kernel is dead, its state is lost; where it lives and says that it is idle, it is told that it
gave no answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from supervisord_py.kernels.backend import KernelGoneError, Reply
from supervisord_py.kernels.cell import CellError, CellStatus
from supervisord_py.kernels.cell_files import CellLog, reply_of
from supervisord_py.kernels.messages import how_it_ended
from supervisord_py.process.instance import End
from supervisord_py.process.lifecycle import outcome
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from supervisord_py.kernels.backend import ExecuteRequest
    from supervisord_py.kernels.kernel_client import Request
    from supervisord_py.process.model import ExitRecord

    Died = asyncio.Future[ExitRecord | None]

IDLE_SECONDS = 1.0
"""How long after the reply nothing may be heard until the end of output is given up: the files have it all."""
UNHEARD_SECONDS = 5.0
"""The same for a kernel of whose output there are only messages; one may be large, and the machine busy."""
BACKLOG_SECONDS = 30.0  # how long the end of output may come after the reply where output that waited is still coming
REPLY_SECONDS = 2.0  # how long a reply may come after the end of output: it is sent before it
LAST_WORDS_SECONDS = 0.05
"""How long a reply that a kernel sent right before its death may be on its way: the files have it, too."""
UNHEARD_WORDS_SECONDS = 0.25
"""The same for a kernel of which there are only messages: without its reply an exit() looks like a crash."""
POLL_SECONDS = 0.25
PROBE_SECONDS = 1.0  # how long the files may lag behind a shell that has worked off all requests before ours


async def wait_for_end(request: Request, died: Died, *, has_files: bool = True) -> None:
    """Return when the reply and the end of output came, or one of them and the other is late, or the kernel died.

    Args:
        request: Of the cell.
        died: As in the handle.
        has_files: The kernel writes files of its own; else what is not heard is lost, and waited for longer.
    """
    either: set[asyncio.Future[Any]] = {request.reply, request.idle, died}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    late: set[asyncio.Future[Any]] = {each for each in (request.reply, request.idle) if not each.done()}
    if late and not died.done():
        idle = IDLE_SECONDS if has_files else UNHEARD_SECONDS
        patience = idle if request.reply.done() else REPLY_SECONDS
        loop, heard = asyncio.get_running_loop(), -1
        over_by = loop.time() + BACKLOG_SECONDS
        while heard != request.heard and loop.time() < over_by:  # it comes behind output that is still on its way
            heard = request.heard
            if (await asyncio.wait({*late, died}, timeout=patience, return_when=asyncio.FIRST_COMPLETED))[0]:
                break
    if died.done():
        await asyncio.wait({request.reply}, timeout=LAST_WORDS_SECONDS if has_files else UNHEARD_WORDS_SECONDS)


async def conclude(request: Request, died: Died, cell: ExecuteRequest, unit: str) -> Reply:
    """Return the word on a cell for which `wait_for_end` has returned.

    Raises KernelGoneError: it died before the cell ended.
    """
    if request.reply.done():
        return replace(reply_of(request.reply.result()), iopub_lost=not request.is_complete and not died.done())
    if (found := await _reply_in_files(cell)) is not None:
        return found
    if died.done():
        raise gone(unit, died)
    return no_answer()


async def follow(request: Request, probe: Request, died: Died, cell: ExecuteRequest, unit: str) -> Reply:
    """Wait for the end of a cell that an earlier control plane sent to a kernel which records by itself.

    Args:
        request: Of the cell; wakes us, its files are the truth.
        probe: A later request on shell: its reply means that the cell is over.
        died: As in the handle.
        cell: The cell.
        unit: `kernel:…`.

    Raises KernelGoneError: it died before the cell ended.
    """
    loop, over_by = asyncio.get_running_loop(), float("inf")
    while (found := await _reply_in_files(cell)) is None:
        if request.reply.done() or died.done():
            return replace(await conclude(request, died, cell, unit), iopub_lost=False)
        if loop.time() > over_by:  # the kernel is idle: the cell never reached it, or its files were taken away
            if not await asyncio.to_thread(CellLog(cell.cells_dir, cell.cell_id).exists):
                return Reply(CellStatus.ABORTED, notice="the cell never reached the kernel: it was not run")
            return no_answer()
        if probe.reply.done() and over_by == float("inf"):
            over_by = loop.time() + PROBE_SECONDS
        signs: tuple[asyncio.Future[Any], ...] = (request.reply, request.idle, probe.reply, died)
        waiting = {each for each in signs if not each.done()}
        await asyncio.wait(waiting, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    return found


async def _reply_in_files(cell: ExecuteRequest) -> Reply | None:
    return await asyncio.to_thread(CellLog(cell.cells_dir, cell.cell_id).reply)


def no_answer() -> Reply:
    """Return the word on a cell that the kernel is done with without having said how it ended."""
    text = "The kernel became idle without an answer: whether the cell ran to its end is not known."
    return Reply(CellStatus.ERROR, CellError("NoReply", text), lossy=True, notice=text)


def gone(unit: str, died: Died) -> KernelGoneError:
    """Return the error of a cell whose kernel is dead."""
    record = died.result()
    if record is None:
        return KernelGoneError(f"{unit} is gone; how it ended is not known", unit=unit)
    end = End(outcome(record, None, True), record)
    return KernelGoneError(
        f"{unit} {how_it_ended(end)} while the cell ran",
        hint="its variables are lost; the next call starts it anew",
        unit=unit,
        record=record,
        reason=end.reason.value if end.reason else Reason.EXIT.value,
        code=end.code,
        signal=end.signal,
    )

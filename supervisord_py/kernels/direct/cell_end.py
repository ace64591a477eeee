"""Waiting for the end of one cell: its reply and the end of its output, or the death of the kernel, whatever comes.

Law: this always ends. The reply is the kernel's word; where it is missing, the `end` record in the cell's files is;
where both are missing and the kernel is dead, its state is lost; where it lives and says that it is idle, it is told
that it gave no answer.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from supervisord_py.kernels.backend import KernelGoneError, Reply
from supervisord_py.kernels.cell import CellError, CellStatus
from supervisord_py.kernels.cell_files import CellLog, reply_of
from supervisord_py.kernels.kernel_endings import KernelEnd, how_it_ended
from supervisord_py.process.lifecycle import outcome
from supervisord_py.process.spec import Reason

if TYPE_CHECKING:
    from supervisord_py.kernels.backend import ExecuteRequest
    from supervisord_py.kernels.direct.conversation import Exchange
    from supervisord_py.kernels.direct.message import Message
    from supervisord_py.process.spec import ExitRecord

    Died = asyncio.Future[ExitRecord | None]

LOOK_SECONDS = 0.002
IDLE_SECONDS = 1.0
"""How long after the reply nothing may be heard until the end of output is given up: the files have it all."""
UNHEARD_SECONDS = 5.0
"""The same for a kernel of whose output there are only messages; one may be large, and the machine busy."""
BACKLOG_SECONDS = 30.0
"""How long the end of output may come after the reply where output that waited is still coming."""
REPLY_SECONDS = 2.0
"""How long a reply may come after the end of output: it is sent before it."""
LAST_WORDS_SECONDS = 0.05
"""How long a reply that a kernel sent right before its death may be on its way: the files have it, too."""
UNHEARD_WORDS_SECONDS = 0.25
"""The same for a kernel of which there are only messages: without its reply an exit() looks like a crash."""
POLL_SECONDS = 0.25
PROBE_SECONDS = 1.0
"""How long the files may lag behind a shell that has worked off all requests before ours."""


async def wait_for_end(exchange: Exchange, died: Died, *, has_files: bool = True) -> None:
    """Return when the reply and the end of output came, or one of them and the other is late, or the kernel died.

    Args:
        exchange: Of the cell.
        died: As in the handle.
        has_files: The kernel writes files of its own; else what is not heard is lost, and waited for longer.
    """
    either: set[asyncio.Future[Any]] = {exchange.reply, exchange.idle, died}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    late: list[asyncio.Future[Any]] = [it for it in (exchange.reply, exchange.idle) if not it.done()]
    if late and not died.done():
        idle = IDLE_SECONDS if has_files else UNHEARD_SECONDS
        await _wait_for_rest(exchange, {*late, died}, idle if exchange.reply.done() else REPLY_SECONDS)
    if died.done():
        await asyncio.wait({exchange.reply}, timeout=LAST_WORDS_SECONDS if has_files else UNHEARD_WORDS_SECONDS)


async def _wait_for_rest(exchange: Exchange, signs: set[asyncio.Future[Any]], patience: float) -> None:
    """Return when one of the signs came, or is late: it comes behind all output that is still on its way."""
    loop = asyncio.get_running_loop()
    over_by = loop.time() + BACKLOG_SECONDS
    heard = -1
    while heard != exchange.heard and loop.time() < over_by:
        heard = exchange.heard
        done, _ = await asyncio.wait(signs, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if done:
            return


async def reply_in_files(request: ExecuteRequest) -> Reply | None:
    """Return what the `end` record of the cell says, if there is one."""
    return await asyncio.to_thread(CellLog(request.cells_dir, request.cell_id).reply)


async def conclude(exchange: Exchange, died: Died, request: ExecuteRequest, unit: str) -> Reply:
    """Return the word on a cell for which `wait_for_end` has returned.

    Raises:
        KernelGoneError: It died before the cell ended.
    """
    if exchange.reply.done():
        reply = reply_of(exchange.reply.result())
        return replace(reply, iopub_lost=not exchange.is_complete and not died.done())
    if (found := await reply_in_files(request)) is not None:
        return found
    if died.done():
        raise gone(unit, died)
    return no_answer()


async def follow(exchange: Exchange, probe: Exchange, died: Died, request: ExecuteRequest, unit: str) -> Reply:
    """Wait for the end of a cell that an earlier control plane sent to a kernel which records by itself.

    Args:
        exchange: Of the cell; wakes us, its files are the truth.
        probe: A later request on shell: its reply means that the cell is over.
        died: As in the handle.
        request: The cell.
        unit: `kernel:…`.

    Raises:
        KernelGoneError: It died before the cell ended.
    """
    loop, over_by = asyncio.get_running_loop(), float("inf")
    while (found := await reply_in_files(request)) is None:
        if exchange.reply.done() or died.done():
            return replace(await conclude(exchange, died, request, unit), iopub_lost=False)
        if loop.time() > over_by:
            return await _never_ended(request)
        if probe.reply.done() and over_by == float("inf"):
            over_by = loop.time() + PROBE_SECONDS
        signs: set[asyncio.Future[Any]] = {
            it for it in (exchange.reply, exchange.idle, probe.reply, died) if not it.done()
        }
        await asyncio.wait(signs, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
    return found


async def _never_ended(request: ExecuteRequest) -> Reply:
    """The kernel is idle, and the files tell no end: the cell never reached it, or its files were taken away."""
    if await asyncio.to_thread(CellLog(request.cells_dir, request.cell_id).last, "begin") is None:
        return Reply(CellStatus.ABORTED, notice="the cell never reached the kernel: it was not run")
    return no_answer()


def no_answer() -> Reply:
    """Return the word on a cell that the kernel is done with without having said how it ended."""
    text = "The kernel became idle without an answer: whether the cell ran to its end is not known."
    return Reply(CellStatus.ERROR, CellError("NoReply", text), lossy=True, notice=text)


def gone(unit: str, died: Died) -> KernelGoneError:
    """Return the error of a cell whose kernel is dead."""
    record = died.result()
    if record is None:
        return KernelGoneError(f"{unit} is gone; how it ended is not known", unit=unit)
    end = KernelEnd(outcome(record, None, True), record)
    return KernelGoneError(
        f"{unit} {how_it_ended(end)} while the cell ran",
        hint="its variables are lost; the next call starts it anew",
        unit=unit,
        record=record,
        reason=end.reason.value if end.reason else Reason.EXIT.value,
        code=end.code,
        signal=end.signal,
    )


class Beginning:
    """When a cell that was sent has begun: an idle kernel ignores SIGINT, so an interrupt waits for that, for a moment.

    A kernel that records by itself has made the files of the cell, also while code keeps the interpreter to itself; any
    other says by iopub what it executes, and its `busy` alone is too early.

    Args:
        files: Of the cell, where the kernel makes them; None where it is heard by its messages.
    """

    __slots__ = ("_files", "_seen")

    def __init__(self, files: CellLog | None) -> None:
        self._files = files
        self._seen = False

    def hear(self, message: Message) -> None:
        """Take a message that belongs to the cell: `execute_input`, output, whatever comes first."""
        self._seen = self._seen or message.type != "status"

    def over(self) -> None:
        """Note that the cell has ended, begun or not: nobody waits for it any more."""
        self._seen = True

    async def wait(self, died: asyncio.Future[Any], seconds: float) -> None:
        """Return when the cell has begun, or its kernel died, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self._has_begun() and not died.done():  # noqa: ASYNC110 - the kernel makes the files
                    await asyncio.sleep(LOOK_SECONDS)

    def _has_begun(self) -> bool:
        return self._seen or (self._files is not None and self._files.exists())

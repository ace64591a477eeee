"""One call: its wait for the kernel, its cells in order, its answer. Run by a task of the room."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from supervisord_py.kernels import messages
from supervisord_py.kernels.cell import (
    CallResult,
    CellDone,
    CellError,
    CellResult,
    CellStarted,
    CellStatus,
    Variables,
)
from supervisord_py.kernels.execution import CellExecution
from supervisord_py.kernels.kernel_pool import KernelWaiter
from supervisord_py.kernels.messages import Stopped, sentence
from supervisord_py.ledger.kernels import RUNNING, KernelCellRow

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.kernels.cell import CallEvent, CallRequest, Cell
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.kernel_pool import KernelPool
    from supervisord_py.kernels.live_session import KernelInstance, LiveSession


class Timeout(NamedTuple):
    """The time a call has, in seconds. `notice` says what was changed about it, None when nothing was."""

    seconds: float
    notice: str | None = None


def timeout_of(asked: float | None, config: KernelsConfig) -> Timeout:
    """Return the time in force for what was asked; None is the default."""
    low, high = config.timeout_min_seconds, config.timeout_max_seconds
    seconds = config.timeout_seconds if asked is None else min(max(asked, low), high)
    if asked is None or seconds == asked:
        return Timeout(seconds)
    return Timeout(seconds, f"timeout {asked:g} s was {'raised' if asked < low else 'cut'} to {seconds:g} s.")


class KernelCall:
    """One call. `run` runs it, as `task`; `tell` hears of what happens, on the loop, and must not block or raise."""

    def __init__(
        self,
        pool: KernelPool,
        session: LiveSession,
        request: CallRequest,
        timeout: Timeout,
        tell: Callable[[CallEvent], None],
    ) -> None:
        self.id = secrets.token_hex(8)
        self.task = asyncio.create_task(self.run())
        self._pool, self._session = pool, session
        self._request, self._timeout, self._tell = request, timeout, tell
        self._deadline = request.arrived_at + timeout.seconds
        self._queued_at = time.time() - (asyncio.get_running_loop().time() - request.arrived_at)
        self._execution: CellExecution | None = None
        self._has_kernel = False
        self._cancelled = False
        self._is_own = session.per_call and session.keeps_variables
        """The variables of the session end with this call."""
        self._results: list[CellResult] = []
        self._variables = Variables.KEPT if session.keeps_variables and not self._is_own else Variables.LOST
        """What the next call finds of the variables, as far as this one came."""
        self._message: str | None = None
        self._notices = [] if timeout.notice is None else [timeout.notice]

    def cancel(self) -> None:
        """End it: a call that waits leaves the line, one that runs a cell has it ended."""
        self._cancelled = True
        if self._execution is not None:
            self._execution.cut(CellStatus.CANCELLED)
        elif not self._has_kernel:
            self.task.cancel()

    async def run(self) -> CallResult:
        """Run it to its end. Raises PxError: no cell was run."""
        session, request, pool = self._session, self._request, self._pool
        is_busy, present = session.running is not None, session.kernel
        if is_busy and present is not None and present.is_called_by(request.caller()):
            raise messages.own_session(session.unit)
        granted = asyncio.get_running_loop().create_future()
        waiter = KernelWaiter(session=session, reset=request.reset, granted=granted, tell=self._tell)
        kernel = await pool.acquire(waiter, self._deadline)
        self._has_kernel, over_memory = True, False
        try:
            kernel.refuse_stopped()
            if waiter.is_cold:
                self._notices += session.notices
            if not kernel.has_run and session.lost is not None:
                self._notices.append(session.lost)
                session.lost = None
            over_memory = await self._run_cells(kernel) and self._recycle(kernel)
        finally:
            session.last_used = time.time()
            pool.give_back(waiter, kernel, over_memory=over_memory)
        return CallResult(
            session_id=session.id,
            cwd=session.key.cwd,
            interpreter=session.key.interpreter,
            backend=session.key.backend,
            variables=self._variables,
            cells=tuple(self._results),
            timeout_seconds=self._timeout.seconds,
            clamped=self._timeout.notice is not None,
            cold_start_ms=kernel.cold_start_ms if waiter.is_cold else None,
            instance=kernel.key,
            notices=tuple(self._notices),
            message=self._message,
        )

    async def _run_cells(self, kernel: KernelInstance) -> bool:
        """Run the cells in order, as far as they go; return whether the kernel is over its soft memory limit.

        There is a message afterwards where the last one that was run is not the last one that was sent, or not ok.
        """
        session, request, loop = self._session, self._request, asyncio.get_running_loop()
        cells, over_memory = request.cells, False
        for index, cell in enumerate(cells):
            where = Stopped(index, len(cells), cell.title, self._is_own, not session.keeps_variables)
            if loop.time() >= self._deadline:
                error = CellError("TimedOut", "The call's time was over before this cell began; it was not run.")
                self._not_run(cell, CellStatus.TIMED_OUT, error)
                self._message = f"The call's time was over before {str(where)[0].lower()}{str(where)[1:]} began."
                break
            sent = KernelCellRow(
                id=secrets.token_hex(8),
                session=session.id,
                call=self.id,
                ordinal=index,
                code=cell.code,
                status=RUNNING,
                queued_at=self._queued_at,
                started_at=time.time(),
                instance=kernel.key,
                title=cell.title,
                timeout_seconds=self._timeout.seconds,
            )
            run = CellExecution(self._pool, kernel, sent, self._deadline, self._tell)
            self._execution = run
            try:
                result, end = await run.perform(
                    CellStarted(index, sent.id, sent.title, session.id, cell.code, len(cells))
                )
            finally:
                self._execution = None
            over_memory = run.over_memory
            if end.variables is Variables.LOST:
                self._variables = Variables.LOST
            result = replace(result, variables=self._variables)
            self._results.append(result)
            if result.status is CellStatus.OK:
                session.clear_failures()
            self._message = sentence(where, end, kernel.end, loop.time() - request.arrived_at)
            if self._message is None and (self._cancelled or end.cut is not None):
                self._message = f"The call was cancelled.{where.left_out}"
            self._tell(CellDone(result))
            if self._message is not None:
                break
        for cell in cells[len(self._results) :]:
            self._not_run(cell, CellStatus.ABORTED)
        return over_memory

    def _not_run(self, cell: Cell, status: CellStatus, error: CellError | None = None) -> None:
        result = CellResult(secrets.token_hex(8), cell.title, status, error=error, variables=self._variables)
        self._results.append(result)

    def _recycle(self, kernel: KernelInstance) -> bool:
        """Have a kernel that is too large be replaced, unless it is on its way out; say so."""
        if self._variables is Variables.LOST or kernel.wanted is not None:
            return False
        self._pool.supervisor.say("recycled", kernel, rss_bytes=kernel.rss_bytes)
        self._notices.append(messages.RECYCLED)
        self._variables = Variables.LOST
        return True

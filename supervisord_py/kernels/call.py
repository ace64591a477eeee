"""One call: its wait for the kernel, its cells in order, its answer. Run by a task of the room."""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING

import structlog
from msgspec.structs import replace

from supervisord_py.errors import CancelledRunError, PxError, TimedOutError
from supervisord_py.kernels import messages
from supervisord_py.kernels.call_rules import sentence
from supervisord_py.kernels.cell import (
    CallResult,
    CellDone,
    CellError,
    CellResult,
    CellStarted,
    CellStatus,
    Variables,
)
from supervisord_py.kernels.execution import CellRun
from supervisord_py.kernels.kernel_driver import refuse_stopped
from supervisord_py.kernels.messages import Stopped
from supervisord_py.kernels.session import Owner
from supervisord_py.kernels.session_set import Ask
from supervisord_py.ledger.kernels import RUNNING, KernelCellRow
from supervisord_py.process import clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.kernels.call_rules import Timeout
    from supervisord_py.kernels.cell import CallEvent, CallRequest, Cell
    from supervisord_py.kernels.kernel_driver import KernelInstance
    from supervisord_py.kernels.kernel_pool import Granted
    from supervisord_py.kernels.room import Kernels
    from supervisord_py.kernels.session_register import LiveSession

_log = structlog.get_logger(__name__)


class Call:
    """One call. `work` runs it; `answer` is what the client waits for.

    Args:
        session: Where its cells run.
        request: As it was asked for.
        timeout: The time it has.
        tell: Told of what happens, on the loop.
    """

    def __init__(
        self,
        room: Kernels,
        session: LiveSession,
        request: CallRequest,
        timeout: Timeout,
        tell: Callable[[CallEvent], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self.id = secrets.token_hex(8)
        self.answer: asyncio.Future[CallResult] = loop.create_future()
        self.task: asyncio.Task[None] | None = None
        self._room, self._session, self._request, self._timeout = room, session, request, timeout
        self._deadline = request.arrived_at + timeout.seconds
        self._queued_at = time.time() - (loop.time() - request.arrived_at)
        self._teller: Callable[[CallEvent], None] | None = tell
        self._run: CellRun | None = None
        self._ticket = room.pool.new_ticket()
        self._granted = False
        self._cancelled = False
        self._is_own = session.owner is Owner.PER_CALL and session.keeps_variables
        """The variables of the session end with this call."""
        self._results: list[CellResult] = []
        self._variables = Variables.KEPT
        self._message: str | None = None
        self._over_memory = False
        self._notices = [] if timeout.notice is None else [timeout.notice]

    # -- from outside ------------------------------------------------------------------------------------------------

    def cancel(self, *, rungs: int = 1) -> None:
        """End it: a call that waits leaves the line, one that runs a cell has it ended by the ladder."""
        self._cancelled = True
        if self._run is not None:
            self._run.cut(CellStatus.CANCELLED, rungs=rungs)
        elif not self._granted and self.task is not None:
            self.task.cancel()

    def leave(self) -> None:
        """Nobody listens any more."""
        self._teller = None
        self.answer.add_done_callback(_retrieved)

    def cut_off(self, error: PxError) -> None:
        """The control plane is replaced: answer now; the cell goes on without us."""
        self._teller = None
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.add_done_callback(_retrieved)

    def _tell(self, event: CallEvent) -> None:
        if self._teller is not None:
            try:
                self._teller(event)
            except Exception:
                _log.exception("call_listener_failed", call=self.id)
                self._teller = None

    # -- its course --------------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """Run it to its end and answer."""
        try:
            granted = await self._wait_for_kernel()
            try:
                await self._run_cells(granted.life)
            finally:
                self._conclude(granted.life)
            result = self._answer(granted)
        except PxError as error:
            self._fail(error)
        except asyncio.CancelledError:
            self._fail(self._cancelled_error())
            raise
        except Exception as error:
            self._fail(PxError(f"pxd failed: {error!r}", unit=self._session.unit))
            raise
        else:
            self._teller = None
            if not self.answer.done():
                self.answer.set_result(result)

    def _fail(self, error: PxError) -> None:
        self._teller = None
        if not self.answer.done():
            self.answer.set_exception(error)

    def _cancelled_error(self) -> PxError:
        return CancelledRunError("The call was cancelled before its first cell began.", unit=self._session.unit)

    async def _wait_for_kernel(self) -> Granted:
        """Return the kernel in its turn; what the first call on a kernel is told about it, is noted."""
        session, request, pool = self._session, self._request, self._room.pool
        loop = asyncio.get_running_loop()
        asked = Ask(
            self._ticket,
            session.id,
            clock.now() + (self._deadline - loop.time()),
            reset=request.reset,
            per_call=request.per_call,
            caller=pool.serial_of_instance(request.caller_instance),
        )
        granted = await pool.acquire(asked, session, self._tell)
        self._granted = True
        if loop.time() >= self._deadline or self._cancelled:
            pool.report(pool.set.ended, self._ticket)
            if self._cancelled:
                raise self._cancelled_error()
            raise TimedOutError(
                messages.waited_in_vain(self._timeout.seconds, "the kernel was started"),
                hint="Ask again: it is ready now.",
                unit=session.unit,
            )
        try:
            refuse_stopped(granted.life)
        except PxError:
            pool.report(pool.set.ended, self._ticket)
            raise
        if granted.cold:
            self._notices += session.notices
        if granted.life.cell is None and session.lost is not None:
            self._notices.append(session.lost)
            session.lost = None
        return granted

    async def _run_cells(self, life: KernelInstance) -> None:
        """Run the cells in order, as far as they go."""
        cells = self._request.cells
        for index, cell in enumerate(cells):
            where = Stopped(index, len(cells), cell.title, self._is_own, not self._session.keeps_variables)
            if asyncio.get_running_loop().time() >= self._deadline:
                error = CellError("TimedOut", "The call's time was over before this cell began; it was not run.")
                self._not_run(cell, CellStatus.TIMED_OUT, error)
                self._message = f"The call's time was over before {str(where)[0].lower()}{str(where)[1:]} began."
                break
            if not await self._run_cell(where, cell, life):
                break
        for cell in cells[len(self._results) :]:
            self._not_run(cell, CellStatus.ABORTED)

    def _not_run(self, cell: Cell, status: CellStatus, error: CellError | None = None) -> None:
        left = self._left()
        self._results.append(CellResult(secrets.token_hex(8), cell.title, status, error=error, variables=left))

    def _left(self) -> Variables:
        """Return what the next call finds of the variables, as far as this one came."""
        return self._variables if self._session.keeps_variables and not self._is_own else Variables.LOST

    async def _run_cell(self, where: Stopped, cell: Cell, life: KernelInstance) -> bool:
        """Run one cell; return whether the next one is to be run."""
        sent = KernelCellRow(
            id=secrets.token_hex(8),
            session=self._session.id,
            call=self.id,
            ordinal=where.index,
            code=cell.code,
            status=RUNNING,
            queued_at=self._queued_at,
            started_at=time.time(),
            instance=life.key,
            title=cell.title,
        )
        started = CellStarted(where.index, sent.id, sent.title, sent.session, code=sent.code, count=where.count)
        run = self._run = CellRun(self._room, life, sent, self._deadline, self._tell)
        try:
            result, end = await run.perform(started)
        finally:
            self._run = None
        self._over_memory = run.over_memory
        if end.variables is Variables.LOST:
            self._variables = Variables.LOST
        result = replace(result, variables=self._left())
        self._results.append(result)
        if result.status is CellStatus.OK:
            self._room.pool.report(self._room.pool.set.succeeded, self._ticket)
        after = asyncio.get_running_loop().time() - self._request.arrived_at
        self._message = sentence(where, end, life.end, after)
        self._tell(CellDone(result))
        if end.status is not CellStatus.OK or end.exited:
            return False
        if self._cancelled or end.cut is not None:
            self._message = self._message or f"The call was cancelled.{where.left_out}"
            return False
        return True

    def _conclude(self, life: KernelInstance) -> None:
        """Give the kernel back; one that the code left, or that is too large, is on its way out from now on."""
        pool, session = self._room.pool, self._session
        session.last_used = time.time()
        if self._over_memory and self._variables is Variables.KEPT and life.wanted is None:
            pool.report(pool.set.recycle, session.id, life.serial)
            pool.supervisor.say("recycled", life, rss_bytes=life.rss_bytes)
            self._notices.append(messages.RECYCLED)
            self._variables = Variables.LOST
        pool.give_back(life, self._ticket)

    def _answer(self, granted: Granted) -> CallResult:
        key = self._session.key
        return CallResult(
            session_id=key.id,
            cwd=key.cwd,
            interpreter=key.interpreter,
            backend=key.backend,
            variables=self._left(),
            cells=tuple(self._results),
            timeout_seconds=self._timeout.seconds,
            clamped=self._timeout.clamped,
            cold_start_ms=granted.life.cold_start_ms if granted.cold else None,
            instance=granted.life.key,
            notices=tuple(self._notices),
            message=self._message,
        )


def _retrieved(answer: asyncio.Future[CallResult]) -> None:
    """Take note of an error that nobody waits for any more, so that the loop does not complain."""
    if not answer.cancelled():
        answer.exception()

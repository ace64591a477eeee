"""One call: its wait for the kernel, its cells in order, its answer. Run by a task of the room."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct, field

from supervisord_py.errors import CancelledRunError, PxError, TimedOutError
from supervisord_py.kernels import messages
from supervisord_py.kernels import session_events as ev
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
from supervisord_py.kernels.execution import CellWork
from supervisord_py.kernels.messages import Stopped
from supervisord_py.kernels.session import Owner
from supervisord_py.ledger.kernels import RUNNING, KernelCellRow
from supervisord_py.process import clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.kernels.call_rules import Timeout
    from supervisord_py.kernels.cell import CallEvent, CallRequest, Cell
    from supervisord_py.kernels.execution import CellOutcome, CellRun
    from supervisord_py.kernels.kernel_driver import KernelInstance
    from supervisord_py.kernels.kernel_pool import Granted
    from supervisord_py.kernels.room import Kernels
    from supervisord_py.kernels.session_register import LiveSession

_log = structlog.get_logger(__name__)


class CallPlan(Struct, frozen=True):
    """A call of which everything is known before it waits. `deadline` is loop time."""

    id: str
    session: LiveSession
    request: CallRequest
    timeout: Timeout
    deadline: float
    queued_at: float
    caller: int | None
    notices: tuple[str, ...] = ()


class _Course(Struct):
    """How a call goes."""

    results: list[CellResult] = field(default_factory=list)
    variables: Variables = Variables.KEPT
    message: str | None = None
    notices: list[str] = field(default_factory=list)
    over_memory: bool = False


class Call:
    """One call. `work` runs it; `answer` is what the client waits for."""

    def __init__(self, room: Kernels, plan: CallPlan, tell: Callable[[CallEvent], None]) -> None:
        self.plan = plan
        self.answer: asyncio.Future[CallResult] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None
        self._room = room
        self._teller: Callable[[CallEvent], None] | None = tell
        self._run: CellRun | None = None
        self._ticket = room.pool.new_ticket()
        self._granted = False
        self._cancelled = False

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
                _log.exception("call_listener_failed", call=self.plan.id)
                self._teller = None

    # -- its course --------------------------------------------------------------------------------------------------

    async def work(self) -> None:
        """Run it to its end and answer."""
        try:
            result = await self._go()
        except PxError as error:
            self._settle(error)
        except asyncio.CancelledError:
            self._settle(_cancelled(self.plan))
            raise
        except Exception as error:
            self._settle(PxError(f"pxd failed: {error!r}", unit=self.plan.session.unit))
            raise
        else:
            self._settle(result)

    def _settle(self, outcome: CallResult | PxError) -> None:
        self._teller = None
        if self.answer.done():
            return
        if isinstance(outcome, CallResult):
            self.answer.set_result(outcome)
        else:
            self.answer.set_exception(outcome)

    async def _go(self) -> CallResult:
        granted = await self._wait_for_kernel()
        course = _Course(notices=[*self.plan.notices, *self._greetings(granted)])
        try:
            await self._run_cells(granted.life, course)
        finally:
            self._conclude(granted.life, course)
        return self._answer(granted, course)

    async def _wait_for_kernel(self) -> Granted:
        plan, request = self.plan, self.plan.request
        loop = asyncio.get_running_loop()
        asked = ev.Asked(
            self._ticket,
            plan.session.id,
            clock.now() + (plan.deadline - loop.time()),
            reset=request.reset,
            per_call=request.per_call,
            caller=plan.caller,
        )
        granted = await self._room.pool.acquire(asked, plan.session, self._tell)
        self._granted = True
        if loop.time() >= plan.deadline or self._cancelled:
            self._room.pool.report(ev.Ended(self._ticket))
            if self._cancelled:
                raise _cancelled(plan)
            raise TimedOutError(
                messages.waited_in_vain(plan.timeout.seconds, "the kernel was started"),
                hint="Ask again: it is ready now.",
                unit=plan.session.unit,
            )
        return granted

    def _greetings(self, granted: Granted) -> list[str]:
        """Return what the first call on a kernel is told about it."""
        session = self.plan.session
        found = list(session.notices) if granted.cold else []
        if granted.life.cell is None and session.lost is not None:
            found.append(session.lost)
            session.lost = None
        return found

    async def _run_cells(self, life: KernelInstance, course: _Course) -> None:
        cells = self.plan.request.cells
        for index, cell in enumerate(cells):
            is_stateless = not self.plan.session.keeps_variables
            where = Stopped(index, len(cells), cell.title, self._is_own, is_stateless)
            if self._is_over():
                course.results.append(replace(self._not_run_in_time(cell), variables=self._left(course)))
                course.message = f"The call's time was over before {str(where)[0].lower()}{str(where)[1:]} began."
                break
            if not await self._run_cell(where, cell, life, course):
                break
        for cell in cells[len(course.results) :]:
            aborted = CellResult(secrets.token_hex(8), cell.title, CellStatus.ABORTED, variables=self._left(course))
            course.results.append(aborted)

    def _left(self, course: _Course) -> Variables:
        """Return what the next call finds of the variables, as far as this one came."""
        has_none = self._is_own or not self.plan.session.keeps_variables
        return Variables.LOST if has_none else course.variables

    @property
    def _is_own(self) -> bool:
        """Whether the variables of the session end with this call."""
        return self.plan.session.owner is Owner.PER_CALL and self.plan.session.keeps_variables

    def _is_over(self) -> bool:
        return asyncio.get_running_loop().time() >= self.plan.deadline

    @staticmethod
    def _not_run_in_time(cell: Cell) -> CellResult:
        error = CellError("TimedOut", "The call's time was over before this cell began; it was not run.")
        return CellResult(secrets.token_hex(8), cell.title, CellStatus.TIMED_OUT, error=error)

    async def _run_cell(self, where: Stopped, cell: Cell, life: KernelInstance, course: _Course) -> bool:
        """Run one cell; return whether the next one is to be run."""
        done = await self._send(self._dispatched(where, cell, life), life, where.index)
        judged = done.judged
        course.over_memory = done.over_memory
        if judged.variables is Variables.LOST:
            course.variables = Variables.LOST
        result = replace(done.result, variables=self._left(course))
        course.results.append(result)
        if result.status is CellStatus.OK:
            self._room.pool.report(ev.Succeeded(self._ticket))
        after = asyncio.get_running_loop().time() - self.plan.request.arrived_at
        course.message = sentence(where, judged, done.end, life.end, after)
        self._tell(CellDone(result))
        if judged.stops_the_call:
            return False
        if self._cancelled or done.end.cut is not None:
            course.message = course.message or f"The call was cancelled.{where.left_out}"
            return False
        return True

    def _dispatched(self, where: Stopped, cell: Cell, life: KernelInstance) -> KernelCellRow:
        return KernelCellRow(
            id=secrets.token_hex(8),
            session=self.plan.session.id,
            call=self.plan.id,
            ordinal=where.index,
            code=cell.code,
            status=RUNNING,
            queued_at=self.plan.queued_at,
            started_at=time.time(),
            instance=life.key,
            title=cell.title,
        )

    async def _send(self, sent: KernelCellRow, life: KernelInstance, index: int) -> CellOutcome:
        deadline = self.plan.deadline
        if life.handle is None:
            raise AssertionError(life)
        work = CellWork(self._room, self.plan.session, life, life.handle)
        run = self._run = work.begin(sent, deadline, self._tell)
        count = len(self.plan.request.cells)
        started = CellStarted(index, sent.id, sent.title, sent.session, code=sent.code, count=count)
        try:
            return await work.perform(run, sent, deadline, started)
        finally:
            self._run = None

    def _conclude(self, life: KernelInstance, course: _Course) -> None:
        """Give the kernel back; one that the code left, or that is too large, is on its way out from now on."""
        pool, session = self._room.pool, self.plan.session
        session.last_used = time.time()
        if course.over_memory and course.variables is Variables.KEPT and life.wanted is None:
            pool.report(ev.RecycleAsked(session.id, life.serial))
            pool.supervisor.say("recycled", life, rss_bytes=life.rss_bytes)
            course.notices.append(messages.RECYCLED)
            course.variables = Variables.LOST
        pool.report(ev.Ended(self._ticket))
        if life.exiting:
            pool.life_died(life)
        pool.register.used(session)

    def _answer(self, granted: Granted, course: _Course) -> CallResult:
        plan, key = self.plan, self.plan.session.key
        if plan.timeout.notice is not None:
            course.notices.insert(0, plan.timeout.notice)
        return CallResult(
            session_id=key.id,
            cwd=key.cwd,
            interpreter=key.interpreter,
            backend=key.backend,
            variables=self._left(course),
            cells=tuple(course.results),
            timeout_seconds=plan.timeout.seconds,
            clamped=plan.timeout.clamped,
            cold_start_ms=granted.life.cold_start_ms if granted.cold else None,
            instance=granted.life.key,
            notices=tuple(course.notices),
            message=course.message,
        )


def _cancelled(plan: CallPlan) -> PxError:
    return CancelledRunError("The call was cancelled before its first cell began.", unit=plan.session.unit)


def _retrieved(answer: asyncio.Future[CallResult]) -> None:
    """Take note of an error that nobody waits for any more, so that the loop does not complain."""
    if not answer.cancelled():
        answer.exception()

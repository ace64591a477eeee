"""One call: its wait for the kernel, its cells in order, its answer; and the run of one cell on one
kernel.

A cell is sent, followed, made to end if need be, judged, measured, written down. What must end is
ended step by step: SIGINT, SIGINT again, SIGTERM, SIGKILL. Each step gives the cell the time up to
the next one; each further cancel makes one more step due at once. Variables are kept only if the
cell ended, the kernel lives, and nothing worse than an interrupt was sent: after SIGTERM the kernel
is lost, whatever the cell says.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog
from msgspec.structs import asdict, replace

from supervisord_py.errors import KeeperLostError, PxError
from supervisord_py.kernels import messages
from supervisord_py.kernels.backend import ExecuteRequest, KernelGoneError, Reply
from supervisord_py.kernels.config import KernelsConfig
from supervisord_py.kernels.folders import identity_of
from supervisord_py.kernels.inside.cell_writer import CellWriter
from supervisord_py.kernels.kernel_pool import KernelPool
from supervisord_py.kernels.live_session import KernelInstance, KernelWaiter, LiveSession
from supervisord_py.kernels.messages import CellOutcome, CellPlace
from supervisord_py.kernels.session import (
    CallResult,
    CellError,
    CellResult,
    CellStatus,
    Step,
    Variables,
)
from supervisord_py.kernels.session_set import Waiter
from supervisord_py.ledger.kernels import RUNNING, KernelCellRow
from supervisord_py.process.instance import Phase
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from supervisord_py.kernels.session import CallEvent, CallRequest

# after SIGKILL: what takes longer to die sits in the system, and nobody should wait for that
ABANDON_SECONDS = 2.0
LOST_CELL_SECONDS = 5.0  # how long a kernel that is gone may take to say so of its cell
END_SECONDS = 15.0  # how long a cell waits for the word on how its kernel ended
_log = structlog.get_logger(__name__)


def timeout_of(asked: float | None, config: KernelsConfig) -> tuple[float, str | None]:
    """Return the seconds in force for what was asked (None is the default), and what was changed
    about it, if so.
    """
    low, high = config.timeout_min_seconds, config.timeout_max_seconds
    seconds = config.timeout_seconds if asked is None else min(max(asked, low), high)
    if asked is None or seconds == asked:
        return seconds, None
    how, end = ("raised", "min") if asked < low else ("cut", "max")
    return (
        seconds,
        f"timeout {asked:g} s was {how} to {seconds:g} s (kernels.timeout_{end}_seconds).",
    )


class KernelCall:
    """One call.

    `run` runs it, as `task`; `tell` hears of what happens, on the loop, and must not block or
    raise.
    """

    def __init__(
        self,
        pool: KernelPool,
        session: LiveSession,
        request: CallRequest,
        tell: Callable[[CallEvent], None],
        installed_for: float = 0.0,
    ) -> None:
        self.id = secrets.token_hex(8)
        self.task = asyncio.create_task(self.run())
        self._pool, self._session, self._request, self._tell = pool, session, request, tell
        self._seconds, clamped = timeout_of(request.timeout_seconds, pool.config)
        # seconds in which something was installed for it: they do not count
        self._installed_for = installed_for
        self._deadline = request.arrived_at + self._seconds + installed_for
        self._execution: CellExecution | None = None
        self._has_kernel = False
        self._cancelled = False
        # the session's variables end with this call
        self._is_own = session.per_call and session.keeps_variables
        self._results: list[CellResult] = []
        self._variables = (
            Variables.KEPT if session.keeps_variables and not self._is_own else Variables.LOST
        )
        """What the next call finds of the variables, as far as this one came."""
        self._message: str | None = None
        self._clamped, self._notices = clamped is not None, [] if clamped is None else [clamped]

    def cancel(self) -> None:
        self._cancelled = True
        if self._execution is not None:
            self._execution.cut(CellStatus.CANCELLED)
        elif not self._has_kernel:
            self.task.cancel()

    async def run(self) -> CallResult:
        """Run it to its end. Raises PxError: no cell was run."""
        session, request, pool = self._session, self._request, self._pool
        if session.running is not None and (busy := session.kernel) is not None:
            caller = request.caller()
            if caller is not None and caller in {busy.key, busy.process_key}:
                raise messages.own_session(session.unit)
        is_renewing = request.reset
        if (
            session.phase is Phase.STARTING
            and (starting := session.kernel) is not None
            and not is_renewing
        ):
            # It may hang in a module that was repaired since.
            is_renewing = await asyncio.to_thread(starting.is_outdated)
        waiter = KernelWaiter(
            session=session, reset=request.reset, is_renewing=is_renewing, tell=self._tell
        )
        kernel = await pool.acquire(waiter, self._deadline)
        self._deadline += waiter.installed_for
        self._installed_for += waiter.installed_for
        self._has_kernel, recycled = True, False
        try:
            kernel.refuse_stopped()
            if await self._enters_new_folder(kernel):
                self._notices.append(messages.new_folder(session.key.cwd))
            if waiter.is_cold:
                self._notices += session.notices
            if not kernel.has_run and session.lost is not None:
                self._notices.append(session.lost)
                session.lost = None
            is_over_memory = await self._run_cells(kernel)
            is_whole = self._variables is Variables.KEPT and kernel.wanted is None
            if recycled := is_over_memory and is_whole and not session.foreign_busy:
                pool.supervisor.say("recycled", kernel, rss_bytes=kernel.rss_bytes)
                self._notices.append(messages.RECYCLED)
                self._variables = Variables.LOST
        finally:
            pool.register.use(session)
            pool.give_back(waiter, kernel, over_memory=recycled)
        return CallResult(
            session_id=session.id,
            cwd=session.key.cwd,
            interpreter=session.key.interpreter,
            backend=session.key.backend,
            variables=self._variables,
            cells=tuple(self._results),
            timeout_seconds=self._seconds,
            clamped=self._clamped,
            cold_start_ms=kernel.cold_start_ms if waiter.is_cold else None,
            instance=kernel.key,
            notices=tuple(self._notices),
            message=self._message,
        )

    async def _enters_new_folder(self, kernel: KernelInstance) -> bool:
        """Have a kernel go into its session's folder where that is another one than before; say
        whether it did.
        """
        cwd = self._session.key.cwd
        if kernel.handle is None or not await asyncio.to_thread(kernel.is_in_former_folder):
            return False
        if not await kernel.handle.change_folder(cwd):
            return False
        kernel.folder = await asyncio.to_thread(identity_of, cwd)
        with suppress(KeeperLostError):  # the call goes on
            await self._pool.supervisor.annotate(kernel)
        return True

    async def _run_cells(self, kernel: KernelInstance) -> bool:
        """Run the cells in order, as far as they go; return whether the kernel is over its soft
        memory limit.
        """
        session, request, loop = self._session, self._request, asyncio.get_running_loop()
        is_over_memory = False
        for index, cell in enumerate(request.cells):
            where = CellPlace(index, len(request.cells), cell.title, self._is_own)
            if self._message is not None or loop.time() >= self._deadline:
                status, error = CellStatus.ABORTED, None
                if self._message is None:
                    self._message = (
                        f"The call's time was over before {str(where)[0].lower()}{str(where)[1:]} "
                        "began."
                    )
                    status, error = CellStatus.TIMED_OUT, CellError("TimedOut", self._message)
                left_out = CellResult(
                    secrets.token_hex(8), cell.title, status, error=error, variables=self._variables
                )
                self._results.append(left_out)
                continue
            sent = KernelCellRow(
                id=secrets.token_hex(8),
                session=session.id,
                call=self.id,
                ordinal=index,
                code=cell.code,
                status=RUNNING,
                # The time of an install is left out: an adopted call has as long as the others
                # have.
                queued_at=time.time() - (loop.time() - request.arrived_at - self._installed_for),
                started_at=time.time(),
                instance=kernel.key,
                title=cell.title,
                timeout_seconds=self._seconds,
            )
            told = {
                "index": index,
                "id": sent.id,
                "title": cell.title,
                "kernel": session.id,
                "code": cell.code,
            }
            self._execution = CellExecution(
                self._pool,
                kernel,
                sent,
                self._deadline,
                self._tell,
                file=request.file,
                allow_error=cell.allow_error,
            )
            try:
                result, end, is_over_memory = await self._execution.perform(
                    {"event": "cell_started", **told, "count": len(request.cells)}
                )
            finally:
                self._execution = None
            if end.variables is Variables.LOST:
                self._variables = Variables.LOST
            # What ended without a reply, or with a kernel that is gone, is no exception of the
            # code.
            is_allowed = cell.allow_error and end.raised
            result = replace(result, variables=self._variables, error_allowed=is_allowed)
            self._results.append(result)
            if result.status is CellStatus.OK:
                session.clear_failures()
            if not is_allowed:
                after_seconds = loop.time() - request.arrived_at - self._installed_for
                self._message = messages.sentence(where, end, after_seconds)
            if self._message is None and (self._cancelled or end.cut is not None):
                self._message = f"The call was cancelled.{where.left_out}"
            self._tell({"event": "cell_done", "cell": result.document()})
        return is_over_memory


class CellExecution:
    """One run of one cell on a session's kernel; `sent` is its row, after `deadline` (loop time) it
    is made to end.

    It is the kernel's `run` until it is known how the cell ended, for all who look at it or want it
    to end.
    """

    def __init__(
        self,
        pool: KernelPool,
        kernel: KernelInstance,
        sent: KernelCellRow,
        deadline: float,
        tell: Callable[[CallEvent], None] = lambda _: None,
        *,
        file: str | None = None,
        allow_error: bool = False,
    ) -> None:
        assert kernel.handle is not None
        self.cell_id = sent.id
        self.steps: tuple[Step, ...] = ()  # what was done so far to end it
        self.judged = asyncio.Event()  # set when it is known how it ended
        self._pool, self._kernel, self._handle = pool, kernel, kernel.handle
        self._sent, self._deadline, self._tell = sent, deadline, tell
        self._file = file
        self._allow_error = allow_error
        self._folder, self._cap = (
            pool.config.cells_dir / sent.session,
            pool.config.output.cell_bytes,
        )
        self._writer: CellWriter | None = None
        self._is_stateless = not kernel.session.keeps_variables
        self._has_begun = True  # as far as was seen before the kernel was made to end
        self._is_fatal = False  # something was sent that the kernel does not survive
        self._cut_as: CellStatus | None = None  # set once it is to end
        self._hurries = 0  # cancels that are to be obeyed still: each makes one step due at once
        self._is_over = False
        # done at the next change
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        kernel.run, kernel.has_run, kernel.session.has_cells = self, True, True

    async def perform(
        self, started: CallEvent | None = None
    ) -> tuple[CellResult, CellOutcome, bool]:
        """Send the cell, and wait for its end or make it end.

        `started` is told right before it is sent, when its row is there; None for a cell that an
        earlier control plane sent: that is only followed. Returns what came of it, how it ended,
        and whether the kernel is over its memory.
        """
        kernel, pool, sent = self._kernel, self._pool, self._sent
        preview_bytes = pool.config.output.preview_bytes
        request = ExecuteRequest(
            sent.id, sent.code, self._folder, preview_bytes, self._cap, self._file
        )
        loop, duration = asyncio.get_running_loop(), None
        try:
            if started is not None:
                await pool.cell_store.dispatch(sent)
                self._tell(started)
            began = loop.time()
            end = await self._run(
                asyncio.ensure_future(self._handle.execute(request, is_sent=started is None))
            )
            if started is not None:
                duration = loop.time() - began
            if (
                end.gone is not None
                or end.variables is Variables.LOST
                or kernel.phase is not Phase.READY
            ):
                await self._until_known(end)
            end = messages.judge(end, kernel.end)
            kernel.exiting = kernel.exiting or end.exited
        finally:
            kernel.run = None
            self.judged.set()
        is_over = kernel.over.is_set()
        over_memory, result = await asyncio.gather(  # the keeper measures while we read
            pool.is_over_memory(kernel),
            pool.cell_store.finish(sent, end, duration, kernel_is_over=is_over),
        )
        if end.error is not None or result.status is not end.status:
            end = replace(end, status=result.status, error=result.error)
        is_allowed = self._allow_error and end.raised  # it is no failure of the call
        if result.status in {CellStatus.ERROR, CellStatus.TIMED_OUT} and not is_allowed:
            self._report_failure(result)
        return result, end, over_memory

    def _report_failure(self, result: CellResult) -> None:
        """Publish that the cell failed: it is in the history as failed runs of tools are."""
        error = result.error
        facts: dict[str, Any] = {
            "cell": result.id,
            "title": result.title,
            "status": result.status.value,
        }
        facts |= {"error": error and error.name, "duration_seconds": result.duration_seconds}
        # A mistake in a cell leads to nothing: what happens to the kernel later has other causes.
        self._pool.supervisor.say("cell_failed", self._kernel, leads_on=False, **facts)

    async def _run(self, executing: asyncio.Future[Reply]) -> CellOutcome:
        is_lost = False
        try:
            left = (
                0.0
                if self._cut_as
                else max(0.0, self._deadline - asyncio.get_running_loop().time())
            )
            signs: set[asyncio.Future[Any]] = {executing, self._news}
            await asyncio.wait(signs, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not executing.done():
                self._cut_as = self._cut_as or CellStatus.TIMED_OUT
                is_lost = await self._escalate(executing)
                if not executing.done() and self._handle.died.done():
                    await asyncio.wait({executing}, timeout=LOST_CELL_SECONDS)
        finally:
            if not executing.done():
                executing.cancel()  # abandons the wait, not the cell
                await asyncio.wait({executing})
            self._is_over = True
            self._news.set_result(None)
        reply: Reply | None = None
        gone: PxError | None = None
        if executing.cancelled():
            gone = KernelGoneError(
                f"{self._kernel.unit} did not end in time.", unit=self._kernel.unit
            )
        elif isinstance(error := executing.exception(), PxError):
            gone = error
        else:
            reply = executing.result()
        variables = Variables.LOST if gone or is_lost else Variables.KEPT
        if self.steps:
            state, why = (
                Variables.LOST if self._is_stateless else variables,
                self._cut_as and self._cut_as.value,
            )
            told: dict[str, Any] = {
                "cell": self.cell_id,
                "why": why,
                "steps": [asdict(it) for it in self.steps],
            }
            self._pool.supervisor.say(
                "interrupted_cell", self._kernel, variables=state.value, **told
            )
        kept = Variables.KEPT if self._is_stateless else variables
        return CellOutcome(
            reply, gone, self._cut_as, kept, self.steps, self._is_stateless, self._has_begun
        )

    # -- for others --------------------------------------------------------------------------------

    def cut(self, status: CellStatus) -> None:
        """Have the cell end; asked again, the next step is taken at once.

        The first status stands.
        """
        if self._cut_as is None:
            self._cut_as = status
        else:
            self._hurries += 1
        self._tell_news()

    async def until_climbed(self, known: int, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while len(self.steps) <= known and not self._is_over:
                    await asyncio.wait({self._news})

    def hold_to_cap(self) -> None:
        """Cut the cell's files back to their cap: whoever writes there asks nobody. Blocking."""
        self._writer = self._writer or CellWriter(str(self._folder), self.cell_id, self._cap)
        self._writer.limit()

    def _tell_news(self) -> None:
        if not self._is_over:
            news, self._news = self._news, asyncio.get_running_loop().create_future()
            news.set_result(None)

    # -- ending a cell -----------------------------------------------------------------------------

    async def _escalate(self, executing: asyncio.Future[Reply]) -> bool:
        """Take one step after the other until the cell is over; return whether the kernel's
        state is lost by that.
        """
        loop, handle, times = asyncio.get_running_loop(), self._handle, self._pool.config
        steps: tuple[tuple[Callable[[], Awaitable[str]], float], ...] = (
            (handle.interrupt, times.ladder_again_seconds),
            (handle.interrupt, times.ladder_terminate_seconds - times.ladder_again_seconds),
            (handle.terminate, times.ladder_kill_seconds - times.ladder_terminate_seconds),
            (handle.kill, ABANDON_SECONDS),
        )
        first = loop.time()
        for act, seconds in steps:
            if self._has_ended(executing):
                break
            begun = loop.time()
            await self._take(act, begun - first)
            while not self._has_ended(executing) and (left := begun + seconds - loop.time()) > 0:
                if self._hurries and act != handle.kill:
                    self._hurries -= 1
                    break
                signs: set[asyncio.Future[Any]] = {executing, handle.died, self._news}
                pending = {it for it in signs if not it.done()}
                await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        has_failed = executing.done() and executing.exception() is not None
        return self._is_fatal or handle.died.done() or has_failed

    def _has_ended(self, executing: asyncio.Future[Reply]) -> bool:
        """Say whether nothing more is to be done: after SIGTERM a kernel must be gone, a shell
        is with its cell.
        """
        if self._handle.died.done() or not executing.done():
            return self._handle.died.done()
        return not self._is_fatal or self._is_stateless or executing.exception() is not None

    async def _take(self, act: Callable[[], Awaitable[str]], after_seconds: float) -> None:
        if act in {self._handle.terminate, self._handle.kill}:
            self._has_begun = self._handle.has_begun()
            self._is_fatal = True
            if not self._is_stateless:
                self._kernel.wanted = self._kernel.wanted or self._why_killed()
        try:
            step = Step(await act(), round(after_seconds, 3))
        except KeeperLostError:
            raise
        except PxError as error:  # a gateway that does not answer must not stop the escalation
            step = Step(act.__name__, round(after_seconds, 3), error.detail)
        _log.info("cell_rung", unit=self._kernel.unit, cell=self.cell_id, **asdict(step))
        self.steps = (*self.steps, step)
        self._tell({"event": "rung", "id": self.cell_id, **asdict(step)})
        self._tell_news()

    def _why_killed(self) -> Reason:
        """Return why the kernel is made to end with its cell: a cell that never began is not to
        blame for it.
        """
        if not self._has_begun:
            return Reason.WATCHDOG
        return Reason.TIMEOUT if self._cut_as is CellStatus.TIMED_OUT else Reason.CANCELLED

    async def _until_known(self, end: CellOutcome) -> None:
        kernel = self._kernel
        if not kernel.ending:
            if end.is_stateless and not self._handle.died.done():
                return  # only the process of this cell ended
            self._pool.died(kernel)
        try:
            async with asyncio.timeout(END_SECONDS):
                await kernel.over.wait()
        except TimeoutError:
            _log.warning("kernel_end_unknown", unit=kernel.unit, instance=kernel.key)


async def follow(
    pool: KernelPool, kernel: KernelInstance, sent: KernelCellRow, running: Waiter
) -> None:
    left = sent.queued_at + (sent.timeout_seconds or pool.config.timeout_max_seconds) - time.time()
    run = CellExecution(pool, kernel, sent, asyncio.get_running_loop().time() + left)
    result, *_ = await run.perform()
    if result.status is CellStatus.OK:
        kernel.session.clear_failures()
    pool.give_back(running, kernel)

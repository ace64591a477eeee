"""One living kernel behind a Jupyter server.

Its variables are as lost as its process. Whatever says that the process is gone (the server's `status`, a 404, a
connection that does not come back) ends the running cell at once, and nothing takes the restarted kernel, which the
server may offer under the same id, for the old one. A cell is sent once, and seen through to its end by a task of its
own, whether or not somebody still waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.errors import PxError, ReadinessTimeoutError, StartFailedError, TimedOutError, UnknownUnitError
from supervisord_py.kernels.backend import KernelGoneError, Started
from supervisord_py.kernels.cell_files import CellLog, CellRecorder
from supervisord_py.kernels.foreign_requests import ForeignRequests
from supervisord_py.kernels.gateway import wire
from supervisord_py.kernels.gateway.cells import (
    CellProgress,
    content_of,
    metadata_of,
    outcome_of,
    outcome_unknown,
    state_lost,
)
from supervisord_py.kernels.gateway.client import UNKNOWN_THERE, GatewayUnreachableError
from supervisord_py.kernels.gateway.init_code import FACTS, fact
from supervisord_py.kernels.gateway.websocket import KernelSocket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from supervisord_py.kernels.backend import ExecuteRequest, Reply
    from supervisord_py.kernels.gateway.client import GatewayClient
    from supervisord_py.kernels.gateway.roster import Held, HeldKernels
    from supervisord_py.process.spec import ExitRecord, Identity

SILENT_SECONDS = 10.0
"""After a reply, silence of the server after which the rest of the output counts as lost."""
IDLE_SECONDS = 1.0
"""The same for a kernel whose output is in its own files."""
LEFT_ALONE_SECONDS = 5.0
"""After so much silence the server is asked before a cell is sent: it may have culled the kernel."""
LEAVE_SECONDS = 1.0
"""How long a DELETE under way may hold up the closing of the connections."""
DELETE_PAUSES = (0.5, 1.5)
"""A server that is restarting the kernel answers 500 for a moment."""
ATTACH_SECONDS = 15.0
BUSY_SECONDS = 2.0
"""How long a kernel that is taken over may take to answer, before it is believed to be busy with a cell."""
LOOK_SECONDS = 0.5
"""How often a server is asked whether a kernel that starts still lives."""
REMEMBERED_CELLS = 16
"""Cells whose late output is still recorded."""
EARLY_MESSAGES = 10_000
_log = structlog.get_logger(__name__)


class EndedEarlyError(StartFailedError):
    """A kernel ended before it was ready."""


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """What a handle is made of.

    Attributes:
        client: Of its server.
        held: Who it is there.
        notes: Where that is written down.
        spool: The kernel writes the files of its cells by itself.
        nudge_seconds: From an interrupt to the request that makes sleeping code notice it.
        trace: Log each message.
    """

    client: GatewayClient
    held: Held
    notes: HeldKernels
    spool: bool
    nudge_seconds: float
    trace: bool


@dataclass(slots=True, eq=False)
class _Cell:
    """A cell that was sent.

    Attributes:
        wake: Called whenever there is news in the cell's files.
        recorder: Writes the cell's files; None where the kernel does.
        changed: Set whenever something came that may end it.
        sent_after: How many breaks there had been when it was sent; None before, -1 when another control plane did.
        is_unheard: It is over, and its reply is lost.
    """

    progress: CellProgress
    wake: Callable[[], None]
    recorder: CellRecorder | None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    sent_after: int | None = None
    is_unheard: bool = False


class GatewayKernel:
    """A `KernelHandle`."""

    def __init__(self, plan: KernelPlan, phases: Mapping[str, float] | None = None) -> None:
        self.plan = plan
        self.notice: str | None = None
        """Told with the next cell: what the start found out."""
        self.process: Identity | None = None
        """Its process, where that is on this machine."""
        self.clear: Callable[[], Awaitable[tuple[int, ...]]] = _nothing_left
        """Ends what is left of it on this machine; returns what survives."""
        self.started = Started(None, {} if phases is None else phases)
        self.foreign = ForeignRequests()
        self.is_settled = False
        """Whether the start is over: from then on a `starting` on iopub is another process."""
        self.early: deque[wire.Message] | None = None
        """Messages of cells that an earlier control plane sent, until one is followed."""
        self.died: asyncio.Future[ExitRecord | None] = asyncio.get_running_loop().create_future()
        self._client = plan.client
        self._kernel = plan.held.kernel
        self._why = ""
        self._ending: asyncio.Task[None] | None = None
        self._is_deleted = False
        self.is_closed = False
        """Whether its connections are closed."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._answers: dict[str, asyncio.Future[wire.Message]] = {}
        self._cells: dict[str, _Cell] = {}
        self._socket = KernelSocket(
            plan.client,
            self._kernel,
            plan.held.session,
            hear=self._heard,
            on_back=self._ask_for_lost_replies,
            on_gone=self.lose,
            trace=plan.trace,
        )

    @property
    def connection_file(self) -> Path | None:
        """None: its channels lie behind the server."""
        return None

    @property
    def foreign_busy(self) -> bool:
        """True while it works for a client that is not ours."""
        return self.foreign.busy

    @property
    def foreign_used_at(self) -> float | None:
        """When a client that is not ours last used it."""
        return self.foreign.used_at

    # -- its beginning -----------------------------------------------------------------------------------------------

    async def connect(self, seconds: float) -> None:
        """Open its websocket. A server lets that wait for a kernel that has died already: so it is asked meanwhile.

        Raises:
            EndedEarlyError: It has died.
        """
        connecting = asyncio.create_task(self._socket.open(seconds))
        try:
            while not connecting.done():
                await asyncio.wait([connecting], timeout=LOOK_SECONDS)
                if not connecting.done() and await self._is_dead():
                    where = self._client.place.shown
                    raise EndedEarlyError(f"The kernel at {where} ended before it was ready.", reason="early_exit")
            connecting.result()
        finally:
            connecting.cancel()
            await asyncio.wait([connecting])

    async def _is_dead(self) -> bool:
        try:
            model = await self._client.model(self._kernel)
        except PxError:
            return False
        return model is None or model.get("execution_state") == "dead"

    async def facts(self, code: str, seconds: float) -> tuple[str, ...]:
        """Run Python silently and return how the kernel names its process afterwards: FACTS."""
        content = {
            "code": code,
            "silent": True,
            "store_history": False,
            "user_expressions": FACTS,
            "allow_stdin": False,
            "stop_on_error": False,
        }
        answer = await self.ask("execute_request", content, seconds)
        expressions = answer.content.get("user_expressions")
        told = expressions if isinstance(expressions, dict) else {}
        if answer.content.get("status") != "ok":
            _log.warning("gateway_init_failed", kernel=self._kernel, error=str(answer.content.get("evalue")))
        return tuple(fact(told, name) or "" for name in FACTS)

    async def ask(self, kind: str, content: Mapping[str, Any], seconds: float) -> wire.Message:
        """Send a request on shell and return its answer.

        Raises:
            TimedOutError: It did not come in time.
            KernelGoneError: It will not come.
        """
        message = self.request(kind, content)
        answer = self._expect(message)
        try:
            async with asyncio.timeout(seconds):
                await self._socket.send(message)
                return await answer
        except TimeoutError:
            where = self._client.place.shown
            raise TimedOutError(f"The kernel at {where} did not answer a {kind} within {seconds:g} s.") from None
        finally:
            answer.cancel()

    def request(self, kind: str, content: Mapping[str, Any], msg_id: str = "") -> wire.Message:
        """Return a new request on shell."""
        date = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return wire.request(kind, content, msg_id=msg_id or uuid.uuid4().hex, session=self.plan.held.session, date=date)

    def _expect(self, message: wire.Message) -> asyncio.Future[wire.Message]:
        answer: asyncio.Future[wire.Message] = asyncio.get_running_loop().create_future()
        if self.died.done():
            answer.set_exception(KernelGoneError(self._sentence()))
            return answer
        msg_id = str(message.header["msg_id"])
        self._answers[msg_id] = answer
        answer.add_done_callback(lambda _: self._answers.pop(msg_id, None))
        return answer

    # -- cells -------------------------------------------------------------------------------------------------------

    async def execute(self, request: ExecuteRequest, wake: Callable[[], None]) -> Reply:
        """Run a cell to its end: reply and end of output. Cancelling this abandons the wait, not the cell.

        Raises:
            KernelGoneError: It died.
        """
        if self._socket.silent_seconds > LEFT_ALONE_SECONDS and await self._is_dead():
            self.lose(UNKNOWN_THERE)
        self._check()
        recorder = None if self.plan.spool else await asyncio.to_thread(self._record, request, begin=True)
        cell = await self._begin(request, wake, recorder)
        message = self.request("execute_request", content_of(request), request.cell_id)
        if self.plan.spool:
            message = replace(message, metadata=metadata_of(request))
        return await self._see_through(cell, request, message)

    async def follow(self, request: ExecuteRequest, wake: Callable[[], None]) -> Reply:
        """Wait for the end of a cell that an earlier control plane sent; as `execute` otherwise."""
        self._check()
        recorder = None if self.plan.spool else await asyncio.to_thread(self._record, request, begin=False)
        cell = await self._begin(request, wake, recorder)
        # It may have ended until now; its reply is heard from now on.
        ended = await asyncio.to_thread(CellLog(request.cells_dir, request.cell_id).reply)
        if ended is not None:
            return ended
        cell.sent_after = -1
        self._ask_for_lost_replies()
        return await self._see_through(cell, request, None)

    async def _begin(self, request: ExecuteRequest, wake: Callable[[], None], recorder: CellRecorder | None) -> _Cell:
        """Listen for a cell that is about to be sent, or was sent by an earlier control plane."""
        cell = _Cell(CellProgress(request.cell_id), wake, recorder)
        early = self.early or deque()
        while early:
            if (message := early.popleft()).parent_id == request.cell_id:
                await self._hear_cell(cell, message)
        self.early = None
        self._cells[request.cell_id] = cell
        while len(self._cells) > REMEMBERED_CELLS:
            old = self._cells.pop(next(iter(self._cells)))
            if old.recorder is not None:
                await asyncio.to_thread(old.recorder.close)
        return cell

    async def _see_through(self, cell: _Cell, request: ExecuteRequest, message: wire.Message | None) -> Reply:
        task = self._keep(asyncio.create_task(self._run(cell, request, message), name=f"cell {request.cell_id}"))
        task.add_done_callback(self._cell_ended)
        try:
            return await asyncio.shield(task)
        finally:
            if task.cancelled():
                self._check()  # it was ended with its kernel, not by whoever waits here

    def _keep(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _cell_ended(self, task: asyncio.Task[Reply]) -> None:
        if task.cancelled() or task.exception() is not None:
            return  # whoever waited was told; looked at, so that nobody is blamed where nobody waited
        if task.result().asked_exit:
            self._begin_to_end("its code asked it to exit")

    async def _run(self, cell: _Cell, request: ExecuteRequest, message: wire.Message | None) -> Reply:
        if message is not None:
            try:
                cell.sent_after = await self._socket.send(message)
            except KernelGoneError:
                self._check()  # in the handle's words
                raise
        reply = await self._reply(cell, request)
        self.foreign.settle()
        cell.wake()
        if self.notice is not None:
            notices = [self.notice, *([reply.notice] if reply.notice else [])]
            reply, self.notice = replace(reply, notice=" ".join(notices)), None
        return reply

    async def _reply(self, cell: _Cell, request: ExecuteRequest) -> Reply:
        while cell.progress.reply is None:
            if self.died.done() or cell.is_unheard:
                return await self._without_reply(cell, request)
            await cell.changed.wait()
            cell.changed.clear()
        await self._await_idle(cell)
        if cell.recorder is not None:
            await asyncio.to_thread(cell.recorder.end, cell.progress.reply)
        return outcome_of(cell.progress, spool=self.plan.spool, broken=self._is_broken(cell))

    async def _await_idle(self, cell: _Cell) -> None:
        """Wait for the end of the output: a reply takes another channel and overtakes megabytes of it."""
        patience = IDLE_SECONDS if self.plan.spool else SILENT_SECONDS
        while not (cell.progress.idle or self.died.done() or self._is_broken(cell)):
            try:
                async with asyncio.timeout(patience):
                    await cell.changed.wait()
            except TimeoutError:
                if self._socket.silent_seconds >= patience:
                    return
            cell.changed.clear()

    def _is_broken(self, cell: _Cell) -> bool:
        return cell.sent_after is not None and cell.sent_after != self._socket.breaks

    async def _without_reply(self, cell: _Cell, request: ExecuteRequest) -> Reply:
        """The kernel is gone, or the reply was lost with a connection; one that writes may have written the end."""
        if self.plan.spool:
            ended = await asyncio.to_thread(CellLog(request.cells_dir, request.cell_id).reply)
            if ended is not None:
                return ended
        if self.died.done():
            if cell.recorder is not None:
                await asyncio.to_thread(cell.recorder.close)
            raise KernelGoneError(self._sentence(), hint=None)
        if cell.recorder is not None:
            await asyncio.to_thread(cell.recorder.end, {})
        return outcome_unknown(self._client.place.shown)

    def _record(self, request: ExecuteRequest, *, begin: bool) -> CellRecorder:
        recorder = CellRecorder(request.cells_dir, request.cell_id, request.cell_bytes)
        if begin:
            recorder.begin(request.code)
        return recorder

    # -- what the websocket says -------------------------------------------------------------------------------------

    async def _heard(self, message: wire.Message) -> None:
        if (state := state_lost(message, is_settled=self.is_settled)) is not None:
            self.lose(f"its process ended (its server says {state!r})")
        elif (cell := self._cells.get(message.parent_id)) is not None:
            await self._hear_cell(cell, message)
        elif message.type.endswith("_reply") and (answer := self._answers.get(message.parent_id)) is not None:
            if not answer.done():
                answer.set_result(message)
        elif message.parent.get("session") == self.plan.held.session:
            if self.early is not None:
                self.early.append(message)
        elif message.type == "status" and message.parent.get("msg_type") == "execute_request":
            self.foreign.note(str(message.content.get("execution_state")), message.parent_id, time.time())

    async def _hear_cell(self, cell: _Cell, message: wire.Message) -> None:
        is_output = cell.progress.take(message)
        if is_output and cell.recorder is not None:
            await asyncio.to_thread(cell.recorder.take, message.type, message.content)
        cell.changed.set()
        if is_output:
            cell.wake()

    def _ask_for_lost_replies(self) -> None:
        """The connection was away: the kernel works its requests off in turn, so the answer to one more tells."""
        waiting = [cell for cell in self._cells.values() if cell.progress.reply is None and self._is_broken(cell)]
        if not waiting:
            return
        for cell in waiting:
            cell.changed.set()
        message = self.request("kernel_info_request", {})
        self._expect(message).add_done_callback(partial(_told_of_lost, waiting))
        self._keep(asyncio.create_task(self._try_to_send(message)))

    async def _try_to_send(self, message: wire.Message) -> None:
        with contextlib.suppress(KernelGoneError):
            await self._socket.send(message)

    # -- its end -----------------------------------------------------------------------------------------------------

    async def interrupt(self) -> str:
        """Have the server interrupt it and, a little later, the nudge; return the actions taken."""
        try:
            await self._client.interrupt(self._kernel)
        except UnknownUnitError:
            self.lose(UNKNOWN_THERE)
            return "gone"
        except PxError as error:
            _log.warning("gateway_interrupt_failed", kernel=self._kernel, detail=error.detail)
            return "interrupt_failed"
        await asyncio.sleep(self.plan.nudge_seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._try_to_send(self.request("kernel_info_request", {}))
        return "rest_interrupt+nudge"

    async def terminate(self) -> str:
        """Have the server end it; that goes on in the background, `died` tells the end."""
        self._begin_to_end("it was deleted at its server")
        return "delete"

    async def kill(self) -> str:
        """As `terminate`, and wait until the server has done so: it has no harder way."""
        await asyncio.shield(self._begin_to_end("it was deleted at its server"))
        return "delete"

    async def shutdown(self, grace_seconds: float, reason: str) -> tuple[int, ...]:
        """End it and forget it; returns pids of what is left of it on this machine.

        `grace_seconds` is the server's to decide: its API has no such parameter.
        """
        _log.debug("gateway_kernel_shutdown", kernel=self._kernel, reason=reason, grace_seconds=grace_seconds)
        await asyncio.shield(self._begin_to_end("it was deleted at its server"))
        await self.close()
        if self._is_deleted:
            await asyncio.to_thread(self.plan.notes.remove, self.plan.held.instance)
        return await self.clear()

    async def close(self) -> None:
        """Let go of the connections; the kernel goes on living."""
        self.is_closed = True
        if self._ending is not None and not self._ending.done():
            await asyncio.wait([self._ending], timeout=LEAVE_SECONDS)
            self._ending.cancel()
        await self._socket.close()
        tasks = [each for each in self._tasks if not each.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        cells, self._cells = self._cells, {}
        for cell in cells.values():
            if cell.recorder is not None:
                await asyncio.to_thread(cell.recorder.close)

    def lose(self, why: str) -> None:
        """It is gone: say so once. Only the first reason counts."""
        if self.died.done():
            return
        self._why = why.rstrip(".")
        self._socket.give_up(why)
        _log.info("gateway_kernel_gone", kernel=self._kernel, unit=f"kernel:{self.plan.held.session_id}", why=why)
        self.died.set_result(None)
        for answer in list(self._answers.values()):
            if not answer.done():
                answer.set_exception(KernelGoneError(self._sentence()))
                answer.exception()  # it is nobody's fault when the one who asked has gone already
        for cell in self._cells.values():
            cell.changed.set()

    def _begin_to_end(self, why: str) -> asyncio.Task[None]:
        if self._ending is None:
            self._ending = asyncio.create_task(self._delete(why), name=f"delete kernel {self._kernel}")
        return self._ending

    async def _delete(self, why: str) -> None:
        """Have the server end it. Where that fails it is given up; its note stays, for a later sweep."""
        for pause in (*DELETE_PAUSES, None):
            try:
                await self._client.delete(self._kernel)
            except PxError as error:
                _log.info("gateway_delete_failed", kernel=self._kernel, detail=error.detail)
                # Our own gateway is gone, or about to be; what it leaves on this machine is ended by `clear`.
                is_away = isinstance(error, GatewayUnreachableError)
                self._is_deleted = is_away and self._client.place.is_ours
                if is_away or pause is None:
                    self.lose(error.detail)
                    return
                await asyncio.sleep(pause)
            else:
                self._is_deleted = True
                self.lose(why)
                return

    def _check(self) -> None:
        if self.died.done():
            raise KernelGoneError(self._sentence())

    def _sentence(self) -> str:
        return f"The kernel at {self._client.place.shown} is gone: {self._why}. Its variables are lost."


def _told_of_lost(waiting: list[_Cell], answer: asyncio.Future[wire.Message]) -> None:
    if answer.cancelled() or answer.exception() is not None:
        return
    for cell in waiting:
        cell.is_unheard = cell.progress.reply is None
        cell.changed.set()


async def _nothing_left() -> tuple[int, ...]:
    return ()


# -- from a kernel's id to a kernel that answers -----------------------------------------------------------------------


def remaining(deadline: float) -> float:
    """Return the seconds until a loop time, at least a little: whoever gets them then times out at once."""
    return max(0.05, deadline - asyncio.get_running_loop().time())


async def open_new(plan: KernelPlan, code: str | None, deadline: float, phases: dict[str, float]) -> GatewayKernel:
    """Return the handle of a kernel that was just started, when it answers.

    Args:
        plan: What it is made of.
        code: Python to be run silently first; None for a kernel of another language.
        deadline: Loop time.
        phases: Gets `connect` and `init`, seconds.

    Raises:
        PxError: It does not answer, or its server does not; nothing is left open then, but the kernel is not deleted.
    """
    kernel = GatewayKernel(plan, phases)
    try:
        began = time.monotonic()
        await kernel.connect(remaining(deadline))
        try:
            about = await kernel.ask("kernel_info_request", {}, remaining(deadline))
        except TimedOutError as error:
            raise ReadinessTimeoutError(error.detail, reason="readiness_timeout") from error
        language = about.content.get("language_info")
        is_python = isinstance(language, dict) and language.get("name") == "python"
        phases["connect"] = time.monotonic() - began
        began = time.monotonic()
        facts = await kernel.facts(code, remaining(deadline)) if is_python and code is not None else ()
        phases["init"] = time.monotonic() - began
    except BaseException:
        await kernel.close()
        raise
    kernel.is_settled = True
    kernel.plan = replace(plan, held=replace(plan.held, facts=facts))
    return kernel


async def open_again(plan: KernelPlan) -> GatewayKernel | None:
    """Return the handle of a kernel that an earlier control plane started; None when its state is lost.

    It counts as taken over only when it names the same process as when it was started: a server that restarted it
    meanwhile still offers the id, without the variables.
    """
    kernel = GatewayKernel(plan)
    kernel.is_settled = True
    kernel.early = deque(maxlen=EARLY_MESSAGES)
    try:
        await kernel.connect(ATTACH_SECONDS)
        is_same = await _is_same(kernel)
    except PxError as error:
        _log.info("gateway_attach_failed", unit=f"kernel:{plan.held.session_id}", detail=error.detail)
        is_same = False
    except BaseException:
        await kernel.close()
        raise
    if is_same:
        return kernel
    await kernel.close()
    return None


async def _is_same(kernel: GatewayKernel) -> bool:
    """Ask it which process it is; one that is busy cannot say so, and is believed."""
    known = kernel.plan.held.facts
    if not known:
        return True
    try:
        found = await kernel.facts("", BUSY_SECONDS)
    except PxError:
        return not kernel.died.done()
    return found[:2] == tuple(known[:2])

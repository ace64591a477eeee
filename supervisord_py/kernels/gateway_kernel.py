"""One living kernel behind a Jupyter server.

Its variables are as lost as its process. Whatever says that the process is gone (the server's `status`, a 404, a
connection that does not come back once) ends the running cell at once, and nothing takes the restarted kernel, which
the server may offer under the same id, for the old one. A cell is sent once, and seen through to its end by a task of
its own, whether or not somebody still waits for it. What a break of the connection took is said: the cell is `lossy`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import deque
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.errors import PxError, StartFailedError, TimedOutError, UnknownUnitError
from supervisord_py.kernels import websocket_frames
from supervisord_py.kernels.backend import KernelGoneError, Reply, Started
from supervisord_py.kernels.cell import CellError, CellStatus
from supervisord_py.kernels.cell_files import CellLog, CellRecorder
from supervisord_py.kernels.foreign_requests import ForeignRequests
from supervisord_py.kernels.gateway_cell import BROKEN, RemoteCell, state_lost
from supervisord_py.kernels.gateway_client import UNKNOWN_THERE, GatewayUnreachableError
from supervisord_py.kernels.gateway_socket import KernelSocket

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from supervisord_py.kernels.backend import ExecuteRequest
    from supervisord_py.kernels.gateway_cell import RemoteKernel
    from supervisord_py.kernels.gateway_client import GatewayClient
    from supervisord_py.kernels.websocket_frames import Message
    from supervisord_py.process.model import ExitRecord

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
LOOK_SECONDS = 0.5
"""How often a server is asked whether a kernel that starts still lives."""
REMEMBERED_CELLS = 16
"""Cells whose late output is still recorded."""
EARLY_MESSAGES = 10_000
MARK = "PX_INSTANCE"
_FACTS = {
    "pid": "__import__('os').getpid()",
    "mark": f"__import__('os').environ.get('{MARK}')",
    "cwd": "__import__('os').getcwd()",
}
"""`user_expressions` by which a kernel says which process it is."""
_log = structlog.get_logger(__name__)


class EndedEarlyError(StartFailedError):
    """A kernel ended before it was ready."""


class GatewayKernel:
    """A `KernelHandle`.

    Args:
        client: Of its server.
        held: Who it is there.
        spool: The kernel writes the files of its cells by itself.
        nudge_seconds: From an interrupt to the request that makes sleeping code notice it.
        trace: Log each message.
        forget: Removes what is written down of it, once it is gone.
    """

    def __init__(
        self,
        client: GatewayClient,
        held: RemoteKernel,
        *,
        spool: bool,
        nudge_seconds: float,
        trace: bool,
        forget: Callable[[RemoteKernel], Awaitable[None]],
    ) -> None:
        self.held = held
        self.notice: str | None = None  # told with the next cell
        self.clear: Callable[[], Awaitable[tuple[int, ...]]] = _nothing_left  # ends what is left of it on this machine
        self.started = Started(None)
        self.connection_file: Path | None = None
        self.foreign = ForeignRequests()
        self.is_settled = False  # from then on a `starting` on iopub is another process
        self.early: deque[Message] | None = None  # of cells that an earlier control plane sent, until one is followed
        self.died: asyncio.Future[ExitRecord | None] = asyncio.get_running_loop().create_future()
        self.is_closed = False
        self._client = client
        self._spool = spool
        self._nudge_seconds = nudge_seconds
        self._forget = forget
        self._why = ""
        self._ending: asyncio.Task[None] | None = None
        self._is_deleted = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._answers: dict[str, asyncio.Future[Message]] = {}
        self._cells: dict[str, RemoteCell] = {}
        self._socket = KernelSocket(
            client,
            held.kernel,
            held.session,
            hear=self._heard,
            on_back=self._ask_for_lost_replies,
            on_gone=self.lose,
            trace=trace,
        )

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
        """Open its websocket. A server lets that wait for a kernel that has died already: so it is asked meanwhile."""
        connecting = asyncio.create_task(self._socket.open(seconds))
        try:
            while not (await asyncio.wait([connecting], timeout=LOOK_SECONDS))[0]:
                if await self._is_dead():
                    where = self._client.place.shown
                    raise EndedEarlyError(f"The kernel at {where} ended before it was ready.", reason="early_exit")
            connecting.result()
        finally:
            connecting.cancel()
            await asyncio.wait([connecting])

    async def _is_dead(self) -> bool:
        try:
            model = await self._client.model(self.held.kernel)
        except PxError:
            return False
        return model is None or model.get("execution_state") == "dead"

    async def facts(self, code: str, seconds: float) -> tuple[str, ...]:
        """Run Python silently and return how the kernel names its process afterwards: pid, mark, folder."""
        content = {"code": code, "silent": True, "user_expressions": _FACTS}
        answer = await self.ask("execute_request", {**_CONTENT, **content}, seconds)
        if answer.content.get("status") != "ok":
            _log.warning("gateway_init_failed", kernel=self.held.kernel, error=str(answer.content.get("evalue")))
        told: Any = answer.content.get("user_expressions") or {}
        return tuple(str(told.get(name, {}).get("data", {}).get("text/plain") or "") for name in _FACTS)

    async def ask(self, kind: str, content: Mapping[str, Any], seconds: float) -> Message:
        """Send a request on shell and return its answer; TimedOutError where none came, KernelGoneError for ever."""
        message = self._request(kind, content)
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

    def _request(self, kind: str, content: Mapping[str, Any], msg_id: str = "") -> Message:
        date = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return websocket_frames.request(
            kind, content, msg_id=msg_id or uuid.uuid4().hex, session=self.held.session, date=date
        )

    def _expect(self, message: Message) -> asyncio.Future[Message]:
        self._check()
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
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
        cell = await self._begin(request, wake, is_new=True)
        content = {**_CONTENT, "code": request.code, "store_history": request.store_history}
        message = self._request("execute_request", content, request.cell_id)
        if self._spool:  # the mark by which our launcher knows a cell of ours, and writes its files
            mark = {
                "cell": request.cell_id,
                "dir": str(request.cells_dir),
                "preview": request.preview_bytes,
                "cap": request.cell_bytes,
            }
            message = replace(message, metadata={"px": mark})
        return await self._see_through(cell, request, message)

    async def follow(self, request: ExecuteRequest, wake: Callable[[], None]) -> Reply:
        """Wait for the end of a cell that an earlier control plane sent; as `execute` otherwise."""
        cell = await self._begin(request, wake, is_new=False)
        # It may have ended until now; its reply is heard from now on.
        ended = await asyncio.to_thread(CellLog(request.cells_dir, request.cell_id).reply)
        if ended is not None:
            return ended
        cell.sent_after = -1
        self._ask_for_lost_replies()
        return await self._see_through(cell, request, None)

    async def _begin(self, request: ExecuteRequest, wake: Callable[[], None], *, is_new: bool) -> RemoteCell:
        """Listen for a cell that is about to be sent, or was sent by an earlier control plane."""
        self._check()
        recorder = None
        if not self._spool:
            recorder = CellRecorder(request.cells_dir, request.cell_id, request.cell_bytes)
            if is_new:
                await asyncio.to_thread(recorder.begin, request.code)
        cell = RemoteCell(wake, recorder)
        early, self.early = self.early or (), None
        for message in early:
            if message.parent_id == request.cell_id:
                await self._hear_cell(cell, message)
        self._cells[request.cell_id] = cell
        while len(self._cells) > REMEMBERED_CELLS:
            old = self._cells.pop(next(iter(self._cells)))
            if old.recorder is not None:
                await asyncio.to_thread(old.recorder.close)
        return cell

    async def _see_through(self, cell: RemoteCell, request: ExecuteRequest, message: Message | None) -> Reply:
        task = self._keep(asyncio.create_task(self._run(cell, request, message), name=f"cell {request.cell_id}"))
        try:
            return await asyncio.shield(task)
        finally:
            if task.cancelled():
                self._check()  # it was ended with its kernel, not by whoever waits here

    def _keep(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever waited was told
        return task

    async def _run(self, cell: RemoteCell, request: ExecuteRequest, message: Message | None) -> Reply:
        if message is not None:
            try:
                cell.sent_after = await self._socket.send(message)
            except KernelGoneError:
                self._check()  # in the handle's words
                raise
        while cell.reply is None and not self.died.done() and not cell.is_unheard:
            await cell.changed.wait()
            cell.changed.clear()
        if cell.reply is None:
            return await self._without_reply(cell, request)
        await self._await_idle(cell)
        if cell.recorder is not None:
            await asyncio.to_thread(cell.recorder.end, cell.reply)
        reply = cell.outcome(spool=self._spool, broken=self._is_broken(cell))
        self.foreign.settle()
        cell.wake()
        if self.notice is not None:
            notice = " ".join(filter(None, (self.notice, reply.notice)))
            reply, self.notice = replace(reply, notice=notice), None
        if reply.asked_exit:
            self._begin_to_end("its code asked it to exit")
        return reply

    async def _await_idle(self, cell: RemoteCell) -> None:
        """Wait for the end of the output: a reply takes another channel and overtakes megabytes of it."""
        patience = IDLE_SECONDS if self._spool else SILENT_SECONDS
        while not (cell.idle or self.died.done() or self._is_broken(cell)):
            try:
                async with asyncio.timeout(patience):
                    await cell.changed.wait()
            except TimeoutError:
                if self._socket.silent_seconds >= patience:
                    return
            cell.changed.clear()

    def _is_broken(self, cell: RemoteCell) -> bool:
        return cell.sent_after is not None and cell.sent_after != self._socket.breaks

    async def _without_reply(self, cell: RemoteCell, request: ExecuteRequest) -> Reply:
        """The kernel is gone, or the reply was lost with a connection; one that writes may have written the end."""
        if self._spool:
            ended = await asyncio.to_thread(CellLog(request.cells_dir, request.cell_id).reply)
            if ended is not None:
                return ended
        if self.died.done():
            if cell.recorder is not None:
                await asyncio.to_thread(cell.recorder.close)
            self._check()
        if cell.recorder is not None:
            await asyncio.to_thread(cell.recorder.end, {})
        where = self._client.place.shown
        text = f"The connection to {where} broke, and how the cell ended was not heard; perhaps it never ran."
        return Reply(CellStatus.ERROR, error=CellError("ReplyLost", text), lossy=True, notice=BROKEN)

    # -- what the websocket says -------------------------------------------------------------------------------------

    async def _heard(self, message: Message) -> None:
        if (state := state_lost(message, is_settled=self.is_settled)) is not None:
            self.lose(f"its process ended (its server says {state!r})")
        elif (cell := self._cells.get(message.parent_id)) is not None:
            await self._hear_cell(cell, message)
        elif message.type.endswith("_reply") and (answer := self._answers.get(message.parent_id)) is not None:
            if not answer.done():
                answer.set_result(message)
        elif message.parent.get("session") == self.held.session:
            if self.early is not None:
                self.early.append(message)
        elif message.type == "status" and message.parent.get("msg_type") == "execute_request":
            self.foreign.note(str(message.content.get("execution_state")), message.parent_id, time.time())

    async def _hear_cell(self, cell: RemoteCell, message: Message) -> None:
        is_output = cell.take(message)
        if is_output and cell.recorder is not None:
            await asyncio.to_thread(cell.recorder.take, message.type, message.content)
        cell.changed.set()
        if is_output:
            cell.wake()

    def _ask_for_lost_replies(self) -> None:
        """The connection was away: the kernel works its requests off in turn, so the answer to one more tells."""
        waiting = [cell for cell in self._cells.values() if cell.reply is None and self._is_broken(cell)]
        for cell in waiting:
            cell.changed.set()
        if waiting:
            self._keep(asyncio.create_task(self._learn_what_was_lost(waiting)))

    async def _learn_what_was_lost(self, waiting: list[RemoteCell]) -> None:
        message = self._request("kernel_info_request", {})
        answer = self._expect(message)
        await self._socket.send(message)
        await answer
        for cell in waiting:
            cell.is_unheard = cell.reply is None
            cell.changed.set()

    # -- its end -----------------------------------------------------------------------------------------------------

    async def interrupt(self) -> str:
        """Have the server interrupt it and, a little later, the nudge; return the actions taken."""
        try:
            await self._client.interrupt(self.held.kernel)
        except UnknownUnitError:
            self.lose(UNKNOWN_THERE)
            return "gone"
        except PxError as error:
            _log.warning("gateway_interrupt_failed", kernel=self.held.kernel, detail=error.detail)
            return "interrupt_failed"
        await asyncio.sleep(self._nudge_seconds)
        with contextlib.suppress(TimeoutError, KernelGoneError):
            async with asyncio.timeout(1.0):
                await self._socket.send(self._request("kernel_info_request", {}))
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
        _log.debug("gateway_kernel_shutdown", kernel=self.held.kernel, reason=reason, grace_seconds=grace_seconds)
        await asyncio.shield(self._begin_to_end("it was deleted at its server"))
        await self.close()
        if self._is_deleted:
            await self._forget(self.held)
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
        _log.info("gateway_kernel_gone", kernel=self.held.kernel, unit=f"kernel:{self.held.session_id}", why=why)
        self.died.set_result(None)
        for answer in list(self._answers.values()):
            if not answer.done():
                answer.set_exception(KernelGoneError(self._sentence()))
                answer.exception()  # it is nobody's fault when the one who asked has gone already
        for cell in self._cells.values():
            cell.changed.set()

    def _begin_to_end(self, why: str) -> asyncio.Task[None]:
        if self._ending is None:
            self._ending = asyncio.create_task(self._delete(why), name=f"delete kernel {self.held.kernel}")
        return self._ending

    async def _delete(self, why: str) -> None:
        """Have the server end it. Where that fails it is given up; its note stays, for a later sweep."""
        for pause in (*DELETE_PAUSES, None):
            try:
                await self._client.delete(self.held.kernel)
            except PxError as error:
                _log.info("gateway_delete_failed", kernel=self.held.kernel, detail=error.detail)
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


_CONTENT: Mapping[str, Any] = {
    "silent": False,
    "store_history": False,
    "user_expressions": {},
    "allow_stdin": False,
    "stop_on_error": False,  # one cell at a time; ipykernel 6 would abort the next one, too
}


async def _nothing_left() -> tuple[int, ...]:
    return ()

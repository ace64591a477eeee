"""One living kernel behind a Jupyter server.

Its variables are as lost as its process. Whatever says that the process is gone (the server's `status`, a 404, a
connection that does not come back once) ends the running cell at once, and nothing takes the restarted kernel, which
the server may offer under the same id, for the old one. A cell is sent once, and seen through to its end by a task of
its own, whether or not somebody still waits for it. It is over when its reply and its `idle` were both seen; what a
break of the connection or the server itself may have taken is said: the cell is `lossy`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import uuid
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from msgspec.structs import replace

from supervisord_py.errors import PxError, StartFailedError, TimedOutError, UnknownUnitError
from supervisord_py.kernels import websocket_frames
from supervisord_py.kernels.backend import KernelGoneError, Reply
from supervisord_py.kernels.cell import CellError, CellStatus
from supervisord_py.kernels.cell_files import CellLog, reply_of
from supervisord_py.kernels.gateway_client import UNKNOWN_THERE, GatewayUnreachableError
from supervisord_py.kernels.gateway_socket import KernelSocket
from supervisord_py.kernels.inside.cell_writer import CellWriter
from supervisord_py.kernels.websocket_frames import ForeignRequests, cell_mark, execute_content

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from supervisord_py.kernels.backend import ExecuteRequest
    from supervisord_py.kernels.gateway_client import GatewayClient
    from supervisord_py.kernels.websocket_frames import Message
    from supervisord_py.process.model import ExitRecord

SILENT_SECONDS = 10.0  # silence of the server after a reply, after which the rest of the output counts as lost
SPOOLED_SECONDS = 1.0  # the same for a kernel whose output is in its own files
LEFT_ALONE_SECONDS = 5.0  # after so much silence the server is asked first: it may have culled the kernel
LEAVE_SECONDS = 1.0  # how long a DELETE under way may hold up the closing of the connections
LOOK_SECONDS = 0.5
WAKE_SECONDS = 0.02  # after an interrupt: when the loop that may sleep on is woken
REMEMBERED_CELLS = 16  # cells whose late output is still recorded
BROKEN = "The connection to the gateway broke while the cell ran: output may be missing."
_DELETED = "it was deleted at its server"
_STATE_LOST = frozenset(("restarting", "autorestarting", "dead"))
_HELD_BACK = re.compile(r"\s*IOPub (data|message) rate exceeded")
_log = structlog.get_logger(__name__)


class EndedEarlyError(StartFailedError):
    """A kernel ended before it was ready."""


class RemoteKernel(msgspec.Struct, frozen=True):
    """One kernel at a server, as it is written down; no token is in it."""

    instance: str  # key of its life; begins with the daemon's id and a dot
    session_id: str  # whose it is: unit `kernel:<session id>`
    kernel: str  # its id at the server
    url: str  # the server's address, without credentials
    session: str  # of the websocket: the server replays what it kept only to the same one
    started_at: float  # Unix seconds
    tag: str = ""  # note of the room


class _Cell:
    """A cell on its way. `reply` is None when it was lost; `sent_after`: how many breaks there had been."""

    def __init__(self, wake: Callable[[], None], writer: CellWriter | None) -> None:
        self.wake = wake
        self.writer = writer
        self.sent_after: int | None = None
        self.reply: asyncio.Future[Mapping[str, Any] | None] = asyncio.get_running_loop().create_future()
        self.idle = asyncio.Event()
        self.held_back: str | None = None
        self.is_altered = False

    def answer(self, content: Mapping[str, Any] | None) -> None:
        """Take the reply, or that there will be none; only the first counts."""
        if not self.reply.done():
            self.reply.set_result(content)

    async def record(self, what: str, *said: Any) -> None:
        """Have something recorded, where the kernel does not do so by itself."""
        if self.writer is not None:
            await asyncio.to_thread(getattr(self.writer, what), *said)

    async def hear(self, message: Message) -> None:
        """Take a message of this cell."""
        if message.channel == "shell" and message.type == "execute_reply":
            self.answer(message.content)
        if message.channel != "iopub":
            return
        if message.type == "status":
            if message.content.get("execution_state") == "idle":
                self.idle.set()
            return
        text = str(message.content.get("text")) if message.type == "stream" else ""
        if message.content.get("name") == "stderr" and _HELD_BACK.match(text):
            self.held_back = text.strip().splitlines()[0].rstrip(".")  # the server's words, no output of the cell
            return
        self.is_altered = self.is_altered or "\ufffd" in text
        await self.record("message", message.type, message.content)
        self.wake()


class GatewayKernel:
    """A `KernelHandle`; with `spool` the kernel writes the files of its cells by itself.

    `ended` clears up once it is over, and removes what is written down of it if it is known to be deleted; it returns
    the pids of what is left of it on this machine.
    """

    foreign_busy = property(lambda self: self.foreign.busy)
    foreign_used_at = property(lambda self: self.foreign.used_at)

    def __init__(
        self,
        client: GatewayClient,
        held: RemoteKernel,
        *,
        spool: bool,
        trace: bool,
        ended: Callable[[RemoteKernel, bool], Awaitable[tuple[int, ...]]],
    ) -> None:
        self.held = held
        self.notice: str | None = None  # told with the next cell
        self.child = None
        self.connection_file: Path | None = None
        self.foreign = ForeignRequests()
        self.is_settled = False  # from then on a `starting` on iopub is another process
        self.early: deque[Message] | None = None  # of cells that an earlier control plane sent, until one is followed
        self.died: asyncio.Future[ExitRecord | None] = asyncio.get_running_loop().create_future()
        self.is_closed = False
        self._client, self._spool, self._ended = client, spool, ended
        self._why = ""
        self._ending: asyncio.Task[None] | None = None
        self._is_deleted = False
        self._tasks: set[asyncio.Task[Reply]] = set()
        self._answers: dict[str, asyncio.Future[Message]] = {}
        self._cells: dict[str, _Cell] = {}
        self._after_break = uuid.uuid4().hex  # id of the request whose answer tells that replies were lost
        ears: Any = {"hear": self._heard, "on_back": self._look_for_lost_replies, "on_gone": self.lose}
        self._socket = KernelSocket(client, held.kernel, held.session, trace=trace, **ears)

    # -- its beginning -----------------------------------------------------------------------------------------------

    async def connect(self, seconds: float) -> None:
        """Open its websocket. A server lets that wait for a kernel that has died already: so it is asked meanwhile."""
        connecting = asyncio.create_task(self._socket.open(seconds))
        try:
            while not (await asyncio.wait([connecting], timeout=LOOK_SECONDS))[0]:
                if await self._is_dead():
                    where = self._client.shown
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

    async def is_python(self, seconds: float) -> bool:
        """Ask what it is; TimedOutError where it does not answer."""
        about = await self._ask("kernel_info_request", {}, seconds)
        language: Any = about.content.get("language_info") or {}
        return bool(language.get("name") == "python")

    async def evaluate(self, code: str, expression: str, seconds: float) -> str:
        """Run Python silently, and return the repr of an expression afterwards; "" where that failed."""
        content = execute_content(code, silent=True, user_expressions={"it": expression})
        answer = await self._ask("execute_request", content, seconds)
        if answer.content.get("status") != "ok":
            _log.warning("gateway_init_failed", kernel=self.held.kernel, error=str(answer.content.get("evalue")))
        told: Any = answer.content.get("user_expressions") or {}
        return str(told.get("it", {}).get("data", {}).get("text/plain") or "")

    async def _ask(self, kind: str, content: Mapping[str, Any], seconds: float) -> Message:
        """Send a request on shell and return its answer; TimedOutError where none came in time."""
        self._check()
        msg_id = uuid.uuid4().hex
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._answers[msg_id] = answer
        try:
            async with asyncio.timeout(seconds):
                await self._socket.send(self._request(kind, content, msg_id))
                return await answer
        except TimeoutError:
            where = self._client.shown
            raise TimedOutError(f"The kernel at {where} did not answer a {kind} within {seconds:g} s.") from None
        finally:
            self._answers.pop(msg_id).cancel()

    def _request(self, kind: str, content: Mapping[str, Any], msg_id: str) -> Message:
        date = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return websocket_frames.request(kind, content, msg_id=msg_id, session=self.held.session, date=date)

    # -- cells -------------------------------------------------------------------------------------------------------

    async def execute(self, request: ExecuteRequest, wake: Callable[[], None]) -> Reply:
        """Run a cell to its end. Cancelling this abandons the wait, not the cell. Raises KernelGoneError."""
        if self._socket.silent_seconds > LEFT_ALONE_SECONDS and await self._is_dead():
            self.lose(UNKNOWN_THERE)
        content = execute_content(request.code, store_history=request.store_history)
        message = self._request("execute_request", content, request.cell_id)
        if self._spool:
            message = msgspec.structs.replace(message, metadata=cell_mark(request))
        return await self._see_through(request, wake, message)

    async def follow(self, request: ExecuteRequest, wake: Callable[[], None]) -> Reply:
        """Wait for the end of a cell that an earlier control plane sent; as `execute` otherwise."""
        ended = await asyncio.to_thread(CellLog(request.cells_dir, request.cell_id).reply)
        return ended or await self._see_through(request, wake, None)

    async def _see_through(self, request: ExecuteRequest, wake: Callable[[], None], message: Message | None) -> Reply:
        self._check()
        at = (str(request.cells_dir), request.cell_id, request.cell_bytes)
        cell = self._cells[request.cell_id] = _Cell(wake, None if self._spool else CellWriter(*at))
        while len(self._cells) > REMEMBERED_CELLS:
            await self._cells.pop(next(iter(self._cells))).record("close")
        task = asyncio.create_task(self._run(request, cell, message), name=f"cell {request.cell_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever waited was told
        try:
            return await asyncio.shield(task)
        finally:
            if task.cancelled():
                self._check()  # it was ended with its kernel, not by whoever waits here

    async def _run(self, request: ExecuteRequest, cell: _Cell, message: Message | None) -> Reply:
        if message is None:
            cell.sent_after = -1
            early, self.early = self.early or (), None
            for each in early:
                await self._heard(each)
            await self._look_for_lost_replies()
        else:
            await cell.record("begin", request.code)
            try:
                cell.sent_after = await self._socket.send(message)
            except KernelGoneError:
                self._check()  # in the handle's words
                raise
        content = await cell.reply
        if content is None:
            return await self._without_reply(request, cell)
        await self._await_idle(cell)
        await cell.record("reply", content)
        self.foreign.settle()
        cell.wake()
        reply = self._outcome(cell, reply_of(content))
        if reply.asked_exit:
            self._begin_to_end("its code asked it to exit")
        return reply

    async def _await_idle(self, cell: _Cell) -> None:
        """Wait for the end of the output: a reply takes another channel and overtakes megabytes of it."""
        patience = SPOOLED_SECONDS if self._spool else SILENT_SECONDS
        while not (cell.idle.is_set() or self._is_broken(cell)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await cell.idle.wait()
            if self._socket.silent_seconds >= patience:
                return

    async def _without_reply(self, request: ExecuteRequest, cell: _Cell) -> Reply:
        """The kernel is gone, or the reply was lost with a connection; one that writes may have written the end."""
        ended = await asyncio.to_thread(CellLog(request.cells_dir, request.cell_id).reply) if self._spool else None
        if ended is not None:
            return ended
        if self.died.done():
            await cell.record("close")
            self._check()
        await cell.record("reply", {})
        where = self._client.shown
        text = f"The connection to {where} broke, and how the cell ended was not heard; perhaps it never ran."
        return Reply(CellStatus.ERROR, error=CellError("ReplyLost", text), lossy=True, notice=BROKEN)

    def _is_broken(self, cell: _Cell) -> bool:
        return cell.sent_after is not None and cell.sent_after != self._socket.breaks

    def _outcome(self, cell: _Cell, reply: Reply) -> Reply:
        """Add what must be feared missing; a kernel that writes its output by itself loses none."""
        missing = []
        if cell.held_back:
            missing.append(
                f"The gateway held output back ({cell.held_back}): part of it is missing."
                " Its settings iopub_data_rate_limit, iopub_msg_rate_limit or limit_rate would let it through."
            )
        if self._is_broken(cell):
            missing.append(BROKEN)
        elif not cell.idle.is_set():
            missing.append("The end of the output was not seen: some of it may be missing.")
        if cell.is_altered:
            missing.append("The server passes text on, not bytes: what was no UTF-8 came altered.")
        missing = [] if self._spool else missing
        notice, self.notice = self.notice, None
        words = " ".join(filter(None, (notice, *missing))) or None
        return replace(reply, iopub_lost=not cell.idle.is_set(), lossy=bool(missing), notice=words)

    # -- what the websocket says -------------------------------------------------------------------------------------

    async def _heard(self, message: Message) -> None:
        state = message.content.get("execution_state") if message.channel == "iopub" else None
        if message.type == "status" and (state in _STATE_LOST or (self.is_settled and state == "starting")):
            self.lose(f"its process ended (its server says {state!r})")
        elif (cell := self._cells.get(message.parent_id)) is not None:
            await cell.hear(message)
        elif message.type.endswith("_reply") and (answer := self._answers.get(message.parent_id)) is not None:
            if not answer.done():
                answer.set_result(message)
        elif message.type.endswith("_reply") and message.parent_id == self._after_break:
            for each in self._cells.values():
                if self._is_broken(each):
                    each.answer(None)
        elif message.parent.get("session") == self.held.session:
            if self.early is not None:
                self.early.append(message)
        elif message.type == "status" and message.parent.get("msg_type") == "execute_request":
            self.foreign.note(str(state), message.parent_id, time.time())

    async def _look_for_lost_replies(self) -> None:
        """The connection was away: the kernel works its requests off in turn, so the answer to one more tells."""
        with contextlib.suppress(KernelGoneError):  # then no cell waits any more
            await self._socket.send(self._request("kernel_info_request", {}, self._after_break))

    # -- its end -----------------------------------------------------------------------------------------------------

    async def interrupt(self) -> str:
        """Have the server interrupt it and, a moment later, wake its loop; return what was done."""
        try:
            await self._client.interrupt(self.held.kernel)
        except UnknownUnitError:
            self.lose(UNKNOWN_THERE)
            return "gone"
        except PxError as error:
            _log.warning("gateway_interrupt_failed", kernel=self.held.kernel, detail=error.detail)
            return "interrupt_failed"
        await asyncio.sleep(WAKE_SECONDS)
        with contextlib.suppress(TimeoutError, KernelGoneError):
            async with asyncio.timeout(1.0):
                await self._socket.send(self._request("kernel_info_request", {}, uuid.uuid4().hex))
        return "rest_interrupt"

    async def terminate(self) -> str:
        """Have the server end it; that goes on in the background, `died` tells the end."""
        self._begin_to_end(_DELETED)
        return "delete"

    async def kill(self) -> str:
        """As `terminate`, and wait until the server has done so: it has no harder way."""
        await asyncio.shield(self._begin_to_end(_DELETED))
        return "delete"

    async def shutdown(self, grace_seconds: float, reason: str) -> tuple[int, ...]:
        """End it and forget it; how long that may take is the server's to decide: its API has no such parameter."""
        await asyncio.shield(self._begin_to_end(_DELETED))
        await self.close()
        return await self._ended(self.held, self._is_deleted)

    async def close(self) -> None:
        """Let go of the connections; the kernel goes on living."""
        self.is_closed = True
        if self._ending is not None and not self._ending.done():
            await asyncio.wait([self._ending], timeout=LEAVE_SECONDS)
            self._ending.cancel()
        await self._socket.close()
        if tasks := [each for each in self._tasks if not each.done()]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        cells, self._cells = self._cells, {}
        for cell in cells.values():
            await cell.record("close")

    def lose(self, why: str) -> None:
        """It is gone: say so once. Only the first reason counts."""
        if self.died.done():
            return
        self._why = why.rstrip(".")
        self._socket.give_up(why)
        _log.info("gateway_kernel_gone", kernel=self.held.kernel, unit=f"kernel:{self.held.session_id}", why=why)
        self.died.set_result(None)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(KernelGoneError(self._sentence()))
                answer.exception()  # perhaps it is not waited for yet
        for cell in self._cells.values():
            cell.answer(None)
            cell.idle.set()

    def _begin_to_end(self, why: str) -> asyncio.Task[None]:
        if self._ending is None:
            self._ending = asyncio.create_task(self._delete(why), name=f"delete kernel {self.held.kernel}")
        return self._ending

    async def _delete(self, why: str) -> None:
        """Have the server end it. Where that fails it is given up; its note stays, for a later sweep."""
        try:
            await self._client.delete(self.held.kernel)
            self._is_deleted = True
        except PxError as error:
            _log.info("gateway_delete_failed", kernel=self.held.kernel, detail=error.detail)
            is_away = isinstance(error, GatewayUnreachableError)
            self._is_deleted = is_away and self._client.is_ours  # it ends with our own gateway
            why = error.detail
        self.lose(why)

    def _check(self) -> None:
        if self.died.done():
            raise KernelGoneError(self._sentence())

    def _sentence(self) -> str:
        return f"The kernel at {self._client.shown} is gone: {self._why}. Its variables are lost."

"""One living kernel behind a Jupyter server, and its websocket.

Its variables are as lost as its process. Whatever says that the process is gone (the server's `status`, a 404, a
connection that does not come back at once) ends the running cell, and nothing takes the restarted kernel, which the
server may offer under the same id, for the old one. A cell is sent once. It is over when its reply and its `idle` were
both seen; what a break of the connection or the server itself may have taken is said: the cell is `lossy`.
"""

from __future__ import annotations

import asyncio
import re
import socket
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import structlog
from msgspec.structs import replace

from supervisord_py.errors import PxError, ReadinessTimeoutError, StartFailedError, UnknownUnitError
from supervisord_py.kernels import websocket_frames as frames
from supervisord_py.kernels.backend import KernelGoneError, Reply
from supervisord_py.kernels.cell import CellError, CellStatus
from supervisord_py.kernels.cell_files import CellLog, reply_of
from supervisord_py.kernels.recording import Recording
from supervisord_py.kernels.websocket_frames import ForeignRequests, cell_mark, execute_content

if TYPE_CHECKING:
    from collections import deque
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
RECONNECT_SECONDS = 10.0
LOOK_SECONDS = 0.5
WAKE_SECONDS = 0.02  # after an interrupt: when the loop that may sleep on is woken
LARGE = 1024 * 1024  # a message of megabytes takes the parser long enough to be felt by everybody else on the loop
BROKEN = "The connection to the gateway broke while the cell ran: output may be missing."
UNKNOWN_THERE = "its server does not know it any more"
_STATE_LOST = frozenset(("restarting", "autorestarting", "dead"))
_HELD_BACK = re.compile(r"\s*(IOPub (data|message) rate exceeded)")
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)
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
    """A cell on its way. `reply` is None when it was lost."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.reply: asyncio.Future[Mapping[str, Any] | None] = asyncio.get_running_loop().create_future()
        self.idle = asyncio.Event()
        self.is_sent = self.is_broken = False
        self.missing: dict[str, None] = {}  # what is known to be missing of its output, each sentence once

    def answer(self, content: Mapping[str, Any] | None) -> None:
        if not self.reply.done():
            self.reply.set_result(content)


class GatewayKernel:
    """A `KernelHandle`; with `spool` the kernel writes the files of its cells by itself.

    `ended` clears up once it is over, told whether it is known to be deleted at its server; it returns the pids of what
    is left of it on this machine.
    """

    child = None
    connection_file: Path | None = None
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
        self.is_settled = False  # from now on "starting" is another life
        self.early: deque[Message] | None = None  # what came for cells that nobody follows yet
        self.foreign = ForeignRequests()
        self.died: asyncio.Future[ExitRecord | None] = asyncio.get_running_loop().create_future()
        self._client, self._trace, self._ended = client, trace, ended
        self._recording = None if spool else Recording()
        self._why = ""
        self._ending: asyncio.Task[bool] | None = None
        self._tasks: set[asyncio.Task[Reply]] = set()
        self._answers: dict[str, asyncio.Future[Message]] = {}
        self._cells: dict[str, _Cell] = {}
        self._after_break = uuid.uuid4().hex  # id of the request whose answer tells that replies were lost
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._is_open = asyncio.Event()
        self._heard_at = 0.0
        self._reader: asyncio.Task[None] | None = None

    # -- its beginning -----------------------------------------------------------------------------------------------

    async def connect(self, seconds: float) -> None:
        """Open its websocket. A server lets that wait for a kernel that has died already: so it is asked meanwhile."""
        opening = asyncio.create_task(self._client.connect(self.held.kernel, self.held.session, seconds))
        try:
            while not (await asyncio.wait([opening], timeout=LOOK_SECONDS))[0]:
                if await self._is_dead():
                    where = self._client.shown
                    raise EndedEarlyError(f"The kernel at {where} ended before it was ready.", reason="early_exit")
            self._socket = opening.result()
        finally:
            opening.cancel()
            await asyncio.wait([opening])
        self._heard_at = time.monotonic()
        self._is_open.set()
        self._reader = asyncio.create_task(self._read(), name=f"websocket of kernel {self.held.kernel}")

    async def _is_dead(self) -> bool:
        with suppress(PxError):
            model = await self._client.model(self.held.kernel)
            return model is None or model.get("execution_state") == "dead"
        return False

    async def is_python(self, seconds: float) -> bool:
        """Ask what it is; ReadinessTimeoutError where it does not answer."""
        about = await self._ask("kernel_info_request", {}, seconds)
        return bool((about.content.get("language_info") or {}).get("name") == "python")

    async def evaluate(self, code: str, expression: str, seconds: float) -> str:
        """Run Python silently, and return the repr of an expression afterwards; "" where that failed."""
        content = execute_content(code, silent=True, user_expressions={"it": expression})
        answer = (await self._ask("execute_request", content, seconds)).content
        if answer.get("status") != "ok":
            _log.warning("gateway_init_failed", kernel=self.held.kernel, error=str(answer.get("evalue")))
        it = (answer.get("user_expressions") or {}).get("it", {})
        return str(it.get("data", {}).get("text/plain") or "")

    async def _ask(self, kind: str, content: Mapping[str, Any], seconds: float) -> Message:
        msg_id = uuid.uuid4().hex
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._answers[msg_id] = answer
        try:
            async with asyncio.timeout(seconds):
                await self._send(self._request(kind, content, msg_id))
                return await answer
        except TimeoutError:
            detail = f"The kernel at {self._client.shown} did not answer a {kind} within {seconds:g} s."
            raise ReadinessTimeoutError(detail, reason="readiness_timeout") from None
        finally:
            self._answers.pop(msg_id).cancel()

    def _request(self, kind: str, content: Mapping[str, Any], msg_id: str) -> Message:
        return frames.request(kind, content, msg_id, self.held.session)

    # -- cells -------------------------------------------------------------------------------------------------------

    async def execute(self, request: ExecuteRequest, wake: Callable[[], None]) -> Reply:
        """Run a cell to its end. Cancelling this abandons the wait, not the cell. Raises KernelGoneError."""
        if self._silent_for() > LEFT_ALONE_SECONDS and await self._is_dead():
            self.lose(UNKNOWN_THERE)
        return await self._see_to_it(request, wake, is_new=True)

    async def follow(self, request: ExecuteRequest, wake: Callable[[], None]) -> Reply:
        """Wait for the end of a cell that an earlier control plane sent; as `execute` otherwise."""
        ended = await asyncio.to_thread(CellLog(request.cells_dir, request.cell_id).reply)
        return ended or await self._see_to_it(request, wake, is_new=False)

    async def _see_to_it(self, request: ExecuteRequest, wake: Callable[[], None], *, is_new: bool) -> Reply:
        self._check()
        task = asyncio.create_task(self._run(request, wake, is_new=is_new), name=f"cell {request.cell_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever waited was told
        try:
            return await asyncio.shield(task)
        finally:
            if task.cancelled():
                self._check()  # it was ended with its kernel, not by whoever waits here

    async def _run(self, request: ExecuteRequest, wake: Callable[[], None], *, is_new: bool) -> Reply:
        cell_id, recording = request.cell_id, self._recording
        cell = self._cells[cell_id] = _Cell(wake)
        early, self.early = self.early or (), None
        try:
            if recording is not None:
                await recording.open(request, wake, begin=is_new, pid=None)
            if is_new:
                content = execute_content(request.code, store_history=request.store_history)
                message = self._request("execute_request", content, cell_id)
                if recording is None:
                    message = msgspec.structs.replace(message, metadata=cell_mark(request))
                await self._send(message, cell)
            else:
                cell.is_broken = True
                for each in early:
                    await self._hear(each)
                await self._look_for_lost_replies()
            reply = await cell.reply
            if reply is None:
                return await self._without_reply(request)
            # A reply takes another channel and overtakes megabytes of output.
            patience = SPOOLED_SECONDS if recording is None else SILENT_SECONDS
            while not (cell.idle.is_set() or cell.is_broken):
                with suppress(TimeoutError):
                    await asyncio.wait_for(cell.idle.wait(), patience)
                if self._silent_for() >= patience:
                    break
            if recording is not None and (dropped := await recording.end(cell_id, reply)):
                cell.missing[f"{dropped} bytes of output came faster than they could be written: they are lost."] = None
        finally:
            del self._cells[cell_id]
        self.foreign.settle()
        wake()
        outcome = reply_of(reply)
        if outcome.asked_exit:
            self._delete("its code asked it to exit")
        return self._with_notice(cell, outcome)

    async def _without_reply(self, request: ExecuteRequest) -> Reply:
        """The kernel is gone, or the reply was lost with a connection; one that writes may have written the end."""
        where, recording = self._client.shown, self._recording
        if recording is None:
            if (ended := await asyncio.to_thread(CellLog(request.cells_dir, request.cell_id).reply)) is not None:
                return ended
        elif self.died.done():
            await recording.close()  # whoever judges the death writes the end
        self._check()
        text = f"The connection to {where} broke, and how the cell ended was not heard; perhaps it never ran."
        if recording is not None:
            told = {"status": "error", "ename": "ReplyLost", "evalue": text}
            await recording.end(request.cell_id, told)
        return Reply(CellStatus.ERROR, error=CellError("ReplyLost", text), lossy=True, notice=BROKEN)

    def _with_notice(self, cell: _Cell, reply: Reply) -> Reply:
        """Add what must be feared missing; a kernel that writes its output by itself loses none."""
        if cell.is_broken:
            cell.missing[BROKEN] = None
        elif not cell.idle.is_set():
            cell.missing["The end of the output was not seen: some of it may be missing."] = None
        missing = () if self._recording is None else tuple(cell.missing)
        words = " ".join(filter(None, (self.notice, *missing))) or None
        self.notice = None
        return replace(reply, iopub_lost=not cell.idle.is_set(), lossy=bool(missing), notice=words)

    # -- its websocket -----------------------------------------------------------------------------------------------

    def _silent_for(self) -> float:
        return time.monotonic() - self._heard_at

    async def _send(self, message: Message, cell: _Cell | None = None) -> None:
        """Send a message once; during a break as soon as the connection is there again. Raises KernelGoneError."""
        await self._is_open.wait()
        self._check()
        assert self._socket is not None
        if cell is not None:
            cell.is_sent = True
        frame = frames.pack(message, self._socket.protocol)
        try:
            await (self._socket.send_bytes(frame) if isinstance(frame, bytes) else self._socket.send_str(frame))
        except (aiohttp.ClientError, OSError):
            # It may have arrived, and a cell is never sent twice: whoever waits for it hears of the break.
            _log.info("gateway_send_broke", kernel=self.held.kernel, type=message.type)
        self._note("out", message, len(frame))

    async def _read(self) -> None:
        """Hand messages on, one by one; a connection that breaks is opened again once, for the same session."""
        while True:
            assert self._socket is not None
            await self._read_until_it_breaks(self._socket)
            self._is_open.clear()
            for cell in self._cells.values():
                cell.is_broken = cell.is_broken or cell.is_sent
            with suppress(aiohttp.ClientError, OSError):
                await self._socket.close()
            try:
                if await self._client.model(self.held.kernel) is None:
                    return self.lose(UNKNOWN_THERE)
                self._socket = await self._client.connect(self.held.kernel, self.held.session, RECONNECT_SECONDS)
            except PxError as error:
                return self.lose(error.detail)
            self._is_open.set()
            await self._look_for_lost_replies()

    async def _read_until_it_breaks(self, connection: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            raw = connection.get_extra_info("socket")
            if _QUICKACK is not None and raw is not None:
                # Servers without TCP_NODELAY hold the next frame back until the last one is acknowledged, which costs
                # 40 ms a message; the flag is not permanent (tcp(7)).
                with suppress(OSError):
                    raw.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
            try:
                frame = await connection.receive()
            except (aiohttp.ClientError, OSError):
                return
            if frame.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                return
            size = len(frame.data)
            try:
                about = (frame.data, connection.protocol)
                message = await asyncio.to_thread(frames.unpack, *about) if size > LARGE else frames.unpack(*about)
            except ValueError as error:
                _log.warning("gateway_frame_unreadable", kernel=self.held.kernel, bytes=size, error=str(error))
                continue
            self._note("in", message, size)
            await self._hear(message, size)
            self._heard_at = time.monotonic()

    async def _hear(self, message: Message, size: int = 0) -> None:
        content = message.content
        cell = self._cells.get(message.parent_id)
        is_status = message.channel == "iopub" and message.type == "status"
        state = content.get("execution_state") if is_status else None
        if state in _STATE_LOST or (self.is_settled and state == "starting"):
            self.lose(f"its process ended (its server says {state!r})")
        elif message.channel == "iopub" and message.parent.get("session") == self.held.session:
            if cell is None and self.early is not None:
                self.early.append(message)
            elif state == "idle" and cell is not None:
                cell.idle.set()
            elif state is None:
                self._take_output(message, cell, size)
        elif state is not None and message.parent.get("msg_type") == "execute_request":
            self.foreign.note(str(state), message.parent_id, time.time())
        elif message.type == "execute_reply" and cell is not None:
            cell.answer(content)
        elif message.type.endswith("_reply") and (answer := self._answers.get(message.parent_id)) is not None:
            if not answer.done():
                answer.set_result(message)
        elif message.type.endswith("_reply") and message.parent_id == self._after_break:
            for each in self._cells.values():
                if each.is_broken:
                    each.answer(None)
        elif message.type == "execute_reply" and self.early is not None:
            self.early.append(message)

    def _take_output(self, message: Message, cell: _Cell | None, size: int) -> None:
        content = message.content
        text = str(content.get("text")) if message.type == "stream" else ""
        if cell is not None and content.get("name") == "stderr" and (held_back := _HELD_BACK.match(text)):
            cell.missing[  # the server's words, no output of the cell
                f"The gateway held output back ({held_back[1]}): part of it is missing."
                " Its settings iopub_data_rate_limit, iopub_msg_rate_limit or limit_rate would let it through."
            ] = None
            return
        if cell is not None and "\ufffd" in text:
            cell.missing["The server passes text on, not bytes: what was no UTF-8 came altered."] = None
        if self._recording is not None:
            self._recording.record(message.parent_id, message.type, lambda: content, size)
        elif cell is not None:
            cell.wake()

    async def _look_for_lost_replies(self) -> None:
        """The connection was away: the kernel works its requests off in turn, so the answer to one more tells."""
        with suppress(KernelGoneError):  # then no cell waits any more
            await self._send(self._request("kernel_info_request", {}, self._after_break))

    def _note(self, way: str, message: Message, size: int) -> None:
        if self._trace:
            about = {"channel": message.channel, "type": message.type, "bytes": size}
            _log.info("kernel_message", kernel=self.held.kernel, way=way, **about)

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
        with suppress(TimeoutError, KernelGoneError):
            async with asyncio.timeout(1.0):
                await self._send(self._request("kernel_info_request", {}, uuid.uuid4().hex))
        return "rest_interrupt"

    async def terminate(self) -> str:
        """Have the server end it; that goes on in the background, `died` tells the end."""
        self._delete()
        return "delete"

    async def kill(self) -> str:
        """As `terminate`, and wait until the server has done so: it has no harder way."""
        await asyncio.shield(self._delete())
        return "delete"

    async def shutdown(self, grace_seconds: float, reason: str) -> tuple[int, ...]:
        """End it and forget it; how long that may take is the server's to decide: its API has no such parameter."""
        is_deleted = await asyncio.shield(self._delete())
        await self.close()
        return await self._ended(self.held, is_deleted)

    def _delete(self, why: str = "it was deleted at its server") -> asyncio.Task[bool]:
        """Have the server end it, once. Where that fails it is given up; its note stays, for a later sweep."""

        async def delete() -> bool:
            try:
                await self._client.delete(self.held.kernel)
            except PxError as error:
                _log.info("gateway_delete_failed", kernel=self.held.kernel, detail=error.detail)
                self.lose(error.detail)
                return False
            self.lose(why)
            return True

        self._ending = self._ending or asyncio.create_task(delete(), name=f"delete kernel {self.held.kernel}")
        return self._ending

    async def close(self) -> None:
        """Let go of the connections; the kernel goes on living."""
        tasks: list[asyncio.Task[Any]] = [each for each in (self._reader, *self._tasks) if each is not None]
        if self._ending is not None and not self._ending.done():
            await asyncio.wait([self._ending], timeout=LEAVE_SECONDS)
            tasks.append(self._ending)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._socket is not None:
            with suppress(aiohttp.ClientError, OSError):
                await self._socket.close()
        if self._recording is not None:
            await self._recording.close()

    def lose(self, why: str) -> None:
        """It is gone: say so once. Only the first reason counts."""
        if self.died.done():
            return
        self._why = why.rstrip(".")
        _log.info("gateway_kernel_gone", kernel=self.held.kernel, unit=f"kernel:{self.held.session_id}", why=why)
        self.died.set_result(None)
        self._is_open.set()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._gone())
                answer.exception()  # perhaps it is not waited for yet
        for cell in self._cells.values():
            cell.answer(None)
            cell.idle.set()

    def _check(self) -> None:
        if self.died.done():
            raise self._gone()

    def _gone(self) -> KernelGoneError:
        return KernelGoneError(f"The kernel at {self._client.shown} is gone: {self._why}. Its variables are lost.")

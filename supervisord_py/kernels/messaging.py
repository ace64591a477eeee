"""A kernel that speaks Jupyter's messages, over whatever connects us: what is under way, and how a cell ends.

The wait for a cell is here, once for all backends, and it always ends. A reply is the kernel's word. A kernel that
writes the files of its cells (our launcher) has written a cell's end before it replies; of any other the end of output
is heard as `idle`, before or after the reply: they travel on different channels. Where the reply is missing, the files
have the end; where both are missing and the kernel is dead, its state is lost; where it lives and has answered a later
request, the cell is told that it got no answer.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import structlog
from msgspec.structs import replace

from supervisord_py.errors import InterruptedRunError
from supervisord_py.kernels import wire
from supervisord_py.kernels.backend import KernelGoneError, Reply
from supervisord_py.kernels.cell import CellStatus
from supervisord_py.kernels.cell_files import CellLog, reply_of
from supervisord_py.kernels.recording import Recording

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from supervisord_py.kernels.backend import ExecuteRequest
    from supervisord_py.kernels.wire import Message
    from supervisord_py.process.model import Child, ExitRecord

IDLE_SECONDS = 5.0
"""Of silence after a reply, when the end of output counts as lost: a message may be large, and the machine busy."""
BACKLOG_SECONDS = 30.0  # how long output that still comes may put that off
REPLY_SECONDS = 2.0  # how long a reply may come after the end of output: it is sent before it
LAST_WORDS_SECONDS = 0.25
"""How long a reply may come after the news of the kernel's death: without it an exit() looks like a crash."""
CONCLUDE_SECONDS = 5.0  # how long whoever waits for a cell may take, when the connections are closed
NO_ANSWER = "The kernel became idle without an answer: whether the cell ran to its end is not known."
_log = structlog.get_logger(__name__)


class PendingRequest:
    """A request of ours under way; `cell` where it runs code of a user, `wake` to be called when there is output."""

    def __init__(self, cell: ExecuteRequest | None = None, wake: Callable[[], None] | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.cell = cell
        self.wake = wake
        self.reply: asyncio.Future[dict[str, Any]] = loop.create_future()  # its content
        self.idle: asyncio.Future[None] = loop.create_future()  # all output was sent
        self.passed: asyncio.Future[None] = loop.create_future()  # a later request was answered
        self.has_output = False
        self.heard_at = loop.time()
        self.missing: dict[str, None] = {}  # sentences on what is or may be missing of its output


class MessagingKernel:
    """`KernelHandle` but for the kernel's process: the base of the handles of backends.

    `session` is how the kernel knows us, the same after a restart of the control plane: replies under way find the new
    one. With `writes_files` the kernel writes the files of its cells, otherwise we do. `trace`: log each message.
    """

    child: Child | None = None
    connection_file: Path | None = None
    notice: str | None = None  # told with the next cell

    def __init__(self, unit: str, session: str, *, writes_files: bool, trace: bool) -> None:
        loop = asyncio.get_running_loop()
        self.unit = unit
        self.died: asyncio.Future[ExitRecord | None] = loop.create_future()
        self.foreign = ForeignUse()
        self._session = session
        self._trace = trace
        self._recording = None if writes_files else Recording()
        self._requests: dict[str, PendingRequest] = {}
        self._cell: PendingRequest | None = None
        self._let_go: asyncio.Future[None] = loop.create_future()
        self._concluded = asyncio.Event()  # no cell is under way
        self._concluded.set()

    @property
    def foreign_busy(self) -> bool:
        return bool(self.foreign.under_way)

    @property
    def foreign_used_at(self) -> float | None:
        return self.foreign.used_at

    async def send(self, message: Message) -> None:
        """Send a message. Raises PxError: it cannot be sent, for sure."""
        raise NotImplementedError

    def gone(self) -> KernelGoneError:
        """Return the error of a cell whose kernel is dead."""
        raise NotImplementedError

    # -- requests ----------------------------------------------------------------------------------------------------

    async def ask(self, kind: str, content: Mapping[str, Any] | None = None, channel: str = "shell") -> PendingRequest:
        """Send a request that is no cell. Raises as `send`."""
        message = wire.make(kind, content or {}, self._session, channel)
        request = self._requests[message.id] = PendingRequest()
        try:
            await self.send(message)
        except BaseException:
            self._requests.pop(message.id, None)
            raise
        return request

    async def until(self, *signs: asyncio.Future[Any], seconds: float | None = None) -> None:
        """Wait for one of these, for the kernel's death, or until it is let go; at most so many seconds."""
        signals = {*signs, self.died, self._let_go}
        await asyncio.wait(signals, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def hear(self, message: Message) -> None:
        """Give a message to whom it concerns."""
        self.note("got", message)
        request = self._requests.get(message.parent_id)
        if request is not None:
            request.heard_at = asyncio.get_running_loop().time()
        if message.channel != "iopub":
            if request is not None and message.type.endswith("_reply") and not request.reply.done():
                request.reply.set_result(message.content)
        elif message.parent_session != self._session:
            self.foreign.hear(message)
        elif message.state is None:
            self.take_output(message, request)
        elif message.state == "idle" and request is not None and not request.idle.done():
            request.idle.set_result(None)
        if request is not None and request.cell is None and request.reply.done() and request.idle.done():
            del self._requests[message.parent_id]

    def note(self, way: str, message: Message) -> None:
        """Log a message that was `got` or `sent`, where that is wanted."""
        if self._trace:
            about = {"channel": message.channel, "type": message.type, "bytes": message.size}
            _log.info("kernel_message", unit=self.unit, way=way, **about)

    def take_output(self, message: Message, request: PendingRequest | None) -> None:
        """Record output of a cell, also of one that is over; where the kernel itself does, somebody may look."""
        if request is not None:
            request.has_output = True
        if self._recording is not None:
            self._recording.record(message.parent_id, message.type, lambda: message.content, message.size)
        elif request is not None and request.wake is not None:
            request.wake()

    # -- cells -------------------------------------------------------------------------------------------------------

    async def execute(self, cell: ExecuteRequest, wake: Callable[[], None]) -> Reply:
        if self.died.done():
            raise self.gone()
        with self._under_way(cell, wake) as request:
            if self._recording is not None:
                pid = self.child.identity.pid if self.child is not None else None
                await self._recording.open(cell, wake, begin=True, pid=pid)
            await self.send(wire.execute_request(cell, self._session, writes_files=self._recording is None))
            await self._until_end(request)
            return await self._conclude(cell, request)

    async def follow(self, cell: ExecuteRequest, wake: Callable[[], None]) -> Reply:
        if (ended := await self._reply_in_files(cell)) is not None:
            return ended
        with self._under_way(cell, wake) as request:
            if self._recording is not None:
                await self._recording.open(cell, wake, begin=False, pid=None)
                request.missing["The control plane was replaced while the cell ran: output may be missing."] = None
            await self.look_for_lost_replies()
            await self._until_end(request)
            return await self._conclude(cell, request)

    async def look_for_lost_replies(self) -> None:
        """Nobody listened for a while: a kernel works its requests off in turn, so the answer to one more tells."""
        cells = [each for each in self._requests.values() if each.cell is not None]

        def mark_passed(_: object) -> None:
            for each in cells:
                if not each.passed.done():
                    each.passed.set_result(None)

        (await self.ask("kernel_info_request")).reply.add_done_callback(mark_passed)

    def has_begun(self) -> bool:
        """Say whether the cell under way is run by now; True where none is.

        A kernel that writes files has made those of the cell, also while code keeps the interpreter to itself; any
        other says by iopub what it executes, and its `busy` alone is too early.
        """
        cell = self._cell.cell if self._cell is not None and not self._cell.has_output else None
        return cell is None or (self._recording is None and CellLog(cell.cells_dir, cell.cell_id).exists())

    @contextmanager
    def _under_way(self, cell: ExecuteRequest, wake: Callable[[], None]) -> Iterator[PendingRequest]:
        request = self._requests[cell.cell_id] = self._cell = PendingRequest(cell, wake)
        self._concluded.clear()
        try:
            yield request
        finally:
            self._requests.pop(cell.cell_id, None)
            self._cell = None
            self._concluded.set()

    async def _until_end(self, request: PendingRequest) -> None:
        """Return when reply and end of output came, or what is missing of them is late, or the kernel died."""
        loop = asyncio.get_running_loop()
        await self.until(request.reply, request.idle, request.passed)
        over_by = loop.time() + BACKLOG_SECONDS
        while not self.died.done() and not self._let_go.done():
            if request.reply.done() and (request.idle.done() or self._recording is None):
                return
            patience = IDLE_SECONDS if request.reply.done() else REPLY_SECONDS
            left = min(over_by, request.heard_at + patience) - loop.time()
            if left <= 0 or (request.passed.done() and self._recording is None):
                return
            await self.until(*(each for each in (request.reply, request.idle) if not each.done()), seconds=left)
        if self.died.done() and not request.reply.done():
            await asyncio.wait({request.reply}, timeout=LAST_WORDS_SECONDS)

    async def _conclude(self, cell: ExecuteRequest, request: PendingRequest) -> Reply:
        """Return the word on a cell for which `_until_end` has returned, when all that was heard of it is written."""
        self.foreign.under_way.clear()  # shell requests before it have ended: the `idle` of one may be lost
        content = request.reply.result() if request.reply.done() else None
        if content is None and self._let_go.done():
            raise InterruptedRunError("The daemon has let go of the kernel.")
        reply = reply_of(content) if content is not None else await self._without_reply(cell)
        if self._recording is not None:
            said = {"status": "error", "ename": "NoReply", "evalue": NO_ANSWER} if content is None else content
            if dropped := await self._recording.end(cell.cell_id, said):
                text = f"{dropped} bytes of output came faster than they could be written, and are missing."
                request.missing[text] = None
            if not request.idle.done():
                request.missing["The end of the output was not heard: some of it may be missing."] = None
        words = " ".join(filter(None, (self.notice, reply.notice, *request.missing)))
        self.notice = None
        return replace(reply, lossy=reply.lossy or bool(request.missing), notice=words or None)

    async def _without_reply(self, cell: ExecuteRequest) -> Reply:
        """Return the word on a cell whose reply did not come. Raises KernelGoneError: its kernel is dead."""
        if (ended := await self._reply_in_files(cell)) is not None:
            return ended
        if self.died.done():
            if self._recording is not None:
                await self._recording.close()  # whoever judges the death writes the end
            raise self.gone()
        if not await asyncio.to_thread(CellLog(cell.cells_dir, cell.cell_id).exists):
            return Reply(CellStatus.ABORTED, notice="The cell never reached the kernel: it was not run.")
        return replace(reply_of({"status": "error", "ename": "NoReply", "evalue": NO_ANSWER}), lossy=True)

    async def _reply_in_files(self, cell: ExecuteRequest) -> Reply | None:
        return await asyncio.to_thread(CellLog(cell.cells_dir, cell.cell_id).reply)

    # -- its end -----------------------------------------------------------------------------------------------------

    async def let_go(self) -> None:
        """End all waits and what is recorded; a cell that is still awaited ends with InterruptedRunError."""
        if not self._let_go.done():
            self._let_go.set_result(None)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._concluded.wait(), CONCLUDE_SECONDS)
        if self._recording is not None:
            await self._recording.close()


class ForeignUse:
    """What iopub tells of requests that are not ours; a question what the kernel is counts as none.

    A kernel is in foreign use from the first `busy` of such a request to its `idle`.
    """

    def __init__(self) -> None:
        self.used_at: float | None = None  # when one last began or ended, Unix seconds
        self.under_way: set[str] = set()

    def hear(self, message: Message) -> None:
        """A status message of somebody's request came."""
        if message.state is None or not message.parent_id or message.parent_type == "kernel_info_request":
            return
        self.used_at = time.time()
        if message.state == "busy":
            self.under_way.add(message.parent_id)
        elif message.state == "idle":
            self.under_way.discard(message.parent_id)

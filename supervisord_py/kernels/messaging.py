"""A kernel that speaks Jupyter's messages, over whatever connects us: what is under way, and how a
cell ends.

The wait for a cell is here, once for all backends, and it always ends. A reply is the kernel's
word. A kernel that writes the files of its cells (our launcher) has written a cell's end before it
replies; of any other the end of output is heard as `idle`, before or after the reply: they travel
on different channels. Where the reply is missing, the files have the end; where both are missing
and the kernel is dead, its state is lost; where it lives and has answered a later request, the cell
is told that it got no answer.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from msgspec import convert
from msgspec.structs import replace

from supervisord_py.errors import InterruptedRunError, PxError
from supervisord_py.kernels import wire
from supervisord_py.kernels.backend import ExecuteRequest, KernelGoneError, Reply
from supervisord_py.kernels.cell_files import CellLog
from supervisord_py.kernels.inside.cell_writer import CellWriter, told_by
from supervisord_py.kernels.session import CellError, CellStatus
from supervisord_py.process.model import Child, ExitRecord

if TYPE_CHECKING:
    from supervisord_py.kernels.wire import Message

# of silence after a reply: the end of output is lost then; a message may be large, and we busy
IDLE_SECONDS = 5.0
REPLY_SECONDS = 2.0  # how long a reply may come after the end of output: it is sent before it
FOLDER_SECONDS = 5.0  # how long a kernel may take to change its folder
# for a reply after the news of the death: without it an exit() looks like a crash
LAST_WORDS_SECONDS = 0.25
# how long whoever waits for a cell may take, when the connections are closed
CONCLUDE_SECONDS = 5.0
QUEUE_BYTES = 256 * 1024 * 1024
CELLS_KEPT = 16  # so many cells, the newest, still take output that comes after their end
NO_ANSWER = (
    "The kernel became idle without an answer: whether the cell ran to its end is not known."
)
_log = structlog.get_logger(__name__)


class PendingRequest:
    """A request of ours under way; `cell` where it runs code of a user."""

    def __init__(self, cell: ExecuteRequest | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.cell = cell
        self.reply: asyncio.Future[dict[str, Any]] = loop.create_future()  # its content
        self.idle: asyncio.Future[None] = loop.create_future()  # all output was sent
        self.passed: asyncio.Future[None] = loop.create_future()  # a later request was answered
        # of a cell: nobody waits for it any more
        self.concluded: asyncio.Future[None] = loop.create_future()
        self.has_output = False
        self.heard_at = loop.time()
        self.missing: dict[str, None] = {}  # sentences on what is or may be missing of its output


class MessagingKernel:
    """`KernelHandle` but for the kernel's process: the base of the handles of backends.

    `session` is how the kernel knows us, the same after a restart of the control plane: replies
    under way find the new one. With `writes_files` the kernel writes the files of its cells,
    otherwise we do. `trace`: log each message.
    """

    child: Child | None = None
    connection_file: Path | None = None
    notice: str | None = None  # told with the next cell
    is_blameless = False

    def __init__(self, unit: str, session: str, *, writes_files: bool, trace: bool) -> None:
        loop = asyncio.get_running_loop()
        self.unit = unit
        self.died: asyncio.Future[ExitRecord | None] = loop.create_future()
        # something came on iopub: nothing is missed now
        self.is_heard: asyncio.Future[None] = loop.create_future()
        # when a client that is not ours used it, Unix seconds
        self.foreign_used_at: float | None = None
        self._foreign: set[str] = set()  # requests under way that are not ours
        self._session = session
        self._trace = trace
        self._recording = None if writes_files else Recording()
        self._requests: dict[str, PendingRequest] = {}
        self._probe: PendingRequest | None = None  # the last question whether it answers
        self._cell: PendingRequest | None = None
        self._let_go: asyncio.Future[None] = loop.create_future()

    @property
    def is_busy(self) -> bool:
        """Say whether it runs something for anybody."""
        return self._cell is not None or self.foreign_busy

    @property
    def foreign_busy(self) -> bool:
        return bool(self._foreign)

    async def send(self, message: Message) -> None:
        """Send a message. Raises PxError: it cannot be sent, for sure."""
        raise NotImplementedError

    def gone(self) -> KernelGoneError:
        raise NotImplementedError

    async def ask(
        self, kind: str, content: Mapping[str, Any] | None = None, channel: str = "shell"
    ) -> PendingRequest:
        message = wire.make(kind, content or {}, self._session, channel)
        request = self._requests[message.id] = PendingRequest()
        try:
            await self.send(message)
        except BaseException:
            self._requests.pop(message.id, None)
            raise
        return request

    async def answers(self, seconds: float) -> bool:
        """Say whether its process answers now, on the channel that a cell does not hold up.

        One that holds the GIL, or is stopped, does not. Only kernels of our launcher are asked:
        others may have no such channel.
        """
        if self._recording is not None or self.died.done():
            return True
        probe = self._probe
        if probe is None or probe.reply.done():
            try:
                probe = self._probe = await self.ask("kernel_info_request", channel="control")
            except PxError:
                return False
            await self.until(probe.reply, seconds=seconds)
        return probe.reply.done()

    async def change_folder(self, cwd: str) -> bool:
        """Have a Python kernel go into a folder, without a trace in its history or names; say
        whether it did.
        """
        if self._recording is not None:
            return False
        content = {**wire.EXECUTE, "code": f"__import__('os').chdir({cwd!r})", "silent": True}
        request = await self.ask("execute_request", content)
        await self.until(request.reply, seconds=FOLDER_SECONDS)
        return request.reply.done() and request.reply.result().get("status") == "ok"

    async def until(self, *signs: asyncio.Future[Any], seconds: float | None = None) -> None:
        """Wait for one of these, for the kernel's death, or until it is let go; at most so many
        seconds.
        """
        signals = {*signs, self.died, self._let_go}
        await asyncio.wait(signals, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def hear(self, message: Message) -> None:
        if self._trace:
            self.note("got", message)
        request = self._requests.get(message.parent_id)
        if request is not None:
            request.heard_at = asyncio.get_running_loop().time()
        if message.channel == "iopub":
            _settle(self.is_heard, None)
            if message.parent_session != self._session:
                self._hear_of_others(message)
            elif message.state is None:
                if request is not None:
                    request.has_output = True
                if self._recording is not None:
                    self.take_output(message)
            elif message.state == "idle" and request is not None:
                _settle(request.idle, None)
        elif request is not None and message.type.endswith("_reply"):
            _settle(request.reply, message.content)
        if (
            request is not None
            and request.cell is None
            and request.reply.done()
            and request.idle.done()
        ):
            del self._requests[message.parent_id]

    def _hear_of_others(self, message: Message) -> None:
        """Note what iopub tells of a request that is not ours; a question what the kernel is
        counts as none.
        """
        if (
            message.state is None
            or not message.parent_id
            or message.parent_type == "kernel_info_request"
        ):
            return
        self.foreign_used_at = time.time()
        if message.state == "busy":
            self._foreign.add(message.parent_id)
        elif message.state == "idle":
            self._foreign.discard(message.parent_id)

    def note(self, way: str, message: Message) -> None:
        about = {"channel": message.channel, "type": message.type, "bytes": message.size}
        _log.info("kernel_message", unit=self.unit, way=way, **about)

    def take_output(self, message: Message) -> None:
        """Record output of a cell, also of one that is over: the kernel does not do that itself."""
        assert self._recording is not None
        self._recording.record(message)

    # -- cells -------------------------------------------------------------------------------------

    async def execute(self, cell: ExecuteRequest, *, is_sent: bool = False) -> Reply:
        if is_sent:
            if (
                ended := await asyncio.to_thread(CellLog(cell.cells_dir, cell.cell_id).reply)
            ) is not None:
                return ended
        elif self.died.done():
            raise self.gone()
        request = self._requests[cell.cell_id] = self._cell = PendingRequest(cell)
        try:
            if self._recording is not None:
                await self._recording.open(cell, begin=not is_sent)
            if is_sent:
                if self._recording is not None:
                    request.missing[
                        "The control plane was replaced while the cell ran: output may be missing."
                    ] = None
                await self.look_for_lost_replies()
            else:
                # By its metadata our launcher knows a cell of ours, and writes its files.
                limits = {"preview": cell.preview_bytes, "cap": cell.cell_bytes}
                asked: dict[str, Any] = {"cell": cell.cell_id, "dir": str(cell.cells_dir), **limits}
                if cell.file is not None:
                    asked["file"] = cell.file
                ours = {"px": asked}
                about: Any = {"msg_id": cell.cell_id, "metadata": None if self._recording else ours}
                content = {**wire.EXECUTE, "code": cell.code, "store_history": True}
                await self.send(wire.make("execute_request", content, self._session, **about))
            await self._until_end(request)
            return await self._conclude(cell, request)
        finally:
            self._requests.pop(cell.cell_id, None)
            self._cell = None
            request.concluded.set_result(None)

    async def look_for_lost_replies(self) -> None:
        """Nobody listened for a while: a kernel works its requests off in turn, so the answer to
        one more tells.
        """
        cells = [each for each in self._requests.values() if each.cell is not None]
        asked = await self.ask("kernel_info_request")
        for each in cells:
            asked.reply.add_done_callback(partial(lambda cell, _: _settle(cell.passed, None), each))

    def has_begun(self) -> bool:
        """Say whether the cell under way is run by now; True where none is.

        A kernel that writes files has made those of the cell; any other says by iopub what it
        executes, and its `busy` alone is too early.
        """
        cell = self._cell.cell if self._cell is not None and not self._cell.has_output else None
        return cell is None or (
            self._recording is None and CellLog(cell.cells_dir, cell.cell_id).exists()
        )

    async def _until_end(self, request: PendingRequest) -> None:
        loop = asyncio.get_running_loop()
        await self.until(request.reply, request.idle, request.passed)
        while not self.died.done() and not self._let_go.done():
            if request.reply.done() and (request.idle.done() or self._recording is None):
                return
            patience = IDLE_SECONDS if request.reply.done() else REPLY_SECONDS
            left = request.heard_at + patience - loop.time()
            if left <= 0 or (request.passed.done() and self._recording is None):
                return
            await self.until(
                *(each for each in (request.reply, request.idle) if not each.done()), seconds=left
            )
        if self.died.done() and not request.reply.done():
            await asyncio.wait({request.reply}, timeout=LAST_WORDS_SECONDS)

    async def _conclude(self, cell: ExecuteRequest, request: PendingRequest) -> Reply:
        """Return the word on a cell for which `_until_end` has returned, when all that was heard
        of it is written.
        """
        self._foreign.clear()  # shell requests before it have ended: the `idle` of one may be lost
        content = request.reply.result() if request.reply.done() else None
        if content is None and self._let_go.done():
            raise InterruptedRunError("The daemon has let go of the kernel.")
        reply = (
            await self._without_reply(cell) if content is None else convert(told_by(content), Reply)
        )
        if self._recording is not None:
            said = (
                {"status": "error", "ename": "NoReply", "evalue": NO_ANSWER}
                if content is None
                else content
            )
            if dropped := await self._recording.end(cell.cell_id, said):
                text = (
                    f"{dropped} bytes of output came faster than they could be written, and are "
                    "missing."
                )
                request.missing[text] = None
            if not request.idle.done():
                request.missing[
                    "The end of the output was not heard: some of it may be missing."
                ] = None
        words = " ".join(filter(None, (self.notice, reply.notice, *request.missing)))
        self.notice = None
        return replace(reply, lossy=reply.lossy or bool(request.missing), notice=words or None)

    async def _without_reply(self, cell: ExecuteRequest) -> Reply:
        log = CellLog(cell.cells_dir, cell.cell_id)
        if (ended := await asyncio.to_thread(log.reply)) is not None:
            return ended
        if self.died.done():
            if self._recording is not None:
                await self._recording.close()  # whoever judges the death writes the end
            raise self.gone()
        if not await asyncio.to_thread(log.exists):
            return Reply(
                CellStatus.ABORTED, notice="The cell never reached the kernel: it was not run."
            )
        return Reply(CellStatus.ERROR, CellError("NoReply", NO_ANSWER), lossy=True)

    async def let_go(self) -> None:
        """End all waits and what is recorded; a cell that is still awaited ends with
        InterruptedRunError.
        """
        _settle(self._let_go, None)
        if self._cell is not None:
            await asyncio.wait({self._cell.concluded}, timeout=CONCLUDE_SECONDS)
        if self._recording is not None:
            await self._recording.close()


def _settle(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


class Recording:
    """Records cells of a kernel that does not write their files, in the order of messages.

    On a thread of its own: who reads the wire never waits for a disk. What waits is bounded; more
    is dropped and told.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "px-recording")
        self._cells: dict[str, CellWriter] = {}
        self._dropped: Counter[str] = Counter()
        self._taken = self._written = 0  # bytes; the thread alone counts what is written

    async def open(self, request: ExecuteRequest, *, begin: bool) -> None:
        """Record a cell from now on; without `begin` go on with what an earlier control plane
        has begun.
        """
        where = str(request.cells_dir), request.cell_id, request.cell_bytes
        writer = self._cells[request.cell_id] = await self._do(CellWriter, *where)
        if begin:
            await self._do(writer.begin, request.code)
        while len(self._cells) > CELLS_KEPT:
            del self._cells[next(iter(self._cells))]

    def record(self, message: Message) -> None:
        writer = self._cells.get(message.parent_id)
        if writer is not None and writer.ended:
            # A thread that outlived its cell: what is printed now belongs to the cell that runs
            # now.
            newest = next(reversed(self._cells.values()))
            writer = writer if newest.ended else newest
        if writer is not None and self._taken - self._written + message.size > QUEUE_BYTES:
            self._dropped[message.parent_id] += message.size
        elif writer is not None:
            self._taken += message.size
            self._thread.submit(self._write, writer, message)

    def _write(self, writer: CellWriter, message: Message) -> None:
        try:
            writer.message(message.type, message.content)
        except Exception:
            _log.exception("cell_not_recorded")
        self._written += message.size

    async def end(self, cell_id: str, reply: Mapping[str, Any]) -> int:
        """Write the end of a cell behind all that came before; return how many bytes of messages
        were dropped.
        """
        await self._do(self._cells[cell_id].reply, reply)
        return self._dropped.pop(cell_id, 0)

    async def close(self) -> None:
        for writer in self._cells.values():
            await self._do(writer.close)
        self._cells.clear()
        self._thread.shutdown(wait=False)

    async def _do(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.shield(
            asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)
        )

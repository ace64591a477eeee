"""One living kernel behind a Jupyter server.

Law: its variables are as lost as its process. Whatever says that the process is gone (the server's `status`, a 404,
the process itself where it runs on this machine) ends the running cell at once, and nothing takes the restarted kernel,
which the server may offer under the same id, for the old one. A cell is sent once, and seen through to its end by a
task of its own, whether or not somebody still waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.errors import PxError, TimedOutError, UnknownUnitError
from supervisord_py.kernels.backend import Capabilities, KernelGoneError, Started
from supervisord_py.kernels.gateway.cell_request import content_of, metadata_of
from supervisord_py.kernels.gateway.conversation import CellTalk, Conversation
from supervisord_py.kernels.gateway.deletion import Deletion
from supervisord_py.kernels.gateway.outcome import outcome_of, outcome_unknown
from supervisord_py.kernels.gateway.output_end import await_end
from supervisord_py.kernels.gateway.pulse import Pulse
from supervisord_py.kernels.gateway.refusals import GatewayUnreachableError
from supervisord_py.kernels.gateway.websocket import KernelSocket
from supervisord_py.kernels.output import end_record
from supervisord_py.kernels.output.recorder import CellRecorder
from supervisord_py.kernels.output.replies import reply_of_end

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from supervisord_py.kernels.backend import ExecuteRequest, Reply
    from supervisord_py.kernels.gateway.client import GatewayClient
    from supervisord_py.kernels.gateway.held import Held, HeldKernels
    from supervisord_py.kernels.gateway.wire import Message
    from supervisord_py.process.spec import ExitRecord, Identity

IDLE_SECONDS = 1.0
"""How long after a reply its `idle` may come before the kernel is asked for it."""
LAST_WORDS_SECONDS = 0.25
"""How long after a process ended its reply may come, which takes the longer way."""
FIRST_TRY_SECONDS = 0.5
"""How long `terminate` waits for what comes of the first DELETE: a server that is away refuses it at once."""
LEAVE_SECONDS = 1.0
"""How long a DELETE under way may hold up the closing of the connections."""
_log = structlog.get_logger(__name__)


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
        silent_seconds: After a reply, silence of the server after which the rest of the output counts as lost.
    """

    client: GatewayClient
    held: Held
    notes: HeldKernels
    spool: bool
    nudge_seconds: float
    trace: bool
    silent_seconds: float


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
        self.unwatch: Callable[[], None] = _nothing
        """Gives up the watch over its process."""
        self.closed: Callable[[], None] = _nothing
        """Told when its connections are closed."""
        self._client = plan.client
        self._kernel = plan.held.kernel
        self._started = Started(None, {} if phases is None else phases)
        self._died: asyncio.Future[ExitRecord | None] = asyncio.get_running_loop().create_future()
        self._why = ""
        self._ending: asyncio.Task[None] | None = None
        self._deletion = Deletion(plan.client, self._kernel)
        self._cells: set[asyncio.Task[Reply]] = set()
        self.talk = Conversation(plan.held.session, on_gone=self.lose, on_back=self._look)
        self._socket = KernelSocket(plan.client, self._kernel, plan.held.session, self.talk, trace=plan.trace)
        self._pulse = Pulse(plan.client, self._kernel, self.talk)

    # -- what it is --------------------------------------------------------------------------------------------------

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        return Capabilities(signals=False, kernel_spool=self.plan.spool, reattach=True, channels=False)

    @property
    def started(self) -> Started:
        """No process of ours; how long the phases of the start took."""
        return self._started

    @property
    def is_given_up(self) -> bool:
        """Whether its server did not end it when that was wanted: it may go on there."""
        return self._deletion.failure is not None

    @property
    def died(self) -> asyncio.Future[ExitRecord | None]:
        """Done with None when it is lost."""
        return self._died

    @property
    def connection_file(self) -> Path | None:
        """None: its channels lie behind the server."""
        return None

    @property
    def foreign_busy(self) -> bool:
        """True while it works for a client that is not ours."""
        return self.talk.foreign.busy

    @property
    def foreign_used_at(self) -> float | None:
        """When a client that is not ours last used it."""
        return self.talk.foreign.used_at

    # -- its beginning -----------------------------------------------------------------------------------------------

    async def connect(self, seconds: float) -> None:
        """Open its websocket, and keep an eye on it from then on."""
        await self._socket.open(seconds)
        self._pulse.start()

    async def ask(self, kind: str, content: Mapping[str, Any], seconds: float) -> Message:
        """Send a request on shell and return its answer.

        Raises:
            TimedOutError: It did not come in time.
            KernelGoneError: It will not come.
        """
        message = self.talk.request(kind, content)
        answer = self.talk.expect(message)
        try:
            async with asyncio.timeout(seconds):
                await self._socket.send(message)
                return await answer
        except TimeoutError:
            where = self._client.place.shown
            raise TimedOutError(f"The kernel at {where} did not answer a {kind} within {seconds:g} s.") from None
        finally:
            answer.cancel()

    # -- cells -------------------------------------------------------------------------------------------------------

    async def execute(self, request: ExecuteRequest, wake: Callable[[], None]) -> Reply:
        """Run a cell to its end: reply and end of output. Cancelling this abandons the wait, not the cell.

        Raises:
            KernelGoneError: It died.
        """
        self._check()
        recorder = None if self.plan.spool else await asyncio.to_thread(self._record, request, begin=True)
        talk = await self.talk.begin(request.cell_id, wake, recorder)
        message = self.talk.request("execute_request", content_of(request), request.cell_id)
        if self.plan.spool:
            message = replace(message, metadata=metadata_of(request))
        return await self._see_through(talk, request, message)

    async def follow(self, request: ExecuteRequest, wake: Callable[[], None]) -> Reply:
        """Wait for the end of a cell that an earlier control plane sent; as `execute` otherwise."""
        self._check()
        find = partial(end_record.find, request.cells_dir, request.cell_id)
        if not self.plan.spool and (ended := await asyncio.to_thread(find)) is not None:
            return reply_of_end(ended)
        recorder = None if self.plan.spool else await asyncio.to_thread(self._record, request, begin=False)
        talk = await self.talk.begin(request.cell_id, wake, recorder)
        # A kernel that writes by itself may have ended the cell until now; its reply is heard from now on.
        if self.plan.spool and (ended := await asyncio.to_thread(find)) is not None:
            return reply_of_end(ended)
        talk.sent_after = -1
        self._look()
        return await self._see_through(talk, request, None)

    async def _see_through(self, talk: CellTalk, request: ExecuteRequest, message: Message | None) -> Reply:
        cell = asyncio.create_task(self._run(talk, request, message), name=f"cell {request.cell_id}")
        self._cells.add(cell)
        cell.add_done_callback(self._cell_ended)
        try:
            return await asyncio.shield(cell)
        finally:
            if cell.cancelled():
                self._check()  # it was ended with its kernel, not by whoever waits here

    def _cell_ended(self, cell: asyncio.Task[Reply]) -> None:
        self._cells.discard(cell)
        if cell.cancelled() or cell.exception() is not None:
            return  # whoever waited was told; looked at, so that nobody is blamed where nobody waited
        if cell.result().asked_exit:
            self._begin_to_end("its code asked it to exit")

    async def _run(self, talk: CellTalk, request: ExecuteRequest, message: Message | None) -> Reply:
        if message is not None:
            try:
                talk.sent_after = await self._socket.send(message)
            except KernelGoneError:
                self._check()  # in the handle's words
                raise
        reply = await self._reply(talk, request)
        self.talk.end(talk)
        if self.notice is not None:
            notices = [self.notice, *([reply.notice] if reply.notice else [])]
            reply, self.notice = replace(reply, notice=" ".join(notices)), None
        return reply

    async def _reply(self, talk: CellTalk, request: ExecuteRequest) -> Reply:
        while talk.progress.reply is None:
            if self._died.done():
                return await self._after_death(talk, request)
            if talk.is_unheard:
                return await self._unheard(talk, request)
            await talk.changed.wait()
            talk.changed.clear()
        waits = {"idle_seconds": IDLE_SECONDS, "silent_seconds": self.plan.silent_seconds}
        await await_end(talk, self.talk, self._socket.send, self._died, **waits)
        if talk.recorder is not None:
            await asyncio.to_thread(talk.recorder.end, talk.progress.reply)
        return outcome_of(talk.progress, spool=self.plan.spool, broken=self.talk.is_broken(talk))

    async def _after_death(self, talk: CellTalk, request: ExecuteRequest) -> Reply:
        """Return what a kernel that writes by itself still wrote down; it may have ended the cell before it ended."""
        if self.plan.spool:
            ended = await asyncio.to_thread(end_record.find, request.cells_dir, request.cell_id)
            if ended is not None:
                return reply_of_end(ended)
        if talk.recorder is not None:
            await asyncio.to_thread(talk.recorder.close)
        raise KernelGoneError(self._sentence(), hint=None)

    async def _unheard(self, talk: CellTalk, request: ExecuteRequest) -> Reply:
        """The server says that the kernel idles, and no reply came: it was lost with a connection."""
        if self.plan.spool:
            ended = await asyncio.to_thread(end_record.find, request.cells_dir, request.cell_id)
            if ended is not None:
                return reply_of_end(ended)
        if talk.recorder is not None:
            await asyncio.to_thread(talk.recorder.end, {})
        return outcome_unknown(self._client.place.shown)

    def _record(self, request: ExecuteRequest, *, begin: bool) -> CellRecorder:
        recorder = CellRecorder(request.cells_dir, request.cell_id, request.cell_bytes)
        if begin:
            recorder.begin(request.code)
        return recorder

    # -- its end -----------------------------------------------------------------------------------------------------

    async def interrupt(self) -> str:
        """Have the server interrupt it and, a little later, the nudge; return the actions taken.

        Raises:
            KernelGivenUpError: Somebody else's server is not there: nothing can be done to the cell.
        """
        try:
            await self._client.interrupt(self._kernel)
        except UnknownUnitError:
            self.talk.gone("its server does not know it any more")
            return "gone"
        except GatewayUnreachableError as error:
            _log.warning("gateway_interrupt_failed", kernel=self._kernel, detail=error.detail)
            if not self._client.place.is_ours and not await self._deletion.is_there():
                self._deletion.failure = error
                self.talk.gone(error.detail)
                self._raise_if_given_up()
            return "interrupt_unanswered"
        except PxError as error:
            _log.warning("gateway_interrupt_failed", kernel=self._kernel, detail=error.detail)
            return "interrupt_failed"
        await asyncio.sleep(self.plan.nudge_seconds)
        with contextlib.suppress(KernelGoneError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._socket.send(self.talk.request("kernel_info_request", {}))
        return "rest_interrupt+nudge"

    async def terminate(self) -> str:
        """Have the server end it; that goes on in the background, `died` tells the end.

        Raises:
            KernelGivenUpError: The server is not there, or failed.
        """
        await asyncio.wait([self._begin_to_end("it was deleted at its server")], timeout=FIRST_TRY_SECONDS)
        if self.died.done():
            self._raise_if_given_up()
        return "delete"

    async def kill(self) -> str:
        """As `terminate`, and wait until the server has done so: it has no harder way."""
        await asyncio.shield(self._begin_to_end("it was deleted at its server"))
        self._raise_if_given_up()
        return "delete"

    async def ping(self, timeout_seconds: float) -> bool:
        """Say whether it answers a kernel_info_request on shell in time."""
        try:
            await self.ask("kernel_info_request", {}, timeout_seconds)
        except PxError:
            return False
        return True

    async def shutdown(self, grace_seconds: float, reason: str) -> tuple[int, ...]:
        """End it and forget it; returns pids of what is left of it on this machine.

        `grace_seconds` is the server's to decide: its API has no such parameter.
        """
        _log.debug("gateway_kernel_shutdown", kernel=self._kernel, reason=reason, grace_seconds=grace_seconds)
        await asyncio.shield(self._begin_to_end("it was deleted at its server"))
        await self.close()
        if self._deletion.is_done:
            await asyncio.to_thread(self.plan.notes.remove, self.plan.held.instance)
        return await self.clear()

    async def close(self) -> None:
        """Let go of the connections; the kernel goes on living."""
        self.unwatch()
        if self._ending is not None and not self._ending.done():
            await asyncio.wait([self._ending], timeout=LEAVE_SECONDS)
            self._ending.cancel()
        await self._pulse.stop()
        await self._socket.close()
        cells = [each for each in self._cells if not each.done()]
        for cell in cells:
            cell.cancel()
        if cells:
            await asyncio.wait(cells)
        await self.talk.close()
        self.closed()

    def lose(self, why: str) -> None:
        """It is gone: say so once."""
        if not self._died.done():
            self._why = why.rstrip(".")
            self._socket.give_up(why)
            _log.info("gateway_kernel_gone", kernel=self._kernel, unit=f"kernel:{self.plan.held.session_id}", why=why)
            self._died.set_result(None)

    def process_ended(self) -> None:
        """Its process on this machine has ended."""
        wait = 0.0 if self.plan.spool else LAST_WORDS_SECONDS
        asyncio.get_running_loop().call_later(wait, self.talk.gone, "its process ended")

    def _begin_to_end(self, why: str) -> asyncio.Task[None]:
        if self._ending is None:
            self._ending = asyncio.create_task(self._delete(why), name=f"delete kernel {self._kernel}")
        return self._ending

    async def _delete(self, why: str) -> None:
        await self._deletion.run()
        self.talk.gone(why if self._deletion.failure is None else self._deletion.failure.detail)

    def _raise_if_given_up(self) -> None:
        if (error := self._deletion.given_up()) is not None:
            raise error

    def _look(self) -> None:
        self._pulse.look()

    def _check(self) -> None:
        if self._died.done():
            raise KernelGoneError(self._sentence())

    def _sentence(self) -> str:
        return f"The kernel at {self._client.place.shown} is gone: {self._why}. Its variables are lost."


async def _nothing_left() -> tuple[int, ...]:
    return ()


def _nothing() -> None:
    """Nothing is to be done."""

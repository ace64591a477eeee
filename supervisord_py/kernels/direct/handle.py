"""One living kernel of ours: its process by the placement, its channels by ZMQ.

Law: the death of the process is what the placement says, never what a silence seems to say; what was spawned is ended
by the placement, whole tree; a message that is not answered ends nothing.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import ConflictError, PxError, UnknownUnitError
from supervisord_py.kernels.cell_files import CellLog, reply_of
from supervisord_py.kernels.direct import cell_end, place
from supervisord_py.kernels.direct.cell_end import Beginning
from supervisord_py.kernels.direct.recording import Recording
from supervisord_py.process.spec import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from supervisord_py.kernels.backend import ExecuteRequest, Launch, Reply, Started
    from supervisord_py.kernels.config import LadderTimes
    from supervisord_py.kernels.direct.conversation import Exchange
    from supervisord_py.kernels.direct.line import Line
    from supervisord_py.kernels.direct.message import Message
    from supervisord_py.kernels.direct.spare_pool import Activity
    from supervisord_py.process.placement import Placement
    from supervisord_py.process.spec import ExitRecord

GONE = "gone"
_GAP = "output may be missing: the control plane was replaced while the cell ran"
RECORD_SECONDS = 5.0
"""How long the exit record of a tree that is gone, and whoever waits for a cell of it, may take."""
LINGER_SECONDS = 2 * cell_end.UNHEARD_WORDS_SECONDS
"""How long the sockets to a dead kernel are read on: longer than anyone waits for its last words."""


class DirectHandle:
    """`KernelHandle` of the direct backend. Made by it, closed by `shutdown` or `close`."""

    def __init__(
        self,
        placement: Placement,
        launch: Launch,
        started: Started,
        line: Line,
        activity: Activity,
        *,
        times: LadderTimes,
    ) -> None:
        self._placement = placement
        self._launch = launch
        self._started = started
        self._line = line
        self._activity = activity
        self._times = times
        self._unit = f"kernel:{launch.session_id}"
        self._key = launch.instance
        self._died: asyncio.Future[ExitRecord | None] = asyncio.get_running_loop().create_future()
        # What is not started by our launcher does not record its output by itself.
        self._recording = None if launch.interpreter is not None else Recording()
        if self._recording is not None:
            line.talk.late = self._recording.take
        self._in_flight: set[asyncio.Future[None]] = set()
        self._sent: Beginning | None = None
        self._watch = asyncio.create_task(self._watch_process())

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def started(self) -> Started:
        """Its process."""
        return self._started

    @property
    def died(self) -> asyncio.Future[ExitRecord | None]:
        """Done when its leader was reaped; None where the keeper itself is gone."""
        return self._died

    @property
    def connection_file(self) -> Path | None:
        """For `jupyter console --existing`."""
        return self._line.connection.file

    @property
    def foreign_busy(self) -> bool:
        """True while it works for a client that is not ours."""
        return self._line.talk.foreign.busy

    @property
    def foreign_used_at(self) -> float | None:
        """When (Unix seconds) a client that is not ours last used it."""
        return self._line.talk.foreign.used_at

    async def _watch_process(self) -> None:
        record: ExitRecord | None = None
        try:
            record = await self._placement.wait(self._key)
        except PxError:
            record = None  # the keeper is gone, or the instance was released: how it ended is not to be had
        self._died.set_result(record)
        await asyncio.sleep(LINGER_SECONDS)
        await self._line.wire.close()  # else its sockets would go on looking for the dead one

    # -- cells -----------------------------------------------------------------------------------------------------

    async def execute(self, request: ExecuteRequest, wake: Callable[[], None]) -> Reply:
        """Run a cell to its end: reply and end of output. Cancelling this abandons the wait, not the cell.

        Raises:
            KernelGoneError: It died.
        """
        if self._died.done():
            raise cell_end.gone(self._unit, self._died)
        with self._counted():
            files = CellLog(request.cells_dir, request.cell_id) if self._recording is None else None
            sent = self._sent = Beginning(files)
            try:
                exchange = await self._expect(request, wake, sent)
                self._line.send_cell(request, recorded_there=self._recording is None)
                await self._until_end(exchange)
            finally:
                sent.over()
            return await self._conclude(exchange, request)

    async def follow(self, request: ExecuteRequest, wake: Callable[[], None]) -> Reply:
        """Wait for the end of a cell that an earlier control plane sent; as `execute` otherwise.

        A kernel that does not record by itself may have said things meanwhile that nobody heard: the reply is lossy.
        """
        with self._counted():
            exchange = await self._expect(request, wake, None)
            probe = self._line.ask("shell", "kernel_info_request")
            try:
                return await self._follow(exchange, probe, request)
            finally:
                self._line.talk.close(exchange)
                self._line.talk.close(probe)

    async def _follow(self, exchange: Exchange, probe: Exchange, request: ExecuteRequest) -> Reply:
        if self._recording is None:
            return await cell_end.follow(exchange, probe, self._died, request, self._unit)
        signs: set[asyncio.Future[Any]] = {exchange.reply, exchange.idle, probe.reply, self._died}
        await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
        if not probe.reply.done():
            await self._until_end(exchange)
        reply = await self._conclude(exchange, request)
        return replace(reply, lossy=True, notice=_GAP)

    async def _until_end(self, exchange: Exchange) -> None:
        await cell_end.wait_for_end(exchange, self._died, has_files=self._recording is None)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Let `close` wait until this cell is concluded."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_flight.add(done)
        try:
            with self._activity.waited_for():
                yield
        finally:
            self._in_flight.discard(done)
            done.set_result(None)

    async def _expect(self, request: ExecuteRequest, wake: Callable[[], None], sent: Beginning | None) -> Exchange:
        """Listen for a cell; `sent` is told what is heard of it, and is None where an earlier control plane sent it."""
        recording = self._recording
        if recording is None:
            return self._line.talk.open(request.cell_id, "shell", lambda _message: wake())
        child = self._started.child
        pid = child.identity.pid if child else None
        await recording.open(request, wake, begin=sent is not None, pid=pid)

        def overhear(message: Message) -> None:
            if sent is not None:
                sent.hear(message)
            recording.take(message)

        return self._line.talk.open(request.cell_id, "shell", overhear)

    async def _conclude(self, exchange: Exchange, request: ExecuteRequest) -> Reply:
        if self._recording is None:
            return await cell_end.conclude(exchange, self._died, request, self._unit)
        return await self._conclude_recorded(self._recording, exchange, request)

    async def _conclude_recorded(self, recording: Recording, exchange: Exchange, request: ExecuteRequest) -> Reply:
        if exchange.reply.done():
            content = exchange.reply.result()
            reply = replace(reply_of(content), iopub_lost=not exchange.is_complete)
            dropped = await recording.end(request.cell_id, content)
        else:
            dropped = await recording.end(request.cell_id, {}, status="error")
            if self._died.done():
                raise cell_end.gone(self._unit, self._died)
            reply = cell_end.no_answer()
        if dropped:
            notice = f"{dropped} bytes of output came faster than they could be written, and are missing"
            return replace(reply, lossy=True, notice=notice)
        if reply.iopub_lost:
            return replace(reply, lossy=True, notice="the kernel did not say that its output is complete")
        return reply

    # -- asking and ending it --------------------------------------------------------------------------------------

    async def interrupt(self) -> str:
        """SIGINT to the process group and, a moment later, the nudge; or the message, where its kernelspec says so.

        The nudge is any request on shell: it wakes a loop that took the signal but sleeps on (ipykernel #881). A cell
        that was sent and has not begun is waited for, up to the next rung: the signal would be lost on it.
        """
        if self._sent is not None:
            await self._sent.wait(self._died, self._times.again_seconds)
        if self._launch.interrupt_mode == "message":
            self._line.ask("control", "interrupt_request")
            return "interrupt_request"
        if not await self._signal(signal.SIGINT):
            return GONE
        await asyncio.sleep(self._times.nudge_seconds)
        self._line.ask("shell", "kernel_info_request")
        return "sigint+nudge"

    async def terminate(self) -> str:
        """SIGTERM to the process group."""
        return "sigterm" if await self._signal(signal.SIGTERM) else GONE

    async def kill(self, reason: str | None = None) -> str:
        """End the whole tree now.

        Args:
            reason: Written down by the keeper before it kills. Without one its record names only the signal: what the
                end was wanted for is then the caller's word, which a verdict would outvote.
        """
        if reason is None and await self._signal(signal.SIGKILL):
            await asyncio.wait({self._died}, timeout=RECORD_SECONDS)
        await self._placement.stop(self._key, grace_seconds=0.0, reason=reason or Reason.STOPPED.value)
        return "sigkill"

    async def shutdown(self, grace_seconds: float, reason: str) -> tuple[int, ...]:
        """End it and remove its files in run_dir; returns pids of what survived, () when nothing of it is left.

        Half of the grace is the kernel's own, to end by itself; the rest is from TERM to KILL, for the whole tree.
        """
        loop = asyncio.get_running_loop()
        over_by = loop.time() + grace_seconds
        if grace_seconds > 0 and not self._died.done():
            self._line.ask("control", "shutdown_request", {"restart": False})
            await asyncio.wait({self._died}, timeout=grace_seconds / 2)
        grace = max(0.0, over_by - loop.time())
        report = await self._placement.stop(self._key, grace_seconds=grace, reason=reason)
        if not report.survivors:
            await asyncio.wait({self._died}, timeout=RECORD_SECONDS)
        await self.close()
        await asyncio.to_thread(place.give_back, self._line.connection)
        return tuple(survivor.pid for survivor in report.survivors)

    async def close(self) -> None:
        """Let go of the connections; the kernel goes on living. Whoever still waits for a cell is told so."""
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        if not self._died.done():
            self._line.talk.give_up()
        await self._line.wire.close()
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=RECORD_SECONDS)
        if self._recording is not None:
            await self._recording.close()

    async def _signal(self, signum: int) -> bool:
        """Signal the process group; False when there is nobody any more."""
        try:
            await self._placement.signal_group(self._key, signum)
        except (ConflictError, UnknownUnitError):
            return False
        return True

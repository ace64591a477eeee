"""The default backend: kernels are the keeper's children, spoken to over ZMQ on private Unix sockets.

Importing this is cheap; zmq and jupyter_client come with the first kernel. The keeper holds the processes, so they
outlive this control plane, and the next one attaches to them. The death of a kernel is what the placement says, never
what a silence seems to say; what was spawned is ended by the placement, whole tree.
"""

from __future__ import annotations

import asyncio
import importlib
import signal
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import structlog
from msgspec.structs import replace

from supervisord_py.errors import ConflictError, PxError, UnknownUnitError
from supervisord_py.kernels import cell_end, connection_file, messages, zygotes
from supervisord_py.kernels.cell_files import reply_of
from supervisord_py.kernels.kernelspecs import command
from supervisord_py.kernels.recording import Recording
from supervisord_py.process.model import ChildSpec, Reason
from supervisord_py.process.zygote_pool import ZygotePool

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from supervisord_py.kernels.backend import ExecuteRequest, Launch, Reply
    from supervisord_py.kernels.config import KernelsConfig, LadderTimes
    from supervisord_py.kernels.connection_file import Connection
    from supervisord_py.kernels.kernel_client import KernelClient, Message, Request
    from supervisord_py.process.keeper_client import KeeperClient
    from supervisord_py.process.model import Child, ExitRecord

HELLO_SECONDS = 1.0
"""How long an attached kernel may take to say something; a running cell may keep it from answering, and that is no
reason to give it up."""
RECORD_SECONDS = 5.0
"""How long the exit record of a tree that is gone, the last words of one that died, and whoever waits for a cell of it,
may take."""
LINGER_SECONDS = 2 * cell_end.UNHEARD_WORDS_SECONDS
"""How long the sockets to a dead kernel are read on: longer than anyone waits for its last words."""
BEGIN_LOOK_SECONDS = 0.002
WAKE_SECONDS = 0.02
GONE = "gone"
_log = structlog.get_logger(__name__)


class DirectBackend:
    """`KernelBackend` over the placement."""

    def __init__(self, placement: KeeperClient, config: KernelsConfig) -> None:
        self._placement = placement
        self._config = config
        self.zygotes = ZygotePool(placement, "kernel", lambda: self._config.zygotes)

    def reconfigure(self, config: KernelsConfig) -> None:
        """Take new settings; kernels that run keep what they were started with."""
        self._config = config
        self.zygotes.trim()

    def expect(self, launch: Launch) -> None:
        """Have a zygote for such launches, as if one had just been started."""
        self.zygotes.want(zygotes.recipe_of(launch), PATH=launch.env.get("PATH", ""))

    @staticmethod
    async def preload() -> None:
        """Import zmq and jupyter_client now, on a thread, so that the first start need not."""
        await asyncio.to_thread(importlib.import_module, "supervisord_py.kernels.kernel_client")

    async def spec(self, launch: Launch) -> ChildSpec:
        """Return what is to be spawned; makes the folder with the connection file.

        Raises StartFailedError, ConfigError: The folder cannot be made, or the kernelspec has no command line.
        """
        try:
            place = await asyncio.to_thread(
                connection_file.make, self._config.run_dir, launch.session_id, launch.instance
            )
        except OSError as error:
            raise messages.no_place(launch, error) from error
        return ChildSpec(
            unit=f"kernel:{launch.session_id}",
            argv=command(launch, str(place.file)),
            cwd=launch.cwd,
            env=launch.env,
            limits=launch.limits,
            max_rss_bytes=launch.max_rss_bytes,
            memory_grace_seconds=launch.memory_grace_seconds,
        )

    async def fork(self, launch: Launch, spec: ChildSpec) -> Child | None:
        """Have a zygote fork the kernel; None where a plain spawn is needed. Raises what a spawn raises."""
        return await self.zygotes.fork(zygotes.recipe_of(launch), launch.instance, spec)

    async def start(self, launch: Launch, child: Child | None, *, deadline: float) -> DirectKernel:
        """Connect to a kernel that was spawned and return it when it answers; whoever waits sees to its death.

        Raises ReadinessTimeoutError: It does not answer by then.
        """
        file = connection_file.folder_of(self._config.run_dir, launch.session_id) / connection_file.FILE
        client = await open_client(connection_file.read(file), launch.instance, trace=self._config.trace)
        begun = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(deadline):
                await client.wait_ready()
        except TimeoutError:
            await client.close()
            raise messages.not_ready(launch, deadline - begun, client.seen) from None
        except BaseException:
            await client.close()
            raise
        self.expect(launch)
        return self._kernel(launch, child, client)

    async def attach(self, launch: Launch, child: Child) -> DirectKernel | None:
        """Take over a kernel that an earlier control plane started.

        None when it is dead, its connection file is gone or another's, or nobody listens on its sockets. One that
        listens but says nothing is taken: it runs a cell that does not let it speak.
        """
        if child.exit is not None:
            return None
        file = connection_file.folder_of(self._config.run_dir, launch.session_id) / connection_file.FILE
        try:
            connection = await asyncio.to_thread(_listening, file, launch.instance)
        except (OSError, ValueError) as error:
            _log.warning("kernel_not_attached", unit=child.unit, instance=child.key, why=str(error))
            return None
        client = await open_client(connection, launch.instance, trace=self._config.trace)
        kernel = self._kernel(launch, child, client)
        try:
            asked = [client.ask(channel, "kernel_info_request") for channel in ("shell", "control")]
            signs: set[asyncio.Future[Any]] = {kernel.died, *(each.reply for each in asked)}
            await asyncio.wait(signs, timeout=HELLO_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            await kernel.close()
            raise
        if kernel.died.done():
            await kernel.close()
            return None
        return kernel

    def _kernel(self, launch: Launch, child: Child | None, client: KernelClient) -> DirectKernel:
        return DirectKernel(self._placement, launch, child, client, times=self._config.ladder)

    async def close(self, *, stop: bool) -> None:
        """End the zygotes; kernels are their handles' to end."""
        await self.zygotes.close()


async def open_client(connection: Connection, instance: str, *, trace: bool) -> KernelClient:
    """Open the sockets to a kernel that is there, or will be.

    zmq and jupyter_client take a quarter of a second to import; a start does it beside the boot of the kernel's own
    interpreter, which takes about as long.
    """
    module = await asyncio.to_thread(importlib.import_module, "supervisord_py.kernels.kernel_client")
    client: KernelClient = module.KernelClient(connection, instance, trace=trace)
    return client


def _listening(file: Path, instance: str) -> Connection:
    """Return the connection of an instance's file, behind which somebody listens.

    Raises OSError, ValueError: Nobody does, or it is no connection file of that instance.
    """
    connection = connection_file.read(file)
    if connection.instance != instance:
        raise ValueError(f"{file} belongs to the instance {connection.instance}")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(HELLO_SECONDS)
        probe.connect(connection.socket_path("shell"))
    return connection


async def sweep_stale(run_dir: Path, alive_instances: Collection[str]) -> None:
    """Remove what instances that are no more have left in run_dir."""
    swept = await asyncio.to_thread(connection_file.sweep, run_dir, alive_instances)
    if swept:
        _log.info("kernel_folders_swept", count=len(swept))


# -- one kernel --------------------------------------------------------------------------------------------------------


class DirectKernel:
    """`KernelHandle` of the direct backend. Made by it, closed by `shutdown` or `close`."""

    def __init__(
        self,
        placement: KeeperClient,
        launch: Launch,
        child: Child | None,
        client: KernelClient,
        *,
        times: LadderTimes,
    ) -> None:
        self.child = child
        self.died: asyncio.Future[ExitRecord | None] = asyncio.get_running_loop().create_future()
        self.connection_file: Path | None = client.connection.file
        self.client = client
        self._placement = placement
        self._launch = launch
        self._times = times
        self._unit = f"kernel:{launch.session_id}"
        self._key = launch.instance
        # What is not started by our launcher does not record its output by itself.
        self._recording = None if launch.interpreter is not None else Recording()
        if self._recording is not None:
            client.late = self._recording.take
        self._in_flight: set[asyncio.Future[None]] = set()
        self._has_begun: Callable[[], bool] = _yes  # of the cell under way
        self._watch = asyncio.create_task(self._watch_process())

    @property
    def foreign_busy(self) -> bool:
        """True while it works for a client that is not ours."""
        return self.client.foreign.busy

    @property
    def foreign_used_at(self) -> float | None:
        """When (Unix seconds) a client that is not ours last used it."""
        return self.client.foreign.used_at

    async def _watch_process(self) -> None:
        record: ExitRecord | None = None
        try:
            record = await self._placement.wait(self._key)
        except PxError:
            record = None  # the keeper is gone, or the instance was released: how it ended is not to be had
        self.died.set_result(record)
        await asyncio.sleep(LINGER_SECONDS)
        await self.client.close(give_up=False)  # else its sockets would go on looking for the dead one

    # -- cells -----------------------------------------------------------------------------------------------------

    async def execute(self, cell: ExecuteRequest, wake: Callable[[], None]) -> Reply:
        """Run a cell to its end: reply and end of output. Cancelling this abandons the wait, not the cell.

        Raises KernelGoneError: It died.
        """
        if self.died.done():
            raise cell_end.gone(self._unit, self.died)
        with self._counted():
            request = await self._expect(cell, wake, is_new=True)
            try:
                self.client.send_cell(cell, recorded_there=self._recording is None)
                await self._until_end(request)
            finally:
                self._has_begun = _yes  # begun or not: nobody waits for it any more
            return await self._conclude(request, cell)

    async def follow(self, cell: ExecuteRequest, wake: Callable[[], None]) -> Reply:
        """Wait for the end of a cell that an earlier control plane sent; as `execute` otherwise.

        A kernel that does not record by itself may have said things meanwhile that nobody heard: the reply is lossy.
        """
        with self._counted():
            request = await self._expect(cell, wake, is_new=False)
            probe = self.client.ask("shell", "kernel_info_request")
            try:
                if self._recording is None:
                    return await cell_end.follow(request, probe, self.died, cell, self._unit)
                signs: set[asyncio.Future[Any]] = {request.reply, request.idle, probe.reply, self.died}
                await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
                if not probe.reply.done():
                    await self._until_end(request)
                notice = "output may be missing: the control plane was replaced while the cell ran"
                return replace(await self._conclude(request, cell), lossy=True, notice=notice)
            finally:
                self.client.forget(request)
                self.client.forget(probe)

    async def _until_end(self, request: Request) -> None:
        await cell_end.wait_for_end(request, self.died, has_files=self._recording is None)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Let `close` wait until this cell is concluded."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._in_flight.add(done)
        try:
            yield
        finally:
            self._in_flight.discard(done)
            done.set_result(None)

    async def _expect(self, cell: ExecuteRequest, wake: Callable[[], None], *, is_new: bool) -> Request:
        """Listen for a cell, and know when it has begun.

        A kernel that records by itself has made the files of the cell, also while code keeps the interpreter to itself;
        any other says by iopub what it executes, and its `busy` alone is too early.
        """
        recording = self._recording
        if recording is None:
            if is_new:
                self._has_begun = (cell.cells_dir / f"{cell.cell_id}.jsonl").exists
            return self.client.expect(cell.cell_id, lambda _message: wake())
        if is_new:
            self._has_begun = _no
        pid = self.child.identity.pid if self.child else None
        await recording.open(cell, wake, begin=is_new, pid=pid)

        def record(message: Message) -> None:
            if is_new and message.type != "status":
                self._has_begun = _yes
            recording.take(message)

        return self.client.expect(cell.cell_id, record)

    async def _conclude(self, request: Request, cell: ExecuteRequest) -> Reply:
        if self._recording is None:
            return await cell_end.conclude(request, self.died, cell, self._unit)
        if request.reply.done():
            content = request.reply.result()
            reply = replace(reply_of(content), iopub_lost=not request.is_complete)
            dropped = await self._recording.end(cell.cell_id, content)
        else:
            dropped = await self._recording.end(cell.cell_id, {}, status="error")
            if self.died.done():
                raise cell_end.gone(self._unit, self.died)
            reply = cell_end.no_answer()
        if dropped:
            notice = f"{dropped} bytes of output came faster than they could be written, and are missing"
            return replace(reply, lossy=True, notice=notice)
        if reply.iopub_lost:
            return replace(reply, lossy=True, notice="the kernel did not say that its output is complete")
        return reply

    # -- asking and ending it --------------------------------------------------------------------------------------

    async def interrupt(self) -> str:
        """SIGINT to the process group; or the message, where its kernelspec says so.

        A moment later any request on shell wakes a loop that took the signal but sleeps on (ipykernel #881). An idle
        kernel ignores the signal, so a cell that was sent and has not begun is waited for, up to the next rung.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._times.again_seconds):
                while not self._has_begun() and not self.died.done():  # noqa: ASYNC110 - the kernel makes the files
                    await asyncio.sleep(BEGIN_LOOK_SECONDS)
        if self._launch.interrupt_mode == "message":
            self.client.ask("control", "interrupt_request")
            return "interrupt_request"
        if not await self._signal(signal.SIGINT):
            return GONE
        await asyncio.sleep(WAKE_SECONDS)
        self.client.ask("shell", "kernel_info_request")
        return "sigint"

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
            await asyncio.wait({self.died}, timeout=RECORD_SECONDS)
        await self._placement.stop(self._key, grace_seconds=0.0, reason=reason or Reason.STOPPED.value)
        return "sigkill"

    async def shutdown(self, grace_seconds: float, reason: str) -> tuple[int, ...]:
        """End it and remove its files in run_dir; returns pids of what survived, () when nothing of it is left.

        Half of the grace is the kernel's own, to end by itself; the rest is from TERM to KILL, for the whole tree.
        """
        loop = asyncio.get_running_loop()
        over_by = loop.time() + grace_seconds
        if grace_seconds > 0 and not self.died.done():
            self.client.ask("control", "shutdown_request", {"restart": False})
            await asyncio.wait({self.died}, timeout=grace_seconds / 2)
        grace = max(0.0, over_by - loop.time())
        report = await self._placement.stop(self._key, grace_seconds=grace, reason=reason)
        if not report.survivors:
            await asyncio.wait({self.died}, timeout=RECORD_SECONDS)
        await self.close()
        await asyncio.to_thread(connection_file.give_back, self.client.connection.folder, self._key)
        return tuple(survivor.pid for survivor in report.survivors)

    async def close(self) -> None:
        """Let go of the connections; the kernel goes on living. Whoever still waits for a cell is told so."""
        self._watch.cancel()
        await asyncio.gather(self._watch, return_exceptions=True)
        await self.client.close(give_up=not self.died.done())
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


def _yes() -> bool:
    return True


def _no() -> bool:
    return False

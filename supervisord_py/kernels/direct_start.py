"""Bringing one kernel up: folder, process, connection, readiness; or the reason why not, with everything taken back."""

from __future__ import annotations

import asyncio
import importlib
import time
from typing import TYPE_CHECKING

from supervisord_py.errors import PxError
from supervisord_py.kernels import connection_file, messages
from supervisord_py.kernels.backend import Started, StartMethod
from supervisord_py.kernels.launch_command import command
from supervisord_py.kernels.messages import KernelEnd, decode_tail
from supervisord_py.process.lifecycle import outcome
from supervisord_py.process.logs import LogReader, Stream
from supervisord_py.process.model import ChildSpec, Reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.connection_file import Connection
    from supervisord_py.kernels.kernel_client import KernelClient
    from supervisord_py.kernels.spare_pool import SparePool
    from supervisord_py.process.keeper_client import KeeperClient
    from supervisord_py.process.model import Child, ExitRecord

    OnSpawned = Callable[[Started], Awaitable[None]]

RECORD_SECONDS = 5.0
"""How long the last words of one that died may take."""
TAIL_BYTES = 16 * 1024


async def open_client(connection: Connection, instance: str, *, trace: bool) -> KernelClient:
    """Open the sockets to a kernel that is there, or will be.

    zmq and jupyter_client take a quarter of a second to import; a start does it beside the boot of the kernel's own
    interpreter, which takes about as long.
    """
    module = await asyncio.to_thread(importlib.import_module, "supervisord_py.kernels.kernel_client")
    client: KernelClient = module.KernelClient(connection, instance, trace=trace)
    return client


class KernelStart:
    """One start of one kernel.

    Whoever gets an error here gets it after the whole tree is gone and the folder removed; that holds for a caller who
    was cancelled, too. The exit record stays with the placement: to release it is for whoever wrote the end down.
    """

    def __init__(self, placement: KeeperClient, spares: SparePool, config: KernelsConfig, launch: Launch) -> None:
        self._placement = placement
        self._spares = spares
        self._config = config
        self._launch = launch
        self._unit = f"kernel:{launch.session_id}"
        self._phases: dict[str, float] = {}
        self._since = time.monotonic()
        self._child: Child | None = None

    async def run(self, deadline: float, on_spawned: OnSpawned) -> tuple[Started, KernelClient]:
        """Bring it up.

        Raises:
            StartFailedError, ReadinessTimeoutError, ConfigError: Why not.
        """
        launch = self._launch
        try:
            connection = await asyncio.to_thread(
                connection_file.make, self._config.run_dir, launch.session_id, launch.instance
            )
        except OSError as error:
            raise messages.no_place(launch, error) from error
        self._phase("place")
        opening = asyncio.create_task(open_client(connection, launch.instance, trace=self._config.trace))
        try:
            started = await self._spawn(connection, on_spawned)
            client = await opening
            self._phase("connect")
            await self._until_ready(client, deadline)
        except BaseException as error:
            await asyncio.shield(asyncio.ensure_future(self._take_back(connection, opening, _reason(error))))
            raise
        self._phase("ready")
        return started, client

    def _phase(self, name: str) -> None:
        now = time.monotonic()
        self._phases[name] = now - self._since
        self._since = now

    async def _spawn(self, connection: Connection, on_spawned: OnSpawned) -> Started:
        launch = self._launch
        argv = command(launch, str(connection.file))
        self._child, method = await self._spares.take(launch, argv), StartMethod.SPARE
        if self._child is None:
            spec = ChildSpec(
                unit=self._unit,
                argv=argv,
                cwd=launch.cwd,
                env=launch.env,
                limits=launch.limits,
                max_rss_bytes=launch.max_rss_bytes,
                memory_grace_seconds=launch.memory_grace_seconds,
                tag=launch.tag,
            )
            self._child, method = await self._placement.spawn(launch.instance, spec), StartMethod.SPAWN
        self._phase(method.value)
        started = Started(self._child, self._phases, method)
        await on_spawned(started)
        self._phase("told")
        return started

    async def _until_ready(self, client: KernelClient, deadline: float) -> None:
        begun = asyncio.get_running_loop().time()
        ready = asyncio.ensure_future(client.wait_ready())
        died = asyncio.ensure_future(self._placement.wait(self._launch.instance))
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.wait({ready, died}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            tail = await self._tail(None)
            raise messages.not_ready(self._launch, deadline - begun, client.seen, tail) from None
        finally:
            for task in (ready, died):
                task.cancel()
            await asyncio.gather(ready, died, return_exceptions=True)
        if died.cancelled():
            return ready.result()
        record = died.result()
        try:
            async with asyncio.timeout(RECORD_SECONDS):
                await self._placement.stop(self._launch.instance, grace_seconds=0.0, reason=Reason.EARLY_EXIT)
        except TimeoutError:
            pass  # something of its tree takes its time; what was written so far is told
        end = KernelEnd(outcome(record, None, False), record, await self._tail(record))
        raise messages.early_exit(self._launch, end)

    async def _tail(self, record: ExitRecord | None) -> str:
        """Return the end of its stderr."""
        start = self._child.log_position if self._child else 0

        def read() -> str:
            try:
                reader = LogReader.of(self._placement.log_dir, self._unit)
                end = reader.end() if record is None else record.log_end
                return decode_tail(reader.tail_bytes(start, end, Stream.STDERR, TAIL_BYTES), TAIL_BYTES)
            except OSError:
                return ""  # a full or broken disk must not hide the failure itself

        return await asyncio.to_thread(read)

    async def _take_back(self, connection: Connection, opening: asyncio.Task[KernelClient], reason: Reason) -> None:
        """Leave nothing: the tree, the sockets, the folder."""
        try:
            (client,) = await asyncio.gather(opening, return_exceptions=True)
            if not isinstance(client, BaseException):
                await client.close()
            await self._placement.stop(self._launch.instance, grace_seconds=0.0, reason=reason)
        finally:
            await asyncio.to_thread(connection_file.give_back, connection)


def _reason(error: BaseException) -> Reason:
    """Return what is written down with a process that is ended because of this."""
    if isinstance(error, asyncio.CancelledError):
        return Reason.CANCELLED
    word = error.extra.get("reason") if isinstance(error, PxError) else None
    return Reason(word) if word in set(Reason) else Reason.EARLY_EXIT

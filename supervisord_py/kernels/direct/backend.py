"""The default backend: kernels are the keeper's children, spoken to over ZMQ on private Unix sockets.

Law: importing this is cheap; zmq and jupyter_client come with the first kernel. The keeper holds the processes, so they
outlive this control plane, and the next one attaches to them.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.kernels.backend import Started
from supervisord_py.kernels.direct import place
from supervisord_py.kernels.direct.handle import DirectHandle
from supervisord_py.kernels.direct.line import wire_module
from supervisord_py.kernels.direct.spare_pool import SparePool
from supervisord_py.kernels.direct.startup import Startup, open_line

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection
    from pathlib import Path

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.direct.line import Line
    from supervisord_py.kernels.direct.place import Connection
    from supervisord_py.process.placement import Placement
    from supervisord_py.process.spec import Child

HELLO_SECONDS = 1.0
"""How long an attached kernel may take to say something; a running cell may keep it from answering, and that is no
reason to give it up."""
_log = structlog.get_logger(__name__)


class DirectBackend:
    """`KernelBackend` over the placement."""

    def __init__(self, placement: Placement, config: KernelsConfig) -> None:
        self._placement = placement
        self._config = config
        self.spares = SparePool(placement, config)

    def reconfigure(self, config: KernelsConfig) -> None:
        """Take new settings; kernels that run keep what they were started with."""
        self._config = config
        self.spares.reconfigure(config)

    def expect(self, launch: Launch) -> None:
        """Have a spare for such a launch, as if one had just been started."""
        self.spares.want(launch)

    @staticmethod
    async def preload() -> None:
        """Import zmq and jupyter_client now, on a thread, so that the first start need not."""
        await wire_module()

    async def start(
        self, launch: Launch, *, deadline: float, on_spawned: Callable[[Started], Awaitable[None]]
    ) -> DirectHandle:
        """Start a kernel and return it when it answers; see `KernelBackend`.

        Raises:
            StartFailedError, ReadinessTimeoutError: With reason, exit code or signal, and the end of its stderr.
            ConfigError: A module of the user is broken; or the runtime directory's path is too long.
        """
        with self.spares.activity.waited_for():
            started, line = await Startup(self._placement, self.spares, self._config, launch).run(deadline, on_spawned)
        self.spares.want(launch)
        if self._config.debug_startup:
            told = {f"{name}_ms": round(seconds * 1000, 1) for name, seconds in started.phases.items()}
            _log.info("kernel_startup", unit=f"kernel:{launch.session_id}", instance=launch.instance, **told)
        return self._handle(launch, started, line)

    async def attach(self, launch: Launch, child: Child) -> DirectHandle | None:
        """Take over a kernel that an earlier control plane started.

        None when it is dead, its connection file is gone or another's, or nobody listens on its sockets. One that
        listens but says nothing is taken: it runs a cell that does not let it speak.
        """
        if child.exit is not None:
            return None
        file = place.folder_of(self._config.run_dir, launch.session_id) / place.FILE
        try:
            connection = await asyncio.to_thread(_listening, file, launch.instance)
        except (OSError, ValueError) as error:
            _log.warning("kernel_not_attached", unit=child.unit, instance=child.key, why=str(error))
            return None
        line = await open_line(connection, launch.instance, trace=self._config.trace)
        handle = self._handle(launch, Started(child), line)
        try:
            await _hear_something(line, handle)
        except BaseException:
            await handle.close()
            raise
        if handle.died.done():
            await handle.close()
            return None
        return handle

    def _handle(self, launch: Launch, started: Started, line: Line) -> DirectHandle:
        times = self._config.ladder
        return DirectHandle(self._placement, launch, started, line, self.spares.activity, times=times)

    async def close(self, *, stop: bool) -> None:
        """End the spares; kernels are their handles' to end."""
        await self.spares.close()


def _listening(file: Any, instance: str) -> Connection:
    """Return the connection of an instance's file, behind which somebody listens.

    Raises:
        OSError, ValueError: Nobody does, or it is no connection file of that instance.
    """
    connection = place.read(file)
    if connection.instance != instance:
        raise ValueError(f"{file} belongs to the instance {connection.instance or 'of somebody else'}")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(HELLO_SECONDS)
        probe.connect(connection.socket_path("shell"))
    return connection


async def _hear_something(line: Line, handle: DirectHandle) -> None:
    """Wait, not long, until the kernel has shown that it is there and hears us."""
    asked = [line.ask(channel, "kernel_info_request") for channel in ("shell", "control")]
    signs: set[asyncio.Future[Any]] = {handle.died, *(exchange.reply for exchange in asked)}
    await asyncio.wait(signs, timeout=HELLO_SECONDS, return_when=asyncio.FIRST_COMPLETED)


async def sweep_stale(run_dir: Path, alive_instances: Collection[str]) -> None:
    """Remove what instances that are no more have left in run_dir."""
    swept = await asyncio.to_thread(place.sweep, run_dir, alive_instances)
    if swept:
        _log.info("kernel_folders_swept", count=len(swept))

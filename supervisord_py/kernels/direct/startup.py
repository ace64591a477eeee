"""Bringing one kernel up: folder, process, connection, readiness; or the reason why not, with everything taken back.

Law: whoever gets an error here gets it after the whole tree is gone and the folder removed; that holds for a caller who
was cancelled, too. The exit record stays with the placement: to release it is for whoever wrote the end down.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from supervisord_py.errors import PxError
from supervisord_py.kernels import start_failure
from supervisord_py.kernels.backend import Started, StartMethod
from supervisord_py.kernels.direct import place
from supervisord_py.kernels.direct.conversation import Conversation
from supervisord_py.kernels.direct.line import Line, Readiness, client_name, wire_module
from supervisord_py.kernels.kernel_endings import KernelEnd, decode_tail
from supervisord_py.kernels.launch_command import command
from supervisord_py.process.lifecycle import outcome
from supervisord_py.process.output import OutputReader, Stream
from supervisord_py.process.spec import ChildSpec, Reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.direct.place import Connection
    from supervisord_py.kernels.direct.spare_pool import SparePool
    from supervisord_py.process.placement import Placement
    from supervisord_py.process.spec import Child, ExitRecord

    OnSpawned = Callable[[Started], Awaitable[None]]

TAIL_BYTES = 16 * 1024
LAST_WORDS_SECONDS = 5.0


async def open_line(connection: Connection, instance: str, *, trace: bool) -> Line:
    """Open the connection to a kernel that is there, or will be."""
    module = await wire_module()
    name = client_name(instance)
    talk = Conversation(name)
    return Line(connection, module.Wire(connection, name, talk.hear, trace=trace), talk)


class Startup:
    """One start of one kernel."""

    def __init__(self, placement: Placement, spares: SparePool, config: KernelsConfig, launch: Launch) -> None:
        self._placement = placement
        self._spares = spares
        self._config = config
        self._launch = launch
        self._unit = f"kernel:{launch.session_id}"
        self._phases: dict[str, float] = {}
        self._since = time.monotonic()
        self._line: Line | None = None
        self._child: Child | None = None

    async def run(self, deadline: float, on_spawned: OnSpawned) -> tuple[Started, Line]:
        """Bring it up; see the module.

        Raises:
            StartFailedError, ReadinessTimeoutError, ConfigError: Why not.
        """
        connection = await self._make_place()
        loading = asyncio.create_task(open_line(connection, self._launch.instance, trace=self._config.trace))
        try:
            started = await self._spawn(connection, on_spawned)
            self._line = await loading
            self._phase("connect")
            await self._until_ready(self._line, deadline)
        except BaseException as error:
            await asyncio.shield(asyncio.ensure_future(self._take_back(connection, loading, _reason(error))))
            raise
        self._phase("ready")
        return started, self._line

    def _phase(self, name: str) -> None:
        now = time.monotonic()
        self._phases[name] = now - self._since
        self._since = now

    async def _make_place(self) -> Connection:
        try:
            launch = self._launch
            made = await asyncio.to_thread(place.make, self._config.run_dir, launch.session_id, launch.instance)
        except OSError as error:
            raise start_failure.no_place(self._launch, error) from error
        self._phase("place")
        return made

    async def _spawn(self, connection: Connection, on_spawned: OnSpawned) -> Started:
        argv = command(self._launch, str(connection.file))
        self._child, method = await self._spares.take(self._launch, argv), StartMethod.SPARE
        if self._child is None:
            self._child, method = await self._spawn_afresh(argv), StartMethod.SPAWN
        self._phase(method.value)
        started = Started(self._child, self._phases, method)
        await on_spawned(started)
        self._phase("told")
        return started

    async def _spawn_afresh(self, argv: tuple[str, ...]) -> Child:
        launch = self._launch
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
        return await self._placement.spawn(launch.instance, spec)

    async def _until_ready(self, line: Line, deadline: float) -> None:
        begun = asyncio.get_running_loop().time()
        readiness = Readiness(line)
        ready = asyncio.ensure_future(readiness.wait())
        died = asyncio.ensure_future(self._placement.wait(self._launch.instance))
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.wait({ready, died}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            tail = await self._tail(None)
            raise start_failure.not_ready(self._launch, deadline - begun, readiness.seen, tail) from None
        finally:
            for task in (ready, died):
                task.cancel()
            await asyncio.gather(ready, died, return_exceptions=True)
        if not died.cancelled():
            raise await self._died(died.result())
        ready.result()

    async def _died(self, record: ExitRecord) -> PxError:
        """Return why it ended, when its last words are written."""
        try:
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._placement.stop(self._launch.instance, grace_seconds=0.0, reason=Reason.EARLY_EXIT)
        except TimeoutError:
            pass  # something of its tree takes its time; what was written so far is told
        end = KernelEnd(outcome(record, None, False), record, await self._tail(record))
        return start_failure.early_exit(self._launch, end)

    async def _tail(self, record: ExitRecord | None) -> str:
        start = self._child.log_position if self._child else 0
        return await asyncio.to_thread(self._read_tail, start, record)

    def _read_tail(self, start: int, record: ExitRecord | None) -> str:
        try:
            reader = OutputReader.of(self._placement.log_dir, self._unit)
            end = reader.end() if record is None else record.log_end
            return decode_tail(reader.tail_bytes(start, end, Stream.STDERR, TAIL_BYTES), TAIL_BYTES)
        except OSError:
            return ""  # a full or broken disk must not hide the failure itself

    async def _take_back(self, connection: Connection, loading: asyncio.Task[Line], reason: Reason) -> None:
        """Leave nothing: the tree, the sockets, the folder."""
        try:
            (line,) = await asyncio.gather(loading, return_exceptions=True)
            if isinstance(line, Line):
                await line.close()
            await self._placement.stop(self._launch.instance, grace_seconds=0.0, reason=reason)
        finally:
            await asyncio.to_thread(place.give_back, connection)


def _reason(error: BaseException) -> Reason:
    """Return what is written down with a process that is ended because of this."""
    if isinstance(error, asyncio.CancelledError):
        return Reason.CANCELLED
    word = error.extra.get("reason") if isinstance(error, PxError) else None
    return Reason(word) if word in set(Reason) else Reason.EARLY_EXIT

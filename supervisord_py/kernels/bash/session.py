"""One session of shell cells: a process a cell, one after the other, each seen out to the last of its tree."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import ConflictError, InvalidInputError, KeeperLostError, PxError
from supervisord_py.kernels.backend import KernelGoneError, Reply, Started
from supervisord_py.kernels.bash.shell_cell import CellFiles, child_spec, outcome
from supervisord_py.kernels.cell import CellError, CellStatus
from supervisord_py.process import host

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from pathlib import Path

    from supervisord_py.kernels.backend import ExecuteRequest, Launch
    from supervisord_py.process.keeper_client import KeeperClient
    from supervisord_py.process.model import Child, ExitRecord, StopReport

    Wake = Callable[[], None]

LOOK_SECONDS = 0.05
LOOK_LATER_SECONDS = 0.2
"""How often the output is looked at: while there is news, and while there is none."""
LINGER_SECONDS = 0.3
BACKGROUND_GRACE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class ShellChild:
    """The process of a shell cell."""

    session_id: str
    cell_id: str
    child: Child


@dataclass(frozen=True, slots=True)
class Outlets:
    """Who is told of processes."""

    on_child: Callable[[ShellChild], Awaitable[None]]
    on_child_ended: Callable[[ShellChild, ExitRecord, tuple[int, ...]], None]


@dataclass(slots=True)
class _Running:
    """A cell under way, and who wants to be woken by its output."""

    request: ExecuteRequest
    files: CellFiles
    wakes: list[Wake] = field(default_factory=list)
    spawned: asyncio.Event = field(default_factory=asyncio.Event)
    """Its process is there, or will never be."""
    task: asyncio.Task[Reply] | None = None

    def wake(self) -> None:
        for each in tuple(self.wakes):
            each()


class BashHandle:
    """`KernelHandle` of a session of shell cells."""

    def __init__(
        self, placement: KeeperClient, launch: Launch, shell: str, outlets: Outlets, child: Child | None = None
    ) -> None:
        self._placement = placement
        self._launch = launch
        self._shell = shell
        self._outlets = outlets
        self._child = child
        self._running: _Running | None = None
        self._died: asyncio.Future[ExitRecord | None] = asyncio.get_running_loop().create_future()

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def started(self) -> Started:
        """The process of the running cell, if one runs."""
        return Started(self._child)

    @property
    def died(self) -> asyncio.Future[ExitRecord | None]:
        """Done (None) when the session was shut down; the end of a cell is no death."""
        return self._died

    @property
    def connection_file(self) -> Path | None:
        """There is none."""
        return None

    @property
    def foreign_busy(self) -> bool:
        """Nobody else can use it."""
        return False

    @property
    def foreign_used_at(self) -> float | None:
        """Nobody else can use it."""
        return None

    # -- cells -----------------------------------------------------------------------------------------------------

    async def execute(self, request: ExecuteRequest, wake: Wake) -> Reply:
        """Run a cell to its end. Cancelling this abandons the wait, not the cell.

        A cell that cannot be started is one that failed, with the error `StartFailed`.

        Raises:
            ConflictError: Another cell runs.
            KeeperLostError: There is no keeper.
        """
        if self._child is not None or (self._running is not None and not _is_done(self._running)):
            raise ConflictError(f"a cell of kernel:{self._launch.session_id} is running", unit=self._unit)
        running = self._running = _Running(request, CellFiles(request))
        return await _wait_for(running, self._run(running), wake)

    async def follow(self, request: ExecuteRequest, wake: Wake) -> Reply:
        """Wait for the end of a cell that was abandoned, or that an earlier control plane started.

        Raises:
            KernelGoneError: Its process is not known any more.
        """
        running = self._running
        if running is not None and running.request.cell_id == request.cell_id:
            return await _wait_for(running, None, wake)
        if self._child is None or running is not None:
            return await self._as_it_ended(request)
        running = self._running = _Running(request, CellFiles(request))
        running.spawned.set()
        return await _wait_for(running, self._see_out(running, self._child), wake)

    async def _as_it_ended(self, request: ExecuteRequest) -> Reply:
        """Return the end of a cell that has no process any more, as its files tell it."""
        if (reply := await asyncio.to_thread(CellFiles(request).ended)) is not None:
            return reply
        raise KernelGoneError(
            f"the process of cell {request.cell_id} is gone, how it ended is not known", unit=self._unit
        )

    async def _run(self, running: _Running) -> Reply:
        try:
            child = self._child = await self._spawn(running)
        except KeeperLostError:
            raise
        except (PxError, OSError) as error:
            return await self._not_started(running, str(error))
        finally:
            running.spawned.set()
        await self._outlets.on_child(ShellChild(self._launch.session_id, running.request.cell_id, child))
        return await self._see_out(running, child)

    async def _spawn(self, running: _Running) -> Child:
        if "\0" in running.request.code:
            raise InvalidInputError("the code contains a NUL character, which no shell can read")
        await asyncio.to_thread(running.files.prepare)
        spec = child_spec(self._launch, self._shell, running.files.shell)
        return await self._placement.spawn(self._placement.new_key(), spec)

    async def _not_started(self, running: _Running, why: str) -> Reply:
        error = CellError("StartFailed", why)
        await asyncio.to_thread(running.files.not_started, error)
        return Reply(CellStatus.ERROR, error)

    async def _see_out(self, running: _Running, child: Child) -> Reply:
        """Watch a process to its end, end what it left, and write the end of the cell."""
        record = await self._watch(running, child)
        left = await self._left_behind(child)
        report = await self._placement.stop(child.key, grace_seconds=BACKGROUND_GRACE_SECONDS, reason="exit")
        status, error = outcome(record, self._launch.limits)
        duration = max(0.0, record.ended_at - record.started_at)
        await asyncio.to_thread(running.files.end, status, error, duration)
        survivors = tuple(each.pid for each in report.survivors)
        told = ShellChild(self._launch.session_id, running.request.cell_id, child)
        self._outlets.on_child_ended(told, record, survivors)
        if not survivors:
            await self._placement.release(child.key)
        self._child = None
        running.wake()
        return Reply(status, error, notice=_background_words(left, report))

    async def _watch(self, running: _Running, child: Child) -> ExitRecord:
        """Wait for the exit of the shell; wake whoever wants to know whenever its output grew."""
        exited = asyncio.ensure_future(self._placement.wait(child.key))
        size, pause = -1, LOOK_SECONDS
        try:
            while not exited.done():
                await asyncio.wait({exited}, timeout=pause)
                before, size = size, running.files.look()
                pause = LOOK_SECONDS if size != before else min(pause * 1.5, LOOK_LATER_SECONDS)
                if size != before:
                    running.wake()
            return exited.result()
        finally:
            exited.cancel()
            await asyncio.gather(exited, return_exceptions=True)

    async def _left_behind(self, child: Child) -> int:
        """Return how many processes live on, after a moment in which they may end by themselves."""
        deadline, pause = time.monotonic() + LINGER_SECONDS, 0.005
        while True:
            stat = (await self._placement.stat((child.key,))).get(child.key)
            if stat is None or stat.processes == 0 or time.monotonic() >= deadline:
                return 0 if stat is None else stat.processes
            await asyncio.sleep(pause)
            pause *= 2

    # -- the rungs -------------------------------------------------------------------------------------------------

    async def interrupt(self) -> str:
        """SIGINT to the process group of the running cell: `sigint`, or `gone`."""
        return _signal_group(await self._present(), signal.SIGINT)

    async def terminate(self) -> str:
        """SIGTERM to the process group of the running cell: `sigterm`, or `gone`."""
        return _signal_group(await self._present(), signal.SIGTERM)

    async def kill(self) -> str:
        """End the whole tree of the running cell now: `sigkill`, or `gone`."""
        child = await self._present()
        if child is None:
            return "gone"
        await self._placement.stop(child.key, grace_seconds=0, reason="stopped")
        return "sigkill"

    async def _present(self) -> Child | None:
        """Return the process of the running cell; one that is just being spawned is waited for, not missed."""
        if self._running is not None:
            await self._running.spawned.wait()
        return self._child

    async def shutdown(self, grace_seconds: float, reason: str) -> tuple[int, ...]:
        """End the running cell and the session; returns the pids of what survived."""
        survivors: tuple[int, ...] = ()
        if (child := await self._present()) is not None:
            report = await self._placement.stop(child.key, grace_seconds=grace_seconds, reason=reason)
            survivors = tuple(each.pid for each in report.survivors)
        if self._running is not None and self._running.task is not None and not survivors:
            await asyncio.wait({self._running.task})
        if child is not None and self._child is child and not survivors:  # attached, and nobody followed
            await self._placement.release(child.key)
            self._child = None
        if not self._died.done():
            self._died.set_result(None)
        return survivors

    async def close(self) -> None:
        """Let go of a running cell: it goes on, and a later control plane sees it out."""
        if self._running is not None and self._running.task is not None:
            self._running.task.cancel()
            await asyncio.gather(self._running.task, return_exceptions=True)

    @property
    def _unit(self) -> str:
        return f"kernel:{self._launch.session_id}"


def _signal_group(child: Child | None, number: signal.Signals) -> str:
    """Signal the group that the shell leads, if it is still the process that was started."""
    if child is None or host.start_time(child.identity.pid) != child.identity.start_time:
        return "gone"
    try:
        os.killpg(child.identity.pid, number)
    except ProcessLookupError:
        return "gone"
    return number.name.lower()


def _is_done(running: _Running) -> bool:
    return running.task is not None and running.task.done()


async def _wait_for(running: _Running, work: Coroutine[Any, Any, Reply] | None, wake: Wake) -> Reply:
    """Set about a cell (`work`; None where that was done), and wait for its end; being cancelled leaves it."""
    task = running.task if work is None else asyncio.create_task(work, name=f"shell cell {running.request.cell_id}")
    assert task is not None
    running.task = task
    task.add_done_callback(_hear)
    running.wakes.append(wake)
    try:
        return await asyncio.shield(task)
    finally:
        running.wakes.remove(wake)


def _hear(task: asyncio.Task[Reply]) -> None:
    """Take note of a failure, so that one that nobody waits for is not reported as forgotten."""
    if not task.cancelled():
        task.exception()


def _background_words(left: int, report: StopReport) -> str | None:
    """Say what became of the processes that a cell left behind."""
    if report.survivors:
        names = ", ".join(f"{each.name} (pid {each.pid})" for each in report.survivors)
        return f"the cell left processes behind that could not be ended: {names}"
    if not left:
        return None
    processes = "a process that the cell left" if left == 1 else f"{left} processes that the cell left"
    return f"{processes} in the background ended with it: nothing of a shell cell outlives it"

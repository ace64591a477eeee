"""Shell cells behind the interface of kernels: one process a cell, each an instance of the supervisor's, seen out to
the last of its tree. A session of them has no process between its cells.

The code lies in a file and never in argv, where every user of the machine could read it; stdout and stderr are the
cell's file itself. The wrapper is bash itself: it reads the code and evaluates it alone, so that messages read as those
of `bash -c` (`bash: line 3: …`). The variable is the one in which `bash -c` itself has its code; nothing else is left
of the wrapper when the code runs. Bash is looked for when the session starts, so that a machine without it says so
before anything is run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from supervisord_py.errors import ConflictError, InvalidInputError, KeeperLostError, PxError, StartFailedError
from supervisord_py.kernels.backend import KernelGoneError, Reply
from supervisord_py.kernels.cell import CellError, CellStatus
from supervisord_py.kernels.cell_files import CellLog
from supervisord_py.kernels.inside.cell_writer import CellWriter
from supervisord_py.kernels.messages import signal_name
from supervisord_py.process import host
from supervisord_py.process.instance import Instance, Phase
from supervisord_py.process.model import ChildSpec, Reason
from supervisord_py.process.supervisor import Driver

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from supervisord_py.kernels.backend import ExecuteRequest, Launch
    from supervisord_py.process.instance import Note
    from supervisord_py.process.model import Child, ExitRecord
    from supervisord_py.process.supervisor import Supervisor

LINGER_SECONDS = 0.3  # what a cell leaves behind may end by itself until then, as a process substitution does
BACKGROUND_GRACE_SECONDS = 2.0
WRAPPER = '{ IFS= read -rd "" BASH_EXECUTION_STRING || :; } <"$1" || exit 126; set --; eval -- "$BASH_EXECUTION_STRING"'
_BEFORE_THE_CODE = frozenset(("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS"))  # would run code before it, or trace it
_LIMITS = {Reason.MEMORY_LIMIT: "memory", Reason.OOM_KILL: "memory", Reason.CPU_LIMIT: "cpu"}
_NEW = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class ShellInstance(Instance):
    """The process of one cell; `out`: descriptor of its output, until it is spawned."""

    died = property(lambda _: False, doc="Its end is the cell's, and no surprise.")

    def __init__(self, key: str, session: BashHandle, request: ExecuteRequest) -> None:
        super().__init__(key, session.unit, stop_seconds=BACKGROUND_GRACE_SECONDS)
        self.start_method = "bash"
        self.request = request
        self.code_file = request.cells_dir / f"{request.cell_id}.sh"
        self.writer = CellWriter(str(request.cells_dir), request.cell_id, request.cell_bytes)
        self.out = -1
        self.session = session

    def note(self) -> str:
        """Return the room's note, as for every kernel."""
        return self.session.tag

    def begin(self) -> None:
        """Write the code, make the output, and begin the records. Blocking."""
        with contextlib.suppress(FileNotFoundError):
            self.code_file.unlink()
        with os.fdopen(os.open(self.code_file, _NEW, 0o600), "wb") as file:
            file.write(self.request.code.encode("utf-8", "surrogatepass"))
        self.out = os.open(self.request.cells_dir / f"{self.request.cell_id}.out", _NEW, 0o600)
        self.writer.begin(self.request.code, 0)  # the process is in the ledger once it is there

    def finish(self, status: CellStatus, error: CellError | None, duration: float) -> None:
        """Write the end, unless an earlier control plane has: it was replaced just behind it. Blocking."""
        if self.reply() is not None:
            return
        if self.writer.size(".jsonl") == 0:
            self.writer.begin(self.request.code, 0)
        said = None if error is None else {"name": error.name, "value": error.value, "traceback": []}
        self.writer.end(status.value, execution_count=None, duration=duration, error=said)
        with contextlib.suppress(OSError):
            self.code_file.unlink()

    def reply(self) -> Reply | None:
        """Return what the end says, None where there is none yet. Blocking."""
        return CellLog(self.request.cells_dir, self.request.cell_id).reply()


class BashBackend(Driver[ShellInstance]):
    """Runs shell cells, and is the `Driver` of their processes."""

    kind = "kernel"

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self._sessions: dict[str, BashHandle] = {}

    async def spec(self, launch: Launch) -> None:
        """Nothing is spawned before its first cell."""

    async def start(self, launch: Launch, child: Child | None, *, deadline: float) -> BashHandle:
        """Return a session that may take cells. Raises StartFailedError: there is no bash."""
        del deadline  # nothing is waited for
        return self._session(launch, child)

    async def attach(self, launch: Launch, child: Child) -> BashHandle:
        """Take over a session whose cell was running (or ended meanwhile): `follow` sees it out."""
        return self._session(launch, child)

    def _session(self, launch: Launch, child: Child | None) -> BashHandle:
        path = launch.env.get("PATH") or os.defpath
        shell = shutil.which("bash", path=path)
        if shell is None:
            raise StartFailedError(
                f"there is no bash on PATH ({path}), and kernel:{launch.session_id} runs shell cells",
                hint="install bash, or run Python cells: `pxctl exec` without `--bash`",
                unit=f"kernel:{launch.session_id}",
                reason="spawn_failed",
                stage="interpreter",
            )
        handle = self._sessions[launch.instance] = BashHandle(self, launch, shell, child)
        handle.died.add_done_callback(lambda _: self._sessions.pop(launch.instance, None))
        return handle

    async def annotate(self, instance: str, tag: str) -> None:
        """Replace the room's note with a session's process, now and for those to come."""
        if (session := self._sessions.get(instance)) is not None:
            await session.annotate(tag)

    async def close(self, *, stop: bool) -> None:
        """Nothing is run for the backend itself."""

    # -- what the supervisor asks of the driver of shells ------------------------------------------------------------

    async def prepare(self, instance: ShellInstance) -> ChildSpec:
        """Return what runs a cell: a process of its own in the session's directory and environment."""
        launch = instance.session.launch
        return ChildSpec(
            instance.unit,
            (instance.session.program, "--noprofile", "--norc", "-c", WRAPPER, "bash", str(instance.code_file)),
            launch.cwd,
            {name: value for name, value in launch.env.items() if name not in _BEFORE_THE_CODE},
            limits=launch.limits,
            max_rss_bytes=launch.max_rss_bytes,
            memory_grace_seconds=launch.memory_grace_seconds,
            stdout_fd=instance.out,
            stderr_fd=instance.out,
        )

    async def adopt(self, instance: ShellInstance, note: Note) -> bool:
        """Never asked: the room adopts sessions, and `BashHandle.follow` their cells."""
        raise NotImplementedError


class BashHandle:
    """`KernelHandle` of a session of shell cells."""

    connection_file: Path | None = None
    foreign_busy = False  # nobody else can use it
    foreign_used_at: float | None = None

    def __init__(self, backend: BashBackend, launch: Launch, program: str, child: Child | None) -> None:
        self.unit = f"kernel:{launch.session_id}"
        self.tag = launch.tag
        self.died: asyncio.Future[ExitRecord | None] = asyncio.get_running_loop().create_future()
        """Done (None) when the session was shut down; the end of a cell is no death."""
        self.launch = launch
        self.program = program
        self._backend = backend
        self._supervisor = backend.supervisor
        self._found = child  # of an earlier control plane, until it is followed
        self._shell: ShellInstance | None = None
        self._spawned = asyncio.Event()  # the process is there, or will never be
        self._cell: asyncio.Task[Reply] | None = None

    @property
    def child(self) -> Child | None:
        """The process of the running cell, if one runs."""
        return self._shell.child if self._shell is not None else self._found

    async def annotate(self, tag: str) -> None:
        """Replace the room's note."""
        self.tag = tag
        if self._shell is not None and self._shell.child is not None:
            await self._supervisor.annotate(self._shell)

    # -- cells -------------------------------------------------------------------------------------------------------

    async def execute(self, request: ExecuteRequest, wake: Callable[[], None]) -> Reply:
        """Run a cell to its end. Cancelling this abandons the wait, not the cell; two at a time are a ConflictError.

        A cell that cannot be started is one that failed, with the error `StartFailed`.
        """
        if self._found is not None or (self._cell is not None and not self._cell.done()):
            raise ConflictError(f"a cell of {self.unit} is running", unit=self.unit)
        shell = ShellInstance(self._supervisor.placement.new_key(), self, request)
        self._spawned.clear()
        return await self._begin(shell, self._run(shell), wake)

    async def follow(self, request: ExecuteRequest, wake: Callable[[], None]) -> Reply:
        """Wait for the end of a cell that was abandoned, or that an earlier control plane started."""
        if self._cell is not None and self._shell is not None and self._shell.request.cell_id == request.cell_id:
            return await asyncio.shield(self._cell)
        child, self._found = self._found, None
        shell = ShellInstance(child.key if child is not None else "", self, request)
        if child is None:
            if (reply := await asyncio.to_thread(shell.reply)) is not None:
                return reply
            raise KernelGoneError(f"the process of cell {request.cell_id} is gone, how it ended is not known")
        shell.child, shell.started_at, shell.ready_at = child, child.started_at, child.started_at
        shell.phase = Phase.READY
        self._spawned.set()
        return await self._begin(shell, self._see_out(shell), wake)

    async def _begin(self, shell: ShellInstance, work: Awaitable[Reply], wake: Callable[[], None]) -> Reply:
        self._shell = shell
        cell = self._cell = asyncio.ensure_future(work)
        cell.add_done_callback(lambda done: done.cancelled() or done.exception())  # perhaps nobody waits for it
        reply = await asyncio.shield(cell)
        wake()
        return reply

    async def _run(self, shell: ShellInstance) -> Reply:
        try:
            if "\0" in shell.request.code:
                raise InvalidInputError("the code contains a NUL character, which no shell can read")
            await asyncio.to_thread(shell.begin)
            await self._supervisor.start(self._backend, shell)
        except KeeperLostError:
            raise
        except (PxError, OSError) as error:
            if shell.error is not None:
                await self._supervisor.stop(self._backend, shell, None)
            why = CellError("StartFailed", str(error))
            await asyncio.to_thread(shell.finish, CellStatus.ERROR, why, 0.0)
            self._shell = None
            return Reply(CellStatus.ERROR, why)
        finally:
            self._spawned.set()
            if shell.out >= 0:
                os.close(shell.out)
        return await self._see_out(shell)

    async def _see_out(self, shell: ShellInstance) -> Reply:
        """Watch a process to its end, end what it left, and write the end of the cell."""
        record = await self._supervisor.wait(shell)
        left = await self._left_behind(shell)
        if shell.phase is Phase.READY:
            await self._stop(shell, None)
        else:
            await shell.stopped.wait()
        status, error = outcome(record)
        await asyncio.to_thread(shell.finish, status, error, max(0.0, record.ended_at - record.started_at))
        self._shell = None
        notice = None
        if shell.report is not None and shell.report.survivors:
            names = ", ".join(f"{each.name} (pid {each.pid})" for each in shell.report.survivors)
            notice = f"the cell left processes behind that could not be ended: {names}"
        elif left:
            processes = "a process that the cell left" if left == 1 else f"{left} processes that the cell left"
            notice = f"{processes} in the background ended with it: nothing of a shell cell outlives it"
        return Reply(status, error, notice=notice)

    async def _left_behind(self, shell: ShellInstance) -> int:
        """Return how many processes live on, after a moment in which they may end by themselves."""
        deadline, pause = time.monotonic() + LINGER_SECONDS, 0.005
        while True:
            stat = (await self._supervisor.placement.stat((shell.key,))).get(shell.key)
            if stat is None or stat.processes == 0 or time.monotonic() >= deadline:
                return 0 if stat is None else stat.processes
            await asyncio.sleep(pause)
            pause *= 2

    async def _stop(self, shell: ShellInstance, reason: Reason | None) -> None:
        """Stop a process; returns when nothing of it is left, or when something survived the first attempt."""
        stopping = self._supervisor.task(self._supervisor.stop(self._backend, shell, reason))
        stopped = asyncio.create_task(shell.stopped.wait())
        await asyncio.wait({stopping, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()

    # -- the ladder --------------------------------------------------------------------------------------------------

    async def interrupt(self) -> str:
        """SIGINT to the process group of the running cell: `sigint`, or `gone`."""
        return _signal_group(await self._present(), signal.SIGINT)

    async def terminate(self) -> str:
        """SIGTERM to the process group of the running cell: `sigterm`, or `gone`."""
        return _signal_group(await self._present(), signal.SIGTERM)

    async def kill(self) -> str:
        """End the whole tree of the running cell now: `sigkill`, or `gone`."""
        if (child := await self._present()) is None:
            return "gone"
        await self._supervisor.placement.stop(child.key, grace_seconds=0, reason="stopped")
        return "sigkill"

    async def _present(self) -> Child | None:
        """Return the process of the running cell; one that is just being spawned is waited for, not missed."""
        if self._shell is not None:
            await self._spawned.wait()
        return self.child

    async def shutdown(self, grace_seconds: float, reason: str) -> tuple[int, ...]:
        """End the running cell and the session; returns the pids of what survived."""
        survivors: tuple[int, ...] = ()
        child = await self._present()
        if child is not None and self._shell is None:  # attached, and nobody followed
            report = await self._supervisor.placement.stop(child.key, grace_seconds=grace_seconds, reason=reason)
            survivors, self._found = tuple(each.pid for each in report.survivors), None
            if not survivors:
                await self._supervisor.placement.release(child.key)
        elif self._shell is not None:
            shell, shell.stop_seconds = self._shell, grace_seconds
            await self._stop(shell, Reason(reason))
            survivors = tuple(each.pid for each in shell.report.survivors) if shell.report is not None else ()
            if self._cell is not None and not survivors:
                await asyncio.wait({self._cell})
        if not self.died.done():
            self.died.set_result(None)
        return survivors

    async def close(self) -> None:
        """Let go of a running cell: it goes on, and a later control plane sees it out."""
        if self._cell is not None:
            self._cell.cancel()
            await asyncio.gather(self._cell, return_exceptions=True)


def _signal_group(child: Child | None, number: signal.Signals) -> str:
    """Signal the group that the shell leads, if it is still the process that was started."""
    if child is None or host.start_time(child.identity.pid) != child.identity.start_time:
        return "gone"
    try:
        os.killpg(child.identity.pid, number)
    except ProcessLookupError:
        return "gone"
    return number.name.lower()


def outcome(record: ExitRecord) -> tuple[CellStatus, CellError | None]:
    """Return how a cell ended, by how its shell did. A limit is named by its killer's word, never by an exit code."""
    if record.verdict is not None and record.verdict.reason in _LIMITS:
        return CellStatus.ERROR, CellError("ResourceLimitExceeded", _LIMITS[record.verdict.reason])
    if record.signal is not None:
        return CellStatus.ERROR, CellError("Signal", signal_name(record.signal))
    if record.code:
        return CellStatus.ERROR, CellError("ExitCode", str(record.code))
    return CellStatus.OK, None

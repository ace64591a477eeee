"""Shell cells behind the interface of kernels: one process a cell, each an instance of the
supervisor's, seen out to the last of its tree. A session of them has no process between its cells.

The code lies in a file and never in argv, where every user of the machine could read it; stdout and
stderr are the cell's file itself. The wrapper is bash itself: it reads the code and evaluates it
alone, so that messages read as those of `bash -c` (`bash: line 3: …`). The variable is the one in
which `bash -c` itself has its code; nothing else is left of the wrapper when the code runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from supervisord_py.errors import (
    ConflictError,
    InvalidInputError,
    KeeperLostError,
    KeeperTimeoutError,
    PxError,
    UnknownUnitError,
)
from supervisord_py.kernels.backend import ExecuteRequest, KernelGoneError, Launch, Reply
from supervisord_py.kernels.cell_files import CellLog
from supervisord_py.kernels.config import KernelsConfig
from supervisord_py.kernels.inside.cell_writer import CellWriter
from supervisord_py.kernels.session import CellError, CellStatus
from supervisord_py.process.instance import Instance, Phase, signal_name
from supervisord_py.process.model import Child, ChildSpec, ExitRecord, Reason
from supervisord_py.process.supervisor import Driver, Supervisor

# what a cell leaves behind may end by itself until then, as a process substitution does
LINGER_SECONDS = 0.3
BACKGROUND_GRACE_SECONDS = 2.0
WRAPPER = (
    '{ IFS= read -rd "" BASH_EXECUTION_STRING || :; } <"$1" || exit 126; set --; '
    'eval -- "$BASH_EXECUTION_STRING"'
)
# would run code before it, or trace it
_BEFORE_THE_CODE = frozenset(("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS"))
_LIMITS = {Reason.MEMORY_LIMIT: "memory", Reason.OOM_KILL: "memory", Reason.CPU_LIMIT: "cpu"}
_NEW = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


class ShellInstance(Instance):
    """The process of one cell; the cell of one that an earlier control plane left is known when
    it is followed.
    """

    died = property(lambda _: False, doc="Its end is the cell's, and no surprise.")

    def __init__(self, key: str, session: BashHandle) -> None:
        super().__init__(key, session.launch.unit, stop_seconds=BACKGROUND_GRACE_SECONDS)
        self.start_method = "bash"
        self.session = session
        self.code_file: Path
        self.out = -1  # descriptor of its output, until it is spawned
        self.decided = asyncio.Event()  # the process is there, or will never be
        # for it, as soon as it is there: nobody waits any more
        self.due_signal: signal.Signals | None = None

    def note(self) -> str:
        return self.session.tag


class BashBackend(Driver[ShellInstance]):
    kind = "kernel"

    def __init__(self, supervisor: Supervisor, _: Callable[[], KernelsConfig]) -> None:
        self.supervisor = supervisor
        self._sessions: dict[str, BashHandle] = {}

    async def spec(self, launch: Launch) -> None:
        """Nothing is spawned before its first cell."""

    async def start(self, launch: Launch, child: Child | None, *, deadline: float) -> BashHandle:
        handle = self._sessions[launch.instance] = BashHandle(self, launch, child)
        handle.died.add_done_callback(lambda _: self._sessions.pop(launch.instance, None))
        return handle

    async def attach(self, launch: Launch, child: Child) -> BashHandle:
        """Take over a session whose cell was running, or ended meanwhile: `execute` sees it out."""
        return await self.start(launch, child, deadline=0.0)

    async def annotate(self, instance: str, tag: str) -> None:
        """Replace the room's note with a session's process, now and for those to come."""
        if (session := self._sessions.get(instance)) is not None:
            session.tag = tag
            if session.shell is not None and session.shell.child is not None:
                await self.supervisor.annotate(session.shell)

    async def close(self, *, stop: bool) -> None:
        """Nothing is run for the backend itself."""

    async def prepare(self, instance: ShellInstance) -> ChildSpec:
        launch = instance.session.launch
        bash = (launch.interpreter or "bash", "--noprofile", "--norc")
        env = {name: value for name, value in launch.env.items() if name not in _BEFORE_THE_CODE}
        argv = (*bash, "-c", WRAPPER, "bash", str(instance.code_file))
        return launch.spec(argv, env=env, stdout_fd=instance.out, stderr_fd=instance.out)


class BashHandle:
    connection_file: Path | None = None
    foreign_busy = False  # nobody else can use it
    foreign_used_at: float | None = None
    is_blameless = False

    async def answers(self, seconds: float) -> bool:
        return True

    async def change_folder(self, cwd: str) -> bool:
        return False  # each cell is started in it

    def has_begun(self) -> bool:
        return True

    def __init__(self, backend: BashBackend, launch: Launch, child: Child | None) -> None:
        self.tag = launch.tag
        self.died: asyncio.Future[ExitRecord | None] = asyncio.get_running_loop().create_future()
        """Done (None) when the session was shut down; the end of a cell is no death."""
        self.launch = launch
        self.shell: ShellInstance | None = None
        self._backend = backend
        self._supervisor = backend.supervisor
        self._cell: asyncio.Task[Reply] | None = None
        if child is not None:
            self.shell = shell = ShellInstance(child.key, self)
            shell.child, shell.phase = child, Phase.READY
            shell.started_at = shell.ready_at = child.started_at
            shell.decided.set()

    @property
    def child(self) -> Child | None:
        return self.shell.child if self.shell is not None else None

    # -- cells -------------------------------------------------------------------------------------

    async def execute(self, cell: ExecuteRequest, *, is_sent: bool = False) -> Reply:
        """Run a cell; one that cannot be started failed with the error `StartFailed`.

        Raises KeeperTimeoutError if it is not known whether the cell before it has ended.
        """
        if self._cell is not None and not self._cell.done():
            # Its call gave up, because the keeper did not answer. Two at a time are one too many.
            last = asyncio.wait({self._cell})
            unit = self.launch.unit
            await self._supervisor.placement.unless_silent(
                last, f"the last cell of {unit} ended", unit=unit
            )
        if is_sent and self.shell is None:
            if (
                reply := await asyncio.to_thread(CellLog(cell.cells_dir, cell.cell_id).reply)
            ) is not None:
                return reply
            raise KernelGoneError(
                f"the process of cell {cell.cell_id} is gone, how it ended is not known"
            )
        if self.shell is None:
            self.shell = ShellInstance(self._supervisor.placement.new_key(), self)
        self._cell = asyncio.create_task(
            (self._see_out if is_sent else self._run)(self.shell, cell)
        )
        # perhaps nobody waits for it
        self._cell.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._cell)

    async def _run(self, shell: ShellInstance, cell: ExecuteRequest) -> Reply:
        try:
            if "\0" in cell.code:
                raise InvalidInputError(
                    "the code contains a NUL character, which no shell can read"
                )
            await asyncio.to_thread(_write_code, shell, cell)
            await self._supervisor.start(self._backend, shell)
        except KeeperLostError:
            raise
        except (PxError, OSError) as error:
            if shell.error is not None:
                await self._supervisor.stop(self._backend, shell, None)
            self.shell, why = None, CellError("StartFailed", str(error))
            await asyncio.to_thread(_write_end, cell, CellStatus.ERROR, why, 0.0)
            return Reply(CellStatus.ERROR, why)
        finally:
            shell.decided.set()
            if shell.out >= 0:
                os.close(shell.out)
        if shell.due_signal is not None:
            with contextlib.suppress(ConflictError, UnknownUnitError, KeeperTimeoutError):
                await self._supervisor.placement.signal_group(shell.key, shell.due_signal)
        return await self._see_out(shell, cell)

    async def _see_out(self, shell: ShellInstance, cell: ExecuteRequest) -> Reply:
        record = await self._supervisor.wait(shell)
        left = await self._left_behind(shell)
        if shell.phase is Phase.READY:
            await self._stop(shell, None)
        else:
            await shell.stopped.wait()
        status, error = outcome(record)
        await asyncio.to_thread(
            _write_end, cell, status, error, max(0.0, record.ended_at - record.started_at)
        )
        self.shell, notice = None, None
        if shell.report.survivors:
            names = ", ".join(f"{each.name} (pid {each.pid})" for each in shell.report.survivors)
            notice = f"the cell left processes behind that could not be ended: {names}"
        elif left:
            notice = (
                f"what the cell left in the background ended with it ({left}): nothing of a shell "
                "cell outlives it"
            )
        return Reply(status, error, notice=notice)

    async def _left_behind(self, shell: ShellInstance) -> int:
        deadline, pause = time.monotonic() + LINGER_SECONDS, 0.005
        while True:
            try:
                stat = (await self._supervisor.placement.stat((shell.key,))).get(shell.key)
            except KeeperTimeoutError:
                # what is there is stopped anyway, once the keeper answers; only the notice is
                # missing
                return 0
            if stat is None or stat.processes == 0 or time.monotonic() >= deadline:
                return 0 if stat is None else stat.processes
            await asyncio.sleep(pause)
            pause *= 2

    async def _stop(self, shell: ShellInstance, reason: Reason | None) -> None:
        self._supervisor.task(self._supervisor.stop(self._backend, shell, reason))
        await shell.stopped.wait()

    # -- the ladder: a cell that is just being spawned is waited for, not missed -------------------

    async def interrupt(self) -> str:
        return await self._signal(signal.SIGINT)

    async def terminate(self) -> str:
        return await self._signal(signal.SIGTERM)

    async def kill(self) -> str:
        # the rest of the tree ends as what a cell leaves behind
        return await self._signal(signal.SIGKILL)

    async def _signal(self, number: signal.Signals) -> str:
        if (shell := self.shell) is not None:
            try:
                spawned = shell.decided.wait()
                await self._supervisor.placement.unless_silent(
                    spawned, "the cell was started", unit=self.launch.unit
                )
            except KeeperTimeoutError:
                shell.due_signal = number
                raise
            with contextlib.suppress(ConflictError, UnknownUnitError):
                await self._supervisor.placement.signal_group(shell.key, number)
                return number.name.lower()
        return "gone"

    async def shutdown(self, grace_seconds: float, reason: str) -> tuple[int, ...]:
        survivors: tuple[int, ...] = ()
        if self.shell is not None:
            await self.shell.decided.wait()
        if (shell := self.shell) is not None:
            shell.stop_seconds = grace_seconds
            await self._stop(shell, Reason(reason))
            survivors = tuple(each.pid for each in shell.report.survivors)
            if self._cell is not None and not survivors:
                await asyncio.wait({self._cell})
        if not self.died.done():
            self.died.set_result(None)
        return survivors

    async def close(self) -> None:
        if self._cell is not None:
            self._cell.cancel()
            await asyncio.gather(self._cell, return_exceptions=True)


# -- a cell's files; blocking ----------------------------------------------------------------------


def _write_code(shell: ShellInstance, cell: ExecuteRequest) -> None:
    shell.code_file = cell.cells_dir / f"{cell.cell_id}.sh"
    shell.code_file.unlink(missing_ok=True)
    with os.fdopen(os.open(shell.code_file, _NEW, 0o600), "wb") as file:
        file.write(cell.code.encode("utf-8", "surrogatepass"))
    shell.out = os.open(cell.cells_dir / f"{cell.cell_id}.out", _NEW, 0o600)
    CellWriter(str(cell.cells_dir), cell.cell_id, cell.cell_bytes).begin(cell.code)


def _write_end(
    cell: ExecuteRequest, status: CellStatus, error: CellError | None, duration: float
) -> None:
    """Write the end of a cell, unless an earlier control plane has: it was replaced just behind
    it.
    """
    log = CellLog(cell.cells_dir, cell.cell_id)
    if log.reply() is not None:
        return
    writer = CellWriter(str(cell.cells_dir), cell.cell_id, cell.cell_bytes)
    if not log.exists():
        writer.begin(cell.code)
    said = None if error is None else {"name": error.name, "value": error.value, "traceback": []}
    writer.end(status.value, execution_count=None, duration=duration, error=said)
    (cell.cells_dir / f"{cell.cell_id}.sh").unlink(missing_ok=True)


def outcome(record: ExitRecord) -> tuple[CellStatus, CellError | None]:
    """Return how a cell ended, by how its shell did.

    A limit is named by its killer's word, never by an exit code.
    """
    if record.verdict is not None and record.verdict.reason in _LIMITS:
        return CellStatus.ERROR, CellError("ResourceLimitExceeded", _LIMITS[record.verdict.reason])
    if record.signal is not None:
        return CellStatus.ERROR, CellError("Signal", signal_name(record.signal))
    if record.code:
        return CellStatus.ERROR, CellError("ExitCode", str(record.code))
    return CellStatus.OK, None

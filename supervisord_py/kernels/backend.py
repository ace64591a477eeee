"""The one interface to whoever runs kernels. Sessions know no more than this; a backend knows no sessions.

What a cell gives lies in its files (writer: `inside/cell_writer.py`, reader: `cell_files.py`): the backend
promises that they are complete when `execute` returns, and calls `wake` whenever there is news in them. With
our launcher the kernel itself writes them, so that not a byte depends on a reader; otherwise the backend
does, and says so in `Reply.lossy` when it knows or must fear that something is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from supervisord_py.errors import PxError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from supervisord_py.kernels.cell import CellError, CellStatus
    from supervisord_py.process.model import Child, ChildSpec, ExitRecord, ResourceLimit


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel to be started; everything decided, nothing looked up any more.

    Attributes:
        session_id: Unit is `kernel:<session_id>`.
        instance: Key for the placement.
        interpreter: Python to run our launcher with; None for a kernelspec of another language.
        kernelspec_argv: The kernelspec's argv with `{connection_file}`, where there is no interpreter of ours.
        kernelspec: Its name, for gateways.
        cwd: Absolute, exists.
        env: Complete and filtered; the chosen environment's bin directory leads PATH.
        cells_dir: Folder of this session's cell files; exists, 0700.
        overlay: Folder with ipykernel to append to sys.path, or None.
        modules: Folders of modules, the user's first, the project's overriding by name.
        tag: Opaque text that a later control plane will find with the child (`placement.annotate` may replace it).
        interrupt_mode: `signal` or `message`, as the kernelspec says.
        arguments: What comes behind the command line, as a front end wants it.
    """

    session_id: str
    instance: str
    interpreter: str | None
    cwd: str
    env: Mapping[str, str]
    cells_dir: Path
    kernelspec: str | None = None
    kernelspec_argv: tuple[str, ...] | None = None
    limits: tuple[ResourceLimit, ...] = ()
    max_rss_bytes: int | None = None
    memory_grace_seconds: float = 0.0
    overlay: str | None = None
    modules: tuple[str, ...] = ()
    tag: str = ""
    interrupt_mode: str = "signal"
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExecuteRequest:
    """One cell to be run.

    Attributes:
        cell_id: 16 hex digits; the message id of the execute_request and the name of its files.
        code: What to run.
        cells_dir: Where its files are.
        preview_bytes: How much stream text the kernel publishes to other clients; the rest is only in the files.
        cell_bytes: Cap of the complete output.
        store_history: False for what users did not write.
    """

    cell_id: str
    code: str
    cells_dir: Path
    preview_bytes: int
    cell_bytes: int
    store_history: bool = True


@dataclass(frozen=True, slots=True)
class Reply:
    """The kernel's word on a cell.

    Attributes:
        status: ok, error or aborted.
        error: What was raised.
        asked_exit: The code called exit() or quit(): the kernel ends by its own wish.
        iopub_lost: The reply came, the end of output did not within a second. Of a kernel that writes the files by
            itself nothing is missing then; whoever writes them for a kernel says `lossy` and why.
        lossy: Some output is or may be missing; `notice` says why.
    """

    status: CellStatus
    error: CellError | None = None
    execution_count: int | None = None
    asked_exit: bool = False
    iopub_lost: bool = False
    lossy: bool = False
    notice: str | None = None


class KernelGoneError(PxError):
    """The kernel's process ended, or its server says that it restarted: its state is lost.

    Attributes:
        record: How the process ended, where it is ours.
    """

    kind = "kernel_gone"
    title = "The kernel is gone"
    status = 502

    def __init__(self, detail: str, *, record: ExitRecord | None = None, **extra: Any) -> None:
        super().__init__(detail, **extra)
        self.record = record


class StartMethod(StrEnum):
    """How a kernel's process came about."""

    SPAWN = "spawn"
    SPARE = "spare"


@dataclass(frozen=True, slots=True)
class SpareView:
    """A kernel that was started ahead, as it is shown.

    Attributes:
        interpreter: As in Launch.
        pid: None while it is not known.
        ready: It waits for somebody to be a kernel for.
    """

    interpreter: str
    pid: int | None
    ready: bool


class KernelHandle(Protocol):
    """One living kernel. At most one `execute` at a time; the session sees to that."""

    @property
    def child(self) -> Child | None:
        """Its process; None where it has none of ours."""

    @property
    def died(self) -> asyncio.Future[ExitRecord | None]:
        """Done in milliseconds when its process ended; None where there is no record to be had."""

    @property
    def connection_file(self) -> Path | None:
        """Jupyter connection file, 0600, for `jupyter console --existing`; None behind a gateway."""

    @property
    def foreign_busy(self) -> bool:
        """True while it works for a client that is not ours."""

    @property
    def foreign_used_at(self) -> float | None:
        """When (Unix seconds) a client that is not ours last used it."""

    async def execute(self, request: ExecuteRequest, wake: Callable[[], None]) -> Reply:
        """Run a cell to its end: reply and end of output. Cancelling this abandons the wait, not the cell.

        Raises:
            KernelGoneError: It died.
        """

    async def follow(self, request: ExecuteRequest, wake: Callable[[], None]) -> Reply:
        """Wait for the end of a cell that an earlier control plane sent; as `execute` otherwise."""

    async def interrupt(self) -> str:
        """SIGINT to the process group; return what was done (`sigint`)."""

    async def terminate(self) -> str:
        """SIGTERM to the process group; where there is no process, the nearest that the server has."""

    async def kill(self) -> str:
        """End the whole tree now."""

    async def shutdown(self, grace_seconds: float, reason: str) -> tuple[int, ...]:
        """End it and remove its files in run_dir; returns pids of what survived, () when nothing of it is left."""

    async def close(self) -> None:
        """Let go of the connections; the kernel goes on living (the control plane is replaced)."""


class KernelBackend(Protocol):
    """Somebody who runs kernels."""

    async def spec(self, launch: Launch) -> ChildSpec | None:
        """Return what is to be spawned for it; None where the backend has its process elsewhere."""

    async def start(self, launch: Launch, child: Child | None, *, deadline: float) -> KernelHandle:
        """Start a kernel, or connect to the one that was spawned, and return it when it answers.

        Args:
            launch: What.
            child: What was spawned by `spec`.
            deadline: Loop time after which the start is given up.

        Raises:
            StartFailedError, ReadinessTimeoutError: with reason, and what is known of it.
        """

    async def attach(self, launch: Launch, child: Child) -> KernelHandle | None:
        """Take over a kernel that an earlier control plane started; None when it does not answer or cannot be."""

    async def close(self, *, stop: bool) -> None:
        """Let go of everything; with `stop`, end what it runs for itself (a local gateway that nobody else uses)."""

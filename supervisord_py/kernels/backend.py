"""The one interface to whoever runs kernels. Sessions know no more than this; a backend knows no sessions.

What a cell gives lies in its files (writer: `inside/cell_writer.py`, reader: `cell_files.py`): the backend
promises that they are complete when `execute` returns. With our launcher the kernel itself writes them, so that
not a byte depends on a reader; otherwise the backend does, and says so in `Reply.lossy` when it knows or must fear
that something is missing.
"""

from __future__ import annotations

import asyncio
import importlib
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from supervisord_py.config.settings import MIB
from supervisord_py.errors import PxError
from supervisord_py.kernels import connection_file
from supervisord_py.kernels.cell import CellError, CellStatus
from supervisord_py.kernels.choice import SPEC_PREFIX
from supervisord_py.kernels.session import BackendName
from supervisord_py.process.model import tree_limits

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from pathlib import Path

    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.live_session import KernelInstance
    from supervisord_py.process.model import Child, ChildSpec, ExitRecord, ResourceLimit
    from supervisord_py.process.supervisor import Supervisor


class Launch(Struct, frozen=True):
    """A kernel to be started; everything decided, nothing looked up any more."""

    session_id: str
    instance: str  # key for the placement
    interpreter: str | None  # Python to run our launcher with; None for a kernelspec of another language
    cwd: str  # absolute, exists
    env: Mapping[str, str]  # complete and filtered; the chosen environment's bin directory leads PATH
    cells_dir: Path  # of this session's cell files; exists, 0700
    kernelspec: str | None = None  # its name, for gateways
    kernelspec_argv: tuple[str, ...] | None = None  # with `{connection_file}`, where there is no interpreter of ours
    limits: tuple[ResourceLimit, ...] = ()
    max_rss_bytes: int | None = None
    memory_grace_seconds: float = 0.0
    overlay: str | None = None  # folder with ipykernel to append to sys.path
    modules: tuple[str, ...] = ()  # folders of modules, the user's first, the project's overriding by name
    tag: str = ""  # opaque text that a later control plane will find with the child
    interrupt_mode: str = "signal"  # or `message`, as the kernelspec says
    arguments: tuple[str, ...] = ()  # what comes behind the command line, as a front end wants it

    @property
    def unit(self) -> str:
        """`kernel:<session>`."""
        return f"kernel:{self.session_id}"


class ExecuteRequest(Struct, frozen=True):
    """One cell to be run."""

    cell_id: str  # 16 hex digits; the message id of the execute_request and the name of its files
    code: str
    cells_dir: Path  # where its files are
    preview_bytes: int  # how much stream text the kernel publishes to other clients; the rest is only in the files
    cell_bytes: int  # cap of the complete output


class Reply(Struct, frozen=True):
    """The kernel's word on a cell."""

    status: CellStatus  # ok, error or aborted
    error: CellError | None = None
    execution_count: int | None = None
    ask_exit: bool = False  # the code called exit() or quit(): the kernel ends by its own wish
    lossy: bool = False  # some output is or may be missing; `notice` says why
    notice: str | None = None


class KernelGoneError(PxError):
    """The kernel's process ended, or its server says that it restarted: its state is lost."""

    kind = "kernel_gone"
    title = "The kernel is gone"
    status = 502


class StartMethod(StrEnum):
    """How a kernel's process came about."""

    SPAWN = "spawn"
    ZYGOTE = "zygote"


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

    async def execute(self, request: ExecuteRequest, *, is_sent: bool = False) -> Reply:
        """Run a cell to its end: reply and end of output. Cancelling this abandons the wait, not the cell.

        `is_sent`: an earlier control plane has sent it; its end is waited for. Raises KernelGoneError: it died.
        """

    async def interrupt(self) -> str:
        """SIGINT to the process group; return what was done (`sigint`)."""

    async def terminate(self) -> str:
        """SIGTERM to the process group; where there is no process, the nearest that the server has."""

    async def kill(self) -> str:
        """End the whole tree now."""

    async def shutdown(self, grace_seconds: float, reason: str) -> tuple[int, ...]:
        """End it; returns pids of what survived, () when nothing of it is left. `close` it afterwards."""

    async def close(self) -> None:
        """Let go of the connections; the kernel goes on living (the control plane is replaced)."""


class KernelBackend(Protocol):
    """Somebody who runs kernels."""

    async def spec(self, launch: Launch) -> ChildSpec | None:
        """Return what is to be spawned for it; None where the backend has its process elsewhere."""

    async def start(self, launch: Launch, child: Child | None, *, deadline: float) -> KernelHandle:
        """Start a kernel, or connect to the child spawned by `spec`; returns when it answers, `deadline` in loop time.

        Raises StartFailedError, ReadinessTimeoutError: with reason, and what is known of it.
        """

    async def attach(self, launch: Launch, child: Child) -> KernelHandle | None:
        """Take over a kernel that an earlier control plane started; None when it does not answer or cannot be."""

    async def close(self, *, stop: bool) -> None:
        """Let go of everything; with `stop`, end what it runs for itself (a local gateway that nobody else uses)."""


_MODULES = {
    BackendName.DIRECT: ("direct", "DirectBackend"),
    BackendName.GATEWAY_LOCAL: ("gateway_local", "GatewayLocal"),
    BackendName.GATEWAY_EXTERNAL: ("gateway", "GatewayExternal"),
    BackendName.BASH: ("bash", "BashBackend"),
}


class Backends:
    """The backends of one daemon, each made when first asked for: importing ZMQ or a gateway's client takes long.

    `make` makes one; tests put their own here.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        config: KernelsConfig,
        make: Callable[[BackendName, KernelsConfig], Awaitable[KernelBackend]] | None = None,
    ) -> None:
        self.made: dict[BackendName, KernelBackend] = {}
        self._supervisor = supervisor
        self._config = config
        self._make = make or self._import
        self._making = asyncio.Lock()

    async def get(self, name: BackendName) -> KernelBackend:
        """Return a backend; whoever comes while it is made waits for the same one."""
        async with self._making:
            if name not in self.made:
                self.made[name] = await self._make(name, self._config)
            return self.made[name]

    def reconfigure(self, config: KernelsConfig) -> None:
        """Take new settings: for what is started from now on."""
        self._config = config
        for backend in self.made.values():
            if (take := getattr(backend, "reconfigure", None)) is not None:
                take(config)

    async def close(self, *, stop: bool) -> None:
        """Let go of everything; with `stop`, end what they run for themselves."""
        await asyncio.gather(*(each.close(stop=stop) for each in self.made.values()), return_exceptions=True)
        self.made.clear()

    async def _import(self, name: BackendName, config: KernelsConfig) -> KernelBackend:
        file, kind = _MODULES[name]
        module: Any = await asyncio.to_thread(importlib.import_module, f"supervisord_py.kernels.{file}")
        if name is BackendName.BASH:
            return getattr(module, kind)(self._supervisor)  # type: ignore[no-any-return]
        if name is not BackendName.DIRECT:
            return getattr(module, kind)(self._supervisor, config)  # type: ignore[no-any-return]
        placement = self._supervisor.placement
        backend = getattr(module, kind)(placement, config)
        alive = {child.key for child in await placement.list("kernel:")}
        await asyncio.to_thread(connection_file.sweep, config.run_dir, alive)
        return backend  # type: ignore[no-any-return]


def folder_of_cells(cells_dir: Path, session_id: str) -> Path:
    """Return the folder of a session's cell files, made where it is not there, private with all above it. Blocking."""
    folder = cells_dir / session_id
    for each in reversed([it for it in (folder, *folder.parents) if not it.is_dir()]):
        each.mkdir(mode=0o700, exist_ok=True)
        each.chmod(0o700)  # also under a umask that takes more away
    return folder


def launch_of(instance: KernelInstance, config: KernelsConfig) -> Launch:
    """Return the launch of a kernel, by what was chosen for its session; makes its folder of cells. Blocking."""
    session = instance.session
    choice, key = session.choice, session.key
    fallback = None if key.interpreter.startswith(SPEC_PREFIX) else key.interpreter
    return Launch(
        session_id=session.id,
        instance=instance.key,
        interpreter=choice.interpreter if choice else fallback,
        cwd=key.cwd,
        env=dict(choice.env) if choice else {},
        cells_dir=folder_of_cells(config.cells_dir, session.id),
        kernelspec=choice.kernelspec if choice else session.kernelspec,
        kernelspec_argv=choice.kernelspec_argv if choice else None,
        limits=tree_limits(config.processes, config.cpu_percent),
        max_rss_bytes=config.hard_memory_mb * MIB or None,
        memory_grace_seconds=config.memory_grace_seconds,
        overlay=choice.overlay if choice else None,
        modules=choice.modules if choice else (),
        tag=instance.note(),
        interrupt_mode=session.interrupt_mode,
        arguments=session.arguments,
    )

"""The one interface to whoever runs kernels. Sessions know no more than this; a backend knows no
sessions.

What a cell gives lies in its files (writer: `inside/cell_writer.py`, reader: `cell_files.py`): they
are complete when `execute` returns. With our launcher the kernel itself writes them, so that not a
byte depends on a reader; otherwise the backend does, and says in `Reply.lossy` that something is
missing, or may be.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from supervisord_py.errors import PxError
from supervisord_py.kernels.config import KernelsConfig
from supervisord_py.kernels.session import BackendName, CellError, CellStatus
from supervisord_py.process.model import Child, ChildSpec, ExitRecord, ResourceLimit
from supervisord_py.process.supervisor import Supervisor

_MODULES = {
    BackendName.DIRECT: ("direct", "DirectBackend"),
    BackendName.GATEWAY_LOCAL: ("gateway_local", "GatewayLocal"),
    BackendName.GATEWAY_EXTERNAL: ("gateway", "GatewayExternal"),
    BackendName.BASH: ("bash", "BashBackend"),
}


class Launch(Struct, frozen=True):
    """A kernel to be started; everything decided, nothing looked up any more."""

    session_id: str
    instance: str  # key for the placement
    # Python to run our launcher with; None for a kernelspec of another language
    interpreter: str | None
    cwd: str  # absolute, exists
    # complete and filtered; the chosen environment's bin directory leads PATH
    env: Mapping[str, str]
    cells_dir: Path  # of this session's cell files; exists, 0700
    kernelspec: str | None = None  # its name, for gateways
    # with `{connection_file}`, where there is no interpreter of ours
    kernelspec_argv: tuple[str, ...] | None = None
    limits: tuple[ResourceLimit, ...] = ()
    max_rss_bytes: int | None = None
    memory_grace_seconds: float = 0.0
    overlay: str | None = None  # folder with ipykernel to append to sys.path
    # folders of modules, the user's first, the project's overriding by name
    modules: tuple[str, ...] = ()
    tag: str = ""  # opaque text that a later control plane will find with the child
    interrupt_mode: str = "signal"  # or `message`, as the kernelspec says
    arguments: tuple[str, ...] = ()  # what comes behind the command line, as a front end wants it

    @property
    def unit(self) -> str:
        return f"kernel:{self.session_id}"

    def spec(self, argv: tuple[str, ...], **changes: Any) -> ChildSpec:
        same = ("unit", "cwd", "env", "limits", "max_rss_bytes", "memory_grace_seconds")
        return ChildSpec(argv=argv, **{name: getattr(self, name) for name in same} | changes)


class ExecuteRequest(Struct, frozen=True):
    cell_id: str  # 16 hex digits; the message id of the execute_request and the name of its files
    code: str
    cells_dir: Path  # where its files are
    # how much stream text the kernel publishes to other clients; the rest is only in the files
    preview_bytes: int
    cell_bytes: int  # cap of the complete output
    file: str | None = None  # absolute path of the script that the cell is a part of


class Reply(Struct, frozen=True):
    status: CellStatus  # ok, error or aborted
    error: CellError | None = None
    execution_count: int | None = None
    ask_exit: bool = False  # the code called exit() or quit(): the kernel ends by its own wish
    lossy: bool = False  # some output is or may be missing; `notice` says why
    notice: str | None = None
    # the code ended by `sys.exit`; 0 is a good end, with the status ok
    exit_code: int | None = None


class KernelGoneError(PxError):
    """The kernel's process ended, or its server says that it restarted: its state is lost."""

    kind = "kernel_gone"
    title = "The kernel is gone"
    status = 502


class KernelHandle(Protocol):
    """One living kernel. At most one `execute` at a time; the session sees to that."""

    @property
    def child(self) -> Child | None: ...  # its process; None where it has none of ours
    @property
    # done in milliseconds; None: there is no record
    def died(self) -> asyncio.Future[ExitRecord | None]: ...
    @property
    # Jupyter's, 0600, for `jupyter console --existing`
    def connection_file(self) -> Path | None: ...
    @property
    def foreign_busy(self) -> bool: ...  # it works for a client that is not ours

    is_blameless: bool  # it ends because its server is replaced: that is no crash of its own

    @property
    def foreign_used_at(self) -> float | None: ...  # when (Unix seconds) such a client last used it

    async def answers(self, seconds: float) -> bool: ...  # its process does, where it can be asked

    # have its process go there; whether it did
    async def change_folder(self, cwd: str) -> bool: ...

    def has_begun(self) -> bool: ...  # the cell under way is run by now; also where there is none

    async def execute(self, request: ExecuteRequest, *, is_sent: bool = False) -> Reply:
        """Run a cell to its end: reply and end of output. Cancelling this abandons the wait, not
        the cell.

        `is_sent`: an earlier control plane has sent it; its end is waited for. Raises
        KernelGoneError: it died.
        """

    # SIGINT or SIGTERM to the process group, the nearest that a server has, or the end of the whole
    # tree, now; each returns what was done (`sigint`).
    async def interrupt(self) -> str: ...
    async def terminate(self) -> str: ...
    async def kill(self) -> str: ...

    async def shutdown(self, grace_seconds: float, reason: str) -> tuple[int, ...]:
        """End it; returns pids of what survived, () when nothing of it is left.

        `close` it afterwards.
        """

    async def close(self) -> None:
        """Let go of the connections; the kernel goes on living (the control plane is replaced)."""


class Backends:
    """The backends of one daemon, each made when first asked for: importing ZMQ or a gateway's
    client takes long.

    Each has:

    - `spec(launch)`: what is to be spawned for a kernel; None where it has its process elsewhere.
    - `start(launch, child, deadline=)`: start a kernel, or connect to the child; returns its handle
      when it answers. `deadline` in loop time. Raises StartFailedError, ReadinessTimeoutError: with
      reason, and what is known of it.
    - `attach(launch, child)`: take over a kernel of an earlier control plane; None when it does not
      answer.
    - `close(stop=)`: let go of everything; with `stop`, end what it runs for itself.
    """

    def __init__(self, supervisor: Supervisor, config: Callable[[], KernelsConfig]) -> None:
        self.made: dict[BackendName, Any] = {}
        self._supervisor, self._config = supervisor, config
        self._making = asyncio.Lock()

    async def get(self, name: BackendName) -> Any:
        async with self._making:  # whoever comes while it is made waits for the same one
            if name not in self.made:
                file, kind = _MODULES[name]
                module = await asyncio.to_thread(
                    importlib.import_module, f"supervisord_py.kernels.{file}"
                )
                self.made[name] = getattr(module, kind)(self._supervisor, self._config)
            return self.made[name]

    async def close(self, *, stop: bool) -> None:
        await asyncio.gather(
            *(each.close(stop=stop) for each in self.made.values()), return_exceptions=True
        )
        self.made.clear()

"""Plain values that the daemon's settings become for this room; validated there, frozen here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from supervisord_py.config.settings import KERNELS_ENV, KERNELS_ENV_DENY, KERNELS_ENV_PREFIXES
from supervisord_py.kernels.exposure import Expose
from supervisord_py.kernels.session import BackendName

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1024 * 1024


class EnvRules(Struct, frozen=True):
    """What of the daemon's environment reaches a kernel. Deny beats prefix and allow; our own tokens never pass."""

    allow: tuple[str, ...] = KERNELS_ENV
    allow_prefixes: tuple[str, ...] = KERNELS_ENV_PREFIXES
    deny: tuple[str, ...] = KERNELS_ENV_DENY


class SessionLimits(Struct, frozen=True):
    """Bounds of the set of sessions (CONTRACT §6). Seconds; counts."""

    max_sessions: int = 4
    idle_seconds: float = 300.0
    queue_max: int = 64
    restarts: int = 1


class LadderTimes(Struct, frozen=True):
    """When the steps that end a cell come, in seconds after the first."""

    again_seconds: float = 1.0
    terminate_seconds: float = 3.0
    kill_seconds: float = 4.0


class CellLimits(Struct, frozen=True):
    """How much of a cell's output is kept, published and shown. Bytes; days."""

    preview_bytes: int = (
        64 * 1024
    )  # what the kernel publishes live of one cell, and about what `text` of a result holds
    head_bytes: int = 16 * 1024  # how much of the preview is the beginning; the rest is the end
    cell_bytes: int = 4096 * MIB  # complete output on disk of one cell, beyond which it is capped, and says so
    inline_bytes: int = 256 * 1024  # a rich output larger than this becomes an artifact file with a reference
    session_bytes: int = 8192 * MIB  # all cells of one session; the oldest go
    total_bytes: int = 16384 * MIB  # all sessions; the oldest go
    keep_days: float = 7.0  # age at which outputs of cells go


class ProcessLimits(Struct, frozen=True):
    """Resources of one kernel's tree. None is no limit."""

    soft_memory_bytes: int | None = 1024 * MIB  # beyond it the kernel is replaced after the cell, with a notice
    hard_memory_bytes: int | None = 4096 * MIB  # beyond it the cell is ended by the ladder from SIGTERM
    memory_grace_seconds: float = 2.0  # from that SIGTERM to SIGKILL; who grows on by a quarter is killed at once
    processes: int | None = None  # an rlimit


class GatewayConfig(Struct, frozen=True):
    """Gateways. `token` is a secret: never in repr, logs, or the environment of a kernel."""

    dir: Path  # where the local gateway's metadata and kernelspecs lie
    url: str | None = None  # of the external gateway; None where there is none
    token: str | None = None  # for it
    token_setting: str = "kernels.gateway_token"  # noqa: S105  # which setting the token comes from
    kernel_name: str = "python3"  # kernelspec that is asked for at an external gateway
    start_seconds: float = 30.0  # how long its start may take

    def __repr__(self) -> str:
        return f"GatewayConfig({self.dir}, {self.url})"


class KernelsConfig(Struct, frozen=True):
    """Everything the room is told by the settings."""

    run_dir: Path  # private (0700), short: connection files and ipc sockets, `run_dir/k/<session id>/`
    cells_dir: Path  # complete outputs of cells, `cells_dir/<session id>/`
    data_dir: Path  # the managed environment (`data_dir/python`) and overlays (`data_dir/overlays`)
    modules_dir: Path  # the user's modules, loaded into every Python kernel
    gateway: GatewayConfig
    backend: BackendName = BackendName.DIRECT
    expose: Expose = Expose.BOTH
    python: str | None = None  # interpreter by setting; None lets the order of candidates decide
    managed: bool = True  # use (and build, when asked) the managed environment
    skip_check: bool = False  # take the interpreter without asking it (`PI_PYTHON_SKIP_CHECK`)
    trace: bool = False  # log each message on the wire by type and size (`PI_PYTHON_IPC_TRACE`)
    timeout_seconds: float = 30.0  # of a call that names none; `timeout_max_seconds` clamps what is named
    timeout_min_seconds: float = 1.0
    timeout_max_seconds: float = 600.0
    start_seconds: float = 60.0  # bound of one start where the call leaves more
    stop_seconds: float = 5.0  # from TERM to KILL in an orderly stop
    zygotes: int = 3  # interpreters whose imports are kept ready to fork kernels from; 0 is none
    env: EnvRules = EnvRules()
    sessions: SessionLimits = SessionLimits()
    ladder: LadderTimes = LadderTimes()
    output: CellLimits = CellLimits()
    limits: ProcessLimits = ProcessLimits()

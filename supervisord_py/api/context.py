"""What the API is given by the daemon: ports to the rooms below, and plain values. Nothing here reads a setting.

The rooms below are used directly; only what the composition root itself must do (reload, restart, stop) comes through
a protocol, so that a test can stand in for the daemon with twenty lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from supervisord_py.kernels.room import Kernels
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.pipes.room import Pipes
    from supervisord_py.process.events import EventStream
    from supervisord_py.process.keeper_client import KeeperClient
    from supervisord_py.tools.catalog import Catalog
    from supervisord_py.tools.config import ToolsConfig
    from supervisord_py.tools.service import Tools


class RestartScope(StrEnum):
    """What a restart replaces: the control plane alone, or everything with all children stopped first."""

    CONTROL = "control"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class DaemonFacts:
    """What only the composition root knows about this daemon. Times are Unix seconds.

    Attributes:
        version: Of the distribution.
        daemon_id: Eight hex digits.
        socket: Path of the control socket.
        control_pid: The control plane's own process.
        control_started_at: When that process started.
        system: True when run for the whole machine (`--system`).
    """

    version: str
    daemon_id: str
    socket: str
    control_pid: int
    control_started_at: float
    system: bool = False


@dataclass(frozen=True, slots=True)
class CutOff:
    """A process life that was cut off before this start; `pid` is None where nobody could write it down."""

    instance: str
    unit: str
    pid: int | None


@dataclass(frozen=True, slots=True)
class SettingView:
    """One effective setting: dotted key, JSON value (secrets already hidden), and where it came from."""

    key: str
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class ReloadReport:
    """What a reload changed, and what it could not: sentences for people."""

    changed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Degradation:
    """Something that works only in part at present, for `doctor` and `status`.

    Attributes:
        part: `ledger`, `log`, `config`, …
        detail: What does not work and since when.
        repair: The one command or step that repairs it.
    """

    part: str
    detail: str
    repair: str


class DaemonControl(Protocol):
    """The composition root, as far as the API may steer it. Calls return once the wish is accepted."""

    @property
    def stopping(self) -> bool:
        """True from the moment an orderly stop or a restart of everything began."""

    def facts(self) -> DaemonFacts:
        """Say who this daemon is."""

    def settings(self) -> Sequence[SettingView]:
        """Return every effective setting with its origin, in the order of the documentation."""

    def degradations(self) -> Sequence[Degradation]:
        """Say what works only in part."""

    async def reload(self) -> ReloadReport:
        """Read settings and tools again; raises ConfigError and keeps the old settings when they are broken."""

    async def restart(self, scope: RestartScope) -> None:
        """Begin a restart; the present answer still goes out."""

    async def stop(self) -> None:
        """Begin the orderly stop; the present answer still goes out."""


@dataclass(frozen=True, slots=True)
class TcpAccess:
    """The optional loopback listener: its bearer token (never in repr) and the port it listens on."""

    token: str = field(repr=False)
    port: int


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """Plain values out of the settings.

    Attributes:
        log_dir: Root of the output segments.
        state_dir: Where ledger and logs live; `doctor` looks at its free space.
        run_dir: Where socket and lock live.
        cells_dir: Where complete outputs of cells lie.
        tools_dir: Where `tools new` and `tools add` put a tool.
        examples_dir: Tools that ship with the package (`example:NAME`).
        max_body_bytes: Largest request body; the setting is called `max_body_setting`.
        idempotency_body_bytes: Largest answer that is kept for replay.
        idempotency_keep_seconds: How long a completed answer may be replayed.
        stream_buffer_bytes: How much is buffered for a slow reader of a stream before its source is held back.
        stream_heartbeat_seconds: Longest silence on a followed stream, so that a lost client is noticed.
        drain_seconds: What requests under way get when the control plane is replaced.
        tcp: The loopback listener, or None when there is none.
    """

    log_dir: Path
    state_dir: Path
    run_dir: Path
    cells_dir: Path
    tools_dir: Path
    examples_dir: Path
    max_body_bytes: int = 16 * 1024 * 1024
    max_body_setting: str = "tools.max_body_bytes"
    idempotency_body_bytes: int = 1024 * 1024
    idempotency_keep_seconds: float = 86400.0
    stream_buffer_bytes: int = 1024 * 1024
    stream_heartbeat_seconds: float = 15.0
    drain_seconds: float = 5.0
    tcp: TcpAccess | None = None


@dataclass(frozen=True, slots=True)
class ApiContext:
    """Everything that a route may use."""

    launcher: Tools
    kernels: Kernels
    pipes: Pipes
    catalog: Catalog
    tools: ToolsConfig
    ledger: Ledger
    events: EventStream
    placement: KeeperClient
    control: DaemonControl
    config: ApiConfig
    interrupted: tuple[CutOff, ...] = ()

"""What the API is given by the daemon, and one request on its way to an answer.

The rooms below are used directly, by their doors; only what the composition root itself must do (reload, restart, stop)
comes through a protocol, because nothing here may import the daemon. Nothing here reads a setting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from aiohttp import web

    from supervisord_py.api.live import Live
    from supervisord_py.kernels.room import Kernels
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.pipes.room import Pipes
    from supervisord_py.process.events import EventStream
    from supervisord_py.process.keeper_client import KeeperClient
    from supervisord_py.tools.service import Tools


class DaemonFacts(msgspec.Struct, frozen=True):
    """What only the composition root knows. Times are Unix seconds; `system`: run for the whole machine.

    `tcp_address` and `token_file` are those of the TCP listener, None where there is none.
    """

    version: str
    daemon_id: str
    socket: str
    control_pid: int
    control_started_at: float
    system: bool = False
    tcp_address: str | None = None
    token_file: str | None = None


class DaemonControl(Protocol):
    """The composition root, as far as the API may steer it. Calls return once the wish is accepted."""

    facts: DaemonFacts

    @property
    def stopping(self) -> bool: ...  # from the moment an orderly stop or a restart of everything began
    def settings(self) -> Sequence[dict[str, Any]]: ...  # `{key, value, origin}`: dotted, secrets hidden
    def degradations(self) -> Sequence[dict[str, str]]: ...  # what works only in part: `{part, detail, repair}`
    async def reload(self) -> dict[str, Any]: ...  # `{changed, needs_restart, warnings}`, or raises ConfigError
    async def restart(self, *, everything: bool) -> None: ...
    async def stop(self) -> None: ...


class TcpAccess(msgspec.Struct, frozen=True):
    """The optional loopback listener: its bearer token (never in repr) and the port it listens on."""

    token: str
    port: int

    def __repr__(self) -> str:
        return f"TcpAccess(port={self.port})"


class ApiConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Plain values out of the settings, and the places that routes read and write."""

    state_dir: Path
    run_dir: Path
    cells_dir: Path
    tools_dir: Path
    max_body_bytes: int = 16 * 1024 * 1024  # largest request body
    stream_heartbeat_seconds: float = 15.0  # longest silence on a followed stream, so that a lost client is noticed
    drain_seconds: float = 5.0  # what requests under way get when the control plane is replaced
    tcp: TcpAccess | None = None  # the loopback listener, or None when there is none


class ApiContext(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a route may use."""

    launcher: Tools
    kernels: Kernels
    pipes: Pipes
    ledger: Ledger
    events: EventStream
    placement: KeeperClient
    control: DaemonControl
    config: ApiConfig
    interrupted: Sequence[dict[str, Any]] = ()  # process lives cut off before this start: `{instance, unit, pid}`


class ApiCall(NamedTuple):
    """One request with everything that its route may use."""

    request: web.Request
    context: ApiContext
    live: Live

    def path(self, name: str) -> str:
        """Return a part of the path, decoded."""
        return self.request.match_info[name]

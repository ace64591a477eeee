"""Kernels at somebody else's server: kernel_gateway, jupyter_server, JupyterHub, Enterprise Gateway.

Nothing is spawned here, and no file of ours is expected there. The server owns its processes: we interrupt and delete
through it, and what it cannot promise, whole output above all, is said with the result.
"""

from __future__ import annotations

import asyncio
import difflib
import getpass
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import structlog

from supervisord_py.errors import ConfigError, InvalidInputError, PxError
from supervisord_py.kernels.gateway.client import GatewayClient
from supervisord_py.kernels.gateway.init_code import init_code, kernel_variables
from supervisord_py.kernels.gateway.roster import KernelRoster, Start

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from supervisord_py.kernels.backend import Launch, Started
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.gateway.client import Preflight
    from supervisord_py.kernels.gateway.handle import GatewayKernel
    from supervisord_py.process.spec import Child

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_log = structlog.get_logger(__name__)


class GatewayExternal:
    """A `KernelBackend` for the server of the settings.

    Args:
        config: As at present; `reconfigure` replaces it for kernels to come.
        daemon: Id of this daemon, with which the keys of its instances begin.
    """

    def __init__(self, config: KernelsConfig, *, daemon: str) -> None:
        self._roster = KernelRoster(config, daemon, "external")
        self._clients: dict[tuple[str, str | None], GatewayClient] = {}

    def reconfigure(self, config: KernelsConfig) -> None:
        """Take new settings: for kernels to come."""
        self._roster.config = config

    async def start(
        self, launch: Launch, *, deadline: float, on_spawned: Callable[[Started], Awaitable[None]]
    ) -> GatewayKernel:
        """Have a kernel started and return it when it answers.

        Raises:
            ConfigError: No address is set, or the server wants a token.
            InvalidInputError: It has no such kernelspec.
            OverloadedError: It has as many kernels as it may.
            StartFailedError, ReadinessTimeoutError: It is not reachable, or failed.
        """
        client = self._client()
        began = time.monotonic()
        server = await client.preflight()
        phases = {"preflight": time.monotonic() - began}
        name = launch.kernelspec or self._roster.config.gateway.kernel_name
        if name not in server.specs:
            raise _unknown_spec(client, name, server)
        body: dict[str, object] = {"name": name}
        if server.is_enterprise:
            body["env"] = await asyncio.to_thread(_variables, launch)
        code = init_code(launch.cwd, launch.env, launch.instance, f"kernel:{launch.session_id}")
        start = Start(launch, body, code, spool=False, deadline=deadline, on_spawned=on_spawned)
        kernel = await self._roster.start(client, start, phases)
        kernel.notice = _missing_there(client.place.shown, launch, kernel.plan.held.facts)
        return kernel

    async def attach(self, launch: Launch, child: Child) -> GatewayKernel | None:
        """Take over a kernel that an earlier control plane had started; None when its variables are lost."""
        held = await self._roster.find(child.key)
        if held is None or launch.instance != child.key:
            return None
        client = self._client_if_set()
        if client is None or held.url != client.place.shown:
            return None
        return await self._roster.attach(client, held, spool=False)

    async def held(self) -> tuple[Child, ...]:
        """Return the kernels that an earlier control plane left at the server."""
        return await self._roster.held()

    async def annotate(self, instance: str, tag: str) -> None:
        """Replace the note of the room with a kernel."""
        await self._roster.annotate(instance, tag)

    async def sweep(self) -> int:
        """Delete the kernels of this daemon that no handle has; returns how many were.

        The notes of those at a server that the settings do not name now stay until they name it again.
        """
        forgotten = await self._roster.forgotten()
        client = self._client_if_set() if forgotten else None
        if client is None:
            return 0
        ours = [each for each in forgotten if each.url == client.place.shown]
        return sum([await self._roster.delete(client, each) for each in ours])

    async def health(self) -> str | None:
        """Say why the server cannot be used, None when it can."""
        try:
            await self._client().preflight()
        except PxError as error:
            return error.detail
        return None

    async def specs(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the kernelspecs of the server."""
        return (await self._client().preflight()).specs

    async def close(self, *, stop: bool) -> None:
        """Let go of all connections."""
        await self._roster.close()
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await client.close()

    def _client_if_set(self) -> GatewayClient | None:
        """Return who speaks with the server of the settings; None where they name none that could be used."""
        try:
            return self._client()
        except ConfigError as error:
            _log.info("gateway_left_alone", detail=error.detail)
            return None

    def _client(self) -> GatewayClient:
        gateway = self._roster.config.gateway
        if gateway.url is None:
            raise ConfigError(
                "The backend gateway-external needs the address of a server, and kernels.gateway_url is not set.",
                hint="Set kernels.gateway_url, or PX_KERNELS__GATEWAY_URL, to http://host:port",
            )
        key = (gateway.url, gateway.token)
        if key not in self._clients:
            far = urlsplit(gateway.url).hostname not in _LOOPBACK
            self._clients[key] = GatewayClient(gateway.url, gateway.token, gateway.token_setting, trust_env=far)
        return self._clients[key]


def _missing_there(place: str, launch: Launch, facts: tuple[str, ...]) -> str:
    """Return what is said with the first answer of a kernel at somebody else's server."""
    told = f"Kernels at {place} have no prelude, no modules and no limits of ours."
    cwd = facts[-1] if facts else ""
    if cwd in ("", repr(launch.cwd)):
        return told
    return f"The directory {launch.cwd} does not exist at {place}: the kernel works in {cwd}. {told}"


def _variables(launch: Launch) -> dict[str, str]:
    """Return what Enterprise Gateway is told; asks the system for the user's name."""
    user = launch.env.get("USER") or launch.env.get("LOGNAME") or getpass.getuser()
    return kernel_variables(launch.env, launch.cwd, user)


def _unknown_spec(client: GatewayClient, name: str, server: Preflight) -> InvalidInputError:
    near = difflib.get_close_matches(name, server.specs, 1)
    offered = ", ".join(sorted(server.specs)) or "none"
    return InvalidInputError(
        f"The gateway at {client.place.shown} has no kernelspec {name!r}; it offers: {offered}.",
        hint=f"Did you mean {near[0]!r}?" if near else "See `pxctl kernel start --help` for --kernelspec.",
        errors=[{"pointer": "/kernelspec", "message": f"unknown at the gateway: {name}"}],
        kernelspecs=sorted(server.specs),
    )

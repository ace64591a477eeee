"""A backend over each kind of server of kernels, real ones, for tests that say the same of all of them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from kernels.gateway_peers import ENTERPRISE, NEEDS_PEERS, PATIENCE, peer
from kernels.kernel_rig import eventually, kernel_house, no_news
from supervisord_py.kernels.cell_files import CellLog
from supervisord_py.kernels.config import GatewayConfig
from supervisord_py.kernels.direct import DirectBackend
from supervisord_py.kernels.gateway import GatewayExternal
from supervisord_py.kernels.gateway_client import GatewayClient
from supervisord_py.kernels.gateway_local import GatewayLocal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    from kernels.gateway_peers import Peer
    from kernels.kernel_rig import KernelRig
    from supervisord_py.kernels.backend import ExecuteRequest, KernelBackend, Launch, Reply

EXTERNALS = ("kernel_gateway", "jupyter_server", "enterprise_gateway")
GATEWAYS = ("local", *EXTERNALS)
EVERYBODY = ("direct", *GATEWAYS)


@dataclass(slots=True)
class Ran:
    """What came of a cell."""

    reply: Reply
    request: ExecuteRequest
    out: bytes
    records: list[dict[str, Any]] = field(repr=False)

    def kinds(self) -> list[str]:
        """Return the kinds of its records, the streams left out: how often they change is the kernel's affair."""
        return [each["kind"] for each in self.records if each["kind"] != "err"]


@dataclass(slots=True)
class House:
    """One backend, and a kernel in it."""

    rig: KernelRig
    backend: Any
    peer: Peer | None = None
    handle: Any = None
    launch: Launch = None  # type: ignore[assignment]

    async def open(self, session: str = "s-000000", **changes: Any) -> Any:
        """Start a kernel; `run` speaks with the last one that was."""
        env = {**self.rig.launch(session).env, **changes.pop("env", {}), "USER": "px"}
        self.launch = self.rig.launch(session, env=env, **changes)
        self.handle = await self.rig.start(self.backend, self.launch)
        return self.handle

    def begin(self, code: str) -> tuple[ExecuteRequest, asyncio.Task[Reply]]:
        """Send a cell."""
        request = self.rig.request(self.launch, code)
        return request, asyncio.create_task(self.handle.execute(request, no_news))

    async def run(self, code: str) -> Ran:
        """Run a cell to its end."""
        request, task = self.begin(code)
        reply = await asyncio.wait_for(task, 60)
        out = CellLog(request.cells_dir, request.cell_id).page(0, 1 << 30).data
        return Ran(reply, request, out, self.rig.records(request))

    async def begin_and_wait(self, code: str) -> tuple[ExecuteRequest, asyncio.Task[Reply]]:
        """Send a cell that first prints `on`, and return when that is on disk."""
        request, task = self.begin(f"print('on', flush=True)\n{code}")
        await eventually(lambda: task.done() or self.rig.out(request), "its first output")
        assert not task.done(), task.result()
        return request, task


@asynccontextmanager
async def house_of(
    kind: str, folder: Path, require: Callable[[object, str], None], *options: str
) -> AsyncIterator[House]:
    """Start a keeper, the server where it is another's, and a backend over it.

    Args:
        kind: One of EVERYBODY.
        folder: Short and private.
        require: The fixture of that name.
        options: More of the server's command line.
    """
    require(kind != "enterprise_gateway" or ENTERPRISE.exists(), NEEDS_PEERS)
    async with AsyncExitStack() as stack:
        patience = stack.enter_context(pytest.MonkeyPatch.context())
        for call in (GatewayClient.preflight, GatewayClient.model, GatewayClient.interrupt):
            patience.setattr(call, "__defaults__", (PATIENCE,))  # a real server on a busy machine, and no dead one
        rig = await stack.enter_async_context(kernel_house(folder))
        server = await stack.enter_async_context(peer(kind, folder, *options)) if kind in EXTERNALS else None
        backend: KernelBackend
        if server is not None:
            backend = external_of(rig, server)
        else:
            backend = DirectBackend(rig.placement, rig.config) if kind == "direct" else await local_of(rig)
        house = House(rig, backend, server)
        try:
            yield house
        finally:
            await house.backend.close(stop=True)


def external_of(rig: KernelRig, server: Peer) -> GatewayExternal:
    """Return a backend for a server."""
    gateway = GatewayConfig(dir=rig.folder / "gateway", url=server.url, token=server.token)
    return GatewayExternal(replace(rig.config, gateway=gateway), daemon=rig.keeper.daemon_id)


async def local_of(rig: KernelRig, **gateway: Any) -> GatewayLocal:
    """Return a backend over the shared gateway, for the present control plane; `gateway` replaces its settings."""
    settings = replace(rig.config.gateway, **gateway)
    return GatewayLocal(await rig.supervise(), replace(rig.config, gateway=settings))

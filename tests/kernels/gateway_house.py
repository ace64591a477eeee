"""A backend over each kind of server of kernels, real ones on loopback, for tests that say the
same of all of them.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from beside import free_port, lean_module
from kernels.kernel_rig import PATIENCE, KernelRig, Running, kernel_house
from supervisord_py.errors import PxError
from supervisord_py.kernels.backend import ExecuteRequest, Reply
from supervisord_py.kernels.gateway import GatewayExternal
from supervisord_py.kernels.gateway_kernel import GatewayClient
from supervisord_py.kernels.gateway_local import GatewayLocal

EXTERNALS = ("kernel_gateway", "jupyter_server", "enterprise_gateway")
GATEWAYS = ("local", *EXTERNALS)
EVERYBODY = ("direct", *GATEWAYS)
ENTERPRISE = (
    Path(__file__).parents[2]
    / os.environ.get("VENV", ".venv")
    / "peers"
    / "enterprise-gateway"
    / "bin"
    / "python"
)
NEEDS_PEERS = "needs the environments of the peers: run `make peers`"
TOKEN = "peer-0f3a"  # noqa: S105 - of a server that lives for one test
_LOOSE = ("--ZMQChannelsWebsocketConnection.limit_rate=False",)


@dataclass(slots=True)
class Peer:
    kind: str
    folder: Path
    options: tuple[str, ...]
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    async def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "log").open("ab") as log:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self.process = subprocess.Popen(
                self._argv(), env=self._env(), cwd=self.folder, **streams
            )
        client, deadline = GatewayClient(self.url, TOKEN, "a test's"), time.monotonic() + PATIENCE
        while True:
            with suppress(PxError):
                await client.preflight()
                break
            assert (self.process.poll(), time.monotonic() < deadline) == (None, True), self.log[
                -2000:
            ]
            await asyncio.sleep(0.05)
        await client.close()

    async def end(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.terminate()
            try:
                await asyncio.to_thread(process.wait, PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)

    def _argv(self) -> list[str]:
        app, more = {
            "kernel_gateway": (
                "KernelGatewayApp",
                ["--JupyterWebsocketPersonality.list_kernels=True"],
            ),
            "jupyter_server": ("ServerApp", ["--ServerApp.open_browser=False", "--allow-root"]),
            "enterprise_gateway": (
                "EnterpriseGatewayApp",
                ["--EnterpriseGatewayApp.list_kernels=True"],
            ),
        }[self.kind]
        is_ours = self.kind != "enterprise_gateway"
        argv = (
            lean_module(sys.executable, self.kind)
            if is_ours
            else [str(ENTERPRISE), "-m", self.kind]
        )
        places = [f"--{app}.ip=127.0.0.1", f"--{app}.port={self.port}", f"--{app}.port_retries=0"]
        return [*argv, *places, *more, *self.options]

    def _env(self) -> dict[str, str]:
        home = str(self.folder)
        kept = {
            name: os.environ[name]
            for name in ("PATH", "TEST_SESSION_OF_PX", "LANG")
            if name in os.environ
        }
        kept |= dict.fromkeys(("KG_AUTH_TOKEN", "EG_AUTH_TOKEN", "JUPYTER_TOKEN"), TOKEN)
        kept |= {
            "HOME": home,
            "JUPYTER_RUNTIME_DIR": f"{home}/run",
            "JUPYTER_CONFIG_DIR": f"{home}/etc",
        }
        kept |= {
            "PYTHONWARNINGS": "ignore",
            "JUPYTER_PLATFORM_DIRS": "1",
            "EG_ENABLE_DEPRECATED": "0",
        }
        if self.kind == "enterprise_gateway":
            kept["PATH"] = f"{ENTERPRISE.parent}:{kept['PATH']}"
        return kept


@contextmanager
def gateway(folder: Path) -> Iterator[str]:
    """Run a kernel_gateway that wants TOKEN, and give its address."""
    peer = Peer("kernel_gateway", folder, ())
    try:
        asyncio.run(peer.start())
        yield peer.url
    finally:
        asyncio.run(peer.end())


class House(Running):
    """A kernel at one backend; `peer` is the server, where it is another's."""

    def __init__(
        self, rig: KernelRig, kind: str, peer: Peer | None = None, url: str = "", **config: Any
    ) -> None:
        async def make() -> Any:
            supervisor = await rig.supervise()
            if kind == "local":
                return GatewayLocal(supervisor, lambda: rig.config)
            changed = replace(rig.config, **{"gateway_url": url, "gateway_token": TOKEN, **config})
            return GatewayExternal(supervisor, lambda: changed)

        super().__init__(rig, rig.launch(), None if kind == "direct" else make)
        self.peer = peer
        self.backend: Any = None

    async def open(self, session: str = "s-000000", **changes: Any) -> Any:
        env = {**self.rig.launch(session).env, **changes.pop("env", {}), "USER": "px"}
        self.launch = self.rig.launch(session, env=env, **changes)
        self.backend = self.backend or await self.make()
        self.handle = await self.rig.start(self.backend, self.launch)
        return self.handle

    async def begin_and_wait(self, code: str) -> tuple[ExecuteRequest, asyncio.Task[Reply]]:
        """Send a cell that first prints `on`, and return when it has."""
        return await super().begin_and_wait(f"print('on', flush=True)\n{code}")

    async def replace(self) -> None:
        await self.backend.close(stop=False)
        await self.rig.replace()
        self.backend = await self.make()

    async def close(self) -> None:
        if self.backend is not None:
            await self.backend.close(stop=True)


@asynccontextmanager
async def house_of(
    kind: str, folder: Path, require: Callable[[object, str], None], *options: str
) -> AsyncIterator[House]:
    """Start a keeper, the server where it is another's (with these options), and a backend over
    it.
    """
    require(kind != "enterprise_gateway" or ENTERPRISE.exists(), NEEDS_PEERS)
    async with AsyncExitStack() as stack:
        patience = stack.enter_context(pytest.MonkeyPatch.context())
        for call in (GatewayClient.preflight, GatewayClient.model, GatewayClient.interrupt):
            # a real server on a busy machine, and no dead one
            patience.setattr(call, "__defaults__", (PATIENCE,))
        rig = await stack.enter_async_context(kernel_house(folder))
        peer = Peer(kind, folder / kind, options or _LOOSE) if kind in EXTERNALS else None
        if peer is not None:
            stack.push_async_callback(peer.end)
            await peer.start()
        house = House(rig, kind, peer, peer.url if peer is not None else "")
        house.backend = await house.make()
        stack.push_async_callback(house.close)
        yield house

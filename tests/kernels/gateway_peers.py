"""Real servers of kernels for tests, each started on loopback by its test and ended with it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lean_module import lean_module
from ports import free_port
from supervisord_py.errors import PxError
from supervisord_py.kernels.gateway_client import GatewayClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

ROOT = Path(__file__).parents[2]
ENTERPRISE = ROOT / os.environ.get("VENV", ".venv") / "peers" / "enterprise-gateway" / "bin" / "python"
NEEDS_PEERS = "needs the environments of the peers: run `make peers`"
PATIENCE = 60.0
TOKEN = "peer-0f3a"  # noqa: S105 - of a server that lives for one test
_LOOSE = ("--ZMQChannelsWebsocketConnection.limit_rate=False",)


@dataclass(slots=True)
class Peer:
    """A server; it listens on the same port after it was started again."""

    kind: str
    folder: Path
    token: str = TOKEN
    options: tuple[str, ...] = _LOOSE
    port: int = 0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        """What it has said."""
        return (self.folder / f"{self.kind}.log").read_text(errors="replace")

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        self.port = self.port or free_port()
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{self.kind}.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._argv(), env=self._env(), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        await self._until_ready(self.process)

    async def end(self) -> None:
        """End it and its kernels."""
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(process.wait, PATIENCE)
        if process.poll() is None:
            process.kill()
            await asyncio.to_thread(process.wait)

    async def _until_ready(self, process: subprocess.Popen[bytes]) -> None:
        client = GatewayClient(self.url, self.token, "a test's")
        deadline = time.monotonic() + PATIENCE
        try:
            while not await _answers(client):
                assert process.poll() is None, f"{self.kind} ended:\n{self.log[-2000:]}"
                assert time.monotonic() < deadline, f"{self.kind} does not answer:\n{self.log[-2000:]}"
                await asyncio.sleep(0.05)
        finally:
            await client.close()

    def _argv(self) -> list[str]:
        match self.kind:
            case "kernel_gateway":
                argv = [*lean_module(sys.executable, "kernel_gateway"), "--KernelGatewayApp.port_retries=0"]
                argv += ["--JupyterWebsocketPersonality.list_kernels=True", f"--KernelGatewayApp.port={self.port}"]
            case "jupyter_server":
                argv = [*lean_module(sys.executable, "jupyter_server"), "--ServerApp.open_browser=False"]
                argv += ["--allow-root"]
                argv += [f"--ServerApp.port={self.port}", "--ServerApp.port_retries=0", "--ServerApp.ip=127.0.0.1"]
            case _:
                argv = [str(ENTERPRISE), "-m", "enterprise_gateway", f"--EnterpriseGatewayApp.port={self.port}"]
                argv += ["--EnterpriseGatewayApp.port_retries=0", "--EnterpriseGatewayApp.ip=127.0.0.1"]
                argv += ["--EnterpriseGatewayApp.list_kernels=True"]
        return [*argv, *self.options]

    def _env(self) -> dict[str, str]:
        names = {"KG_AUTH_TOKEN": self.token, "EG_AUTH_TOKEN": self.token, "JUPYTER_TOKEN": self.token}
        home = str(self.folder)
        places = {"HOME": home, "JUPYTER_RUNTIME_DIR": f"{home}/run", "JUPYTER_CONFIG_DIR": f"{home}/etc"}
        kept = {name: os.environ[name] for name in ("PATH", "TEST_SESSION_OF_PX", "LANG") if name in os.environ}
        if self.kind == "enterprise_gateway":
            kept["PATH"] = f"{ENTERPRISE.parent}:{kept['PATH']}"
        quiet = {"PYTHONWARNINGS": "ignore", "JUPYTER_PLATFORM_DIRS": "1"}
        return {**kept, **names, **places, **quiet, "EG_ENABLE_DEPRECATED": "0"}


@asynccontextmanager
async def peer(kind: str, folder: Path, *options: str, token: str = TOKEN) -> AsyncIterator[Peer]:
    """Start a server and end it afterwards; without options it limits no rates."""
    made = Peer(kind, folder / kind, token=token, options=options or _LOOSE)
    try:
        await made.start()
        yield made
    finally:
        await made.end()


async def _answers(client: GatewayClient) -> bool:
    try:
        await client.preflight()
    except PxError:
        return False
    return True

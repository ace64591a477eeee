"""Kernels in the shared gateway on this machine, each with its own project's interpreter and environment.

Each kernel is started by a kernelspec of its own, which runs our launcher, so that the kernel writes the files of its
cells by itself: what the gateway's websocket loses, the disk has.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import json
import re
import secrets
import shutil
import sys
import time
from typing import TYPE_CHECKING

import psutil

from supervisord_py.errors import ReadinessTimeoutError, StartFailedError
from supervisord_py.kernels.connection_file import write_private
from supervisord_py.kernels.gateway import MARK, RemoteKernels, remaining
from supervisord_py.kernels.gateway_client import OUR_LOG, GatewayClient
from supervisord_py.kernels.gateway_kernel import EndedEarlyError
from supervisord_py.kernels.gateway_server import SPECS, SharedGateway
from supervisord_py.kernels.kernelspecs import CONNECTION_FILE, launcher_command
from supervisord_py.kernels.messages import early_exit
from supervisord_py.process.instance import End
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.gateway_kernel import GatewayKernel, RemoteKernel
    from supervisord_py.process.model import Child
    from supervisord_py.process.supervisor import Supervisor

LEFT_SECONDS = 0.5  # how long what the gateway was ending may take to be gone by itself
_GATEWAY_LINE = re.compile(r"\[[DIWEC] [^\]]+\]")
_SET_LIMITS = """
import json, os, resource, sys
for name, soft, hard in json.loads(sys.argv[1]):
    resource.setrlimit(getattr(resource, "RLIMIT_" + name.upper()), (soft, hard))
os.execv(sys.argv[2], sys.argv[2:])
"""


def gateway_python(launch: Launch) -> str:
    """Return an interpreter to run the gateway with: the daemon's where it can, else the kernel's."""
    can = importlib.util.find_spec("kernel_gateway") is not None
    return sys.executable if can else launch.interpreter or sys.executable


class GatewayLocal(RemoteKernels):
    """A `KernelBackend` over the shared gateway. A failed start touches no other session's kernel."""

    spools = True

    def __init__(
        self, supervisor: Supervisor, config: KernelsConfig, *, python: Callable[[Launch], str] = gateway_python
    ) -> None:
        daemon = supervisor.placement.new_key().partition(".")[0]
        super().__init__(config, daemon, "local")
        self._supervisor = supervisor
        self._shared = SharedGateway(supervisor, config, python)

    def reconfigure(self, config: KernelsConfig) -> None:
        """Take new settings: for what is started from now on."""
        self.config = self._shared.config = config

    async def start(self, launch: Launch, child: Child | None, *, deadline: float) -> GatewayKernel:
        """Start a kernel, and the gateway if none runs, and return the kernel when it answers."""
        client, began = await self._gateway(launch, deadline), time.time()
        try:
            return await self._start_in(client, launch, deadline)
        except EndedEarlyError:
            own = self._shared.own
            log = await self._supervisor.tail(own, began) if own is not None else ""
            said = "".join(line for line in log.splitlines(keepends=True) if not _GATEWAY_LINE.match(line))
            raise early_exit(launch, End(Reason.EARLY_EXIT, None, said)) from None
        except StartFailedError as error:
            if error.extra.get("gateway_status", 500) >= 500:
                await self._shared.give_up_if_silent(client)
            raise

    async def _gateway(self, launch: Launch, deadline: float) -> GatewayClient:
        """Return the gateway in time; its start goes on for those who come later."""
        getting = asyncio.ensure_future(self._shared.get(launch))
        getting.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody waits: it is in its log
        try:
            async with asyncio.timeout(remaining(deadline)):
                client = await asyncio.shield(getting)
                assert client is not None
                return client
        except TimeoutError:
            raise ReadinessTimeoutError(
                "The shared gateway did not answer in time.",
                hint=OUR_LOG,
                unit=f"kernel:{launch.session_id}",
                reason="readiness_timeout",
            ) from None

    async def _start_in(self, client: GatewayClient, launch: Launch, deadline: float) -> GatewayKernel:
        name = f"px-{hashlib.sha256(launch.instance.encode()).hexdigest()[:16]}"
        folder = self._shared.folder / SPECS / "kernels" / name
        await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        wanted = "-".join(("px", *re.findall("....", secrets.token_hex(8))))  # sockets are named after it
        # `env` keeps the gateway's own variables out of the kernel: it gets PATH, and what the kernelspec says.
        body = {"name": name, "path": launch.cwd, "env": {}}
        try:
            await asyncio.to_thread(write_private, folder / "kernel.json", kernelspec(launch).encode())
            return await self.start_at(client, launch, body, deadline=deadline, wanted=wanted)
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def settle(self, kernel: GatewayKernel, launch: Launch, deadline: float) -> None:
        """Nothing is to be done: its kernelspec gave it directory and environment."""
        kernel.notice = "No limits of memory hold for kernels of the shared gateway."

    async def client_of(self, held: RemoteKernel) -> GatewayClient | None:
        """Return who speaks with the gateway, if it is the kernel's; otherwise the kernel ended with its gateway."""
        client = await self._shared.get()
        if client is not None and client.shown == held.url:
            return client
        await self.forget(held)
        return None

    async def ended(self, held: RemoteKernel, is_deleted: bool) -> tuple[int, ...]:
        """Forget it, and end what its cells put into sessions of their own, out of the gateway's reach."""
        await super().ended(held, is_deleted)
        left = await asyncio.to_thread(_bearers, held.instance)
        if left:
            _, left = await asyncio.to_thread(psutil.wait_procs, left, LEFT_SECONDS)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()  # psutil looks at its start time first
        _, left = await asyncio.to_thread(psutil.wait_procs, left, LEFT_SECONDS)
        return tuple(each.pid for each in left)

    async def close(self, *, stop: bool) -> None:
        """Let go of everything; with `stop`, end the gateway if it is ours, whoever else uses it."""
        await super().close(stop=stop)
        await self._shared.close(stop=stop)


def _bearers(instance: str) -> list[psutil.Process]:
    """Return the processes whose environment bears an instance's mark. Blocking."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == instance:
                found.append(process)
    return found


def kernelspec(launch: Launch) -> str:
    """Return the text of the `kernel.json` by which the gateway starts one kernel: our launcher, its own environment.

    A `$` in a value is doubled: Jupyter takes single ones for references to variables. The gateway has no setting for
    rlimits, so they are set before the launcher.
    """
    argv = launch.kernelspec_argv or ()
    if launch.interpreter is not None:
        argv = launcher_command(launch.interpreter, launch, CONNECTION_FILE)
        if launch.limits:
            limits = json.dumps([[each.name, each.soft, each.hard] for each in launch.limits])
            argv = (launch.interpreter, "-I", "-S", "-c", _SET_LIMITS, limits, *argv)
    env = {**launch.env, MARK: launch.instance, "PX_UNIT": f"kernel:{launch.session_id}"}
    spec = {
        "argv": list(argv),
        "display_name": f"kernel:{launch.session_id}",
        "language": "python" if launch.interpreter else "",
        "interrupt_mode": launch.interrupt_mode,
        "env": {name: value.replace("$", "$$") for name, value in env.items()},
    }
    return json.dumps(spec, indent=1)

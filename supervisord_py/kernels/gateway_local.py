"""Kernels in the shared gateway on this machine, each with its own project's interpreter and environment.

Each kernel is started by a kernelspec of its own, which runs our launcher, so that the kernel writes the files of its
cells by itself: what the gateway's websocket loses, the disk has. A failed start touches no other session's kernel.
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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from supervisord_py.errors import PxError, ReadinessTimeoutError, StartFailedError
from supervisord_py.kernels.end_marked import marked
from supervisord_py.kernels.gateway import RemoteKernels, remaining, write_private
from supervisord_py.kernels.gateway_client import OUR_LOG
from supervisord_py.kernels.gateway_kernel import MARK, EndedEarlyError
from supervisord_py.kernels.gateway_server import LOOK_SECONDS, SPECS, UNIT, SharedGateway, log_tail
from supervisord_py.kernels.launch_command import CONNECTION_FILE, launcher_command
from supervisord_py.kernels.messages import KernelEnd, early_exit
from supervisord_py.process.logs import LogReader
from supervisord_py.process.model import Reason
from supervisord_py.process.program import run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from supervisord_py.kernels.backend import Launch, Started
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.gateway_kernel import GatewayKernel
    from supervisord_py.kernels.gateway_server import Running
    from supervisord_py.process.keeper_client import KeeperClient
    from supervisord_py.process.model import Child

END_MARKED = Path(__file__).with_name("end_marked.py")
LOOKS = 10
"""How often it is looked whether what the gateway was ending is gone by itself."""
SWEEP_SECONDS = 10.0
_SERVER_ERROR = 500
_GATEWAY_LINE = re.compile(r"\[[DIWEC] [^\]]+\]")
_SET_LIMITS = """
import json, os, resource, sys
for name, soft, hard in json.loads(sys.argv[1]):
    resource.setrlimit(getattr(resource, "RLIMIT_" + name.upper()), (soft, hard))
os.execv(sys.argv[2], sys.argv[2:])
"""
_log = structlog.get_logger(__name__)


def gateway_python(launch: Launch) -> str:
    """Return an interpreter to run the gateway with: the daemon's where it can, else the kernel's."""
    if importlib.util.find_spec("kernel_gateway") is not None:
        return sys.executable
    return launch.interpreter or sys.executable


class GatewayLocal(RemoteKernels):
    """A `KernelBackend` over the shared gateway."""

    def __init__(
        self, placement: KeeperClient, config: KernelsConfig, *, python: Callable[[Launch], str] = gateway_python
    ) -> None:
        daemon = placement.new_key().partition(".")[0]
        super().__init__(config, daemon, "local")
        self._placement = placement
        self._shared = SharedGateway(placement, config, daemon, python)

    def reconfigure(self, config: KernelsConfig) -> None:
        """Take new settings: for what is started from now on."""
        self.config = self._shared.config = config

    async def start(
        self, launch: Launch, *, deadline: float, on_spawned: Callable[[Started], Awaitable[None]]
    ) -> GatewayKernel:
        """Start a kernel, and the gateway if none runs, and return the kernel when it answers.

        Raises:
            StartFailedError, ReadinessTimeoutError: The gateway or the kernel did not come up.
        """
        gateway = await self._gateway(launch, deadline)
        from_here = await asyncio.to_thread(lambda: LogReader.of(self._placement.log_dir, UNIT).end())
        try:
            return await self._start_in(gateway, launch, deadline, on_spawned)
        except EndedEarlyError:
            log = await asyncio.to_thread(log_tail, self._placement, from_here)  # the gateway shares it with kernels
            said = "".join(line for line in log.splitlines(keepends=True) if not _GATEWAY_LINE.match(line))
            raise early_exit(launch, KernelEnd(Reason.EARLY_EXIT, None, said)) from None
        except StartFailedError as error:
            is_server = error.extra.get("gateway_status", _SERVER_ERROR) >= _SERVER_ERROR
            if not is_server or await self._shared.is_healthy(gateway):
                raise  # others live in it
            _log.warning("gateway_unhealthy", url=gateway.record.url, detail=error.detail)
            await self._shared.give_up(gateway)
        return await self._start_in(await self._gateway(launch, deadline), launch, deadline, on_spawned)

    async def attach(self, launch: Launch, child: Child) -> GatewayKernel | None:
        """Take over a kernel that an earlier control plane had started; None when its variables are lost."""
        held = await asyncio.to_thread(self._read, child.key)
        gateway = await self._shared.find() if held is not None else None
        if held is None or gateway is None or held.url != gateway.client.place.shown:
            return None
        kernel = await self._attach_at(gateway.client, held, spool=launch.interpreter is not None)
        if kernel is not None:
            kernel.clear = partial(self._clear, held.instance)
        return kernel

    async def sweep(self) -> int:
        """Delete the kernels of this daemon that no handle has; returns how many were."""
        forgotten = await self._forgotten()
        gateway = await self._shared.find() if forgotten else None
        deleted = 0
        for held in forgotten:
            if gateway is None or held.url != gateway.client.place.shown:
                await self._forget(held)  # it ended with its gateway
            else:
                deleted += await self._delete(gateway.client, held)
        return deleted

    async def close(self, *, stop: bool) -> None:
        """Let go of everything; with `stop`, end the gateway if it is ours, whoever else uses it."""
        await self._close()
        await self._shared.close(stop=stop)

    async def _gateway(self, launch: Launch, deadline: float) -> Running:
        """Return the gateway in time; its start goes on for those who come later."""
        getting = asyncio.ensure_future(self._shared.get(launch))
        getting.add_done_callback(
            lambda done: done.cancelled() or done.exception()
        )  # if nobody waits: it is in its log
        try:
            async with asyncio.timeout(remaining(deadline)):
                return await asyncio.shield(getting)
        except TimeoutError:
            raise ReadinessTimeoutError(
                "The shared gateway did not answer in time.",
                hint=OUR_LOG,
                unit=f"kernel:{launch.session_id}",
                reason="readiness_timeout",
            ) from None

    async def _start_in(
        self, gateway: Running, launch: Launch, deadline: float, on_spawned: Callable[[Started], Awaitable[None]]
    ) -> GatewayKernel:
        name = f"px-{hashlib.sha256(launch.instance.encode()).hexdigest()[:16]}"
        folder = self._shared.folder / SPECS / "kernels" / name
        await asyncio.to_thread(folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        digits = secrets.token_hex(8)
        wanted = "-".join(("px", digits[:4], digits[4:8], digits[8:12], digits[12:]))  # sockets are named after it
        try:
            await asyncio.to_thread(write_private, folder / "kernel.json", kernelspec(launch))
            # `env` keeps the gateway's own variables out of the kernel: it gets PATH, and what the kernelspec says.
            body = {"name": name, "path": launch.cwd, "env": {}}
            kernel = await self._start_at(
                gateway.client,
                launch,
                body,
                code="",
                spool=launch.interpreter is not None,
                deadline=deadline,
                on_spawned=on_spawned,
                wanted=wanted,
            )
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        kernel.clear = partial(self._clear, launch.instance)
        return kernel

    async def _clear(self, instance: str) -> tuple[int, ...]:
        """End what a kernel left in sessions of its own; returns the pids of what survives that."""
        mark = f"{MARK}={instance}"
        for _ in range(LOOKS):
            if not await asyncio.to_thread(marked, mark.encode()):
                return ()
            await asyncio.sleep(LOOK_SECONDS)
        argv, env = (sys.executable, "-I", "-S", str(END_MARKED), mark), {"PATH": "/usr/bin:/bin"}
        with contextlib.suppress(PxError, TimeoutError):
            await run(self._placement, argv, name="gateway-sweep", cwd="/", env=env, timeout=SWEEP_SECONDS)
        return tuple(await asyncio.to_thread(marked, mark.encode()))


def kernelspec(launch: Launch) -> str:
    """Return the text of the `kernel.json` by which the gateway starts one kernel: our launcher, its own environment.

    A `$` in a value is doubled: Jupyter takes single ones for references to variables.
    """
    env = {**launch.env, MARK: launch.instance, "PX_UNIT": f"kernel:{launch.session_id}"}
    spec = {
        "argv": list(kernel_argv(launch)),
        "display_name": f"kernel:{launch.session_id}",
        "language": "python" if launch.interpreter else "",
        "interrupt_mode": launch.interrupt_mode,
        "env": {name: value.replace("$", "$$") for name, value in env.items()},
    }
    return json.dumps(spec, indent=1)


def kernel_argv(launch: Launch) -> tuple[str, ...]:
    """Return the command line of a kernel; the gateway has no setting for rlimits, so they are set before it."""
    if launch.interpreter is None:
        return launch.kernelspec_argv or ()
    words = launcher_command(launch.interpreter, launch, CONNECTION_FILE)
    if not launch.limits:
        return words
    limits = [[each.name, each.soft, each.hard] for each in launch.limits]
    return (launch.interpreter, "-I", "-S", "-c", _SET_LIMITS, json.dumps(limits), *words)

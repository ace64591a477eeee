"""Kernels in the shared gateway on this machine, each with its own project's interpreter and environment.

Law: the gateway is shared, nothing else is. Each kernel is started by a kernelspec of its own, which names the
project's interpreter and runs our launcher, so that the kernel writes the files of its cells by itself: what the
gateway's websocket loses, the disk has. A failed start touches no other session's kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import re
import secrets
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from supervisord_py.errors import PxError, ReadinessTimeoutError, StartFailedError
from supervisord_py.kernels.gateway.end_marked import marked
from supervisord_py.kernels.gateway.gateway_command import kernelspec
from supervisord_py.kernels.gateway.gateway_start import SPECS, log_end, log_tail
from supervisord_py.kernels.gateway.handle import EndedEarlyError, remaining
from supervisord_py.kernels.gateway.roster import KernelRoster, Start
from supervisord_py.kernels.gateway.shared import SharedGateway
from supervisord_py.kernels.kernel_endings import KernelEnd
from supervisord_py.kernels.start_failure import early_exit
from supervisord_py.process import identity
from supervisord_py.process.spec import ChildSpec, Reason

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from supervisord_py.kernels.backend import Launch, Started
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.gateway.handle import GatewayKernel
    from supervisord_py.kernels.gateway.shared import Running
    from supervisord_py.process.placement import Placement
    from supervisord_py.process.spec import Child

END_MARKED = Path(__file__).with_name("end_marked.py")
LOOKS, PAUSE_SECONDS = 10, 0.05
"""How often, and after which pause, it is looked whether what the gateway was ending is gone by itself."""
SWEEP_SECONDS = 10.0
_SERVER_ERROR = 500
_log = structlog.get_logger(__name__)


def gateway_python(launch: Launch) -> str:
    """Return an interpreter to run the gateway with: the daemon's where it can, else the kernel's."""
    if importlib.util.find_spec("kernel_gateway") is not None:
        return sys.executable
    return launch.interpreter or sys.executable


class GatewayLocal:
    """A `KernelBackend` over the shared gateway.

    Args:
        placement: Where processes come from.
        config: As at present; `reconfigure` replaces it for what is started from then on.
        python: Chooses the interpreter that runs the gateway.
    """

    def __init__(
        self, placement: Placement, config: KernelsConfig, *, python: Callable[[Launch], str] = gateway_python
    ) -> None:
        daemon = placement.new_key().partition(".")[0]
        self._placement = placement
        self._roster = KernelRoster(config, daemon, "local")
        self._shared = SharedGateway(placement, config, daemon, python)

    def reconfigure(self, config: KernelsConfig) -> None:
        """Take new settings: for what is started from now on."""
        self._roster.config = config
        self._shared.config = config

    # -- KernelBackend -----------------------------------------------------------------------------------------------

    async def start(
        self, launch: Launch, *, deadline: float, on_spawned: Callable[[Started], Awaitable[None]]
    ) -> GatewayKernel:
        """Start a kernel, and the gateway if none runs, and return the kernel when it answers.

        Raises:
            StartFailedError, ReadinessTimeoutError: The gateway or the kernel did not come up.
        """
        gateway = await self._gateway(launch, deadline)
        from_here = await asyncio.to_thread(log_end, self._placement)
        try:
            return await self._start_in(gateway, launch, deadline, on_spawned)
        except EndedEarlyError:
            said = kernel_lines(await asyncio.to_thread(log_tail, self._placement, from_here))
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
        held = await self._roster.find(child.key)
        gateway = await self._shared.find() if held is not None else None
        if held is None or gateway is None or held.url != gateway.client.place.shown:
            return None
        kernel = await self._roster.attach(gateway.client, held, spool=launch.interpreter is not None)
        if kernel is not None:
            self._watch(kernel)
        return kernel

    async def close(self, *, stop: bool) -> None:
        """Let go of everything; with `stop`, end the gateway if it is ours, whoever else uses it."""
        await self._roster.close()
        await self._shared.close(stop=stop)

    # -- what an earlier control plane left --------------------------------------------------------------------------

    async def held(self) -> tuple[Child, ...]:
        """Return the kernels of this daemon that an earlier control plane left in the gateway."""
        return await self._roster.held()

    async def annotate(self, instance: str, tag: str) -> None:
        """Replace the note of the room with a kernel."""
        await self._roster.annotate(instance, tag)

    async def sweep(self) -> int:
        """Delete the kernels of this daemon that no handle has; returns how many were."""
        forgotten = await self._roster.forgotten()
        gateway = await self._shared.find() if forgotten else None
        deleted = 0
        for held in forgotten:
            if gateway is None or held.url != gateway.client.place.shown:
                await self._roster.forget(held)  # it ended with its gateway
            else:
                deleted += await self._roster.delete(gateway.client, held)
        return deleted

    # -- pieces ------------------------------------------------------------------------------------------------------

    async def _gateway(self, launch: Launch, deadline: float) -> Running:
        """Return the gateway in time; its start goes on for those who come later."""
        getting = asyncio.ensure_future(self._shared.get(launch))
        try:
            async with asyncio.timeout(remaining(deadline)):
                return await asyncio.shield(getting)
        except TimeoutError:
            getting.add_done_callback(_look_at)
            raise ReadinessTimeoutError(
                "The shared gateway did not answer in time.",
                hint="pxctl logs kernel:gateway",
                unit=f"kernel:{launch.session_id}",
                reason="readiness_timeout",
            ) from None

    async def _start_in(
        self, gateway: Running, launch: Launch, deadline: float, on_spawned: Callable[[Started], Awaitable[None]]
    ) -> GatewayKernel:
        folder = self._shared.files.folder / SPECS / "kernels" / spec_name(launch)
        is_python = launch.interpreter is not None
        await asyncio.to_thread(_write_spec, folder, kernelspec(launch))
        try:
            # `env` keeps the gateway's own variables out of the kernel: it gets PATH, and what the kernelspec says.
            body = {"name": folder.name, "path": launch.cwd, "env": {}}
            start = Start(launch, body, "", is_python, deadline, on_spawned, wanted_id=_short_id())
            kernel = await self._roster.start(gateway.client, start, {})
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        self._watch(kernel)
        return kernel

    def _watch(self, kernel: GatewayKernel) -> None:
        """Know its process, and end what it leaves on this machine."""
        kernel.clear = partial(self._clear, kernel.plan.held.instance)
        facts = kernel.plan.held.facts
        kernel.process = identity.identity_of(int(facts[0])) if facts and facts[0].isdecimal() else None

    async def _clear(self, instance: str) -> tuple[int, ...]:
        """End what a kernel left in sessions of its own; returns the pids of what survives that."""
        mark = f"PX_INSTANCE={instance}"
        for _ in range(LOOKS):
            if not await asyncio.to_thread(marked, mark.encode()):
                return ()
            await asyncio.sleep(PAUSE_SECONDS)
        key, argv = self._placement.new_key(), (sys.executable, "-I", "-S", str(END_MARKED), mark)
        with contextlib.suppress(PxError, TimeoutError):
            spec = ChildSpec(unit="kernel:gateway-sweep", argv=argv, cwd="/", env={"PATH": "/usr/bin:/bin"})
            await self._placement.spawn(key, spec)
            try:
                async with asyncio.timeout(SWEEP_SECONDS):
                    await self._placement.wait(key)
            finally:
                await self._placement.stop(key, grace_seconds=0, reason="exit")
                await self._placement.release(key)
        return tuple(await asyncio.to_thread(marked, mark.encode()))


_PREFIX = "px-"
_GATEWAY_LINE = re.compile(r"\[[DIWEC] [^\]]+\]")


def spec_name(launch: Launch) -> str:
    """Return the name of a kernel's kernelspec: Jupyter wants small letters and digits."""
    return f"{_PREFIX}{hashlib.sha256(launch.instance.encode()).hexdigest()[:16]}"


def kernel_lines(log: str) -> str:
    """Return what of a piece of the gateway's log the gateway did not say itself: it shares that with its kernels."""
    return "".join(line for line in log.splitlines(keepends=True) if not _GATEWAY_LINE.match(line))


def _short_id() -> str:
    """Return a kernel id: five words, as the routes demand, and short, because sockets are named after it."""
    digits = secrets.token_hex(8)
    return "-".join(("px", digits[:4], digits[4:8], digits[8:12], digits[12:]))


def _write_spec(folder: Path, text: str) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "kernel.json"
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")


def _look_at(task: asyncio.Future[Running]) -> None:
    """Nobody waits for it any more: its failure is in the log of the gateway."""
    if not task.cancelled() and (error := task.exception()) is not None:
        detail = error.detail if isinstance(error, PxError) else repr(error)
        _log.warning("gateway_start_failed", detail=detail)

"""Starts a gateway through the keeper and waits until it serves.

It is ready when its own process listens on the port that was chosen for it, and answers to its token; whatever else
happens ends the start, within its time, with what it said last. Its output goes to the keeper's log, never to a pipe
that nobody reads.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
import shutil
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.errors import ConfigError, PxError, ReadinessTimeoutError, StartFailedError
from supervisord_py.kernels.gateway.client import GatewayClient
from supervisord_py.kernels.gateway.gateway_command import gateway_argv, gateway_env
from supervisord_py.kernels.gateway.gateway_files import UNIT, GatewayRecord, listens
from supervisord_py.kernels.kernel_endings import decode_tail
from supervisord_py.process.output import OutputReader
from supervisord_py.process.spec import ChildSpec

if TYPE_CHECKING:
    from pathlib import Path

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.gateway.gateway_files import GatewayFiles
    from supervisord_py.process.placement import Placement
    from supervisord_py.process.spec import Child, ExitRecord

SPECS = "kernelspecs"
RUNTIME = "gw"
LOOK_SECONDS = 0.05
ANSWER_SECONDS = 3.0
ATTEMPTS = 3
"""With another port each: somebody else may have taken one."""
LONGEST_PATH = 107
_SOCKET = "kernel-px-0000-0000-0000-0000-ipc-5"
_TAIL_BYTES = 64 * 1024
_IN_USE = "already in use"


class _PortTakenError(Exception):
    """Somebody else listens where the gateway was to."""


@dataclass(frozen=True, slots=True)
class GatewayStart:
    """One start."""

    placement: Placement
    config: KernelsConfig
    files: GatewayFiles

    async def run(self, launch: Launch, python: str) -> tuple[GatewayRecord, str]:
        """Start a gateway; returns what is written of it, and its token.

        Raises:
            ConfigError: The runtime directory's path is too long for its sockets.
            StartFailedError: It ended, or did not answer in time.
        """
        runtime = self._runtime()
        give_up_at = asyncio.get_running_loop().time() + self.config.gateway.start_seconds
        for _ in range(ATTEMPTS):
            await asyncio.to_thread(_fresh, runtime)
            try:
                return await self._try(launch, python, runtime, give_up_at)
            except _PortTakenError:
                continue
        raise StartFailedError(
            f"The shared gateway found its port taken {ATTEMPTS} times.", unit=UNIT, reason="early_exit"
        )

    def _runtime(self) -> Path:
        runtime = self.config.run_dir / RUNTIME
        if len(str(runtime / _SOCKET).encode()) > LONGEST_PATH:
            raise ConfigError(
                f"The runtime directory {self.config.run_dir} is too long for the sockets of kernels.",
                hint="Choose a shorter one: PX_HOME, or RUNTIME_DIRECTORY under systemd.",
            )
        return runtime

    async def _try(self, launch: Launch, python: str, runtime: Path, give_up_at: float) -> tuple[GatewayRecord, str]:
        port = _free_port()
        key, token = self.placement.new_key(), secrets.token_urlsafe(32)
        child = await self.placement.spawn(key, self._spec(launch, python, port, token, runtime))
        try:
            await self._until_ready(child, python, port, token, give_up_at)
            return await self._write_down(child, python, port, token), token
        except BaseException:
            await asyncio.shield(self._clear(key))
            raise

    def _spec(self, launch: Launch, python: str, port: int, token: str, runtime: Path) -> ChildSpec:
        argv = gateway_argv(python, port, cull_idle_seconds=self.config.gateway.cull_idle_seconds)
        env = gateway_env(launch.env, token, self.files.folder / SPECS, runtime)
        return ChildSpec(unit=UNIT, argv=argv, cwd="/", env=env)

    async def _until_ready(self, child: Child, python: str, port: int, token: str, give_up_at: float) -> None:
        ended = asyncio.create_task(self.placement.wait(child.key))
        client = GatewayClient(f"http://127.0.0.1:{port}", token, "", is_ours=True)
        try:
            while not ended.done():
                if await asyncio.to_thread(listens, child.identity.pid, port) and await _answers(client):
                    return
                if asyncio.get_running_loop().time() > give_up_at:
                    raise await self._late(child)
                await asyncio.wait([ended], timeout=LOOK_SECONDS)
            raise await self._ended(ended.result(), python)
        finally:
            ended.cancel()
            await client.close()

    async def _late(self, child: Child) -> ReadinessTimeoutError:
        tail = await asyncio.to_thread(log_tail, self.placement, child.log_position)
        return ReadinessTimeoutError(
            f"The shared gateway did not answer in time ({self.config.gateway.start_seconds:g} s).",
            hint="pxctl logs kernel:gateway",
            unit=UNIT,
            reason="readiness_timeout",
            stderr_tail=tail,
        )

    async def _ended(self, record: ExitRecord, python: str) -> Exception:
        tail = await asyncio.to_thread(log_tail, self.placement, record.log_position, record.log_end)
        if _IN_USE in tail:
            return _PortTakenError()
        how = f"signal {record.signal}" if record.signal else f"code {record.code}"
        detail, hint = f"The shared gateway exited during startup ({how}).", "pxctl logs kernel:gateway"
        if "No module named" in tail and "kernel_gateway" in tail:
            detail = f"{python} cannot run the shared gateway: it has no kernel_gateway."
            hint = f"{shlex.quote(python)} -m pip install jupyter_kernel_gateway"
        facts = {"reason": "early_exit", "code": record.code, "signal": record.signal, "stderr_tail": tail}
        return StartFailedError(detail, hint=hint, unit=UNIT, **facts)

    async def _write_down(self, child: Child, python: str, port: int, token: str) -> GatewayRecord:
        token_file = await asyncio.to_thread(self.files.write_token, child.key, token)
        who = child.identity
        record = GatewayRecord(
            url=f"http://127.0.0.1:{port}",
            pid=who.pid,
            start_time=who.start_time,
            boot_id=who.boot_id,
            token_file=str(token_file),
            python=python,
            started_at=time.time(),
            daemon=child.key.partition(".")[0],
            instance=child.key,
        )
        await asyncio.to_thread(self.files.write, record)
        return record

    async def _clear(self, key: str) -> None:
        try:
            await self.placement.stop(key, grace_seconds=1.0, reason="stopped")
            await self.placement.release(key)
        except PxError:
            return  # the keeper is gone, and with it all that it held


async def _answers(client: GatewayClient) -> bool:
    try:
        await client.preflight(ANSWER_SECONDS)
    except PxError:
        return False
    return True


def log_end(placement: Placement) -> int:
    """Return where the gateway's log ends now. Blocking."""
    try:
        return OutputReader.of(placement.log_dir, UNIT).end()
    except OSError:
        return 0


def log_tail(placement: Placement, start: int, end: int | None = None) -> str:
    """Return the end of what was said between two positions of the gateway's log. Blocking."""
    try:
        reader = OutputReader.of(placement.log_dir, UNIT)
        raw = reader.tail_bytes(start, reader.end() if end is None else end, None, _TAIL_BYTES)
    except OSError:
        return ""
    return decode_tail(raw, _TAIL_BYTES)


def _free_port() -> int:
    """Return a port that is free now; where somebody takes it meanwhile, the gateway says so and another is tried."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _fresh(runtime: Path) -> None:
    """Make the runtime folder empty and private: what lies there is of a gateway that has ended."""
    shutil.rmtree(runtime, ignore_errors=True)
    runtime.mkdir(mode=0o700, parents=True)

"""The one gateway on this machine that daemons share: found, or started, and stopped by its owner.

What is found is used only when it is the recorded process, listens on the recorded port, and answers to its token; what
does not is cleaned away, and killed only if it is our own. A gateway that answers is never replaced, whatever one
kernel's start made of it: other sessions live in it. All of that happens under one lock (flock) among daemons. It ends
with the daemon that started it, whoever else uses it; the others see their connections break, and the first of them
that needs one starts the next.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from supervisord_py.errors import PxError
from supervisord_py.kernels.gateway.client import GatewayClient
from supervisord_py.kernels.gateway.gateway_files import UNIT, GatewayFiles, listens
from supervisord_py.kernels.gateway.gateway_start import GatewayStart

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.gateway.gateway_files import GatewayRecord
    from supervisord_py.process.placement import Placement

HEALTH_SECONDS = 3.0
HEALTH_TRIES = 3
"""A gateway that is busy is not dead: it is given up after so many silences."""
_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Running:
    """A gateway in use, and who speaks with it, token and all."""

    record: GatewayRecord
    client: GatewayClient


class SharedGateway:
    """Finds or starts the gateway.

    Args:
        placement: Where processes come from.
        config: As at present.
        daemon: Id of this daemon.
        python: Chooses the interpreter that runs it.
    """

    def __init__(
        self, placement: Placement, config: KernelsConfig, daemon: str, python: Callable[[Launch], str]
    ) -> None:
        self.config = config
        self._placement = placement
        self._daemon = daemon
        self._python = python
        self._one_at_a_time = asyncio.Lock()
        self._running: Running | None = None

    @property
    def files(self) -> GatewayFiles:
        """Where it is written down."""
        return GatewayFiles(self.config.gateway.dir)

    async def get(self, launch: Launch) -> Running:
        """Return the gateway, started if need be.

        Raises:
            TimedOutError: Another daemon held the lock all the time.
            StartFailedError: It did not come up.
        """
        async with self._one_at_a_time:
            if (running := await self._in_use()) is not None:
                return running
            await asyncio.to_thread(self.files.prepare)
            async with self._locked():
                self._running = await self._find() or await self._start(launch)
            return self._running

    async def find(self) -> Running | None:
        """Return the gateway if one runs; starts none."""
        async with self._one_at_a_time:
            if await self._in_use() is None and await asyncio.to_thread(self.files.metadata.exists):
                async with self._locked():
                    self._running = await self._find()
            return self._running

    async def is_healthy(self, running: Running) -> bool:
        """Say whether it answers; it is asked several times before it is given up."""
        for _ in range(HEALTH_TRIES):
            if not running.record.is_there:
                return False
            with contextlib.suppress(PxError):
                await running.client.preflight(HEALTH_SECONDS)
                return True
        return False

    async def give_up(self, running: Running) -> None:
        """Have done with a gateway that does not answer: ours is stopped, another daemon's is left to it."""
        async with self._one_at_a_time, self._locked():
            if self._running is running:
                await self._discard(running.record)
                await self._let_go()

    async def close(self, *, stop: bool) -> None:
        """Let go of it; with `stop`, end it if it is ours."""
        if self._running is not None and stop and self._running.record.daemon == self._daemon:
            async with self._locked():
                await self._discard(self._running.record)
        await self._let_go()

    # -- pieces ------------------------------------------------------------------------------------------------------

    def _locked(self) -> contextlib.AbstractAsyncContextManager[None]:
        return self.files.locked(self.config.gateway.lock_seconds)

    async def _in_use(self) -> Running | None:
        """Return the gateway that is in use; one that has ended is let go."""
        if self._running is not None and not self._running.record.is_there:
            await self._let_go()
        return self._running

    async def _let_go(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            await running.client.close()

    async def _find(self) -> Running | None:
        """Return the gateway that is written down, if it can be used; clean up otherwise."""
        record = await asyncio.to_thread(self.files.read)
        found = await self._use(record) if record is not None else None
        if found is None and record is not None:
            _log.info("gateway_stale", url=record.url, pid=record.pid)
            await self._discard(record)
        await self._stop_strays(found.record.instance if found is not None else "")
        return found

    async def _use(self, record: GatewayRecord) -> Running | None:
        if not record.is_there:
            return None
        token = await asyncio.to_thread(self.files.read_token, record)
        if token is None or not await asyncio.to_thread(listens, record.pid, record.port):
            return None
        running = self._take(record, token)
        if await self.is_healthy(running):
            return running
        await running.client.close()
        return None

    async def _start(self, launch: Launch) -> Running:
        start = GatewayStart(self._placement, self.config, self.files)
        return self._take(*await start.run(launch, self._python(launch)))

    def _take(self, record: GatewayRecord, token: str) -> Running:
        return Running(record, GatewayClient(record.url, token, self.config.gateway.token_setting, is_ours=True))

    async def _discard(self, record: GatewayRecord) -> None:
        """Clean up after a gateway; the process is stopped where it is ours."""
        if record.daemon == self._daemon:
            await self._stop(record.instance)
        await asyncio.to_thread(self.files.remove, record.instance)

    async def _stop_strays(self, but: str) -> None:
        """Stop gateways of ours that nobody wrote down: a control plane ended while it started one."""
        for child in await self._placement.list(UNIT):
            if child.unit == UNIT and child.key != but:
                await self._stop(child.key)

    async def _stop(self, key: str) -> None:
        await self._placement.stop(key, grace_seconds=self.config.stop_seconds, reason="stopped")
        await self._placement.release(key)

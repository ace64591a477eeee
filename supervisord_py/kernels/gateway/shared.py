"""The one gateway on this machine that daemons share: found, or started, watched, and stopped by its owner.

Law: what is found is used only when it is the recorded process, listens on the recorded port, and answers to its token;
what does not is cleaned away, and killed only if it is our own. A gateway that answers is never replaced, whatever one
kernel's start made of it: other sessions live in it. All of that happens under one lock among daemons.
It ends with the daemon that started it, whoever else uses it: a daemon leaves nothing behind. The others see its end at
once, and the first of them that needs one starts the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from supervisord_py.errors import PxError
from supervisord_py.kernels.gateway.client import GatewayClient
from supervisord_py.kernels.gateway.gateway_files import LOCK, GatewayFiles
from supervisord_py.kernels.gateway.gateway_lock import gateway_lock
from supervisord_py.kernels.gateway.gateway_start import UNIT, GatewayStart, last_words
from supervisord_py.kernels.gateway.port import listens
from supervisord_py.kernels.gateway.process_end import ending, watch_end
from supervisord_py.process import identity
from supervisord_py.process.spec import Liveness

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.kernels.backend import Launch
    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.gateway.gateway_files import GatewayRecord
    from supervisord_py.process.placement import Placement
    from supervisord_py.process.spec import ExitRecord

HEALTH_SECONDS = 3.0
HEALTH_TRIES = 3
"""A gateway that is busy is not dead: it is given up after so many silences."""
_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class Running:
    """A gateway in use.

    Attributes:
        client: Speaks with it, token and all.
        is_ours: Our keeper holds it.
        unwatch: Gives up the watch over its process.
        is_gone: Its process has ended.
    """

    record: GatewayRecord
    client: GatewayClient
    is_ours: bool
    unwatch: Callable[[], None]
    is_gone: bool = False


class SharedGateway:
    """Finds or starts the gateway.

    Args:
        placement: Where processes come from.
        config: As at present.
        daemon: Id of this daemon.
        python: Chooses the interpreter that runs it.
        on_gone: Told, why, when it ended: its kernels are gone.
    """

    def __init__(
        self,
        placement: Placement,
        config: KernelsConfig,
        daemon: str,
        python: Callable[[Launch], str],
        on_gone: Callable[[str], None],
    ) -> None:
        self.config = config
        self._placement = placement
        self._daemon = daemon
        self._python = python
        self._on_gone = on_gone
        self._one_at_a_time = asyncio.Lock()
        self._running: Running | None = None
        self._user: int | None = None

    @property
    def files(self) -> GatewayFiles:
        """Where it is written down."""
        return GatewayFiles(self.config.gateway.dir)

    @property
    def running(self) -> Running | None:
        """The gateway that is in use now, as far as is known."""
        return self._running if self._running is not None and not self._running.is_gone else None

    async def _in_use(self) -> Running | None:
        """Return the gateway that is in use; one that has ended is let go."""
        if self._running is not None and self._running.is_gone:
            await self._let_go(self._running)
        return self._running

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
                await self._register()
                found = await self._find() or await self._start(launch)
            self._running = found
            return found

    async def find(self) -> Running | None:
        """Return the gateway if one runs; starts none."""
        async with self._one_at_a_time:
            if await self._in_use() is None and await asyncio.to_thread(self.files.metadata.exists):
                async with self._locked():
                    await self._register()
                    self._running = await self._find()
            return self.running

    async def is_healthy(self, running: Running) -> bool:
        """Say whether it answers; it is asked several times before it is given up."""
        for _ in range(HEALTH_TRIES):
            if running.is_gone:
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
                await self._let_go(running)

    async def close(self, *, stop: bool) -> None:
        """Let go of it; with `stop`, end it if it is ours."""
        running = self._running
        if running is not None:
            if stop and running.is_ours and not running.is_gone:
                async with self._locked():
                    await self._stop(running)
            await self._let_go(running)
        if self._user is not None:
            os.close(self._user)
            self._user = None

    # -- under the lock ----------------------------------------------------------------------------------------------

    def _locked(self) -> contextlib.AbstractAsyncContextManager[None]:
        gateway = self.config.gateway
        return gateway_lock(gateway.dir / LOCK, gateway.lock_seconds)

    async def _register(self) -> None:
        if self._user is None:
            self._user = await asyncio.to_thread(self.files.register, self._daemon)

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
        if identity.liveness(record.identity) is Liveness.DEAD:
            return None
        token = await asyncio.to_thread(self.files.read_token, record)
        # The token goes to nobody but the recorded process.
        if token is None or not await asyncio.to_thread(listens, record.pid, record.port):
            return None
        running = self._take(record, token)
        if await self.is_healthy(running):
            return running
        await self._let_go(running)
        return None

    async def _start(self, launch: Launch) -> Running:
        start = GatewayStart(self._placement, self.config, self.files)
        record, token = await start.run(launch, self._python(launch))
        return self._take(record, token)

    async def _discard(self, record: GatewayRecord) -> None:
        """Clean up after a gateway; the process is stopped where it is ours."""
        if record.daemon == self._daemon:
            await self._placement.stop(record.instance, grace_seconds=self.config.stop_seconds, reason="stopped")
            await self._placement.release(record.instance)
        await asyncio.to_thread(self.files.remove, record.instance)

    async def _stop_strays(self, but: str) -> None:
        """Stop gateways of ours that nobody wrote down: a control plane ended while it started one."""
        for child in await self._placement.list(UNIT):
            if child.unit == UNIT and child.key != but:
                await self._placement.stop(child.key, grace_seconds=self.config.stop_seconds, reason="stopped")
                await self._placement.release(child.key)

    async def _stop(self, running: Running) -> None:
        others = await asyncio.to_thread(self.files.others, self._daemon)
        if others:
            _log.info("gateway_ends_under_others", url=running.record.url, users=list(others))
        running.unwatch()
        running.is_gone = True
        await self._discard(running.record)

    # -- while it runs -----------------------------------------------------------------------------------------------

    def _take(self, record: GatewayRecord, token: str) -> Running:
        client = GatewayClient(record.url, token, self.config.gateway.token_setting, is_ours=True)
        running = Running(record, client, record.daemon == self._daemon, lambda: None)
        if running.is_ours:
            task = asyncio.create_task(self._watch_child(running), name="watch of the shared gateway")
            running.unwatch = ending(task)
        else:
            running.unwatch = watch_end(record.identity, lambda: self._ended(running, "its process ended"))
        return running

    async def _watch_child(self, running: Running) -> None:
        try:
            ended = await self._placement.wait(running.record.instance)
        except PxError as error:
            self._ended(running, error.detail)
            return
        self._ended(running, _how(ended))
        _log.warning("gateway_ended", url=running.record.url, tail=await last_words(self._placement, ended))
        with contextlib.suppress(PxError, OSError):
            await asyncio.to_thread(self.files.remove, running.record.instance)
            await self._placement.stop(running.record.instance, grace_seconds=0, reason="exit")
            await self._placement.release(running.record.instance)

    def _ended(self, running: Running, how: str) -> None:
        running.is_gone = True
        if self._running is running:
            self._on_gone(f"the shared gateway is gone: {how}")

    async def _let_go(self, running: Running) -> None:
        running.unwatch()
        await running.client.close()
        if self._running is running:
            self._running = None


def _how(ended: ExitRecord) -> str:
    return f"it was killed by signal {ended.signal}" if ended.signal else f"it exited with code {ended.code}"

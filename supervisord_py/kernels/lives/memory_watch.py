"""How large kernels are: measured at the end of each cell, and once a second while cells run.

Law: the hard limit is the keeper's, which sleeps for nobody; here is the soft one, and what is shown. A kernel in the
gateway on this machine is no child of the keeper's: of those both limits are kept here, the hard one while a cell runs.
What runs at somebody else's server cannot be measured, and the first answer of such a kernel says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from supervisord_py.errors import KeeperLostError
from supervisord_py.kernels.backend import NearProcess
from supervisord_py.kernels.lives import tree_memory
from supervisord_py.process import identity
from supervisord_py.process.spec import Liveness, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.lives.kernel_life import KernelLife
    from supervisord_py.process.placement import Placement
    from supervisord_py.process.spec import Identity

PERIOD_SECONDS = 1.0
_GROWN = 0.25
"""Of its limit: one that grows by so much more after SIGTERM is killed at once."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Told:
    """A kernel that was sent SIGTERM: when, by the loop's clock, and for how many bytes."""

    at: float
    rss_bytes: int


class MemoryWatch:
    """Measures kernels; `lives` are those that are there."""

    def __init__(
        self, placement: Placement, lives: Callable[[], Collection[KernelLife]], config: Callable[[], KernelsConfig]
    ) -> None:
        self._placement = placement
        self._lives = lives
        self._config = config
        self._told: dict[str, _Told] = {}

    async def measure(self, *lives: KernelLife) -> int | None:
        """Measure kernels; return the largest, in bytes, None where nothing of them is ours to measure."""
        keys = {it.key: it for it in lives if it.is_ours} | {shell: it for it in lives for shell in it.shells}
        near = [(it, who) for it in lives if (who := _process_of(it)) is not None]
        found = await self._by_the_keeper(keys) if keys else []
        for life, who in near:
            if (rss := await asyncio.to_thread(tree_memory.resident, who)) is not None:
                life.rss_bytes = rss
                found.append(rss)
        return max(found, default=None)

    async def _by_the_keeper(self, keys: dict[str, KernelLife]) -> list[int]:
        try:
            stats = await self._placement.stat(tuple(keys))
        except KeeperLostError:
            return []
        for key, stat in stats.items():
            keys[key].rss_bytes = stat.rss_bytes
        return [stat.rss_bytes for stat in stats.values()]

    def is_over(self, rss_bytes: int | None) -> bool:
        """Say whether that is more than the soft limit."""
        limit = self._config().limits.soft_memory_bytes
        return limit is not None and rss_bytes is not None and rss_bytes > limit

    async def keep_watch(self, also: Callable[[], None]) -> None:
        """Measure what runs, once a second, and look at what else is to be seen; nearly free while nothing runs."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            also()
            busy = [it for it in self._lives() if it.busy]
            if busy:
                await self.measure(*busy)
            self.end_those_over([it for it in busy if it.busy])

    def end_those_over(self, lives: Collection[KernelLife]) -> None:
        """Take a step to end kernels over the hard limit that no keeper watches: SIGTERM, later SIGKILL."""
        limit = self._config().limits.hard_memory_bytes
        for life in lives:
            who = _process_of(life)
            if limit is None or who is None or life.rss_bytes is None:
                continue
            if life.rss_bytes > limit or life.key in self._told:  # who was told to end is not let off again
                self._end(life, who, life.rss_bytes, limit)
        self._told = {key: told for key, told in self._told.items() if key in {it.key for it in lives}}

    def _end(self, life: KernelLife, who: Identity, rss_bytes: int, limit: int) -> None:
        now, told = asyncio.get_running_loop().time(), self._told.get(life.key)
        if told is None:
            self._told[life.key] = _Told(now, rss_bytes)
            life.wanted = life.wanted or Reason.MEMORY_LIMIT
            _log.warning("kernel_over_memory", unit=life.unit, pid=who.pid, rss_bytes=rss_bytes, limit_bytes=limit)
            _send(who, signal.SIGTERM)
        elif now - told.at >= self._config().limits.memory_grace_seconds or rss_bytes > told.rss_bytes + limit * _GROWN:
            _send(who, signal.SIGKILL)


def _process_of(life: KernelLife) -> Identity | None:
    """Return the process of a kernel that is on this machine, and no child of the keeper's."""
    handle: object = life.handle
    return handle.process if isinstance(handle, NearProcess) else None


def _send(who: Identity, signum: int) -> None:
    if identity.liveness(who) is Liveness.ALIVE:
        with contextlib.suppress(ProcessLookupError):
            os.kill(who.pid, signum)

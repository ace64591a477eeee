"""How large kernels are: measured at the end of each cell, and once a second while cells run.

The hard limit is the keeper's, which sleeps for nobody; here is the soft one, and what is shown. What is no child of
the keeper's (a kernel below a gateway) is not measured, and no limit of memory holds for it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from supervisord_py.errors import KeeperLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from supervisord_py.kernels.config import KernelsConfig
    from supervisord_py.kernels.kernel_driver import KernelInstance
    from supervisord_py.process.keeper_client import KeeperClient

PERIOD_SECONDS = 1.0


class MemoryWatch:
    """Measures kernels; `lives` are those that are there."""

    def __init__(
        self,
        placement: KeeperClient,
        lives: Callable[[], Collection[KernelInstance]],
        config: Callable[[], KernelsConfig],
    ) -> None:
        self._placement = placement
        self._lives = lives
        self._config = config

    async def is_over(self, life: KernelInstance) -> bool:
        """Measure a kernel after a cell; say whether it is over the soft limit.

        Forked workers share pages with the kernel: before any verdict these are counted once, which takes longer.
        """
        limit = self._config().limits.soft_memory_bytes
        largest = await self.measure(life)
        if limit is None or largest is None or largest <= limit:
            return False
        largest = await self.measure(life, shared_once=True)
        return largest is not None and largest > limit

    async def measure(self, *lives: KernelInstance, shared_once: bool = False) -> int | None:
        """Measure kernels; return the largest, in bytes, None where nothing of them is ours to measure."""
        keys = {it.key: it for it in lives if it.is_ours} | {shell: it for it in lives for shell in it.shells}
        if not keys:
            return None
        try:
            stats = await self._placement.stat(tuple(keys), shared_once=shared_once)
        except KeeperLostError:
            return None
        for key, stat in stats.items():
            keys[key].rss_bytes = stat.rss_bytes
        return max((stat.rss_bytes for stat in stats.values()), default=None)

    async def keep_watch(self, also: Callable[[], None]) -> None:
        """Measure what runs, once a second, and look at what else is to be seen; nearly free while nothing runs."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            also()
            if busy := [it for it in self._lives() if it.busy]:
                await self.measure(*busy)

"""What has to be looked at while tools are warm: do they still exist, and how large are they together?"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from supervisord_py.errors import ConfigError, KeeperLostError, UnknownUnitError
from supervisord_py.tools.serving import warm_events as ev
from supervisord_py.tools.serving.instance import rules_of

if TYPE_CHECKING:
    from supervisord_py.process.placement import Placement
    from supervisord_py.tools.serving.launcher import Launcher

PERIOD_SECONDS = 2.0


class Upkeep:
    """The slow loop beside the launcher. It does nothing while nothing is warm."""

    def __init__(self, placement: Placement, kept: Launcher) -> None:
        self._placement = placement
        self._kept = kept

    async def keep_up(self) -> None:
        """Look around every two seconds, for as long as the keeper is there."""
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            if self._kept.instances():
                await self.look()

    async def look(self) -> None:
        """Compare what is warm with the catalog, and measure it where a memory budget is set."""
        await self.compare()
        if self._kept.warm_set.bounds.memory_budget_bytes is not None:
            await self.measure()

    async def compare(self) -> None:
        """Tell the warm set which declarations changed or vanished; drop the sockets of vanished tools."""
        kept = self._kept
        for slot in kept.warm_set.slots():
            try:
                rules = rules_of(kept.catalog.get(slot.tool))
            except ConfigError:
                continue  # a file that is being edited takes nothing down
            except UnknownUnitError:
                kept.report(ev.Forgotten(slot.tool))
                continue
            if rules != slot.rules or not slot.is_known:  # each report looks at every slot: tell only what is new
                kept.report(ev.Declared(slot.tool, rules))
        for tool in kept.listeners.tools():
            if kept.warm_set.slot(tool) is None and not self._is_known(tool):
                await kept.listeners.drop(tool)

    def _is_known(self, tool: str) -> bool:
        try:
            self._kept.catalog.entry(tool)
        except UnknownUnitError:
            return False
        return True

    async def measure(self) -> None:
        """Tell the warm set how large the trees are."""
        keys = {instance.key: instance.spec.name for instance in self._kept.instances()}
        try:
            stats = await self._placement.stat(tuple(keys))
        except KeeperLostError:
            return
        self._kept.report(ev.Measured(tuple((keys[key], stat.rss_bytes) for key, stat in stats.items())))

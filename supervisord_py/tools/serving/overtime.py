"""The wall clock of one run: what is over it is cancelled where the tool offers that, and its tree is stopped.

Law: the verdict is written on the run before anything is signalled. Runs beside it on the same instance are collateral,
and are told so.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from supervisord_py.process.spec import Reason
from supervisord_py.tools.serving import failure
from supervisord_py.tools.serving import warm_events as ev

if TYPE_CHECKING:
    from supervisord_py.tools.serving.launcher import Launcher
    from supervisord_py.tools.serving.visit import Visit

CANCEL_SECONDS = 1.0


class Overtime:
    """The timer of one visit."""

    def __init__(self, launcher: Launcher, visit: Visit) -> None:
        self._launcher = launcher
        self._visit = visit
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, limit_seconds: float) -> None:
        """Start to count; 0 is no limit."""
        if limit_seconds > 0:
            self._timer = asyncio.get_running_loop().call_later(limit_seconds, self._strike)

    def end(self) -> None:
        """Stop counting: the run is over."""
        if self._timer is not None:
            self._timer.cancel()

    def _strike(self) -> None:
        self._launcher.run_task(self._enforce())

    async def _enforce(self) -> None:
        visit, instance, launcher = self._visit, self._visit.instance, self._launcher
        if visit.is_over.is_set() or visit.error is not None:
            return
        tail = await launcher.tails.of(instance)
        ended = failure.Ended(Reason.RUNTIME_LIMIT, None, tail)
        visit.doom(failure.limit_exceeded(instance.spec, ended))
        instance.wanted = instance.wanted or Reason.RUNTIME_LIMIT
        launcher.chronicle.say("runtime_limit", instance, Reason.RUNTIME_LIMIT, run=visit.run_id)
        launcher.report(ev.Doomed(instance.spec.name, instance.serial))
        if instance.upstream is not None and await instance.upstream.cancel(visit.run_id):
            await self._wait_for_end(visit)
        for other in tuple(instance.visits):
            if other is not visit:
                other.interrupt(failure.collateral(instance.spec, Reason.RUNTIME_LIMIT.value))
        visit.cut()
        launcher.report(ev.Died(instance.spec.name, instance.serial))

    @staticmethod
    async def _wait_for_end(visit: Visit) -> None:
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await visit.is_over.wait()
        except TimeoutError:
            pass  # it was asked, and did not end: its tree is stopped

"""One run's stay on an instance: it can be cut short from outside, with the error that its caller is to see.

Law: whoever ends a run says why before the connection breaks. A visit that breaks by itself waits a moment for its
instance's exit record, because a dying process closes its sockets before its parent hears of it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from supervisord_py.process.identity import liveness
from supervisord_py.process.spec import Liveness, Reason
from supervisord_py.tools.serving import failure
from supervisord_py.tools.serving import warm_events as ev

if TYPE_CHECKING:
    from types import TracebackType

    from supervisord_py.errors import PxError
    from supervisord_py.tools.serving.instance import Instance
    from supervisord_py.tools.serving.launcher import Launcher


EXIT_RECORD_SECONDS = 1.0
LATE_RECORD_SECONDS = 10.0
"""The same once the leader is seen dead: its record is sure to come, the keeper only has not got to it yet."""


class Visit:
    """Async context: `interrupt` from outside raises its error inside, at the next await."""

    def __init__(self, instance: Instance, run_id: str) -> None:
        self.instance = instance
        self.run_id = run_id
        self.error: PxError | None = None
        self.is_over = asyncio.Event()
        self._is_cut = False
        self._scope = asyncio.timeout(None)

    def interrupt(self, error: PxError) -> None:
        """End the visit with this error; the first one stands."""
        if self.error is None and not self.is_over.is_set():
            self.error = error
            self.cut()

    def doom(self, error: PxError) -> None:
        """Let the visit go on, to be ended in order, but whatever it brings now counts for nothing."""
        self.error = self.error or error

    def cut(self) -> None:
        """Break the visit off now, with the error that it was doomed to."""
        if not self._is_cut and not self.is_over.is_set():
            self._is_cut = True
            self._scope.reschedule(asyncio.get_running_loop().time())

    def check(self) -> None:
        """Raise the error that the visit is to end with, if there is one.

        Raises:
            PxError: it was interrupted or doomed.
        """
        if self.error is not None:
            raise self.error

    async def wait_for_end(self) -> None:
        """Wait for the end of the instance, as long as there may be one: what broke may be no more than an answer."""
        over, child = self.instance.over, self.instance.child
        for seconds in (EXIT_RECORD_SECONDS, LATE_RECORD_SECONDS):
            try:
                async with asyncio.timeout(seconds):
                    await over.wait()
            except TimeoutError:
                pass
            if over.is_set() or child is None or liveness(child.identity) is not Liveness.DEAD:
                return

    async def __aenter__(self) -> Self:
        await self._scope.__aenter__()
        self.instance.visits.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.instance.visits.discard(self)
        self.is_over.set()
        try:
            await self._scope.__aexit__(kind, error, traceback)
        except TimeoutError:
            if self.error is None:
                raise
            raise self.error from None


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

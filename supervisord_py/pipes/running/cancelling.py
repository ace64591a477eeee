"""Ending executions because somebody wants it, in whatever state they are.

Law: what waits never starts, what runs is stopped with everything it started; whoever asked hears of it when the row
is final and nothing of it is left, or what is left is named.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from supervisord_py.pipes.execution import ErrorType, Outcome, Status
from supervisord_py.pipes.judging.values import Cause

if TYPE_CHECKING:
    from supervisord_py.pipes.execution import Execution
    from supervisord_py.pipes.running.admission import Admission
    from supervisord_py.pipes.running.conclusion import Conclusion
    from supervisord_py.pipes.running.live_run import LiveRun
    from supervisord_py.pipes.running.running_house import RunningHouse


class Cancelling:
    """Ends executions."""

    def __init__(self, house: RunningHouse, admission: Admission, conclusion: Conclusion) -> None:
        self._house = house
        self._admission = admission
        self._conclusion = conclusion

    async def cancel(self, live: LiveRun, why: str) -> Execution:
        """End one; return it as it became."""
        if live.end(Cause.CANCELLED, why) and self._admission.leave_line(live):
            outcome = Outcome(Status.CANCELLED, ErrorType.CANCELLED, why)
            # Whoever asked may go away in the middle; the row becomes final all the same.
            await asyncio.shield(self._house.run_task(self._conclusion.conclude(live, outcome)))
        await _first((live.done, live.left))
        return live.execution

    async def cancel_pipe(self, pipe: str, why: str) -> tuple[Execution, ...]:
        """End all of a pipe's: first those that wait, so that none of them starts in between."""
        found = self._house.roster.of_pipe(pipe)
        order = sorted(found, key=lambda live: live.execution.status is Status.RUNNING)
        return tuple(await asyncio.gather(*(self.cancel(live, why) for live in order)))

    async def shut_down(self) -> None:
        """End everything that runs, all at once; what waits goes on waiting, for the next start."""
        at_work = [live for live in self._house.roster.all() if self._admission.queue.position(live.id) is None]
        for live in at_work:
            live.end(Cause.SHUTDOWN)
        await asyncio.gather(*(_first((live.done, live.left)) for live in at_work))


async def _first(events: tuple[asyncio.Event, ...]) -> None:
    """Wait for the first of several events."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

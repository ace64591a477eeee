"""Runs that people ask for: now, beside what is scheduled, one of a pipe at a time.

Law: who asks twice is told of the first instead of starting a second; who wants to wait in line says so.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING

from supervisord_py.errors import ConflictError, InvalidInputError, OverloadedError
from supervisord_py.ledger import pipe_history
from supervisord_py.pipes.execution import ErrorType, Group, Outcome, Status, Trigger
from supervisord_py.pipes.outcome import Cause
from supervisord_py.pipes.running.freezing import Order

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.pipes.execution import Execution
    from supervisord_py.pipes.models import PipeDefinition
    from supervisord_py.pipes.room_requests import RunRequest
    from supervisord_py.pipes.running.admission import Admission
    from supervisord_py.pipes.running.conclusion import Conclusion
    from supervisord_py.pipes.running.intake import Intake
    from supervisord_py.pipes.running.live_run import LiveRun
    from supervisord_py.pipes.running.running_house import RunningHouse


WAITING_MAX = 10_000
"""Executions of one pipe in line: somebody asks in a loop."""


class ByHand:
    """Queues what people ask for.

    Args:
        house: Whose pipes.
        admission: The lines.
        intake: Takes executions in.
        interval: Seconds between two runs of a pipe, where there is such a thing.
    """

    def __init__(
        self,
        house: RunningHouse,
        admission: Admission,
        intake: Intake,
        interval: Callable[[PipeDefinition], float | None],
    ) -> None:
        self._house = house
        self._admission = admission
        self._intake = intake
        self._interval = interval
        self._one_at_a_time: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Of two that ask at the same moment, the second is to see the first."""

    async def run(self, definition: PipeDefinition, request: RunRequest) -> Execution:
        """Queue a run.

        Raises:
            ConflictError: The pipe runs, or waits for a run by hand, already (unless `request.queue`).
        """
        if request.timeout_seconds is not None and not request.timeout_seconds > 0:
            raise _bad_timeout(request.timeout_seconds, definition.name)
        order = Order(Trigger.MANUAL, Group.MANUAL, context=request.context, timeout_seconds=request.timeout_seconds)
        self._refuse_beyond(definition.name)
        if request.queue:
            return await self._take(definition, order)
        async with self._one_at_a_time[definition.name]:
            self._refuse_beside(definition.name)
            return await self._take(definition, order)

    async def rendered(self, definition: PipeDefinition) -> str:
        """Return the prompt that a run would have now; nothing is queued."""
        chosen = await self._intake.choose(definition, Order(Trigger.MANUAL, Group.MANUAL))
        newest = await pipe_history.page(self._house.ledger, pipe_history.Filter(limit=1))
        number = newest.rows[0].id + 1 if newest.rows else 1
        draft = self._intake.example(definition, chosen, number=number, interval=self._interval(definition))
        return draft.rendered_prompt or ""

    async def retry(self, definition: PipeDefinition, before: Execution) -> Execution:
        """Queue an execution again, as a new row that names it, with what its pipe says now.

        Raises:
            ConflictError: It is not over, or the pipe runs already.
        """
        if not before.status.is_final:
            raise ConflictError(
                f"execution {before.id} is {before.status}; only one that is over can be retried",
                hint=f"`pxctl pipe cancel {before.id}` ends it",
                unit=before.unit,
                execution=before.id,
            )
        order = Order(
            Trigger.RETRY,
            before.group,
            context=before.plan.context,
            event=before.trigger_event,
            key=before.trigger_key,
            retry_of=before.id,
            retry_count=before.retry_count + 1,
        )
        async with self._one_at_a_time[definition.name]:
            self._refuse_beside(definition.name)
            return await self._take(definition, order)

    def _refuse_beyond(self, name: str) -> None:
        roster = self._house.roster
        if roster.count(name) >= WAITING_MAX and len(roster.queued(name)) >= WAITING_MAX:
            raise OverloadedError(
                f"{WAITING_MAX} executions of pipe {name} wait already",
                hint=f"`pxctl pipe queue` shows them; `pxctl pipe cancel {name}` ends them all",
                unit=f"pipe:{name}",
                retry_after_seconds=60,
            )

    def _refuse_beside(self, name: str) -> None:
        """Refuse a run beside one that is at work, or that somebody asked for by hand."""
        for live in self._house.roster.of_pipe(name):
            waits = self._admission.queue.position(live.id) is not None
            if waits and live.execution.trigger is not Trigger.MANUAL:
                continue
            word = "is in line already" if waits else "runs already"
            raise ConflictError(
                f"pipe {name} {word}: execution {live.id}",
                hint=f"follow it: `pxctl pipe tail {live.id}`; or wait in line with --queue",
                unit=f"pipe:{name}",
                execution=live.id,
                pid=live.execution.pid,
            )

    async def _take(self, definition: PipeDefinition, order: Order) -> Execution:
        live = await self._intake.take(definition, order, interval=self._interval(definition))
        assert live is not None
        return self._admission.view(live.execution)


def _bad_timeout(seconds: float, name: str) -> InvalidInputError:
    message = f"a timeout of {seconds:g} s is no time"
    return InvalidInputError(
        message,
        hint="give seconds greater than 0",
        unit=f"pipe:{name}",
        errors=[{"pointer": "/timeout", "message": message}],
    )


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

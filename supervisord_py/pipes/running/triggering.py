"""What starts pipes beside people: due times and events.

Law: a due time and an occurrence of an event start a pipe once, whatever crashes in between: the watermark and the
claim are written in the transaction of the row. A pipe that is at work is not started a second time by its schedule;
events wait in line behind it, a bounded number.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.errors import PxError
from supervisord_py.ledger import pipe_claims
from supervisord_py.ledger.pipe_claims import Claim
from supervisord_py.ledger.pipe_state import StateChange
from supervisord_py.pipes import events
from supervisord_py.pipes.definition import FILE_CHANGED
from supervisord_py.pipes.events import PipeEvent
from supervisord_py.pipes.execution import ErrorType, Group, Status, Trigger
from supervisord_py.pipes.room_requests import PublishedEvent
from supervisord_py.pipes.running.freezing import Order
from supervisord_py.pipes.schedule import At
from supervisord_py.pipes.views import Claimed, EventClaims, Suppressed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from supervisord_py.pipes.due import Due
    from supervisord_py.pipes.execution import Execution, Outcome
    from supervisord_py.pipes.models import PipeDefinition
    from supervisord_py.pipes.running.intake import Intake
    from supervisord_py.pipes.running.live_run import LiveRun
    from supervisord_py.pipes.running.running_house import RunningHouse

_log = structlog.get_logger(__name__)


class Triggering:
    """Starts pipes for the scheduler and for events.

    Args:
        house: Whose pipes.
        intake: Takes executions in.
        pipes: All that can be used at present.
        interval: Seconds between two runs of a pipe, where there is such a thing.
    """

    def __init__(
        self,
        house: RunningHouse,
        intake: Intake,
        pipes: Callable[[], Iterable[PipeDefinition]],
        interval: Callable[[PipeDefinition], float | None],
    ) -> None:
        self._house = house
        self._intake = intake
        self._pipes = pipes
        self._interval = interval

    # -- due times ---------------------------------------------------------------------------------------------------

    async def due(self, pipe: str, due: Due) -> str | None:
        """Queue a pipe that is due; return why it is skipped, None when it is not."""
        house, definition = self._house, self._house.definition(pipe)
        if definition is None or house.is_ending:
            return "it is not there any more" if definition is None else "the daemon is stopping"
        row = house.states.get(pipe)
        at_work = house.roster.of_pipe(pipe)
        if any(live.is_leaving_line for live in at_work):  # whoever ends it says whether its time counts as served
            return "the execution that waited is just being cancelled"
        if at_work:
            house.states.change(pipe, last_due=due.at)
            word = "running" if at_work[0].execution.status is Status.RUNNING else "waiting"
            return f"still {word}: execution {at_work[0].id}; skipped"
        change = StateChange(pipe_name=pipe, last_due=due.at, occurrences=row.occurrences + 1)
        if isinstance(definition.schedule, At):
            change = StateChange(
                pipe_name=pipe,
                last_due=due.at,
                occurrences=row.occurrences + 1,
                enabled=False,
                enabled_file=definition.enabled,
            )
        order = Order(Trigger.SCHEDULED, Group.SCHEDULED)
        await self._intake.take(definition, order, change=change, interval=self._interval(definition))
        return None

    # -- events ------------------------------------------------------------------------------------------------------

    async def publish_for_others(self, published: PublishedEvent) -> EventClaims:
        """Publish what somebody outside tells of.

        Raises:
            BadRequestError: Its name is one of the daemon's own events, or none that a pipe can wait for.
        """
        events.check_published(published.name)
        return await self.publish(published)

    async def publish(
        self, published: PublishedEvent, cause: int | None = None, source: Execution | None = None
    ) -> EventClaims:
        """Start every enabled pipe that waits for an event, once each; `source` is the execution that caused it."""
        key = published.key or uuid.uuid4().hex
        if source is None and published.source is not None:
            running = self._house.roster.running(published.source)
            source = None if running is None else running.execution
        before = (source.plan.context or {}).get("chain", ()) if source is not None and source.trigger_event else ()
        chain = (*before, published.source) if published.source is not None else ()
        event = PipeEvent(published.name, published.subject, key, chain)
        claimed: list[Claimed] = []
        suppressed: list[Suppressed] = []
        for definition in tuple(self._pipes()):
            if not any(events.matches(each, event, str(definition.folder)) for each in definition.events):
                continue
            why = self._refusal(definition, event) or self._looping(definition.name, event, cause)
            if why is None:
                try:
                    live = await self._start(definition, event, published.facts, cause)
                except PxError as error:
                    live, why = None, error.detail
                else:
                    why = "it has taken this event before"
                if live is not None:
                    claimed.append(Claimed(definition.name, live.id))
                    continue
            suppressed.append(Suppressed(definition.name, why))
            _log.info("pipe_event_suppressed", pipe=definition.name, event_name=event.text, why=why)
        return EventClaims(tuple(claimed), tuple(suppressed))

    def _looping(self, pipe: str, event: PipeEvent, cause: int | None) -> str | None:
        """Return why an event would go round in a loop; it is told, too, for whoever made the ring has to learn of it.

        That a pipe does not start itself is nothing to tell: it is so after each run of one that waits for all ends.
        """
        house = self._house
        why = events.loop(pipe, event)
        if why is not None and event.chain[-1] != pipe:
            house.chronicle.say_of_pipe("pipe_event_suppressed", pipe, cause=cause, event_name=event.text, why=why)
            house.states.change(pipe, last_decision=f"not started: {why}", last_decision_at=house.clocks.moment())
        return why

    def _refusal(self, definition: PipeDefinition, event: PipeEvent) -> str | None:
        house, name = self._house, definition.name
        for is_so, why in (
            (house.is_ending, "the daemon is stopping"),
            (not house.config.enabled, "pipes do not start by themselves here (pipes.enabled)"),
            (not house.states.is_enabled(definition), "it is disabled"),
        ):
            if is_so:
                return why
        waiting = house.roster.queued(name)
        if len(waiting) >= house.config.scheduler.deferred_events:
            return f"{len(waiting)} of its executions wait already"
        if event.name == FILE_CHANGED and any(it.execution.trigger_event == event.text for it in waiting):
            return f"execution {waiting[0].id} waits already, and will see the change"
        return None

    async def _start(
        self, definition: PipeDefinition, event: PipeEvent, facts: Mapping[str, Any] | None, cause: int | None
    ) -> LiveRun | None:
        house = self._house
        claim = Claim(definition.name, event.text, event.key, house.clocks.moment())
        data = None if facts is None else dict(facts)
        context: dict[str, Any] = {"event": event.text, "key": event.key, "data": data}
        if event.chain:
            context["chain"] = event.chain
        order = Order(Trigger.EVENT, Group.EVENT, context=context, event=event.text, key=event.key, cause=cause)
        live = await self._intake.take(definition, order, claim=claim, interval=self._interval(definition))
        if live is not None:
            words = f"started by the event {event.text}: execution {live.id}"
            house.states.change(definition.name, last_decision=words, last_decision_at=house.clocks.moment())
        return live

    # -- ends --------------------------------------------------------------------------------------------------------

    async def ended(self, live: LiveRun, outcome: Outcome, goes_on: bool) -> None:
        """Tell other pipes of an end, and give back what it had claimed where it failed for good."""
        if not goes_on and outcome.status is not Status.CANCELLED and outcome.error_type is not ErrorType.SHUTDOWN:
            await self.publish(_event_of(live, outcome), live.event, live.execution)
        it = live.execution
        if not goes_on and outcome.status is not Status.COMPLETED and it.trigger_event and it.trigger_key:
            # Let the event start the pipe again, should it be told once more.
            await pipe_claims.release(self._house.ledger, it.pipe_name, it.trigger_event, it.trigger_key)
        if it.trigger is Trigger.SCHEDULED and outcome.status is Status.CANCELLED and it.started_at is None:
            # Else it would read as if what was decided (its first run, say) had come to pass.
            words = f"execution {live.id} did not run: {outcome.error_message or 'cancelled'}"
            self._house.states.change(live.pipe, last_decision=words, last_decision_at=self._house.clocks.moment())


def _event_of(live: LiveRun, outcome: Outcome) -> PublishedEvent:
    it = live.execution
    name = "pipe_completed" if outcome.status is Status.COMPLETED else "pipe_failed"
    facts = {
        "execution": it.id,
        "status": outcome.status.value,
        "error_type": None if outcome.error_type is None else outcome.error_type.value,
        "error_message": outcome.error_message,
        "output_dir": it.output_dir,
    }
    return PublishedEvent(name, it.pipe_name, str(it.id), facts, it.pipe_name)

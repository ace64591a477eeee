"""What starts pipes by itself: due times and events.

Law: one due time and one event start a pipe once, whatever crashes in between: the watermark and the claim are written
in the transaction of the row. A pipe that is at work is not started a second time by its schedule; events wait in line
behind it, a bounded number.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.errors import PxError
from supervisord_py.ledger.pipe_executions import ErrorType, Group, Status, Trigger
from supervisord_py.ledger.pipe_state import Claim
from supervisord_py.pipes import events
from supervisord_py.pipes.definition import FILE_CHANGED
from supervisord_py.pipes.intake import choose
from supervisord_py.pipes.models import Order, PublishedEvent
from supervisord_py.pipes.schedule import At

if TYPE_CHECKING:
    from supervisord_py.ledger.pipe_executions import Execution
    from supervisord_py.pipes.due import Due
    from supervisord_py.pipes.executions import Executions
    from supervisord_py.pipes.models import PipeDefinition
    from supervisord_py.pipes.run import Run

WAITING_MAX = 64  # events that wait for a busy pipe; more are refused
_log = structlog.get_logger(__name__)


class Triggers:
    """Starts pipes for the scheduler and for events."""

    def __init__(self, room: Executions) -> None:
        self._room = room

    async def due(self, pipe: str, due: Due) -> str | None:
        """Queue a pipe that is due; return why it is skipped, None when it is not."""
        room, definition, order = self._room, self._room.definition_of(pipe), Order(Trigger.SCHEDULED, Group.SCHEDULED)
        if definition is None or room.is_ending:
            return "it is not there any more" if definition is None else "the daemon is stopping"
        chosen = await choose(room, definition, order)
        at_work = room.of_pipe(pipe)
        if any(run.is_leaving_line for run in at_work):  # whoever ends it says whether its time counts as served
            return "the execution that waited is just being cancelled"
        if at_work:
            room.states.change(pipe, last_due=due.at)
            word = "running" if at_work[0].execution.status is Status.RUNNING else "waiting"
            return f"still {word}: execution {at_work[0].id}; skipped"
        change: dict[str, Any] = {"last_due": due.at, "occurrences": room.states.get(pipe).occurrences + 1}
        if isinstance(definition.schedule, At):
            change |= {"enabled": False, "enabled_file": definition.enabled}
        await room.enqueue(definition, [order], chosen, **change)
        return None

    async def publish(
        self, published: PublishedEvent, cause: int | None = None, source: Execution | None = None
    ) -> dict[str, list[dict[str, Any]]]:
        """Start every enabled pipe that waits for an event, once each; `source` is the execution that caused it.

        Returns:
            `claimed`: the pipes that it starts, and their executions; `suppressed`: those that it does not, and why.
        """
        if source is None and published.source is not None:
            running = self._room.running(published.source)
            source = None if running is None else running.execution
        before = (source.plan.context or {}).get("chain", ()) if source is not None and source.trigger_event else ()
        chain = (*before, published.source) if published.source is not None else ()
        event = published._replace(key=published.key or uuid.uuid4().hex, chain=chain)
        found: dict[str, list[dict[str, Any]]] = {"claimed": [], "suppressed": []}
        for definition in self._room.listening:
            if not any(events.matches(each, event, str(definition.folder)) for each in definition.events):
                continue
            why = self._refusal(definition, event) or self._looping(definition.name, event, cause)
            if why is None:
                try:
                    run = await self._start(definition, event, cause)
                except PxError as error:
                    run, why = None, error.detail
                else:
                    why = "it has taken this event before"
                if run is not None:
                    found["claimed"].append({"pipe": definition.name, "execution": run.id})
                    continue
            found["suppressed"].append({"pipe": definition.name, "why": why})
            _log.info("pipe_event_suppressed", pipe=definition.name, event_name=event.text, why=why)
        return found

    def _looping(self, pipe: str, event: PublishedEvent, cause: int | None) -> str | None:
        """Return why an event would go round in a loop; it is told, too, for whoever made the ring has to learn of it.

        That a pipe does not start itself is nothing to tell: it is so after each run of one that waits for all ends.
        """
        why = events.loop(pipe, event)
        if why is not None and event.chain[-1] != pipe:
            self._room.say_of_pipe("pipe_event_suppressed", pipe, cause=cause, event_name=event.text, why=why)
            self._room.states.decided(pipe, f"not started: {why}")
        return why

    def _refusal(self, definition: PipeDefinition, event: PublishedEvent) -> str | None:
        room = self._room
        if room.is_ending:
            return "the daemon is stopping"
        if not room.config.enabled:
            return "pipes do not start by themselves here (pipes.enabled)"
        if not room.states.is_enabled(definition):
            return "it is disabled"
        waiting = room.queued(definition.name)
        if len(waiting) >= WAITING_MAX:
            return f"{len(waiting)} of its executions wait already"
        if event.name == FILE_CHANGED and any(it.execution.trigger_event == event.text for it in waiting):
            return f"execution {waiting[0].id} waits already, and will see the change"
        return None

    async def _start(self, definition: PipeDefinition, event: PublishedEvent, cause: int | None) -> Run | None:
        name, key = definition.name, event.key or ""
        data = None if event.facts is None else dict(event.facts)
        context: dict[str, Any] = {"event": event.text, "key": key, "data": data}
        if event.chain:
            context["chain"] = event.chain
        order = Order(Trigger.EVENT, Group.EVENT, context=context, event=event.text, key=key, cause=cause)
        chosen = await choose(self._room, definition, order)
        claim = Claim(name, event.text, key, self._room.clocks.moment())
        for run in await self._room.enqueue(definition, [order], chosen, claim):
            self._room.states.decided(name, f"started by the event {event.text}: execution {run.id}")
            return run
        return None

    async def announce(self, run: Run) -> None:
        """Tell other pipes of an end that nothing follows."""
        it = run.execution
        if run.goes_on or it.status is Status.CANCELLED or it.error_type is ErrorType.SHUTDOWN:
            return
        name = "pipe_completed" if it.status is Status.COMPLETED else "pipe_failed"
        facts = {
            "execution": it.id,
            "status": it.status.value,
            "error_type": None if it.error_type is None else it.error_type.value,
            "error_message": it.error_message,
            "output_dir": it.output_dir,
        }
        await self.publish(PublishedEvent(name, it.pipe_name, str(it.id), facts, it.pipe_name), run.event, it)

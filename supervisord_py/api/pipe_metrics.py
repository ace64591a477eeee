"""Pipes on the page of `GET /api/metrics`: what they are, what waits and runs, how executions ended."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from supervisord_py.api.pipe_units import PipeState
from supervisord_py.api.prometheus import Family, Sample, Type
from supervisord_py.pipes.execution import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisord_py.api.counts import PipeCounts
    from supervisord_py.ledger.events import Event
    from supervisord_py.pipes.room import Pipes
    from supervisord_py.pipes.views import PipesHealth

_STATES = ("running", "queued", "idle", "disabled", "failed")
_ENDS = tuple(status for status in Status if status not in {Status.QUEUED, Status.RUNNING})
_ENDINGS = {f"execution_{status.value}": status.value for status in _ENDS}


def count_execution(event: Event, counts: PipeCounts) -> None:
    """Count one event of a pipe."""
    facts = event.facts
    if event.event == "execution_queued":
        counts.queued[str(facts.get("trigger"))] += 1
    elif event.event == "execution_started":
        waited = facts.get("queue_wait_ms")
        if isinstance(waited, int | float):
            counts.waits.observe(waited / 1000)
    elif event.event in _ENDINGS:
        counts.endings[_ENDINGS[event.event], str(facts.get("error_type") or "")] += 1


def pipe_families(pipes: Pipes, counts: PipeCounts) -> Iterator[Family]:
    """Yield everything about pipes."""
    by_state = Counter(PipeState(view).state for view in pipes.snapshot())
    states = [Sample(by_state[word], {"state": word}) for word in _STATES]
    yield Family("pxd_pipes", Type.GAUGE, "Pipes by state; failed are those with a config_error.", states)
    yield from _of_the_lines(pipes)
    yield from _of_the_scheduler(pipes.health())
    queued = [Sample(count, {"trigger": word}) for word, count in sorted(counts.queued.items())]
    yield Family("pxd_pipe_executions_queued_total", Type.COUNTER, "Executions taken in, by trigger.", queued)
    counted = {**{(status.value, ""): 0 for status in _ENDS}, **counts.endings}
    ends = [
        Sample(count, {"status": status, "error_type": error}) for (status, error), count in sorted(counted.items())
    ]
    yield Family("pxd_pipe_executions_total", Type.COUNTER, "Executions that ended, by status and error type.", ends)
    waits = counts.waits.samples()
    yield Family("pxd_pipe_queue_wait_seconds", Type.HISTOGRAM, "From the trigger to the start.", waits)


def _of_the_lines(pipes: Pipes) -> Iterator[Family]:
    groups = pipes.queue().groups
    running = [Sample(len(one.running), {"group": one.group.value}) for one in groups]
    waiting = [Sample(len(one.waiting), {"group": one.group.value}) for one in groups]
    slots = [Sample(one.slots, {"group": one.group.value}) for one in groups]
    yield Family("pxd_pipe_running", Type.GAUGE, "Executions under way.", running)
    yield Family("pxd_pipe_queue_length", Type.GAUGE, "Executions waiting in line.", waiting)
    yield Family("pxd_pipe_slots", Type.GAUGE, "How many may run at a time.", slots)


def _of_the_scheduler(health: PipesHealth) -> Iterator[Family]:
    up = [Sample(float(health.scheduler_running))]
    yield Family("pxd_pipe_scheduler_up", Type.GAUGE, "1 while schedules start pipes.", up)
    restarts = [Sample(health.scheduler_restarts)]
    yield Family("pxd_pipe_scheduler_restarts_total", Type.COUNTER, "Times its loop had to be restarted.", restarts)

"""What the room shows of its pipes. Reads memory only: a list of a thousand pipes costs no disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisord_py.ledger import pipe_history
from supervisord_py.ledger.instants import to_text
from supervisord_py.ledger.pipe_executions import Group, Status, cut_timeout
from supervisord_py.pipes import due, events
from supervisord_py.pipes.due import Never, Progress, Wait, decide
from supervisord_py.pipes.grammar import parse_schedule
from supervisord_py.pipes.models import (
    BrokenPipe,
    Decision,
    GroupView,
    NextReport,
    PipeDefinition,
    PipeView,
    problem_text,
)
from supervisord_py.pipes.schedule import At, ScheduleError, describe, time_text, zone_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisord_py.config.documents import Problem
    from supervisord_py.ledger.pipe_state import PipeStateRow
    from supervisord_py.pipes.due import Decision as Due
    from supervisord_py.pipes.models import Declared
    from supervisord_py.pipes.room import Pipes
    from supervisord_py.pipes.run import Run

_RUNS = 20  # durations are averaged over about so many runs
QUIET_SECONDS = 60.0  # who said nothing for so long may be delayed, and whoever looks is told


class PipeStatus:
    """Says how pipes stand."""

    def __init__(self, room: Pipes) -> None:
        self._room = room
        self._last: dict[str, Status] = {}
        self._seconds: dict[str, float] = {}

    async def open(self) -> None:
        """Read how the pipes' last executions went."""
        for pipe, row in (await pipe_history.last_of_each(self._room.ledger)).items():
            self._last[pipe] = row.status
        self._seconds = await pipe_history.average_seconds(self._room.ledger, _RUNS)

    def ended(self, run: Run) -> None:
        """Take in how an execution ended."""
        it = run.execution
        self._last[run.name] = it.status
        if it.duration_ms is not None and it.status in {Status.COMPLETED, Status.TIMED_OUT}:
            before = self._seconds.get(run.name, it.duration_ms / 1000)
            self._seconds[run.name] = before + (it.duration_ms / 1000 - before) / _RUNS

    # -- pipes -------------------------------------------------------------------------------------------------------

    def all(self) -> tuple[PipeView, ...]:
        """Return every pipe, by name."""
        return tuple(self.view(declared) for declared in self._room.catalog.all().values())

    def broken(self) -> int:
        """Return how many pipes cannot run: their file is broken, or something that it names is not there."""
        declared = self._room.catalog.all().values()
        return sum(isinstance(each, BrokenPipe) or self._fault(each) is not None for each in declared)

    def view(self, declared: Declared) -> PipeView:
        name, row = declared.name, self._room.states.get(declared.name)
        running = self._room.running(name)
        if isinstance(declared, BrokenPipe):
            facts: dict[str, Any] = {"enabled": False, "schedule": None, "file": declared.problem.file}
            facts["config_error"] = problem_text(declared.problem)
        else:
            facts = self._of_definition(declared)
        return PipeView(
            name=name,
            last_run=row.last_run_at,
            last_success=row.last_success_at,
            last_status=running.execution.status if running else self._last.get(name),
            running=running.id if running else None,
            queued=len(self._room.queued(name)),
            consecutive_failures=row.consecutive_failures,
            last_decision=_last_decision(row),
            average_duration_seconds=self._seconds.get(name),
            pid=running.execution.pid if running else None,
            instance=running.execution.instance if running else None,
            started_at=running.execution.started_at if running else None,
            folder=str(declared.folder),
            **facts,
        )

    def _of_definition(self, definition: PipeDefinition) -> dict[str, Any]:
        config, enabled = self._room.config, self._room.states.is_enabled(definition)
        fault, missing = self._fault(definition), self._room.faults.missing_agent(definition)
        return {
            "enabled": enabled,
            "schedule": definition.schedule_text,
            "next_run": next(iter(self._upcoming(definition, 1)), None) if enabled and config.enabled else None,
            "warnings": (
                *([f"{missing.message}; {missing.hint}"] if missing else ()),
                *(words for _check, words in self.doubts(definition)),
                *self._silence(definition.name),
            ),
            "title": definition.title,
            "description": definition.description,
            "agent": definition.agent,
            "presets": definition.presets,
            "events": tuple(each.text for each in definition.events),
            "slower_than_schedule": self._slower(definition) is not None,
            "config_error": problem_text(fault) if fault is not None else None,
            "file": str(definition.file),
        }

    def _fault(self, definition: PipeDefinition) -> Problem | None:
        """Return why a pipe cannot run, or never will although its schedule was to start it."""
        found = self._room.faults.find(definition) or self.end_of_times(definition)
        return None if isinstance(found, str) else found

    def doubts(self, definition: PipeDefinition) -> Iterator[tuple[str, str]]:
        """Yield what is odd about a pipe's file, times and events: the name of the check, and a sentence."""
        wanted, most = definition.timeout_seconds, self._room.config.timeout_max_seconds
        yield from (("keys", words) for words in definition.warnings)
        if wanted is not None and wanted > most:
            yield "keys", cut_timeout(wanted, most)
        if isinstance(over := self.end_of_times(definition), str):
            yield "schedule", over
        if (late := self._slower(definition)) is not None:
            yield "schedule", late
        known, folder = self._room.catalog.all(), str(definition.folder)
        own = "pipe.md, output and .env of its own folder do not start a pipe"
        for each in definition.events:
            if (is_own := events.is_own(each, folder)) or events.misses(each, known):
                why = own if is_own else f"there is no pipe {each.subject!r} here"
                yield "schedule", f"trigger: {each.text} cannot come: {why}"

    def end_of_times(self, definition: PipeDefinition) -> Problem | str | None:
        """Return what it means that no time of a schedule is to come; None where one is, or where it has no times.

        It is a mistake in the file of a pipe that is enabled and was never due, and only odd with any other.
        """
        row, now, schedule = self._room.states.get(definition.name), self._room.timetable.now(), definition.schedule
        standing = self._standing(definition)
        if not isinstance(standing, Never) or not standing.over:
            return None
        if row.last_run_at is not None or row.occurrences:
            if row.last_run_at is None and self._room.of_pipe(definition.name):
                return None
            zone = zone_of(getattr(schedule, "timezone", None), now.zone)
            ran = "never ran" if row.last_run_at is None else f"last ran {time_text(row.last_run_at, zone, now.wall)}"
            return f"its schedule is over: {standing.why}; it {ran}, and will not run again by schedule"
        if not self._room.states.is_enabled(definition):
            return f"no run of it comes by itself: {standing.why}"
        return definition.problem("schedule", f"schedule: {standing.why}", "write a time that will come, or `manual`")

    def _slower(self, definition: PipeDefinition) -> str | None:
        """Return a warning when its runs take longer than its schedule leaves them."""
        return due.slower(definition.schedule, self._room.timetable.now(), self._seconds.get(definition.name))

    def _silence(self, name: str) -> tuple[str, ...]:
        """Say that the execution that runs has long said nothing."""
        running = self._room.running(name)
        seconds = 0.0 if running is None or not running.heard_at else self._room.clocks.boot() - running.heard_at
        if running is None or seconds < QUIET_SECONDS:
            return ()
        said = f"execution {running.id} (pid {running.execution.pid}) has said nothing for {seconds:.0f} s"
        return (f"{said} and may be delayed; `pxctl pipe cancel {name}` ends it",)

    def _standing(self, definition: PipeDefinition) -> Due:
        """Return what holds of a pipe: what the scheduler waits for, else what it would say now."""
        live, now = self._room.timetable.decision_on(definition), self._room.timetable.now()
        if isinstance(live, Wait):
            return live
        progress, limits = self._room.states.progress(definition.name), self._room.config.scheduler
        return decide(definition.schedule, progress, now, limits, run_on_enable=definition.run_on_enable)

    def _upcoming(self, definition: PipeDefinition, count: int) -> tuple[float, ...]:
        return due.upcoming(definition.schedule, self._room.timetable.now(), self._standing(definition), count)

    def interval(self, definition: PipeDefinition) -> float | None:
        """Return the seconds between two runs of a pipe, where there is such a thing."""
        return due.period(definition.schedule, self._room.timetable.now())

    def next(self, name: str, count: int) -> NextReport:
        """Return when a pipe is due, and why."""
        declared = self._room.definition(name)
        view = self.view(declared)
        if isinstance(declared, BrokenPipe):
            why = (f"it cannot run: {problem_text(declared.problem)}",)
            return NextReport(name, view.enabled, None, "broken", (), why, None, view.last_decision)
        is_on = view.enabled and self._room.config.enabled
        standing = self._standing(declared)
        sentences = due.explain(
            declared.schedule,
            self._room.timetable.now(),
            standing,
            count=count,
            average_seconds=self._seconds.get(name),
            is_on=is_on,
        )
        if declared.events:
            sentences = (*sentences, f"events: {', '.join(view.events)}")
        fault = self._room.faults.find(declared) or self._room.faults.missing_agent(declared)
        if fault is not None:
            sentences = (f"each run of it fails at once: {problem_text(fault)}", *sentences)
        if not self._room.config.enabled:
            sentences = ("no pipe runs by itself here (pipes.enabled = false)", *sentences)
        if not view.enabled:
            is_spent = isinstance(declared.schedule, At) and isinstance(standing, Never)
            cure = "write another time" if is_spent else f"`pxctl pipe enable {name}` lets it run by itself"
            sentences = (f"it is disabled; {cure}", *sentences)
        return NextReport(
            name=name,
            enabled=view.enabled,
            schedule=declared.schedule_text,
            summary=describe(declared.schedule, self._room.config.default_timezone),
            upcoming=self._upcoming(declared, count) if is_on else (),
            sentences=sentences,
            timezone=declared.timezone or self._room.config.default_timezone or self._room.shelf.zone,
            last_decision=view.last_decision,
            now=standing.why if is_on else None,
            events=view.events,
        )

    def preview(self, text: str, timezone: str | None, count: int) -> dict[str, Any]:
        """Return what a schedule means, and when it would be due: JSON values; a bad one says why."""
        limits, now = self._room.config.scheduler, self._room.timetable.now()
        zone = timezone or self._room.config.default_timezone
        try:
            parsed = parse_schedule(text, timezone=zone, floor_seconds=limits.shortest_seconds)
        except ScheduleError as error:
            nothing: dict[str, Any] = {"valid": False, "summary": None, "warnings": [], "next": []}
            return {**nothing, "error": error.detail, "hint": error.hint}
        progress = Progress(anchor_at=now.wall)
        standing = decide(parsed.schedule, progress, now, limits)
        is_over = isinstance(standing, Never) and standing.over
        return {
            "valid": not is_over,
            "summary": describe(parsed.schedule),
            "error": standing.why if is_over else None,
            "hint": "write a time that will come" if is_over else None,
            "warnings": list(parsed.warnings),
            "next": [to_text(at) for at in due.upcoming(parsed.schedule, now, standing, count)],
        }

    # -- lines -------------------------------------------------------------------------------------------------------

    def queue(self) -> tuple[GroupView, ...]:
        """Return all lines."""
        return tuple(self._group(group) for group in Group)

    def _group(self, group: Group) -> GroupView:
        line, runs = self._room.line, self._room.runs
        holders = [number for number, it in line.running.items() if it.group is group]
        found = [
            tuple(self._room.view(runs[number]) for number in numbers if number in runs)
            for numbers in (holders, [it.id for it in line.waiting(group)])
        ]
        return GroupView(group, getattr(self._room.config.slots, group.value), *found)


def _last_decision(row: PipeStateRow) -> Decision | None:
    """Return what was last done about a pipe; None before."""
    if row.last_decision is None or row.last_decision_at is None:
        return None
    return Decision(row.last_decision_at, row.last_decision)

"""What the room shows of its pipes. Reads memory only: a list of a thousand pipes costs no disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisord_py.ledger.pipe_executions import Group, cut_timeout
from supervisord_py.pipes import due, events
from supervisord_py.pipes.due import Never, Wait, decide
from supervisord_py.pipes.models import BrokenPipe, LastDecision, PipeDefinition, PipeView, problem_text
from supervisord_py.pipes.schedule import At, Calendar, describe, time_text, zone_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from supervisord_py.config.documents import Problem
    from supervisord_py.ledger.pipe_executions import Execution
    from supervisord_py.ledger.pipe_state import PipeStateRow
    from supervisord_py.pipes.due import Decision
    from supervisord_py.pipes.executions import Executions
    from supervisord_py.pipes.models import Declared

QUIET_SECONDS = 60.0  # who said nothing for so long may be delayed, and whoever looks is told


def view(room: Executions, declared: Declared) -> PipeView:
    """Return a pipe, broken or not, as it stands."""
    name, row, running = declared.name, room.states.get(declared.name), room.running(declared.name)
    if isinstance(declared, BrokenPipe):
        facts: dict[str, Any] = {"enabled": False, "schedule": None, "file": declared.problem.file}
        facts["config_error"] = problem_text(declared.problem)
    else:
        facts = _of_definition(room, declared)
    return PipeView(
        name=name,
        last_run=row.last_run_at,
        last_success=row.last_success_at,
        last_status=running.execution.status if running else room.states.last_status.get(name),
        running=running.id if running else None,
        queued=len(room.queued(name)),
        consecutive_failures=row.consecutive_failures,
        last_decision=_last_decision(row),
        average_duration_seconds=room.states.average_seconds.get(name),
        pid=running.execution.pid if running else None,
        instance=running.execution.instance if running else None,
        started_at=running.execution.started_at if running else None,
        folder=str(declared.folder),
        **facts,
    )


def _of_definition(room: Executions, definition: PipeDefinition) -> dict[str, Any]:
    enabled = room.states.is_enabled(definition)
    fault, missing = _fault(room, definition), room.faults.missing_agent(definition)
    warnings = [f"{missing.message}; {missing.hint}"] if missing else []
    warnings += [words for _check, words in doubts(room, definition)]
    if silence := _silence(room, definition.name):
        warnings.append(silence)
    return {
        "enabled": enabled,
        "schedule": definition.schedule_text,
        "next_run": next(iter(_upcoming(room, definition, 1)), None) if enabled and room.config.enabled else None,
        "warnings": tuple(warnings),
        "title": definition.title,
        "description": definition.description,
        "agent": definition.agent,
        "presets": definition.presets,
        "events": tuple(each.text for each in definition.events),
        "slower_than_schedule": _slower(room, definition) is not None,
        "config_error": problem_text(fault) if fault is not None else None,
        "file": str(definition.file),
    }


def count_broken(room: Executions) -> int:
    """Return how many pipes cannot run: their file is broken, or something that it names is not there."""
    declared = room.catalog.pipes.values()
    return sum(isinstance(each, BrokenPipe) or _fault(room, each) is not None for each in declared)


def _fault(room: Executions, definition: PipeDefinition) -> Problem | None:
    """Return why a pipe cannot run, or never will although its schedule was to start it."""
    found = room.faults.find(definition) or end_of_times(room, definition)
    return None if isinstance(found, str) else found


def doubts(room: Executions, definition: PipeDefinition) -> Iterator[tuple[str, str]]:
    """Yield what is odd about a pipe's file, times and events: the name of the check, and a sentence."""
    wanted, most = definition.timeout_seconds, room.config.timeout_max_seconds
    yield from (("keys", words) for words in definition.warnings)
    if wanted is not None and wanted > most:
        yield "keys", cut_timeout(wanted, most)
    if isinstance(over := end_of_times(room, definition), str):
        yield "schedule", over
    if (late := _slower(room, definition)) is not None:
        yield "schedule", late
    folder = str(definition.folder)
    own = "pipe.md, output and .env of its own folder do not start a pipe"
    for each in definition.events:
        if (is_own := events.is_own(each, folder)) or events.misses(each, room.catalog.pipes):
            why = own if is_own else f"there is no pipe {each.subject!r} here"
            yield "schedule", f"trigger: {each.text} cannot come: {why}"


def end_of_times(room: Executions, definition: PipeDefinition) -> Problem | str | None:
    """Return what it means that no time of a schedule is to come; None where one is, or where it has no times.

    It is a mistake in the file of a pipe that is enabled and was never due, and only odd with any other.
    """
    row, now, schedule = room.states.get(definition.name), room.now(), definition.schedule
    standing = _standing(room, definition)
    if not isinstance(standing, Never) or not standing.over:
        return None
    if row.last_run_at is not None or row.occurrences:
        if row.last_run_at is None and room.of_pipe(definition.name):
            return None
        zone = zone_of(getattr(schedule, "timezone", None), now.zone)
        ran = "never ran" if row.last_run_at is None else f"last ran {time_text(row.last_run_at, zone, now.wall)}"
        return f"its schedule is over: {standing.why}; it {ran}, and will not run again by schedule"
    if not room.states.is_enabled(definition):
        return f"no run of it comes by itself: {standing.why}"
    key = "schedule_config" if isinstance(definition.schedule, Calendar) else "schedule"
    return definition.problem(key, f"{key}: {standing.why}", "write a time that will come, or `manual`")


def _slower(room: Executions, definition: PipeDefinition) -> str | None:
    """Return a warning when its runs take longer than its schedule leaves them."""
    average = room.states.average_seconds.get(definition.name)
    return due.slower(definition.schedule, room.states.progress(definition.name), room.now(), average)


def _silence(room: Executions, name: str) -> str | None:
    """Say that the execution that runs has long said nothing."""
    running = room.running(name)
    seconds = 0.0 if running is None or not running.heard_at else room.clocks.boot() - running.heard_at
    if running is None or seconds < QUIET_SECONDS:
        return None
    said = f"execution {running.id} (pid {running.execution.pid}) has said nothing for {seconds:.0f} s"
    return f"{said} and may be delayed; `pxctl pipe cancel {name}` ends it"


def _standing(room: Executions, definition: PipeDefinition) -> Decision:
    """Return what holds of a pipe: what the scheduler waits for, else what it would say now."""
    live = room.timetable.decision_on(definition)
    if isinstance(live, Wait):
        return live
    progress = room.states.progress(definition.name)
    return decide(definition.schedule, progress, room.now(), run_on_enable=definition.run_on_enable)


def _upcoming(room: Executions, definition: PipeDefinition, count: int) -> tuple[float, ...]:
    standing, progress = _standing(room, definition), room.states.progress(definition.name)
    return due.upcoming(definition.schedule, progress, room.now(), standing, count)


def _last_decision(row: PipeStateRow) -> LastDecision | None:
    if row.last_decision is None or row.last_decision_at is None:
        return None
    return LastDecision(row.last_decision_at, row.last_decision)


# -- times to come -----------------------------------------------------------------------------------------------------


def next_report(room: Executions, declared: Declared, count: int) -> dict[str, Any]:
    """Return when a pipe is due, and why: what each sentence says, in the order of a person's questions."""
    shown, config = view(room, declared), room.config
    report: dict[str, Any] = {
        "name": declared.name,
        "enabled": shown.enabled,
        "schedule": shown.schedule,
        "summary": "broken",  # the schedule in words
        "upcoming": (),  # Unix seconds, ascending; empty where nothing is due by itself
        "sentences": [],
        "timezone": None,
        "last_decision": shown.last_decision,  # what was done: started, skipped, refused. That it waits is none.
        "now": None,  # what it waits for
        "events": shown.events,  # what else starts it
    }
    sentences = report["sentences"]
    if isinstance(declared, BrokenPipe):
        sentences.append(f"it cannot run: {problem_text(declared.problem)}")
        return report
    is_on, standing = shown.enabled and config.enabled, _standing(room, declared)
    if not shown.enabled:
        is_spent = isinstance(declared.schedule, At) and isinstance(standing, Never)
        cure = "write another time" if is_spent else f"`pxctl pipe enable {declared.name}` lets it run by itself"
        sentences.append(f"it is disabled; {cure}")
    if not config.enabled:
        sentences.append("no pipe runs by itself here (pipes.enabled = false)")
    if fault := room.faults.find(declared) or room.faults.missing_agent(declared):
        sentences.append(f"each run of it fails at once: {problem_text(fault)}")
    sentences += due.explain(
        declared.schedule,
        room.states.progress(declared.name),
        room.now(),
        standing,
        count=count,
        average_seconds=shown.average_duration_seconds,
        is_on=is_on,
    )
    if declared.events:
        sentences.append(f"events: {', '.join(shown.events)}")
    return report | {
        "summary": describe(declared.schedule, config.timezone),
        "upcoming": _upcoming(room, declared, count) if is_on else (),
        "timezone": room.zone_name(declared),
        "now": standing.why if is_on else None,
    }


# -- lines -------------------------------------------------------------------------------------------------------------


def lines(room: Executions) -> list[dict[str, Any]]:
    """Return each group, its slots, who runs and who waits, in order; without blobs."""

    def views(numbers: Iterable[int]) -> list[Execution]:
        return [room.view(room.runs[number]) for number in numbers if number in room.runs]

    return [
        {
            "group": group,
            "slots": getattr(room.config, f"slots_{group}"),
            "running": views(number for number, it in room.line.running.items() if it.group is group),
            "waiting": views(it.id for it in room.line.waiting(group)),
        }
        for group in Group
    ]

"""What people ask about a schedule: when next, how often, why not now. Pure.

Law: a pipe that does not run by itself is not said to be about to.
"""

from __future__ import annotations

from itertools import chain, islice, pairwise
from itertools import count as counting
from typing import TYPE_CHECKING, assert_never

from supervisord_py.pipes.scheduling.due import Due, Never, Now, Progress, decide, rule_of
from supervisord_py.pipes.scheduling.schedule import At, Calendar, Cron, Every, Frequency, Manual, Schedule
from supervisord_py.pipes.scheduling.wall import DAYS, span_text, time_text, utc_text, zone_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import tzinfo

    from supervisord_py.pipes.config import SchedulerLimits
    from supervisord_py.pipes.scheduling.due import Decision

_LOOK_AHEAD = 6
"""Due instants between which the shortest gap is looked for."""
_UNTIMED = frozenset((Frequency.MINUTES, Frequency.HOURS))


def describe(schedule: Schedule, zone: str | None = None) -> str:
    """Return one phrase: `every 30 min`, `at 09:30 on Monday through Friday (Europe/Berlin)`.

    `zone` is the one of schedules that name none; None is that of this machine.
    """
    local = zone or "local time"
    match schedule:
        case Manual():
            return "only by hand or by an event"
        case Every():
            return f"every {span_text(schedule.seconds)}, from start to start"
        case At():
            return f"once, at {utc_text(schedule.instant)}"
        case Cron():
            return f"{_cron(schedule.expression)} ({schedule.timezone or local})"
        case Calendar():
            return f"{', '.join(_calendar(schedule))} ({schedule.timezone or local})"
        case _:  # pragma: no cover - the union is closed
            assert_never(schedule)


def _cron(expression: str) -> str:
    from cronsim.explain import Expression

    fields = expression.split()
    words = str(Expression(fields if len(fields) > 5 else ["0", *fields]).explain())
    return words[:1].lower() + words[1:]


def _calendar(plan: Calendar) -> Iterator[str]:
    unit = plan.frequency.value
    yield f"every {unit[:-1]}" if plan.interval == 1 else f"every {plan.interval} {unit}"
    if plan.days_of_week:
        yield "on " + " ".join(DAYS[each] for each in plan.days_of_week)
    if plan.day_of_month is not None:
        yield f"on day {plan.day_of_month} or the last of the month"
    if plan.frequency not in _UNTIMED:
        yield f"at {plan.at_hour:02}:{plan.at_minute:02}"
    if plan.starting is not None:
        yield f"from {utc_text(plan.starting)}"
    if plan.ending is not None:
        yield f"until {utc_text(plan.ending)}"
    if plan.max_occurrences is not None:
        yield f"at most {plan.max_occurrences} times"


def upcoming(
    schedule: Schedule,
    progress: Progress,
    now: Now,
    limits: SchedulerLimits,
    *,
    count: int = 5,
    run_on_enable: bool = True,
    decided: Decision | None = None,
) -> tuple[float, ...]:
    """Return the next due instants, ascending, at most `count`; one that is due is now.

    `decided` is what the scheduler has decided; None to decide here.
    """
    decision = decided or decide(schedule, progress, now, limits, run_on_enable=run_on_enable)
    if isinstance(decision, Never):
        return ()
    first = now.wall if isinstance(decision, Due) else decision.until
    left = count
    if isinstance(schedule, Calendar) and schedule.max_occurrences is not None:
        left = min(count, schedule.max_occurrences - progress.occurrences)
    return tuple(islice(chain([first], _following(schedule, progress, now.zone, first)), max(left, 0)))


def period(schedule: Schedule, progress: Progress, now: Now) -> float | None:
    """Return the seconds between two runs, the shortest of the next few; None when it does not repeat."""
    if isinstance(schedule, Every):
        return schedule.seconds
    found = islice(_following(schedule, progress, now.zone, now.wall), _LOOK_AHEAD)
    return min((later - earlier for earlier, later in pairwise(found)), default=None)


def slower(schedule: Schedule, progress: Progress, now: Now, average_seconds: float | None) -> str | None:
    """Return a warning when runs take longer than the schedule leaves them (E5), or None."""
    if average_seconds is None:
        return None
    every = period(schedule, progress, now)
    if every is None or average_seconds <= every:
        return None
    return (
        f"slower than its schedule: a run takes {span_text(average_seconds)} on average and is due every "
        f"{span_text(every)}; the runs in between are skipped"
    )


def explain(
    schedule: Schedule,
    progress: Progress,
    now: Now,
    limits: SchedulerLimits,
    *,
    count: int = 5,
    run_on_enable: bool = True,
    average_seconds: float | None = None,
    decided: Decision | None = None,
    is_on: bool = True,
) -> tuple[str, ...]:
    """Return sentences for people: the schedule, what holds now, the next runs, and what is odd about them.

    `average_seconds` is what a run takes, `decided` what the scheduler has decided (None to decide here), `is_on`
    whether the pipe runs by itself at present.
    """
    decision = decided or decide(schedule, progress, now, limits, run_on_enable=run_on_enable)
    zone = display_zone(schedule, now.zone)
    instants = upcoming(schedule, progress, now, limits, count=count, run_on_enable=run_on_enable, decided=decision)
    lines = [f"schedule: {describe(schedule)}"]
    if not isinstance(schedule, Manual):
        lines.append(f"{'now' if is_on else 'once it is on'}: {decision.why}")
    lines += [f"{'next' if is_on else 'would be next'}: {time_text(at, zone, now.wall)}" for at in instants]
    warning = slower(schedule, progress, now, average_seconds)
    return (*lines, *([f"warning: {warning}"] if warning else ()))


def display_zone(schedule: Schedule, machine: tzinfo) -> tzinfo:
    """Return the zone in which people read the times of this schedule."""
    return zone_of(schedule.timezone, machine) if isinstance(schedule, Cron | Calendar) else machine


def _following(schedule: Schedule, progress: Progress, machine: tzinfo, at: float) -> Iterator[float]:
    match schedule:
        case Every():
            return counting(at + schedule.seconds, schedule.seconds)
        case Cron() | Calendar():
            return rule_of(schedule, progress, machine).following(at)
        case Manual() | At():
            return iter(())
        case _:  # pragma: no cover - the union is closed
            assert_never(schedule)

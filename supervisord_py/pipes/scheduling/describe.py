"""A schedule in words. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from supervisord_py.pipes.scheduling.schedule import At, Calendar, Cron, Every, Frequency, Manual, Schedule
from supervisord_py.pipes.scheduling.wall import DAYS, span_text, utc_text

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    from cronsim.explain import Expression  # noqa: PLC0415 - pure, and 20 ms that only people's questions pay

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

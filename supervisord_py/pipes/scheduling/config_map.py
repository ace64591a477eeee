"""`schedule_config`: the map that user interfaces write. Pure.

Law: values are numbers, or texts of numbers (a reader of YAML may give either); what a frequency has no use for is
told of, never silently dropped; a map that no day fits is an error.
"""

from __future__ import annotations

import math
import re
from datetime import UTC
from typing import TYPE_CHECKING

from supervisord_py.pipes.scheduling.calendar_rule import CalendarRule
from supervisord_py.pipes.scheduling.instants import instant
from supervisord_py.pipes.scheduling.interval_words import LONGEST_SECONDS
from supervisord_py.pipes.scheduling.nearest import nearest_name, shown
from supervisord_py.pipes.scheduling.schedule import Calendar, Every, Frequency, Schedule, ScheduleError
from supervisord_py.pipes.scheduling.wall import zone_of
from supervisord_py.pipes.scheduling.zones import checked_zone

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEYS = (
    "frequency",
    "interval",
    "days_of_week",
    "day_of_month",
    "at_hour",
    "at_minute",
    "timezone",
    "starting",
    "ending",
    "max_occurrences",
)
_UNIT_SECONDS = {
    Frequency.MINUTES: 60.0,
    Frequency.HOURS: 3600.0,
    Frequency.DAYS: 86400.0,
    Frequency.WEEKS: 604800.0,
    Frequency.MONTHS: 31 * 86400.0,
}
_FREQUENCIES = {
    **{each.value: each for each in Frequency},
    **{each.value[:-1]: each for each in Frequency},
    "hourly": Frequency.HOURS,
    "daily": Frequency.DAYS,
    "weekly": Frequency.WEEKS,
    "monthly": Frequency.MONTHS,
}
_WEEKDAYS = {name: at for at, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_SHORT_NAME = 3
_ELAPSED = frozenset((Frequency.MINUTES, Frequency.HOURS))
_UNUSED = {
    Frequency.MINUTES: ("day_of_month", "at_hour", "at_minute"),
    Frequency.HOURS: ("day_of_month", "at_hour", "at_minute"),
    Frequency.DAYS: ("day_of_month",),
    Frequency.WEEKS: ("day_of_month",),
    Frequency.MONTHS: ("days_of_week",),
}
_MOST = 10**6
_HINT = "write for example `schedule_config: {frequency: weeks, days_of_week: [1, 5], at_hour: 9, at_minute: 30}`"


def read_config(
    config: Mapping[str, object], timezone: str | None, shortest: float
) -> tuple[Schedule, tuple[str, ...]]:
    """Return the schedule of a map that is not empty, and sentences for the one who wrote it.

    Raises:
        ScheduleError: A value is wrong; the detail names its key.
    """
    zone = _zone(config.get("timezone"), timezone)
    plan = _plan(config, _frequency(config.get("frequency")), zone)
    warnings = tuple(_warnings(config, plan.frequency))
    _check_bounds(plan, shortest)
    bounded = plan.days_of_week or plan.starting is not None or plan.ending is not None or plan.max_occurrences
    if plan.frequency in _ELAPSED and not bounded:
        return Every(plan.interval * _UNIT_SECONDS[plan.frequency]), warnings
    return plan, warnings


def _plan(config: Mapping[str, object], frequency: Frequency, zone: str | None) -> Calendar:
    def number(key: str, low: int, high: int) -> int | None:
        return _number(key, config.get(key), low, high)

    timed = frequency not in _ELAPSED
    return Calendar(
        frequency=frequency,
        interval=number("interval", 1, _MOST) or 1,
        days_of_week=() if frequency is Frequency.MONTHS else _days_of_week(config.get("days_of_week")),
        day_of_month=number("day_of_month", 1, 31) if frequency is Frequency.MONTHS else None,
        at_hour=(number("at_hour", 0, 23) or 0) if timed else 0,
        at_minute=(number("at_minute", 0, 59) or 0) if timed else 0,
        timezone=zone,
        starting=_instant("starting", config.get("starting"), zone),
        ending=_instant("ending", config.get("ending"), zone),
        max_occurrences=number("max_occurrences", 1, _MOST),
    )


def _zone(value: object, default: str | None) -> str | None:
    return default if _absent(value) else checked_zone(str(value).strip())


def _frequency(value: object) -> Frequency:
    name = str(value).strip().lower()
    if name in _FREQUENCIES:
        return _FREQUENCIES[name]
    known = ", ".join(Frequency)
    raise ScheduleError(f"schedule_config: frequency {shown(name)} is not one of {known}", hint=_HINT)


def _number(key: str, value: object, low: int, high: int) -> int | None:
    """Return a whole number within bounds, or None where there is none."""
    if _absent(value):
        return None
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise ScheduleError(f"schedule_config: {key} {shown(text)} is no whole number in {low}-{high}", hint=_HINT)
    return int(text)


def _days_of_week(value: object) -> tuple[int, ...]:
    if _absent(value):
        return ()
    items = value if isinstance(value, list | tuple) else str(value).split(",")
    return tuple(sorted({_weekday(str(each).strip().lower()) for each in items}))


def _weekday(text: str) -> int:
    if len(text) >= _SHORT_NAME and text[:_SHORT_NAME] in _WEEKDAYS:
        return _WEEKDAYS[text[:_SHORT_NAME]]
    if not re.fullmatch(r"[0-7]", text):
        raise ScheduleError(
            f"schedule_config: days_of_week {shown(text)} is no weekday (0 is Sunday, 6 is Saturday)", hint=_HINT
        )
    return int(text) % 7


def _instant(key: str, value: object, zone: str | None) -> float | None:
    if _absent(value):
        return None
    try:
        return instant(str(value).strip(), zone)
    except ScheduleError as err:
        raise ScheduleError(
            f"schedule_config: {key} {err.detail}", hint=f"write `{key}: 2099-01-01T09:00:00Z`, or add `timezone:`"
        ) from err


def _absent(value: object) -> bool:
    return value is None or value in ("", "null", "~", [], ())


def _warnings(config: Mapping[str, object], frequency: Frequency) -> list[str]:
    found = []
    for key in config:
        if key not in _KEYS:
            near = nearest_name(key, _KEYS)
            found.append(f"schedule_config: {key} is unknown" + (f"; did you mean {near}?" if near else ""))
    unused = [key for key in _UNUSED[frequency] if not _absent(config.get(key)) and str(config[key]).strip() != "0"]
    return found + [f"schedule_config: {key} has no effect with frequency {frequency}" for key in unused]


def _check_bounds(plan: Calendar, shortest: float) -> None:
    seconds = plan.interval * _UNIT_SECONDS[plan.frequency]
    if not shortest <= seconds <= LONGEST_SECONDS:
        raise ScheduleError(
            f"schedule_config: every {plan.interval} {plan.frequency} is not between {shortest:g} s and ten years",
            hint=_HINT,
        )
    if plan.starting is None:
        return
    rule = CalendarRule(plan, zone_of(plan.timezone, UTC), math.floor(plan.starting))
    if rule.after(plan.starting - 1) is None:
        raise ScheduleError("schedule_config: there is no time between starting and ending", hint=_HINT)

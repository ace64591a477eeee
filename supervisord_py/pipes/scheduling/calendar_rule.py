"""`schedule_config`: the map that user interfaces write, and its due instants. Pure; the calendar is dateutil's.

The origin is `starting`, or else when the pipe was enabled; what the map leaves open (weekday, day of the month) is the
origin's. A day that a month has not got is its last. Everything goes by readings of the clock in the zone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import TYPE_CHECKING, Any

from supervisord_py.pipes.scheduling.schedule import Calendar, Every, Frequency, Schedule, ScheduleError
from supervisord_py.pipes.scheduling.wall import UNITS, WEEKDAYS, checked_zone, did_you_mean, instant, shown, zone_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LONGEST_SECONDS = 3660 * 86400.0
_SECONDS = {each: UNITS.get(each.value, 31 * 86400.0) for each in Frequency}
_WORDS = {"hourly": "hours", "daily": "days", "weekly": "weeks", "monthly": "months"}
_ELAPSED = frozenset((Frequency.MINUTES, Frequency.HOURS))
_MOST = 10**6
_BOUNDS = {
    "interval": (1, _MOST),
    "day_of_month": (1, 31),
    "at_hour": (0, 23),
    "at_minute": (0, 59),
    "max_occurrences": (1, _MOST),
}
_KEYS = ("frequency", *_BOUNDS, "days_of_week", "timezone", "starting", "ending")
_HINT = "write for example `schedule_config: {frequency: weeks, days_of_week: [1, 5], at_hour: 9, at_minute: 30}`"
_ABSENT: tuple[object, ...] = ("", "null", "~", [], ())
_UNUSED: dict[Frequency, tuple[str, ...]] = dict.fromkeys(_ELAPSED, ("day_of_month", "at_hour", "at_minute"))
_UNUSED |= {Frequency.DAYS: ("day_of_month",), Frequency.WEEKS: ("day_of_month",), Frequency.MONTHS: ("days_of_week",)}
_SHORTEST_MONTH = 28
_BACK = timedelta(days=8)


@dataclass(frozen=True, slots=True)
class CalendarRule:
    """A calendar in its zone, with its origin.

    Attributes:
        begun: Unix seconds of the origin, whole: an instant must be the same after the ledger rounded it.
    """

    plan: Calendar
    zone: tzinfo
    begun: int

    def following(self, instant: float) -> Iterator[float]:
        """Yield the due instants after `instant`, ascending, until it is over."""
        last = max(instant, self.begun - 1.0)
        for found in self._instants(last, 2):
            if self.plan.ending is not None and found > self.plan.ending:
                return
            if found > last:
                last = found
                yield found

    def latest(self, instant: float) -> float | None:
        """Return the last due instant at or before `instant`; None when it has not begun."""
        upto = instant if self.plan.ending is None else min(instant, self.plan.ending)
        latest = None
        for found in self._instants(upto, 60) if upto >= self.begun else ():
            if found > upto:
                break
            latest = found if found >= self.begun else None
        return latest

    def _instants(self, near: float, periods: int) -> Iterator[float]:
        """Yield due instants from some periods before `near` on."""
        from dateutil import rrule

        plan, first = self.plan, self._first()
        every: dict[str, Any] = {"interval": plan.interval}
        if plan.frequency is Frequency.MONTHS:
            day = plan.day_of_month or first.day
            every |= {"bymonthday": tuple(range(min(day, _SHORTEST_MONTH), day + 1)), "bysetpos": -1}
            first = first.replace(day=1)
        elif plan.days_of_week:
            every["byweekday"] = tuple((each - 1) % 7 for each in plan.days_of_week)
        # Whole periods are left out, or each question would count all instants since the origin.
        period = timedelta(seconds=_SECONDS[plan.frequency] * plan.interval)
        behind = self._reading(near) - first - periods * period - (_BACK if plan.days_of_week else timedelta())
        if plan.frequency is not Frequency.MONTHS and behind > period:
            first += behind // period * period
        kinds: tuple[Any, ...] = (rrule.MINUTELY, rrule.HOURLY, rrule.DAILY, rrule.WEEKLY, rrule.MONTHLY)
        for found in rrule.rrule(kinds[tuple(Frequency).index(plan.frequency)], dtstart=first, **every):
            yield found.replace(tzinfo=self.zone).timestamp()

    def _first(self) -> datetime:
        """Return the reading of the origin, moved to a day that is wanted: then some multiple of it always is."""
        origin = self._reading(self.begun)
        days, wanted_days = (origin + timedelta(days=each) for each in range(7)), self.plan.days_of_week
        wanted = next(each for each in days if not wanted_days or each.isoweekday() % 7 in wanted_days)
        if self.plan.frequency not in _ELAPSED:
            return datetime.combine(wanted, time(self.plan.at_hour, self.plan.at_minute))
        return wanted if wanted == origin else datetime.combine(wanted, time())

    def _reading(self, instant: float) -> datetime:
        return datetime.fromtimestamp(instant, self.zone).replace(tzinfo=None, microsecond=0)


def read_config(
    config: Mapping[str, object], timezone: str | None, shortest: float
) -> tuple[Schedule, tuple[str, ...]]:
    """Return the schedule of a map that is not empty, and sentences for the one who wrote it.

    Raises:
        ScheduleError: A value is wrong; the detail names its key.
    """
    given = {key: value for key, value in config.items() if value is not None and value not in _ABSENT}
    frequency = _frequency(given.get("frequency"))
    unused = [key for key in given if key in _UNUSED[frequency]]
    warnings = [f"schedule_config: {key} has no effect with frequency {frequency}" for key in unused]
    warnings += [f"schedule_config: {key} is unknown{did_you_mean(key, _KEYS)}" for key in config if key not in _KEYS]
    given = {key: value for key, value in given.items() if key not in unused}
    zone = checked_zone(str(given["timezone"]).strip()) if "timezone" in given else timezone
    numbers = {key: _number(key, given[key]) for key in _BOUNDS if key in given}
    plan = Calendar(
        frequency=frequency,
        interval=numbers.get("interval", 1),
        days_of_week=_days_of_week(given.get("days_of_week", ())),
        day_of_month=numbers.get("day_of_month"),
        at_hour=numbers.get("at_hour", 0),
        at_minute=numbers.get("at_minute", 0),
        timezone=zone,
        starting=_instant("starting", given, zone),
        ending=_instant("ending", given, zone),
        max_occurrences=numbers.get("max_occurrences"),
    )
    seconds = plan.interval * _SECONDS[frequency]
    if not shortest <= seconds <= LONGEST_SECONDS:
        detail = f"schedule_config: every {plan.interval} {plan.frequency} is not between {shortest:g} s and ten years"
        raise ScheduleError(detail, hint=_HINT)
    if plan.starting is not None:
        rule = CalendarRule(plan, zone_of(zone, UTC), int(plan.starting))
        if next(rule.following(plan.starting - 1), None) is None:
            raise ScheduleError("schedule_config: there is no time between starting and ending", hint=_HINT)
    bounded = plan.days_of_week or plan.starting is not None or plan.ending is not None or plan.max_occurrences
    return (plan if bounded or frequency not in _ELAPSED else Every(seconds)), tuple(warnings)


def _frequency(value: object) -> Frequency:
    name = str(value).strip().lower()
    word = _WORDS.get(name, name if name.endswith("s") else f"{name}s")
    if word in set(Frequency):
        return Frequency(word)
    raise ScheduleError(f"schedule_config: frequency {shown(name)} is not one of {', '.join(Frequency)}", hint=_HINT)


def _number(key: str, value: object) -> int:
    (low, high), text = _BOUNDS[key], str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,9}", text) or not low <= int(text) <= high:
        raise ScheduleError(f"schedule_config: {key} {shown(text)} is no whole number in {low}-{high}", hint=_HINT)
    return int(text)


def _days_of_week(value: object) -> tuple[int, ...]:
    items = value if isinstance(value, list | tuple) else str(value).split(",")
    return tuple(sorted({_weekday(str(each).strip().lower()) for each in items}))


def _weekday(text: str) -> int:
    for number, name in enumerate(WEEKDAYS):
        if text in (name, name[:3], str(number)) or (text == "7" and not number):
            return number
    detail = f"schedule_config: days_of_week {shown(text)} is no weekday (0 is Sunday, 6 is Saturday)"
    raise ScheduleError(detail, hint=_HINT)


def _instant(key: str, given: Mapping[str, object], zone: str | None) -> float | None:
    if key not in given:
        return None
    try:
        return instant(str(given[key]).strip(), zone)
    except ScheduleError as err:
        hint = f"write `{key}: 2099-01-01T09:00:00Z`, or add `timezone:`"
        raise ScheduleError(f"schedule_config: {key} {err.detail}", hint=hint) from err

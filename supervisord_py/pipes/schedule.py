"""The five kinds of schedule and the instants of each, and how times are shown to people. Pure.

cronsim finds the times of cron lines, dateutil those of `schedule_config`. Text becomes a schedule in `grammar.py`;
`due.py` says whether one is due.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import datetime, timedelta, tzinfo
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import msgspec
from msgspec import Meta

from supervisord_py.config.documents import nearest
from supervisord_py.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
"""By POSIX number; never of the locale, so that every surface and log says the same."""
_DAYS = tuple(name[:3].title() for name in WEEKDAYS)
UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("w", "wk", "wks", "week", "weeks"), 604800.0),
}
_ANY_SHOWN = 80
_SPAN = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,3})? ?[a-z]+(?: |(?=[0-9])|$))+(?<! )")
_PIECE = re.compile(r"([0-9.]+) ?([a-z]+)")
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,3}")


class Manual(msgspec.Struct, frozen=True):
    """Only by hand, or by an event."""


class Every(msgspec.Struct, frozen=True):
    """An interval on a clock that counts suspend, from the start of one run to the start of the next."""

    seconds: float


class At(msgspec.Struct, frozen=True):
    """Once; then the pipe is disabled."""

    reading: str  # ISO 8601, on the clock of `timezone` (None: the machine's) where it has no offset
    timezone: str | None = None
    after_seconds: float | None = None  # so long after the pipe was first seen or enabled, or its schedule changed

    def due(self, anchor: float, machine: tzinfo) -> float:
        """Return the instant, in Unix seconds; a time of day alone is that of the day after `anchor`."""
        if self.after_seconds is not None:
            return float(int(anchor + self.after_seconds))
        zone, reading = zone_of(self.timezone, machine), self.reading
        if "-" not in reading:
            reading = f"{datetime.fromtimestamp(anchor, zone).date() + timedelta(days=1)}T{reading}"
        return _instant(reading, zone)


class Cron(msgspec.Struct, frozen=True):
    """Wall-clock times."""

    expression: str  # 5 fields, or 6 with seconds first; POSIX weekdays (0 and 7 are Sunday)
    timezone: str | None = None  # IANA name; None is the machine's zone

    def following(self, instant: float, machine: tzinfo, _begun: float = 0.0) -> Iterator[float]:
        """Yield the due instants after `instant`, ascending; none where there is none within 50 years."""
        last = instant
        for found in self._search(instant, machine):
            if found > last:  # an hour that comes twice is searched twice
                last = found
                yield found

    def latest(self, instant: float, machine: tzinfo, _begun: float = 0.0) -> float | None:
        """Return the last due instant at or before `instant`; None when there is none within 50 years."""
        return next((found for found in self._search(instant + 1, machine, reverse=True) if found <= instant), None)

    def _search(self, start: float, machine: tzinfo, *, reverse: bool = False) -> Iterator[float]:
        from cronsim import CronSim  # 7 ms, only needed once something is due

        zone = zone_of(self.timezone, machine)
        for found in CronSim(self.expression, datetime.fromtimestamp(start, zone), reverse=reverse):
            yield found.timestamp()


FREQUENCIES = {"minutes": 60.0, "hours": 3600.0, "days": 86400.0, "weeks": 604800.0, "months": 31 * 86400.0}
ELAPSED = ("minutes", "hours")  # these have no time of day


class Calendar(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """`schedule_config`: every so many units from `starting` on, or else from when the pipe was enabled.

    What it leaves open (the weekday of weeks, the day of months) is that of its beginning. A day that a month has not
    got is its last. `starting` and `ending` are ISO 8601, on the clock of the zone where they have no offset.
    """

    frequency: str
    interval: Annotated[int, Meta(ge=1, le=10**6)] = 1
    days_of_week: tuple[int, ...] = ()  # 0 is Sunday
    day_of_month: Annotated[int, Meta(ge=1, le=31)] | None = None
    at_hour: Annotated[int, Meta(ge=0, le=23)] = 0
    at_minute: Annotated[int, Meta(ge=0, le=59)] = 0
    timezone: str | None = None  # IANA name; None is the machine's zone
    starting: str | None = None
    ending: str | None = None
    max_occurrences: Annotated[int, Meta(ge=1, le=10**6)] | None = None  # runs after which it is over

    def following(self, instant: float, machine: tzinfo, begun: float) -> Iterator[float]:
        """Yield the due instants after `instant`, ascending, to its end; `begun` is when the pipe was enabled."""
        zone = zone_of(self.timezone, machine)
        begin = int(begun) if self.starting is None else _instant(self.starting, zone)  # the ledger keeps no fractions
        last, end = max(instant, begin - 1), math.inf if self.ending is None else _instant(self.ending, zone)
        for found in takewhile(lambda at: at <= end, self._instants(last, begin, zone)):
            if found > last:
                last = found
                yield found

    def latest(self, instant: float, machine: tzinfo, begun: float) -> float | None:
        """Return the last due instant at or before `instant`; None where there is none in the last eight periods."""
        period = FREQUENCIES[self.frequency] * self.interval
        near = instant - 8 * max(period, 86400.0 if self.days_of_week else 0.0)
        return max(takewhile(lambda at: at <= instant, self.following(near, machine, begun)), default=None)

    def _instants(self, near: float, begin: float, zone: tzinfo) -> Iterator[float]:
        """Return due instants from some period before `near` on; what the zone leaves out comes when it was set."""
        from dateutil import rrule  # 20 ms, only needed where there is a `schedule_config`

        first = datetime.fromtimestamp(begin, zone).replace(tzinfo=None)
        if self.frequency not in ELAPSED:
            first = first.replace(hour=self.at_hour, minute=self.at_minute, second=0)
        rules: dict[str, Any] = {}
        if self.frequency == "months":
            day = self.day_of_month or first.day
            first, rules = first.replace(day=1), {"bymonthday": tuple(range(min(day, 28), day + 1)), "bysetpos": -1}
        elif self.days_of_week:  # from a wanted day on some multiple of the interval always is one
            first += timedelta(days=min((each - first.isoweekday()) % 7 for each in self.days_of_week))
            rules = {"byweekday": tuple((each - 1) % 7 for each in self.days_of_week)}
        if self.frequency != "months":  # leave out whole periods, or each question would count from the beginning
            period = timedelta(seconds=FREQUENCIES[self.frequency]) * self.interval
            first += max(0, (datetime.fromtimestamp(near, zone).replace(tzinfo=None) - first) // period - 1) * period
        kinds: tuple[Any, ...] = (rrule.MINUTELY, rrule.HOURLY, rrule.DAILY, rrule.WEEKLY, rrule.MONTHLY)
        kind = kinds[tuple(FREQUENCIES).index(self.frequency)]
        found = rrule.rrule(kind, dtstart=first, interval=self.interval, **rules)
        return (each.replace(tzinfo=zone).timestamp() for each in found)


Schedule: TypeAlias = Manual | Every | Cron | At | Calendar


def describe(schedule: Schedule, zone: str | None = None) -> str:
    """Return one phrase: `every 30 min`, `at 09:30 on Monday (Europe/Berlin)`; `zone` is of schedules without one."""
    match schedule:
        case Manual():
            return "only by hand or by an event"
        case Every():
            return f"every {span_text(schedule.seconds)}, from start to start"
        case At(after_seconds=float(seconds)):
            return f"once, {span_text(seconds)} after it was enabled or written"
        case At():
            after = "" if "-" in schedule.reading else " on the day after it was enabled or written"
            words = f"once, at {schedule.reading}{after}"
        case Calendar():
            words = ", ".join(_calendar_words(schedule))
        case _:
            from cronsim.explain import Expression

            fields = schedule.expression.split()
            words = str(Expression(fields if len(fields) > 5 else ["0", *fields]).explain())
            words = f"{words[:1].lower()}{words[1:]}"
    return f"{words} ({schedule.timezone or zone or 'local time'})"


def _calendar_words(plan: Calendar) -> Iterator[str]:
    yield f"every {plan.frequency[:-1]}" if plan.interval == 1 else f"every {plan.interval} {plan.frequency}"
    if plan.days_of_week:
        yield "on " + " ".join(_DAYS[each] for each in plan.days_of_week)
    if plan.day_of_month is not None:
        yield f"on day {plan.day_of_month} or the last of the month"
    if plan.frequency not in ELAPSED:
        yield f"at {plan.at_hour:02}:{plan.at_minute:02}"
    bounds = {"from {}": plan.starting, "until {}": plan.ending, "at most {} runs": plan.max_occurrences}
    yield from (words.format(bound) for words, bound in bounds.items() if bound is not None)


# -- times, zones and other people's texts ---------------------------------------------------------------------------


def shown(text: str) -> str:
    """Quote somebody's text in one line of bearable length."""
    return repr(text if len(text) <= _ANY_SHOWN else f"{text[: _ANY_SHOWN - 1]}…")


def span_of(text: str) -> float | None:
    """Return the seconds of `90s`, `1h30m`, `2 hours 30 minutes`; None for another text."""
    pieces = _PIECE.findall(text) if _SPAN.fullmatch(text) else []
    if not pieces or any(unit not in UNITS for _count, unit in pieces):
        return None
    return sum(float(number) * UNITS[unit] for number, unit in pieces)


def checked_zone(name: str) -> str:
    """Return the name of a time zone that exists; else ConfigError, whose hint has the nearest."""
    with suppress(ZoneInfoNotFoundError, ValueError, OSError):  # OSError: a folder of zones, such as `Europe`
        if _ZONE.fullmatch(name):
            return ZoneInfo(name).key
    near = nearest(name, available_timezones())
    hint = f"did you mean {near}?" if near else "use a name of the IANA list, for example Europe/Berlin or UTC"
    raise ConfigError(f"there is no time zone {shown(name)}", hint=hint)


def zone_of(name: str | None, machine: tzinfo) -> tzinfo:
    """Return the zone of that name, or the machine's. ZoneInfoNotFoundError: there is none of that name any more."""
    return machine if name is None else ZoneInfo(name)


def _instant(text: str, zone: tzinfo) -> float:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()


def time_text(instant: float, zone: tzinfo, now: float) -> str:
    """Show an instant to people: `09:30 CET` today, `Mon 2026-11-23 09:30 CET` on another day; seconds if there are."""
    moment = datetime.fromtimestamp(round(instant), zone)
    text = moment.strftime("%H:%M:%S" if moment.second else "%H:%M")
    if moment.date() != datetime.fromtimestamp(now, zone).date():
        text = f"{_DAYS[moment.isoweekday() % 7]} {moment:%Y-%m-%d} {text}"
    return f"{text} {moment.tzname() or 'UTC'}"


def span_text(seconds: float) -> str:
    """Show a length of time to people, in its two largest units: `90` is `1 min 30 s`."""
    left = max(0, round(seconds))
    parts = []
    for size, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number} {name}")
    return " ".join(parts[:2]) or "0 s"

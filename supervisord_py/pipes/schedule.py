"""The four kinds of schedule and the instants of each, and how times are shown to people. Pure.

cronsim finds the times of cron lines. Text becomes a schedule in `grammar.py`; `due.py` says whether one is due.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import TYPE_CHECKING, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import msgspec

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
_SPAN = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,3})? ?[a-z]+(?:,? and |, ?| )?)+(?<![ ,])")
_PIECE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]+?)(?:,? and\b|[, ]|(?=[0-9])|$)")
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,3}")


class ScheduleError(ConfigError):
    """A text is no schedule. What its hint names in backticks is one."""


class Manual(msgspec.Struct, frozen=True):
    """Only by hand, or by an event."""


class Every(msgspec.Struct, frozen=True):
    """An interval on a clock that counts suspend, from the start of one run to the start of the next."""

    seconds: float


class At(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Once; then the pipe is disabled. One of:"""

    instant: float | None = None  # Unix seconds
    reading: str | None = None  # `2026-12-01T10:00:00` on the clock of `timezone` (None: the machine's)
    after_seconds: float | None = None  # so long after the pipe was first seen, enabled or its schedule changed
    next_day: str | None = None  # `09:00:00` on the day after that
    timezone: str | None = None

    def due(self, anchor: float, machine: tzinfo) -> float:
        """Return the instant, in Unix seconds, for a pipe that was first seen or enabled at `anchor`."""
        if self.instant is not None:
            return self.instant
        if self.after_seconds is not None:
            return float(int(anchor + self.after_seconds))
        zone = zone_of(self.timezone, machine)
        if self.reading is not None:
            return _instant(self.reading, zone)
        day = datetime.fromtimestamp(anchor, zone).date() + timedelta(days=1)
        return datetime.combine(day, time.fromisoformat(str(self.next_day)), zone).timestamp()


class Cron(msgspec.Struct, frozen=True):
    """Wall-clock times."""

    expression: str  # 5 fields, or 6 with seconds first; POSIX weekdays (0 and 7 are Sunday)
    timezone: str | None = None  # IANA name; None is the machine's zone

    def following(self, instant: float, machine: tzinfo) -> Iterator[float]:
        """Yield the due instants after `instant`, ascending; none where there is none within 50 years."""
        last = instant
        for found in self._search(instant, machine):
            if found > last:  # an hour that comes twice is searched twice
                last = found
                yield found

    def latest(self, instant: float, machine: tzinfo) -> float | None:
        """Return the last due instant at or before `instant`; None when there is none within 50 years."""
        return next((found for found in self._search(instant + 1, machine, reverse=True) if found <= instant), None)

    def _search(self, start: float, machine: tzinfo, *, reverse: bool = False) -> Iterator[float]:
        from cronsim import CronSim  # 7 ms, only needed once something is due

        zone = zone_of(self.timezone, machine)
        for found in CronSim(self.expression, datetime.fromtimestamp(start, zone), reverse=reverse):
            yield found.timestamp()


Schedule: TypeAlias = Manual | Every | Cron | At


def describe(schedule: Schedule, zone: str | None = None) -> str:
    """Return one phrase: `every 30 min`, `at 09:30 on Monday through Friday (Europe/Berlin)`.

    `zone` is the one of schedules that name none; None is that of this machine.
    """
    match schedule:
        case Manual():
            return "only by hand or by an event"
        case Every():
            return f"every {span_text(schedule.seconds)}, from start to start"
        case At(instant=float(instant)):
            return f"once, at {utc_text(instant)}"
        case At(after_seconds=float(seconds)):
            return f"once, {span_text(seconds)} after it was enabled or written"
        case At():
            when = schedule.reading or f"{schedule.next_day} on the day after it was enabled or written"
            words = f"once, at {when}"
        case _:
            from cronsim.explain import Expression

            fields = schedule.expression.split()
            words = str(Expression(fields if len(fields) > 5 else ["0", *fields]).explain())
            words = f"{words[:1].lower()}{words[1:]}"
    return f"{words} ({schedule.timezone or zone or 'local time'})"


# -- times, zones and other people's texts ---------------------------------------------------------------------------


def shown(text: str) -> str:
    """Quote somebody's text in one line of bearable length."""
    return repr(text if len(text) <= _ANY_SHOWN else f"{text[: _ANY_SHOWN - 1]}…")


def span_of(text: str) -> float | None:
    """Return the seconds of `90s`, `1h30m`, `2 hours`, `1 hour and 30 minutes`; None for another text."""
    pieces = _PIECE.findall(text) if _SPAN.fullmatch(text) else []
    if not pieces or any(unit not in UNITS for _count, unit in pieces):
        return None
    return sum(float(number) * UNITS[unit] for number, unit in pieces)


def checked_zone(name: str) -> str:
    """Return the name of a time zone that exists; else ScheduleError, whose hint has the nearest."""
    with suppress(ZoneInfoNotFoundError, ValueError, OSError):  # OSError: a folder of zones, such as `Europe`
        if _ZONE.fullmatch(name):
            return ZoneInfo(name).key
    near = nearest(name, available_timezones())
    hint = f"did you mean {near}?" if near else "use a name of the IANA list, for example Europe/Berlin or UTC"
    raise ScheduleError(f"there is no time zone {shown(name)}", hint=hint)


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


def utc_text(instant: float) -> str:
    """Show an instant for machines, ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span_text(seconds: float) -> str:
    """Show a length of time to people, in its two largest units: `90` is `1 min 30 s`."""
    left = max(0, round(seconds))
    parts = []
    for size, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number} {name}")
    return " ".join(parts[:2]) or "0 s"

"""Times, zones and other people's texts, as they are read and shown. Pure but for the machine's zone files."""

from __future__ import annotations

import difflib
import re
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from supervisord_py.pipes.scheduling.schedule import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterable

WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
"""By POSIX number; never of the locale, so that every surface and log says the same."""
DAYS = tuple(name[:3].title() for name in WEEKDAYS)
UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("w", "wk", "wks", "week", "weeks"), 604800.0),
}
_SPAN = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,3})? ?[a-z]+(?:,? and |, ?| )?)+(?<![ ,])")
_PIECE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]+?)(?:,? and\b|[, ]|(?=[0-9])|$)")
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,3}")
_INSTANT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[Tt ][0-9:]+(?:\.[0-9]{1,9})?(?:Z|z|[+-][0-9]{2}:[0-9]{2})?)?")
_FIRST_YEAR, _LAST_YEAR = 1900, 9998
_ANY_SHOWN = 80
_INSTANT_HINT = "write date, time and offset, as `at 2099-01-01T09:00:00Z`"


def shown(text: str) -> str:
    """Quote somebody's text in one line of bearable length."""
    return repr(text if len(text) <= _ANY_SHOWN else f"{text[: _ANY_SHOWN - 1]}…")


def nearest_name(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name nearest to `name`, case aside; None when none is near."""
    by_lower = {each.lower(): each for each in sorted(known)}
    near = difflib.get_close_matches(name[:_ANY_SHOWN].lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` for the nearest known name, or the empty string."""
    near = nearest_name(name, known)
    return f"; did you mean {near!r}?" if near else ""


def span_of(text: str) -> float | None:
    """Return the seconds of `90s`, `1h30m`, `2 hours`, `1 hour and 30 minutes`; None for another text."""
    if not _SPAN.fullmatch(text):
        return None
    pieces = _PIECE.findall(text)
    if any(unit not in UNITS for _count, unit in pieces):
        return None
    return sum(float(count) * UNITS[unit] for count, unit in pieces)


def checked_zone(name: str) -> str:
    """Return the name of a time zone that exists.

    Raises:
        ScheduleError: There is none of that name; the hint has the nearest.
    """
    try:
        if _ZONE.fullmatch(name):
            return ZoneInfo(name).key
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass  # OSError: a folder of zones, such as `Europe`
    near = nearest_name(name, available_timezones())
    hint = f"did you mean {near}?" if near else "use a name of the IANA list, for example Europe/Berlin or UTC"
    raise ScheduleError(f"there is no time zone {shown(name)}", hint=hint)


def zone_of(name: str | None, machine: tzinfo) -> tzinfo:
    """Return the zone of that IANA name, or the machine's.

    Raises:
        zoneinfo.ZoneInfoNotFoundError: There is none of that name (any more).
    """
    return machine if name is None else ZoneInfo(name)


def instant(text: str, timezone: str | None) -> float:
    """Return the instant of `2099-01-01T09:00:00+01:00` in Unix seconds, whole; date alone is its midnight.

    Args:
        text: As written.
        timezone: A checked name, for a text without an offset; None makes such a text an error, for the machine's zone
            may change while the text does not.

    Raises:
        ScheduleError: It is no such text, there is no such day or time, or the offset is missing.
    """
    try:
        moment = datetime.fromisoformat(text.upper()).replace(microsecond=0) if _INSTANT.fullmatch(text) else None
    except ValueError as err:
        raise ScheduleError(f"{shown(text)} is no date and time: {err}", hint=_INSTANT_HINT) from err
    if moment is None:
        raise ScheduleError(f"{shown(text)} is no date and time", hint=_INSTANT_HINT)
    if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        raise ScheduleError(f"the year of {shown(text)} is not in {_FIRST_YEAR}-{_LAST_YEAR}", hint=_INSTANT_HINT)
    if moment.tzinfo is None:
        if timezone is None:
            raise ScheduleError(f"{shown(text)} has no offset, and there is no `timezone:`", hint=_INSTANT_HINT)
        moment = moment.replace(tzinfo=ZoneInfo(timezone))
    return moment.timestamp()


def time_text(instant: float, zone: tzinfo, now: float) -> str:
    """Show an instant to people: `09:30 CET` today, `Mon 2026-11-23 09:30 CET` on another day; seconds if there are."""
    moment = datetime.fromtimestamp(round(instant), zone)
    text = moment.strftime("%H:%M:%S" if moment.second else "%H:%M")
    if moment.date() != datetime.fromtimestamp(now, zone).date():
        text = f"{DAYS[moment.isoweekday() % 7]} {moment:%Y-%m-%d} {text}"
    return f"{text} {moment.tzname() or 'UTC'}"


def utc_text(instant: float) -> str:
    """Show an instant for machines, ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span_text(seconds: float) -> str:
    """Show a length of time to people, in its two largest units: `90` is `1 min 30 s`."""
    left = max(0, round(seconds))
    parts = []
    for size, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2]) or "0 s"

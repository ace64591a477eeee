"""Wall-clock readings and instants of one zone. Pure.

Law: what is due at a reading that a zone leaves out (the clock was set forward) is due as much later as the clock was
set, as in RFC 5545: at the end of as long a wait as on other days. A reading that comes twice (set back) stands for its
first instant. So every reading of a calendar has exactly one instant; but what a gap delays may come after readings
that follow the gap.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

DAYS = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
"""By POSIX number; never of the locale, so that every surface and log says the same."""
_LOOK_SECONDS = 7 * 86400.0
"""No zone sets its clock twice within so long."""
_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR


def zone_of(name: str | None, machine: tzinfo) -> tzinfo:
    """Return the zone of that IANA name, or the machine's.

    Raises:
        zoneinfo.ZoneInfoNotFoundError: There is none of that name (any more).
    """
    return machine if name is None else ZoneInfo(name)


def reading(instant: float, zone: tzinfo) -> datetime:
    """Return what a clock in the zone shows, without a zone, to the whole second."""
    return datetime.fromtimestamp(instant, zone).replace(tzinfo=None, microsecond=0, fold=0)


def furthest_reading(instant: float, zone: tzinfo) -> datetime:
    """Return the latest reading that the clock may have shown by then: while an hour is repeated, that hour's end."""
    now = datetime.fromtimestamp(instant, zone)
    shown = now.replace(tzinfo=None, microsecond=0, fold=0)
    if not now.fold:
        return shown
    return shown + _offset(now.replace(fold=0)) - _offset(now)


def earliest_reading(instant: float, zone: tzinfo) -> datetime:
    """Return the reading beyond which everything is due later: while a gap's are made good, as if it were not set."""
    shown = reading(instant, zone)
    change = last_change(instant - _DAY, instant, zone)
    if change is None:
        return shown
    gap = _offset_at(change, zone) - _offset_at(change - 1, zone)
    return shown - gap if instant < change + gap.total_seconds() else shown


def due_at(shown: datetime, zone: tzinfo) -> float:
    """Return the instant at which what a calendar has at `shown` is due."""
    return shown.replace(tzinfo=zone, fold=0).timestamp()  # in a gap: reckoned with the offset before it


def instant_of(shown: datetime, zone: tzinfo) -> float:
    """Return the first instant at which a clock in the zone shows `shown` or more."""
    before = shown.replace(tzinfo=zone, fold=0)
    instant = before.timestamp()
    if reading(instant, zone) == shown:
        return instant
    return _change(shown.replace(tzinfo=zone, fold=1).timestamp(), instant, zone)


def first_change(low: float, high: float, zone: tzinfo) -> float | None:
    """Return the first instant after `low`, at or before `high`, at which the zone's clock is set; None for none."""
    while low < high:
        middle = min(low + _LOOK_SECONDS, high)
        if _offset_at(low, zone) != _offset_at(middle, zone):
            return _change(low, middle, zone)
        low = middle
    return None


def last_change(low: float, high: float, zone: tzinfo) -> float | None:
    """Return the last instant after `low`, at or before `high`, at which the zone's clock is set; None for none."""
    while low < high:
        middle = max(high - _LOOK_SECONDS, low)
        if _offset_at(middle, zone) != _offset_at(high, zone):
            return _change(middle, high, zone)
        high = middle
    return None


def _change(low: float, high: float, zone: tzinfo) -> float:
    """Return the instant at which the clock is set: after `low`, at or before `high`, both whole seconds."""
    old = _offset_at(low, zone)
    while high - low > 1:
        middle = low + (high - low) // 2
        if _offset_at(middle, zone) == old:
            low = middle
        else:
            high = middle
    return high


def _offset_at(instant: float, zone: tzinfo) -> timedelta:
    return _offset(datetime.fromtimestamp(instant, zone))


def _offset(moment: datetime) -> timedelta:
    return moment.utcoffset() or timedelta()


def weekday(day: datetime) -> int:
    """Return the day of the week, 0 is Sunday."""
    return day.isoweekday() % 7


def time_text(instant: float, zone: tzinfo, now: float) -> str:
    """Show an instant to people: `09:30 CET` today, `Mon 2026-11-23 09:30 CET` on another day; seconds if there are."""
    moment = datetime.fromtimestamp(round(instant), zone)
    text = moment.strftime("%H:%M:%S" if moment.second else "%H:%M")
    name = moment.tzname() or "UTC"
    if moment.date() != datetime.fromtimestamp(now, zone).date():
        text = f"{DAYS[weekday(moment)]} {moment:%Y-%m-%d} {text}"
    return f"{text} {name}"


def utc_text(instant: float) -> str:
    """Show an instant for machines, ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def span_text(seconds: float) -> str:
    """Show a length of time to people, in its two largest units: `90` is `1 min 30 s`."""
    left = max(0, round(seconds))
    parts = []
    for size, name in ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (1, "s")):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2]) or "0 s"

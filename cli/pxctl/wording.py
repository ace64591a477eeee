"""Numbers and times in words. Pure: values in, short texts out; anything unfit becomes a dash."""

from __future__ import annotations

ABSENT = "-"

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_EVER = 1e12
_UNITS = ("B", "K", "M", "G", "T", "P")
_KIBI = 1024


def duration(seconds: object) -> str:
    """Return "0.4s", "12s", "3m20s", "2h05m", "4d03h"."""
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not abs(seconds) < _EVER:
        return ABSENT
    if 0 < seconds < 10 and seconds % 1:
        return f"{seconds:.1f}s"
    whole = max(0, int(seconds))
    if whole < _MINUTE:
        return f"{whole}s"
    return _long(whole)


def _long(whole: int) -> str:
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02d}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02d}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02d}h"


def size(count: object) -> str:
    """Return "812B", "12.3M", "1.5G" (powers of 1024)."""
    if not isinstance(count, int | float) or isinstance(count, bool):
        return ABSENT
    amount, unit = float(count), 0
    while abs(amount) >= _KIBI and unit < len(_UNITS) - 1:
        amount /= _KIBI
        unit += 1
    return f"{int(amount)}B" if unit == 0 else f"{amount:.1f}{_UNITS[unit]}"


def percent(value: object) -> str:
    """Return "3.1%"."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return ABSENT
    return f"{value:.1f}%"


def epoch(text: object) -> float | None:
    """Return the Unix time of an RFC 3339 timestamp, None for what is not one.

    By hand, because `datetime` is dear and click's own use of it may end one day.
    """
    if not isinstance(text, str) or len(text) < len("2026-01-01T00:00:00Z"):
        return None
    try:
        days = _days(int(text[:4]), int(text[5:7]), int(text[8:10]))
        seconds = int(text[11:13]) * _HOUR + int(text[14:16]) * _MINUTE
        rest = text[17:]
        end = next((at for at, letter in enumerate(rest) if letter not in "0123456789."), len(rest))
        return days * _DAY + seconds + float(rest[:end]) - _offset(rest[end:])
    except ValueError:
        return None


def _days(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01; the year begins in March here, so that the leap day is its last."""
    year -= month <= 2
    era, of_era = divmod(year, 400)
    of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


def _offset(zone: str) -> int:
    if zone in {"Z", "z"}:
        return 0
    sign = {"+": 1, "-": -1}.get(zone[:1])
    if sign is None:
        raise ValueError(zone)
    return sign * (int(zone[1:3]) * _HOUR + int(zone[4:6]) * _MINUTE)


def ago(text: object, now: float) -> str:
    """Return "12s ago"; a moment to come is "in 5m00s"."""
    at = epoch(text)
    if at is None:
        return ABSENT
    return f"{duration(int(now - at))} ago" if at <= now else f"in {duration(int(at - now))}"


def counted(count: int, noun: str) -> str:
    """Return "1 unit", "2 units"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

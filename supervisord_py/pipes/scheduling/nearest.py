"""The nearest form that would have been a schedule, for the hint of an error. Pure.

Law: what a hint puts in backticks is a schedule.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_FORMS = (
    "manual",
    "every 30m",
    "every 2 hours",
    "every 3 days",
    "every week",
    "every 30 seconds",
    "hourly",
    "daily at 9:30am",
    "every day at 9am",
    "every weekday at 8:15",
    "weekends at 10am",
    "monday at 9",
    "mon,wed,fri at 18:00",
    "0 9 * * 1-5",
    "*/15 8-20 * * *",
    "@hourly",
    "@daily",
    "@midnight",
    "@weekly",
    "@monthly",
    "@yearly",
    "at 2099-01-01T09:00:00Z",
)
_SYNONYMS = {
    "": "manual",
    "always": "every 1m",
    "constantly": "every 1m",
    "continuous": "every 1m",
    "continuously": "every 1m",
    "nonstop": "every 1m",
    "loop": "every 1m",
    "minutely": "every 1m",
    "every minutes": "every 1m",
    "nightly": "daily at 2:00",
    "mornings": "daily at 9:00",
    "every morning": "daily at 9:00",
    "every evening": "daily at 18:00",
    "every night": "daily at 2:00",
    "noon": "daily at 12:00",
    "midnight": "@midnight",
    "monthly": "@monthly",
    "every month": "@monthly",
    "yearly": "@yearly",
    "annually": "@yearly",
    "every year": "@yearly",
    "fortnightly": "every 2 weeks",
    "biweekly": "every 2 weeks",
    "never": "manual",
    "none": "manual",
    "null": "manual",
    "off": "manual",
    "disabled": "manual",
    "on demand": "manual",
    "ondemand": "manual",
    "weekdays": "weekdays at 9:00",
    "every weekday": "weekdays at 9:00",
    "weekends": "weekends at 9:00",
    "every weekend": "weekends at 9:00",
}
_UNITS = ("minutes", "hours", "days", "weeks")
_SHORT_UNITS = ("m", "min", "h", "d", "w")
_NUMBER = re.compile(r"(?:every )?([1-9][0-9]{0,3})")
_INTERVAL = re.compile(r"(?:([a-z]+) )?([1-9][0-9]?|[1-4][0-9]{2}) ?([a-z]+)")
_CLOCK = re.compile(r"(?:(?:every day|daily|every|at|once at) )?([0-9]{1,2}(?::[0-9]{2})?) ?(am|pm)?")
_ANY_SHOWN = 80
_LAST_MINUTE = 59


def nearest(text: str) -> str:
    """Return a schedule that the writer of a lower-case text may have meant."""
    if text in _SYNONYMS:
        return _SYNONYMS[text]
    if number := _NUMBER.fullmatch(text):
        return f"every {number[1]}m"
    if clock := _CLOCK.fullmatch(text):
        hour, _, minute = clock[1].partition(":")
        if int(minute or 0) <= _LAST_MINUTE and int(hour) in (range(1, 13) if clock[2] else range(24)):
            return f"daily at {clock[1]}{clock[2] or ''}"
        return "daily at 9:30am"
    if (span := _INTERVAL.fullmatch(text)) and nearest_name(span[1] or "every", ("every", "each")):
        unit = span[3] if span[3] in _SHORT_UNITS else nearest_name(span[3], _UNITS)
        if unit is not None:
            return f"every {span[2]}{'' if unit in _SHORT_UNITS else ' '}{unit}"
    near = difflib.get_close_matches(text[:_ANY_SHOWN], (*_FORMS, *_SYNONYMS), n=1, cutoff=0.5)
    return _SYNONYMS.get(near[0], near[0]) if near else "every 30m"


def shown(text: str) -> str:
    """Quote somebody's text in one line of bearable length."""
    return repr(text if len(text) <= _ANY_SHOWN else f"{text[: _ANY_SHOWN - 1]}…")


def nearest_name(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name nearest to `name`, case aside; None when none is near."""
    by_lower = {each.lower(): each for each in sorted(known)}
    near = difflib.get_close_matches(name[:_ANY_SHOWN].lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[near[0]] if near else None

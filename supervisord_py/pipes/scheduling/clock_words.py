"""Wall-clock times in words: `daily at 9:30am`, `every weekday at 8:15`, `mon,wed,fri at 18:00`. Pure."""

from __future__ import annotations

import re

from supervisord_py.pipes.scheduling.nearest import shown
from supervisord_py.pipes.scheduling.schedule import ScheduleError

_NAMES = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_GROUPS = {"day": "*", "weekday": "1-5", "workday": "1-5", "weekend": "0,6"}
_SHORT = {"tues": 2, "weds": 3, "thur": 4, "thurs": 4}
_TIMED = re.compile(r"(?P<days>[a-z][a-z, -]*?),? (?:at|@) (?P<time>[0-9a-z:. ]+)")
_TIME = re.compile(r"(?P<hour>[0-9]{1,2})(?:[:.](?P<minute>[0-9]{2}))?(?: ?(?P<half>am|pm|a\.m\.|p\.m\.))?")
_NAMED_TIMES = {"noon": (12, 0), "midday": (12, 0), "midnight": (0, 0)}
_JOINS = re.compile(r"(?:, ?and |, ?| and | )")
_HALF_DAY = 12


def clock_cron(text: str) -> str | None:
    """Return the five cron fields of a lower-case text, or None when it is written as something else.

    Raises:
        ScheduleError: The days are right and the time is none.
    """
    match = _TIMED.fullmatch(text)
    if match is None:
        return None
    days = _days(match["days"])
    if days is None:
        return None
    hour, minute = _time(match["time"].strip(), match["days"])
    return f"{minute} {hour} * * {days}"


def _days(text: str) -> str | None:
    words = re.sub(r"^(?:every|each|on) ", "", text)
    if words in {"daily", "everyday"}:
        return "*"
    if words.removesuffix("s") in _GROUPS:
        return _GROUPS[words.removesuffix("s")]
    found: set[int] = set()
    for each in _JOINS.split(words.replace(" - ", "-").replace(" to ", "-")):
        first, dash, last = each.partition("-")
        begin, end = _weekday(first), _weekday(last if dash else first)
        if begin is None or end is None:
            return None
        found.update((begin + step) % 7 for step in range((end - begin) % 7 + 1))
    return ",".join(str(each) for each in sorted(found))


def _weekday(word: str) -> int | None:
    for at, name in enumerate(_NAMES):
        if word in {name, f"{name}s", name[:3]}:
            return at
    return _SHORT.get(word)


def _time(text: str, days: str) -> tuple[int, int]:
    if text in _NAMED_TIMES:
        return _NAMED_TIMES[text]
    match = _TIME.fullmatch(text)
    if match is None:
        raise _no_time(text, days, "a time of day is written 9, 9am, 9:30am or 21:30")
    hour, minute = int(match["hour"]), int(match["minute"] or 0)
    if match["half"]:
        if not 1 <= hour <= _HALF_DAY:
            raise _no_time(text, days, "the hour of am and pm is 1 to 12")
        hour = hour % _HALF_DAY + (_HALF_DAY if match["half"][0] == "p" else 0)
    if hour > 23 or minute > 59:
        raise _no_time(text, days, "the day ends at 23:59")
    return hour, minute


def _no_time(text: str, days: str, why: str) -> ScheduleError:
    return ScheduleError(f"{shown(text)} is no time of day: {why}", hint=f"write for example `{days} at 9:30am`")

"""From text to schedule. Pure: text in, a value or an error out.

Every text either becomes a schedule or a `ScheduleError` that says what is wrong; nothing is silently `never`, and
nothing silently means something else than what people read: `daily` stays an interval, as pipes in the wild have it,
and says so. No hint offers another time than the one that was written.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.pipes.scheduling.calendar_rule import LONGEST_SECONDS, read_config
from supervisord_py.pipes.scheduling.cron import checked_cron
from supervisord_py.pipes.scheduling.schedule import At, Cron, Every, Manual, Schedule, ScheduleError
from supervisord_py.pipes.scheduling.wall import UNITS, WEEKDAYS, checked_zone, instant, nearest_name, shown, span_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["SHORTEST_SECONDS", "ParsedSchedule", "ScheduleError", "parse_schedule"]

SHORTEST_SECONDS = 10.0
FORMS = "pipe.md(5) lists the forms, from every 30m to a cron line"
_LONGEST_TEXT = 200
_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_INTERVALS = {"hourly": 3600.0, "daily": 86400.0, "weekly": 604800.0}
_FIXED = {"daily": "daily at 9:00", "every day": "daily at 9:00", "weekly": "monday at 9:00"}
_FIXED["every week"] = _FIXED["weekly"]
_GROUPS = {"day": "*", "weekday": "1-5", "workday": "1-5", "weekend": "0,6", "daily": "*", "everyday": "*"}
_HOURS = {"noon": (12, 0), "midday": (12, 0), "midnight": (0, 0)}
_WORDS = ("manual", "every", "other", "and", "at", *UNITS, *_INTERVALS, *_GROUPS, *WEEKDAYS, *_HOURS, *_MACROS)
_ZONE_BEFORE = re.compile(r"(?:CRON_TZ|TZ)=(\S+) (.+)")
_ZONE_AFTER = re.compile(r"(.+?)(?: in| \()? ?(?<=[ (])((?:[A-Za-z_]+/[A-Za-z][A-Za-z0-9_+/-]*)|UTC|GMT)\)?")
_CRON_LIKE = re.compile(r"[0-9*?,/-]*[0-9*?][0-9*?,/-]*(?: [0-9A-Za-z*?,/#-]+)*")
_BARE = re.compile(r"every (other )?([a-z]{2,})")
_TIMED = re.compile(r"(?P<days>[a-z][a-z, -]*?),? (?:at|@) (?P<time>[0-9a-z:. ]+)")
_TIME = re.compile(r"(?P<hour>[0-9]{1,2})(?:[:.](?P<minute>[0-9]{2}))?(?: ?(?P<half>am|pm|a\.m\.|p\.m\.))?")
_JOINS = re.compile(r"(?:, ?and |, ?| and | )")
_WORD = re.compile(r"@?[a-z]{2,}")
_HALF_DAY = 12


@dataclass(frozen=True, slots=True)
class ParsedSchedule:
    """A schedule, and sentences for the one who wrote it."""

    schedule: Schedule
    warnings: tuple[str, ...] = ()


def parse_schedule(
    text: str,
    config: Mapping[str, object] | None = None,
    *,
    timezone: str | None = None,
    floor_seconds: float = SHORTEST_SECONDS,
) -> ParsedSchedule:
    """Read a schedule.

    Args:
        text: `schedule` of the front matter.
        config: `schedule_config`; one that is not empty takes the place of the text.
        timezone: Zone of what names none; None is the machine's.
        floor_seconds: Nothing denser is taken.

    Raises:
        ScheduleError: It is none; `detail` says why.
    """
    zone = None if timezone is None else checked_zone(timezone)
    if config:
        return ParsedSchedule(*read_config(config, zone, floor_seconds))
    plain = " ".join(text.split())
    if len(plain) > _LONGEST_TEXT:
        raise ScheduleError(f"a schedule of {len(plain)} characters is too long: {shown(plain)}", hint=FORMS)
    found = _read(plain, zone, floor_seconds)
    if found is None:
        raise ScheduleError(f"{shown(plain)} is no schedule", hint=_hint(plain, zone, floor_seconds))
    return found


def _read(text: str, zone: str | None, floor: float) -> ParsedSchedule | None:
    lower = text.lower()
    if lower == "manual":
        return ParsedSchedule(Manual())
    if re.match(r"at [0-9]{4}-", lower):
        return ParsedSchedule(At(instant(text[3:], zone)))
    seconds = _interval(lower.removeprefix("@") if lower.startswith("@every ") else lower)
    if seconds is not None:
        warning = f"`{lower}` is an interval from start to start, at no fixed hour; for a fixed hour write `{{}}`"
        warnings = (warning.format(_FIXED[lower]),) if lower in _FIXED else ()
        return ParsedSchedule(Every(_checked(seconds, text, floor)), warnings)
    if before := _ZONE_BEFORE.fullmatch(text):
        zone, text = checked_zone(before[1]), before[2]
    elif after := _ZONE_AFTER.fullmatch(text):
        text, zone = after[1], checked_zone(after[2])
    lower = text.lower()
    expression = _MACROS.get(lower) or _clock_cron(lower)
    if expression is None and _CRON_LIKE.fullmatch(lower) and (" " in lower or "*" in lower):
        expression = checked_cron(lower, floor)
    return None if expression is None else ParsedSchedule(Cron(expression, zone))


def _hint(text: str, zone: str | None, floor: float) -> str:
    """Offer the same text with its misspelled words mended, or its time of day each day, where that is a schedule."""
    lower = text.lower()
    if lower == "@reboot":
        return f"a restart of the daemon would run it, too; {FORMS}"
    mended = _WORD.sub(lambda word: nearest_name(word[0], _WORDS, 0.7) or word[0], lower)
    for meant in (mended, f"daily at {lower.removeprefix('at ')}"):
        with suppress(ScheduleError):
            if meant != lower and _read(meant, zone, floor):
                return f"did you mean `{meant}`? {FORMS}"
    return FORMS


def _interval(text: str) -> float | None:
    if text in _INTERVALS:
        return _INTERVALS[text]
    if (bare := _BARE.fullmatch(text)) and bare[2] in UNITS:
        return UNITS[bare[2]] * (2 if bare[1] else 1)
    return span_of(text.removeprefix("every "))


def _checked(seconds: float, text: str, shortest: float) -> float:
    if seconds < shortest:
        detail = f"{shown(text)} is too dense; the shortest interval is {shortest:g} s"
        raise ScheduleError(detail, hint=f"write for example `every {max(60, int(shortest) + 1)} s`")
    if seconds > LONGEST_SECONDS:
        raise ScheduleError(f"{shown(text)} is over ten years", hint="write a date instead: `at 2099-01-01T09:00:00Z`")
    return seconds


def _clock_cron(text: str) -> str | None:
    """Return the five cron fields of `daily at 9:30am` and its like, or None for another text."""
    match = _TIMED.fullmatch(text)
    days = _days(match["days"]) if match else None
    if match is None or days is None:
        return None
    hour, minute = _time(match["time"].strip())
    return f"{minute} {hour} * * {days}"


def _days(text: str) -> str | None:
    words = re.sub(r"^(?:every|each|on) ", "", text)
    if (group := _GROUPS.get(words) or _GROUPS.get(words.removesuffix("s"))) is not None:
        return group
    found: set[int] = set()
    for each in _JOINS.split(words.replace(" - ", "-").replace(" to ", "-")):
        first, dash, last = each.partition("-")
        begin, end = _weekday(first), _weekday(last if dash else first)
        if begin is None or end is None:
            return None
        found.update((begin + step) % 7 for step in range((end - begin) % 7 + 1))
    return ",".join(str(each) for each in sorted(found))


def _weekday(word: str) -> int | None:
    short = {"tues": "tue", "weds": "wed", "thur": "thu", "thurs": "thu"}.get(word, word)
    names = (number for number, name in enumerate(WEEKDAYS) if short in (name, f"{name}s", name[:3]))
    return next(names, None)


def _time(text: str) -> tuple[int, int]:
    if text in _HOURS:
        return _HOURS[text]
    match = _TIME.fullmatch(text)
    if match is None:
        raise ScheduleError(f"{shown(text)} is no time of day", hint="a time of day is written 9, 9am, 9:30am or 21:30")
    hour, minute = int(match["hour"]), int(match["minute"] or 0)
    if match["half"]:
        if not 1 <= hour <= _HALF_DAY:
            raise ScheduleError(f"{shown(text)} is no time of day", hint="the hour of am and pm is 1 to 12")
        hour = hour % _HALF_DAY + (_HALF_DAY if match["half"][0] == "p" else 0)
    if hour > 23 or minute > 59:
        raise ScheduleError(f"{shown(text)} is no time of day", hint="the day ends at 23:59")
    return hour, minute

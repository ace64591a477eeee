"""Schedules: the five kinds and the instants of each, from text, and in words. Pure: text in, a
value or an error out.

Every text either becomes a schedule or a ConfigError that says what is wrong; nothing is silently
`never`, and nothing silently means something else than what people read: `daily` stays an interval,
as pipes in the wild have it, and says so. No hint offers a time in the place of the one that was
written. cronsim finds the times of cron lines, dateutil those of `schedule_config`; `due.py` says
whether one is due.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta, tzinfo
from itertools import takewhile
from typing import Annotated, Any, Literal, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

import msgspec
from msgspec import Meta, structs

from supervisord_py.config.documents import nearest
from supervisord_py.errors import ConfigError

WEEKDAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
"""By POSIX number."""
UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
    **dict.fromkeys(("w", "wk", "wks", "week", "weeks"), 604800.0),
}
_SPAN = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,3})? ?[a-z]+(?: |(?=[0-9])|$))+(?<! )")
_PIECE = re.compile(r"([0-9.]+) ?([a-z]+)")
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+){0,3}")


class Manual(msgspec.Struct, frozen=True):
    """Only by hand, or by an event."""


class Every(msgspec.Struct, frozen=True):
    """An interval on a clock that counts suspend, from the start of one run to the start of the
    next.
    """

    seconds: float


class At(msgspec.Struct, frozen=True):
    """Once; then the pipe is disabled."""

    # ISO 8601, on the clock of `timezone` (None: the machine's) where it has no offset
    reading: str
    timezone: str | None = None
    # so long after the pipe was first seen or enabled, or its schedule changed
    after_seconds: float | None = None

    def following(self, instant: float, machine: tzinfo, begun: float) -> Iterator[float]:
        """Yield the due instant if it is after `instant`; a time of day alone is that of the day
        after `begun`.
        """
        zone, reading, due = (
            zone_of(self.timezone, machine),
            self.reading,
            int(begun + (self.after_seconds or 0.0)),
        )
        if self.after_seconds is None:
            if "-" not in reading:
                reading = (
                    f"{datetime.fromtimestamp(begun, zone).date() + timedelta(days=1)}T{reading}"
                )
            due = int(_instant(reading, zone))
        if due > instant:
            yield float(due)


class Cron(msgspec.Struct, frozen=True):
    """Wall-clock times."""

    expression: str  # 5 fields, or 6 with seconds first; POSIX weekdays (0 and 7 are Sunday)
    timezone: str | None = None  # IANA name; None is the machine's zone

    def following(self, instant: float, machine: tzinfo, _begun: float = 0.0) -> Iterator[float]:
        """Yield the due instants after `instant`, ascending; none where there is none within 50
        years.
        """
        from cronsim import CronSim  # 7 ms, only needed once something is due

        last = instant
        for found in CronSim(
            self.expression, datetime.fromtimestamp(instant, zone_of(self.timezone, machine))
        ):
            if found.timestamp() > last:  # an hour that comes twice is searched twice
                last = found.timestamp()
                yield last


FREQUENCIES = {
    "minutes": 60.0,
    "hours": 3600.0,
    "days": 86400.0,
    "weeks": 604800.0,
    "months": 31 * 86400.0,
}
ELAPSED = ("minutes", "hours")  # these have no time of day


class Calendar(msgspec.Struct, frozen=True, repr_omit_defaults=True, forbid_unknown_fields=True):
    """`schedule_config`: every so many units from `starting` on, or else from when the pipe was
    enabled.

    What it leaves open (the weekday of weeks, the day of months) is that of its beginning. A day
    that a month has not got is its last. `starting` and `ending` are ISO 8601, on the clock of the
    zone where they have no offset.
    """

    frequency: Literal["minutes", "hours", "days", "weeks", "months"]
    interval: Annotated[int, Meta(ge=1, le=10**6)] = 1
    days_of_week: tuple[Annotated[int, Meta(ge=0, le=7)], ...] = ()  # 0 is Sunday, as is 7
    day_of_month: Annotated[int, Meta(ge=1, le=31)] | None = None
    at_hour: Annotated[int, Meta(ge=0, le=23)] = 0
    at_minute: Annotated[int, Meta(ge=0, le=59)] = 0
    timezone: str | None = None  # IANA name; None is the machine's zone
    starting: str | None = None
    ending: str | None = None
    # runs after which it is over
    max_occurrences: Annotated[int, Meta(ge=1, le=10**6)] | None = None

    def following(self, instant: float, machine: tzinfo, begun: float) -> Iterator[float]:
        """Yield the due instants after `instant`, ascending, to its end; `begun` is when the
        pipe was enabled.
        """
        zone = zone_of(self.timezone, machine)
        # the ledger keeps no fractions
        begin = int(begun) if self.starting is None else _instant(self.starting, zone)
        last, end = (
            max(instant, begin - 1),
            math.inf if self.ending is None else _instant(self.ending, zone),
        )
        for found in takewhile(lambda at: at <= end, self._instants(last, begin, zone)):
            if found > last:
                last = found
                yield found

    def _instants(self, near: float, begin: float, zone: tzinfo) -> Iterator[float]:
        """Return due instants from some period before `near` on; what the zone leaves out comes
        when it was set.
        """
        from dateutil import rrule  # 20 ms, only needed where there is a `schedule_config`

        first = datetime.fromtimestamp(begin, zone).replace(tzinfo=None)
        if self.frequency not in ELAPSED:
            first = first.replace(hour=self.at_hour, minute=self.at_minute, second=0)
        rules: dict[str, Any] = {}
        if self.frequency == "months":
            day = self.day_of_month or first.day
            first, rules = (
                first.replace(day=1),
                {"bymonthday": tuple(range(min(day, 28), day + 1)), "bysetpos": -1},
            )
        elif self.days_of_week:  # from a wanted day on some multiple of the interval always is one
            first += timedelta(
                days=min((each - first.isoweekday()) % 7 for each in self.days_of_week)
            )
            rules = {"byweekday": tuple((each - 1) % 7 for each in self.days_of_week)}
        # leave out whole periods, or each question would count from the beginning
        if self.frequency != "months":
            period = timedelta(seconds=FREQUENCIES[self.frequency]) * self.interval
            first += (
                max(
                    0,
                    (datetime.fromtimestamp(near, zone).replace(tzinfo=None) - first) // period - 1,
                )
                * period
            )
        kinds: tuple[Any, ...] = (
            rrule.MINUTELY,
            rrule.HOURLY,
            rrule.DAILY,
            rrule.WEEKLY,
            rrule.MONTHLY,
        )
        kind = kinds[tuple(FREQUENCIES).index(self.frequency)]
        found = rrule.rrule(kind, dtstart=first, interval=self.interval, **rules)
        return (each.replace(tzinfo=zone).timestamp() for each in found)


Schedule: TypeAlias = Manual | Every | Cron | At | Calendar


def describe(schedule: Schedule, zone: str = "local time") -> str:
    """Return one phrase: `every 30 min`, `at 09:30 on Monday (Europe/Berlin)`.

    `zone` is what the zone of a schedule that names none is called.
    """
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
            if re.search(r"[+-][0-9]{2}:[0-9]{2}$", schedule.reading):
                return words
        case Calendar():
            told = {
                name: getattr(schedule, name)
                for name in schedule.__struct_fields__[2:]
                if name != "timezone"
            }
            rest = [f"{name} {value}" for name, value in told.items() if value not in (None, ())]
            words = ", ".join((f"every {schedule.interval} {schedule.frequency}", *rest))
        case _:
            words = _cron_words(schedule.expression)
    return f"{words} ({schedule.timezone or zone})"


def _cron_words(expression: str) -> str:
    from cronsim import CronSim

    words = CronSim(expression, datetime.now(UTC)).explain()
    words = f"{words[:1].lower()}{words[1:]}"
    words = re.sub(r"([0-9]+)th\b", lambda found: _ordinal(int(found[1])), words)
    # A step that is more than its field holds stands for the field's first value.
    words = re.sub(r"every (?:3[2-9]|[4-9][0-9]|[0-9]{3,})[a-z]{2} day of month and ", "", words)
    words = words.replace("every seventh day of week", "Sunday")
    fields = expression.split()
    month_day = fields[_MONTH_DAY]
    weekday = fields[_WEEKDAY]
    if not (month_day.startswith("*") or weekday.startswith("*")):
        # Of two days that are both named either is enough, as in every cron.
        first, _, last = words.rpartition(" and on ")
        words = f"{first} or on {last}, either of them"
    return words


def _ordinal(number: int) -> str:
    ends = {1: "st", 2: "nd", 3: "rd"}
    is_teen = number % 100 in {11, 12, 13}
    return f"{number}{'th' if is_teen else ends.get(number % 10, 'th')}"


# -- times, zones and other people's texts ---------------------------------------------------------


def shown(text: str) -> str:
    """Quote somebody's text in one line of bearable length."""
    return repr(text if len(text) <= 80 else f"{text[:79]}…")


def span_of(text: str) -> float | None:
    """Return the seconds of `90s`, `1h30m`, `2 hours 30 minutes`; None for another text."""
    pieces = _PIECE.findall(text) if _SPAN.fullmatch(text) else []
    if not pieces or any(unit not in UNITS for _count, unit in pieces):
        return None
    return sum(float(number) * UNITS[unit] for number, unit in pieces)


def checked_zone(name: str) -> str:
    """Return the name of a time zone that exists; else ConfigError, whose hint has the nearest."""
    # OSError: a folder of zones, such as `Europe`
    with suppress(ZoneInfoNotFoundError, ValueError, OSError):
        if _ZONE.fullmatch(name):
            return ZoneInfo(name).key
    # of short ones it is another time
    near = nearest(name, available_timezones()) if "/" in name else None
    hint = (
        f"did you mean {near}?"
        if near
        else "use a name of the IANA list, for example Europe/Berlin or UTC"
    )
    raise ConfigError(f"there is no time zone {shown(name)}", hint=hint)


def zone_of(name: str | None, machine: tzinfo) -> tzinfo:
    """Return the zone of that name, or the machine's.

    ZoneInfoNotFoundError: there is none of that name any more.
    """
    return machine if name is None else ZoneInfo(name)


def _instant(text: str, zone: tzinfo) -> float:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()


def time_text(instant: float, zone: tzinfo, now: float) -> str:
    """Show an instant to people: `09:30 CET` today, `Mon 2026-11-23 09:30 CET` on another day;
    seconds if there are.
    """
    moment = datetime.fromtimestamp(round(instant), zone)
    day = "" if moment.date() == datetime.fromtimestamp(now, zone).date() else "%a %Y-%m-%d "
    return f"{moment:{day}%H:%M{':%S' if moment.second else ''}} {moment.tzname() or 'UTC'}"


def span_text(seconds: float) -> str:
    """Show a length of time to people, in its two largest units: `90` is `1 min 30 s`."""
    left = max(0, round(seconds))
    parts = []
    for size, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number} {name}")
    return " ".join(parts[:2]) or "0 s"


# -- from text -------------------------------------------------------------------------------------

SHORTEST_SECONDS = 10.0  # nothing denser is taken
LONGEST_SECONDS = 3660 * 86400.0
FORMS = "pipe.md(5) lists the forms, from every 30m to a cron line"
_MACROS = {
    "@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}  # fmt: skip
_INTERVALS = {"hourly": 3600.0, "daily": 86400.0, "weekly": 604800.0}
_FIXED = {
    "hourly": "@hourly",
    **dict.fromkeys(("daily", "every day"), "daily at 9:00"),
    **dict.fromkeys(("weekly", "every week"), "monday at 9:00"),
}
_GROUPS = {"day": "*", "daily": "*", "weekday": "1-5", "weekend": "0,6"}
_CRON_LIKE = re.compile(r"[0-9*?,/-]*[0-9*?][0-9*?,/-]*(?: [0-9A-Za-z*?,/#-]+)*")
_TIMED = re.compile(r"(?:every |on )?(?P<days>[a-z][a-z, -]*?),? (?:at|@) (?P<time>[0-9a-z:. ]+)")
_TIME = re.compile(
    r"(?P<hour>[0-9]{1,2})(?:[:.](?P<minute>[0-9]{2}))?(?: ?(?P<half>am|pm|a\.m\.|p\.m\.))?"
)
_NAMED_TIMES = {"noon": 12, "midnight": 0}
_CRON_HINT = "write for example `*/30 9-17 * * 1-5` (minute hour day month weekday)"
_CRON_MOST = (59, 59, 23, 31, 12, 7)  # of weekdays, 7 is Sunday as is 0
_MONTH_DAY, _WEEKDAY = -3, -1  # places among the fields


def parse_schedule(text: str, zone: str | None = None) -> tuple[Schedule, str | None]:
    """Read `schedule` of the front matter; return it, and a sentence for whoever wrote it, where
    there is one.

    `zone` is of what names none; None is the machine's. Raises ConfigError: its `detail` says why
    it is none.
    """
    plain = " ".join(text.split())
    lower = plain.lower()
    found = _read(lower, zone) if len(plain) <= 200 else None
    if found is None:
        offer = _offer(lower) if len(plain) <= 200 else None
        hint = FORMS if offer is None else f"did you mean `{offer}`? {FORMS}"
        raise ConfigError(f"{shown(plain)} is no schedule", hint=hint)
    if lower not in _FIXED:
        return found, None
    unit = "minute" if lower == "hourly" else "hour"
    said = (
        f"`{lower}` is an interval from start to start, at no fixed {unit}; for a fixed {unit} "
        f"write `{_FIXED[lower]}`"
    )
    return found, said


_NUMBERS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
_MORE_NUMBERS = {"fifteen": 15, "twenty": 20, "thirty": 30, "forty five": 45, "sixty": 60}
_NTH = {"first": "#1", "second": "#2", "third": "#3", "fourth": "#4", "last": "L"}
_REWRITES: tuple[tuple[str, str], ...] = (
    (r"cron\((.+)\)", r"\1"),
    (r"(monthly|yearly|annually)", r"@\1"),
    (r"([0-9]{1,2}(?::[0-9]{2})(?: ?[ap]m)?|[0-9]{1,2} ?[ap]m|noon|midnight)", r"daily at \1"),
    (r"(?:weekly|every week) on (.+)", r"\1"),
    (r"every other ([a-z]+?)s?", r"every 2 \1s"),
    (r"([a-z][a-z, ]*?)(?<! at) ([0-9][0-9:.]* ?(?:[ap]m)?|noon|midnight)", r"\1 at \2"),
)
"""What other programs and people write, and what it is here; each offer is read before it is
made.
"""


def _offer(text: str) -> str | None:
    """Return how a schedule that cannot be read is written here, where what is meant is plain;
    the same times.
    """
    candidates = [text]
    if re.fullmatch(r"[a-z0-9:-]+", text):
        candidates.append(text.replace("-", " "))
    for pattern, rewritten in _REWRITES:
        fitting = [
            found
            for found in (re.fullmatch(pattern, each) for each in candidates)
            if found is not None
        ]
        candidates.extend(found.expand(rewritten) for found in fitting)
    candidates += [_with_digits(each) for each in candidates]
    for candidate in candidates:
        with suppress(ConfigError):
            nth = _nth_weekday(candidate)
            if nth is not None:
                return nth
            if candidate != text and _read(candidate, None) is not None:
                return candidate
    return None


def _with_digits(text: str) -> str:
    numbers = {word: number for number, word in enumerate(_NUMBERS)} | _MORE_NUMBERS
    return re.sub(rf"\b(?:{'|'.join(numbers)})\b", lambda found: str(numbers[found[0]]), text)


def _nth_weekday(text: str) -> str | None:
    """Return the cron line of `first monday of the month at 9am`."""
    found = re.fullmatch(
        r"(?:the |every )?([a-z]+) ([a-z]+) of (?:the|each|every) month at (.+)", text
    )
    if found is None or found[1] not in _NTH or _weekday(found[2]) is None:
        return None
    hour, minute = _time(found[3])
    return f"{minute} {hour} * * {_weekday(found[2])}{_NTH[found[1]]}"


def _read(text: str, zone: str | None) -> Schedule | None:
    if text == "manual":
        return Manual()
    if re.match(r"(?:at )?[0-9]{4}-", text):
        return At(_moment(text.removeprefix("at ")).isoformat(), zone)
    if text.startswith("tomorrow at "):
        return At(time(*_time(text.removeprefix("tomorrow at "))).isoformat(), zone)
    if text.startswith("in ") and (seconds := span_of(text.removeprefix("in "))) is not None:
        return At("", zone, _checked(seconds, text))
    bare = text.removeprefix("@").removeprefix("every ")
    seconds = (
        _INTERVALS.get(text)
        or (UNITS.get(bare) if bare != text and len(bare) > 1 else None)
        or span_of(bare)
    )
    if seconds is not None:
        return Every(_checked(seconds, text))
    expression = _MACROS.get(text) or _clock_cron(text)
    if expression is None and _CRON_LIKE.fullmatch(text) and (" " in text or "*" in text):
        expression = _checked_cron(text)
    return None if expression is None else Cron(expression, zone)


def _moment(text: str) -> datetime:
    """Read ISO 8601, the offset or the time left out or not; to the whole second."""
    with suppress(ValueError):
        moment = datetime.fromisoformat(text.upper()).replace(microsecond=0)
        if 1900 <= moment.year <= 9998:
            return moment
    hint = "write date, time and offset, as `at 2099-01-01T09:00:00Z`"
    raise ConfigError(f"{shown(text)} is no date and time from 1900 to 9998", hint=hint)


def _checked(seconds: float, text: str) -> float:
    if seconds < SHORTEST_SECONDS:
        detail = f"{shown(text)} is too dense; the shortest interval is {SHORTEST_SECONDS:g} s"
        raise ConfigError(detail, hint="write for example `every 60 s`")
    if seconds > LONGEST_SECONDS:
        raise ConfigError(
            f"{shown(text)} is over ten years",
            hint="write a date instead: `at 2099-01-01T09:00:00Z`",
        )
    return seconds


# -- a time of day, and cron -----------------------------------------------------------------------


def _clock_cron(text: str) -> str | None:
    """Return the five cron fields of `daily at 9:30am` and its like, or None for another text."""
    match = _TIMED.fullmatch(text)
    days = _days(match["days"]) if match else None
    if match is None or days is None:
        return None
    hour, minute = _time(match["time"].strip())
    return f"{minute} {hour} * * {days}"


def _days(words: str) -> str | None:
    if (group := _GROUPS.get(words.removesuffix("s"))) is not None:
        return group
    found: set[int] = set()
    for each in re.split(r", ?| and ", words):
        first, _, last = each.partition("-")
        begin, end = _weekday(first), _weekday(last or first)
        if begin is None or end is None:
            return None
        found.update((begin + step) % 7 for step in range((end - begin) % 7 + 1))
    return ",".join(map(str, sorted(found)))


def _weekday(word: str) -> int | None:
    return next(
        (number for number, name in enumerate(WEEKDAYS) if word in (name, f"{name}s", name[:3])),
        None,
    )


def _time(text: str) -> tuple[int, int]:
    if text in _NAMED_TIMES:
        return _NAMED_TIMES[text], 0
    match = _TIME.fullmatch(text)
    hour, minute = (int(match["hour"]), int(match["minute"] or 0)) if match else (24, 0)
    if match and match["half"]:
        hour = hour % 12 + (12 if match["half"][0] == "p" else 0) if 1 <= hour <= 12 else 24
    if hour > 23 or minute > 59:
        raise ConfigError(
            f"{shown(text)} is no time of day",
            hint="a time of day is written 9, 9am, 9:30am or 21:30",
        )
    return hour, minute


def _checked_cron(text: str) -> str:
    """Return an expression of 5 fields, or 6 with seconds first, that has due instants.

    A 7th, the year, is `*`.
    """
    from cronsim import CronSim, CronSimError

    parts = text.upper().replace("?", "*").split()
    if parts[6:] == ["*"]:
        parts.pop()
    expression = " ".join(parts)
    try:
        found = CronSim(expression, datetime(2026, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise ConfigError(f"cron: {str(error).lower()} in {shown(text)}", hint=_CRON_HINT) from None
    for at, (most, part) in enumerate(
        zip(_CRON_MOST[-len(parts) :], parts, strict=True), -len(parts)
    ):
        is_more = any(int(step) > most for step in re.findall(r"/([0-9]{1,9})", part))
        if is_more and not _asks_for_both_days(at, parts):
            detail = (
                f"the step of {part!r} is more than the field holds: it would not go on where it "
                "ended"
            )
            hint = "a step counts within its field; an interval is written `every 90m`"
            if at in {_MONTH_DAY, _WEEKDAY}:
                hint = (
                    "the first Monday of a month is written `0 9 * * 1#1`, the last Friday `0 9 * "
                    "* 5L`"
                )
            raise ConfigError(detail, hint=hint)
    if next(found, None) is None:
        raise ConfigError(f"no calendar has a time for {shown(text)}", hint=_CRON_HINT)
    ordered = sorted(found.seconds)
    gap = min(
        after - before
        for before, after in zip(ordered, [*ordered[1:], ordered[0] + 60], strict=True)
    )
    _checked(gap, text)
    return expression


def _asks_for_both_days(at: int, parts: list[str]) -> bool:
    """Say whether the step of a day field is there for its `*` alone: `*/100,1-7 * MON` is the
    first Monday.

    Where one of the day fields begins with a star, Debian's cron wants both of them; else either is
    enough.
    """
    if at not in {_MONTH_DAY, _WEEKDAY} or not parts[at].startswith("*/"):
        return False
    other = parts[_WEEKDAY if at == _MONTH_DAY else _MONTH_DAY]
    return "," in parts[at] or other != "*"


# -- schedule_config -------------------------------------------------------------------------------


def calendar(plan: Calendar, zone: str | None) -> Schedule:
    """Return what a `schedule_config` means; `zone` is of one that names none.

    Raises ConfigError: there is no such zone or moment, or it is too dense or too rare.
    """
    ends = {}
    for key, text in (("starting", plan.starting), ("ending", plan.ending)):
        if text is not None:
            moment = _moment(text)
            if key == "ending" and len(text) == len("2099-01-01"):
                moment = moment.replace(hour=23, minute=59, second=59)
            ends[key] = moment.isoformat()
    days = tuple(sorted({each % 7 for each in plan.days_of_week}))
    zone = zone if plan.timezone is None else checked_zone(plan.timezone)
    plan = structs.replace(plan, days_of_week=days, timezone=zone, **ends)
    seconds = _checked(
        plan.interval * FREQUENCIES[plan.frequency], f"every {plan.interval} {plan.frequency}"
    )
    is_bounded = plan.days_of_week or plan.starting or plan.ending or plan.max_occurrences
    return plan if is_bounded or plan.frequency not in ELAPSED else Every(seconds)

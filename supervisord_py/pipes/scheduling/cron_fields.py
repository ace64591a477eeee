"""The text of a cron expression, field by field: checked, and written so that nothing in it has two meanings. Pure.

Law: weekdays are POSIX (0 and 7 are Sunday), a range may wrap (`22-3`, `sat-sun`), names are in any case, and an
expression that no clock will ever show, or that is denser than allowed, is an error that says which field and why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from supervisord_py.pipes.scheduling.schedule import ScheduleError

_MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_MONTHS = {name: at for at, name in enumerate(_MONTH_NAMES, 1)}
_WEEKDAYS = {name: at for at, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))}
_NUMBER = re.compile(r"[0-9]{1,4}")
_SHORTEST, _LONGEST = 5, 7


@dataclass(frozen=True, slots=True)
class Field:
    """One field.

    Attributes:
        high: The last value that is different from the others; `most` may be written as well (Sunday is 0 and 7).
        special: Words of cron's dialects that the calendar knows.
        example: A text of the field that is right.
    """

    name: str
    low: int
    high: int
    most: int
    example: str
    names: dict[str, int] = field(default_factory=dict)
    special: re.Pattern[str] | None = None
    wraps: bool = True

    def number(self, text: str) -> int:
        """Return the value of a number or name."""
        if text in self.names:
            return self.names[text]
        value = int(text) if _NUMBER.fullmatch(text) else -1
        if not self.low <= value <= self.most:
            raise self.wrong(f"{text!r} is not in {self.low}-{self.most}")
        return value

    def wrong(self, why: str) -> ScheduleError:
        """Return the error of this field."""
        return ScheduleError(f"cron field {self.name}: {why}", hint=f"write for example `{self.example}`")


_SECOND = Field("second", 0, 59, 59, "*/30 * * * * *")
_YEAR = Field("year", 1970, 2199, 2199, "0 0 9 1 1 * 2030-2035", wraps=False)
_FIELDS = (
    Field("minute", 0, 59, 59, "*/15 * * * *"),
    Field("hour", 0, 23, 23, "0 8-20 * * *"),
    Field("day of month", 1, 31, 31, "0 9 1,15 * *", special=re.compile("LW?")),
    Field("month", 1, 12, 12, "0 9 1 jan-mar *", _MONTHS),
    Field("day of week", 0, 6, 7, "0 9 * * mon-fri", _WEEKDAYS, re.compile("([0-7]L)|([0-7]|[A-Z]{3})#[1-5]")),
)
_HOUR = _FIELDS[1]
_WITHOUT_STAR = frozenset((2, 4))
"""Quartz writes `?` for a star in these two."""


def normalised(text: str, shortest_seconds: float) -> str:
    """Return the expression with names as numbers and wrapped ranges as lists; 5, 6 or 7 fields as it had.

    Raises:
        ScheduleError: It has another number of fields, a field is wrong, or two runs may be nearer than allowed.
    """
    parts = text.upper().split()
    if not _SHORTEST <= len(parts) <= _LONGEST:
        raise ScheduleError(
            f"a cron expression has 5, 6 (seconds first) or 7 (year last) fields, not {len(parts)}: {text!r}",
            hint="write for example `*/30 9-17 * * 1-5` (minute hour day month weekday)",
        )
    front = [_terms(_SECOND, parts.pop(0))] if len(parts) > _SHORTEST else []
    back = [_terms(_YEAR, parts.pop())] if len(parts) > _SHORTEST else []
    middle = [
        _terms(each, "*" if part == "?" and at in _WITHOUT_STAR else part)
        for at, (each, part) in enumerate(zip(_FIELDS, parts, strict=True))
    ]
    if front:
        _check_density(values(_SECOND, front[0]), shortest_seconds)
    return " ".join(front + middle + back)


def _check_density(seconds: frozenset[int], shortest: float) -> None:
    ordered = sorted(seconds)
    following = [*ordered[1:], ordered[0] + 60]
    gap = min(after - before for before, after in zip(ordered, following, strict=True))
    if gap < shortest:
        raise ScheduleError(
            f"runs {gap} s apart are too dense; the shortest is {shortest:g} s",
            hint="write for example `0 * * * * *`, each minute at second 0",
        )


def _terms(of: Field, text: str) -> str:
    return ",".join(_term(of, each) for each in text.split(","))


def _term(of: Field, text: str) -> str:
    if of.special and of.special.fullmatch(text):
        name, mark, nth = text.partition("#")
        return f"{of.number(name)}{mark}{nth}" if mark else text
    base, slash, step_text = text.partition("/")
    step = _step(of, step_text) if slash else 1
    if base == "*":
        return f"*/{step}" if step > 1 else "*"
    first, dash, last = base.partition("-")
    start = of.number(first)
    if dash:
        return _range(of, start, of.number(last), step)
    return f"{start}-{of.high}/{step}" if slash and start <= of.high else str(start)


def _step(of: Field, text: str) -> int:
    step = int(text) if _NUMBER.fullmatch(text) else 0
    if not 0 < step <= of.high:
        raise of.wrong(f"a step of {text!r} does not fit into {of.low}-{of.high}; it would not go on where it ended")
    return step


def _range(of: Field, start: int, end: int, step: int) -> str:
    if end < start:
        if not of.wraps:
            raise of.wrong(f"{start}-{end} ends before it begins")
        around = [*range(start, of.high + 1), *range(of.low, end + 1)][::step]
        return ",".join(str(each) for each in around)
    return f"{start}-{end}" + (f"/{step}" if step > 1 else "")


def values(of: Field, text: str) -> frozenset[int]:
    """Return what a normalised field without special words allows."""
    found: set[int] = set()
    for term in text.split(","):
        base, _, step = term.partition("/")
        first, dash, last = base.partition("-")
        if base == "*":
            found.update(range(of.low, of.high + 1, int(step or 1)))
        else:
            found.update(range(int(first), int(last if dash else first) + 1, int(step or 1)))
    return frozenset(found)


@dataclass(frozen=True, slots=True)
class CronLine:
    """A normalised expression, in the pieces that the calendar asks for.

    Attributes:
        six: Six fields, seconds first.
        years: Ascending; None is every year.
        hourly: Whether it names no hours: it runs in each of them.
    """

    six: str
    years: tuple[int, ...] | None
    hourly: bool


def line_of(expression: str) -> CronLine:
    """Take a normalised expression apart."""
    parts = expression.split()
    years = None
    if len(parts) == _LONGEST:
        years = tuple(sorted(values(_YEAR, parts.pop())))
    if len(parts) == _SHORTEST:
        parts.insert(0, "0")
    every_hour = len(values(_HOUR, parts[2])) == _HOUR.high + 1
    return CronLine(" ".join(parts), years, every_hour)

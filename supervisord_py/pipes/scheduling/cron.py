"""Cron expressions: checked when they are read, and their due instants. Pure; all of the calendar is cronsim's.

cronsim goes by the zone as Debian's cron does: a time that the zone leaves out runs when the clock has been set, one
that comes twice runs once, and an expression that runs in every minute or hour goes by elapsed time.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING

from supervisord_py.pipes.scheduling.schedule import ScheduleError
from supervisord_py.pipes.scheduling.wall import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIELDS = 5
_RANGE = re.compile(r"([0-9]+)-([0-9]+)|([A-Z]{3})-([A-Z]{3})")
_ENDS = (("59", "0"), ("59", "0"), ("23", "0"), ("31", "1"), ("12", "1"), ("6", "0"))
"""Of each field, seconds first: its last and its first number."""
_NAMED_ENDS = {4: ("DEC", "JAN"), 5: ("SAT", "SUN")}
_NAMES = ("second", "minute", "hour", "day-of-month", "month", "day-of-week")
_STEP = re.compile(r"/([0-9]{1,9})")
_EXAMPLE = "write for example `*/30 9-17 * * 1-5` (minute hour day month weekday)"
_FOREVER = "*"
_ANY_DAY = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class CronRule:
    """A checked expression in a zone."""

    expression: str
    zone: tzinfo

    def following(self, instant: float) -> Iterator[float]:
        """Yield the due instants after `instant`, ascending; none where there is none within 50 years."""
        last = instant
        for found in self._search(instant):
            if found > last:  # an hour that comes twice is searched twice
                last = found
                yield found

    def latest(self, instant: float) -> float | None:
        """Return the last due instant at or before `instant`; None when there is none within 50 years."""
        return next((found for found in self._search(instant + 1, reverse=True) if found <= instant), None)

    def _search(self, start: float, *, reverse: bool = False) -> Iterator[float]:
        # Pure, and only needed once something is due: 7 ms that the control plane's start does not pay.
        from cronsim import CronSim

        for found in CronSim(self.expression, datetime.fromtimestamp(start, self.zone), reverse=reverse):
            yield found.timestamp()


def checked_cron(text: str, shortest_seconds: float) -> str:
    """Return an expression of 5 fields, or 6 with seconds first, that has due instants.

    Raises:
        ScheduleError: It is none, never comes, or two runs may be nearer than allowed.
    """
    from cronsim import CronSim, CronSimError

    parts = text.upper().replace("?", "*").split()
    if len(parts) == _FIELDS + 2 and parts[-1] == _FOREVER:
        parts.pop()
    if len(parts) == _FIELDS + 2:
        detail = f"a cron expression with years is not taken: {shown(text)}"
        raise ScheduleError(detail, hint="leave the year out, or write one date: `at 2099-01-01T09:00:00Z`")
    if not _FIELDS <= len(parts) <= _FIELDS + 1:
        raise ScheduleError(f"a cron expression has 5 or 6 (seconds first) fields, not {len(parts)}", hint=_EXAMPLE)
    expression = " ".join(parts)
    for (last, _first), part in zip(_ENDS[-len(parts) :], parts, strict=True):
        if any(int(step) > int(last) for step in _STEP.findall(part)):
            detail = f"the step of {part!r} is more than the field holds: it would not go on where it ended"
            raise ScheduleError(detail, hint="a step counts within its field; an interval is written `every 90m`")
    try:
        found = CronSim(expression, _ANY_DAY)
    except CronSimError as error:
        raise _wrong(text, parts, str(error).removeprefix("Bad ")) from None
    if next(found, None) is None:
        raise _never(text)
    ordered = sorted(found.seconds)
    gap = min(after - before for before, after in zip(ordered, [*ordered[1:], ordered[0] + 60], strict=True))
    if gap < shortest_seconds:
        detail = f"runs {gap} s apart are too dense; the shortest is {shortest_seconds:g} s"
        raise ScheduleError(detail, hint="write for example `0 * * * * *`, each minute at second 0")
    return expression


def _never(text: str) -> ScheduleError:
    return ScheduleError(f"no calendar has a time for {shown(text)}", hint=_EXAMPLE)


def _wrong(text: str, parts: list[str], wrong: str) -> ScheduleError:
    """Say which field is wrong; a range that ends before it begins, as other crons have it, is written out."""
    from cronsim import CronSim, CronSimError

    for field, part in enumerate(parts, len(_ENDS) - len(parts)):
        for low, high, first_name, last_name in _RANGE.findall(part) if wrong == _NAMES[field] else ():
            begin, end = low or first_name, high or last_name
            last, first = _ENDS[field] if low else _NAMED_ENDS.get(field, ("", ""))
            if last and (first_name or int(end) < int(begin)):
                detail = f"the range {begin}-{end} ends before it begins, in {shown(text)}"
                return ScheduleError(detail, hint=f"write {begin}-{last},{first}-{end} in its place")
    with suppress(CronSimError):
        if wrong == _NAMES[3]:
            CronSim(" ".join([*parts[:-2], "*", parts[-1]]), _ANY_DAY)
            return _never(text)  # in another month there is such a day
    last, first = _ENDS[_NAMES.index(wrong)]
    return ScheduleError(f"cron: the {wrong} of {shown(text)} is wrong; it takes {first}-{last}", hint=_EXAMPLE)

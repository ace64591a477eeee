"""The instants of a cron expression. Pure; the search through the calendar is cronsim's.

Law: an expression that names hours runs once for each reading of the clock that it names: what the zone leaves out
runs as much later as the clock was set, what comes twice runs the first time. One that runs in every hour goes by
elapsed time: it neither crowds nor pauses when the clock is set. So the library only searches a calendar without zones;
its own rule (Debian's) depends on where stars stand, drops `*/30 2 * * *` on the day that has no 02:00, and leaves out
a run of `30 * * * *` where the clock is set by half an hour.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

from supervisord_py.pipes.scheduling.cron_fields import CronLine, line_of
from supervisord_py.pipes.scheduling.wall import (
    due_at,
    earliest_reading,
    first_change,
    furthest_reading,
    last_change,
    reading,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SECOND = timedelta(seconds=1)
_cached_line = lru_cache(maxsize=2048)(line_of)


@dataclass(frozen=True, slots=True)
class CronRule:
    """A normalised expression in a zone."""

    expression: str
    zone: tzinfo

    def after(self, instant: float) -> float | None:
        """Return the first due instant after `instant`; None when there is none within 50 years."""
        line = _cached_line(self.expression)
        if line.hourly:
            return self._elapsed_after(line, math.floor(instant))
        return self._first_after(line, instant)

    def latest(self, instant: float) -> float | None:
        """Return the last due instant at or before `instant`; None when there is none within 50 years."""
        line = _cached_line(self.expression)
        if line.hourly:
            return self._elapsed_upto(line, math.floor(instant))
        return self._last_upto(line, instant)

    def _first_after(self, line: CronLine, instant: float) -> float | None:
        best: float | None = None
        for found in _matches(line, earliest_reading(instant, self.zone), _Way.AHEAD):
            due = due_at(found, self.zone)
            if due > instant:
                best = due if best is None else min(best, due)
                if reading(due, self.zone) == found:  # no gap delays it: nothing that follows comes before it
                    return best
        return best

    def _last_upto(self, line: CronLine, instant: float) -> float | None:
        best: float | None = None
        for found in _matches(line, furthest_reading(instant, self.zone) + _SECOND, _Way.BACK):
            due = due_at(found, self.zone)
            if due <= instant:
                best = due if best is None else max(best, due)
                if earliest_reading(due, self.zone) == found:  # nothing before it was delayed beyond it
                    return best
        return best

    def _elapsed_after(self, line: CronLine, mark: float) -> float | None:
        """Return the first instant whose reading matches: reckoned until the clock is set, and from there again."""
        shown = reading(mark, self.zone)
        beyond = shown
        while (found := next(_matches(line, beyond, _Way.AHEAD), None)) is not None:
            due = mark + (found - shown).total_seconds()
            change = first_change(mark, due, self.zone)
            if change is None:
                return due
            mark, shown = change, reading(change, self.zone)
            beyond = shown - _SECOND
        return None

    def _elapsed_upto(self, line: CronLine, mark: float) -> float | None:
        """Return the last instant whose reading matches, reckoned back in the same way."""
        shown = reading(mark, self.zone)
        while (found := next(_matches(line, shown + _SECOND, _Way.BACK), None)) is not None:
            due = mark - (shown - found).total_seconds()
            change = last_change(due, mark, self.zone)
            if change is None:
                return due
            mark = change - 1
            shown = reading(mark, self.zone)
        return None


class _Way(Enum):
    AHEAD = 1
    BACK = -1


def _matches(line: CronLine, start: datetime, way: _Way) -> Iterator[datetime]:
    """Yield what matches beyond `start`, nearest first, leaping over the years that it does not allow."""
    for year in _years(line, start, way):
        begin = start if year == start.year else _threshold(year, way)
        for found in _search(line, begin, way):
            if line.years and found.year != year:
                break
            yield found


def _years(line: CronLine, start: datetime, way: _Way) -> Iterable[int]:
    """Return the years to search, nearest first; without a restriction one search goes through them all."""
    if line.years is None:
        return (start.year,)
    if way is _Way.AHEAD:
        return (each for each in line.years if each >= start.year)
    return (each for each in reversed(line.years) if each <= start.year)


def _threshold(year: int, way: _Way) -> datetime:
    """Return the moment from which a search of the year begins: the search leaves out its own beginning."""
    if way is _Way.AHEAD:
        return datetime(year, 1, 1) - _SECOND
    return datetime(year + 1, 1, 1)


def _search(line: CronLine, start: datetime, way: _Way) -> Iterator[datetime]:
    # Pure, and only needed once something is due: 7 ms that the control plane's start does not pay.
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - lazy on purpose

    try:
        yield from CronSim(line.six, start, reverse=way is _Way.BACK)
    except CronSimError:
        return  # no month has such a day; everything else was checked when it was read

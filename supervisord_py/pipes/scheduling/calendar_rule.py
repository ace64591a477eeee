"""The instants of a `schedule_config`: every so many units, counted from an origin. Pure.

Law: the origin is `starting`, or else when the pipe was enabled; what the schedule leaves open (weekday, day of the
month) is the origin's. A day that a month has not got is its last. Readings of the clock that a zone leaves out or
repeats are as in `wall.py`; minutes and hours are elapsed time.
"""

from __future__ import annotations

import calendar
import math
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo
from itertools import count
from typing import TYPE_CHECKING

from supervisord_py.pipes.scheduling.schedule import Calendar, Frequency
from supervisord_py.pipes.scheduling.wall import due_at, earliest_reading, instant_of, reading

if TYPE_CHECKING:
    from collections.abc import Iterable

_STEP_SECONDS = {Frequency.MINUTES: 60.0, Frequency.HOURS: 3600.0}
_PERIODS = 9
"""Periods to look back at: the next, the one that holds the instant, and a week's worth that fall on other weekdays."""
_LEAPS = 400
"""Steps of elapsed time to look at: some multiple of any step comes to a wanted weekday within 168."""
_MONTHS = 12
_WEEK = 7


@dataclass(frozen=True, slots=True)
class CalendarRule:
    """A calendar in its zone, with its origin.

    Attributes:
        begun: Unix seconds of the origin, whole: an instant must be the same after the ledger rounded it.
    """

    plan: Calendar
    zone: tzinfo
    begun: int

    def after(self, instant: float) -> float | None:
        """Return the first due instant after `instant`; None when it is over."""
        if self.plan.frequency in _STEP_SECONDS:
            found = self._step_after(max(instant, self.begun - 1.0))
        else:
            found = self._day_after(max(instant, self.begun - 1.0))
        return None if found is None or self._over(found) else found

    def latest(self, instant: float) -> float | None:
        """Return the last due instant at or before `instant`; None when it has not begun."""
        upto = instant if self.plan.ending is None else min(instant, self.plan.ending)
        if upto < self.begun:
            return None
        return self._step_upto(upto) if self.plan.frequency in _STEP_SECONDS else self._day_upto(upto)

    def _over(self, instant: float) -> bool:
        return self.plan.ending is not None and instant > self.plan.ending

    # Minutes and hours: elapsed time from the origin, on the days wanted.

    def _step_after(self, instant: float) -> float | None:
        step = _STEP_SECONDS[self.plan.frequency] * self.plan.interval
        at = self._grid_begin + step * max(0, math.floor((instant - self._grid_begin) / step) + 1)
        for _ in range(_LEAPS):
            if self._wanted(self._day(at)):
                return at
            midnight = instant_of(datetime.combine(self._day(at) + timedelta(days=1), time()), self.zone)
            at = self._grid_begin + step * math.ceil((midnight - self._grid_begin) / step)
        return None

    def _step_upto(self, instant: float) -> float | None:
        step = _STEP_SECONDS[self.plan.frequency] * self.plan.interval
        at = self._grid_begin + step * math.floor((instant - self._grid_begin) / step)
        while at >= self._grid_begin:
            if self._wanted(self._day(at)):
                return at
            midnight = instant_of(datetime.combine(self._day(at), time()), self.zone)
            at = self._grid_begin + step * (math.ceil((midnight - self._grid_begin) / step) - 1)
        return None

    @property
    def _grid_begin(self) -> float:
        day = self._first_day
        if day == self._day(self.begun):
            return self.begun
        return instant_of(datetime.combine(day, time()), self.zone)

    # Days, weeks, months: readings of the clock on certain dates.

    def _day_after(self, instant: float) -> float:
        begin = max(0, self._period_of(earliest_reading(instant, self.zone).date()))
        days = (self._at(day) for period in count(begin) for day in self._dates(period))
        return next(at for at in days if at > instant)  # there is one: the origin is wanted, so are its multiples

    def _day_upto(self, instant: float) -> float | None:
        index = self._period_of(self._day(instant)) + 1  # while an evening is repeated, the next day may have begun
        for period in range(index, max(-1, index - _PERIODS), -1):
            for day in reversed(self._dates(period)):
                at = self._at(day)
                if self.begun <= at <= instant:
                    return at
        return None

    def _at(self, day: date) -> float:
        return due_at(datetime.combine(day, time(self.plan.at_hour, self.plan.at_minute)), self.zone)

    def _period_of(self, day: date) -> int:
        """Return which period holds that day, or the last one before it; 0 is the origin's."""
        first = self._first_day
        if self.plan.frequency is Frequency.DAYS:
            return (day - first).days // self.plan.interval
        if self.plan.frequency is Frequency.WEEKS:
            return (_monday(day) - _monday(first)).days // (_WEEK * self.plan.interval)
        return (_month(day) - _month(first)) // self.plan.interval

    def _dates(self, period: int) -> tuple[date, ...]:
        """Return the dates of a period, ascending."""
        first = self._first_day
        if self.plan.frequency is Frequency.DAYS:
            return self._only_wanted((first + timedelta(days=period * self.plan.interval),))
        if self.plan.frequency is Frequency.WEEKS:
            monday = _monday(first) + timedelta(days=_WEEK * period * self.plan.interval)
            days = [monday + timedelta(days=each) for each in range(_WEEK)]
            if self.plan.days_of_week:
                return self._only_wanted(day for day in days if day >= first)
            return (days[first.weekday()],)
        year, month = divmod(_month(first) + period * self.plan.interval, _MONTHS)
        last = calendar.monthrange(year, month + 1)[1]
        return (date(year, month + 1, min(self.plan.day_of_month or first.day, last)),)

    def _only_wanted(self, days: Iterable[date]) -> tuple[date, ...]:
        return tuple(day for day in days if self._wanted(day))

    def _wanted(self, day: date) -> bool:
        return not self.plan.days_of_week or day.isoweekday() % _WEEK in self.plan.days_of_week

    @property
    def _first_day(self) -> date:
        """The origin's date, or the first one after it that is wanted: so every multiple of it can be wanted, too."""
        origin = self._day(self.begun)
        return next(day for day in (origin + timedelta(days=each) for each in range(_WEEK)) if self._wanted(day))

    def _day(self, instant: float) -> date:
        return reading(instant, self.zone).date()


def _monday(day: date) -> date:
    return day - timedelta(days=day.weekday())


def _month(day: date) -> int:
    return day.year * _MONTHS + day.month - 1

"""The kinds of schedule, as values. Text becomes one of them in `grammar.py`; `due.py` says when each is due."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from supervisord_py.errors import ConfigError


class ScheduleError(ConfigError):
    """A text is no schedule. The hint names, in backticks, the nearest form that is one."""


class Frequency(StrEnum):
    """Units of `schedule_config`."""

    MINUTES = "minutes"
    HOURS = "hours"
    DAYS = "days"
    WEEKS = "weeks"
    MONTHS = "months"


@dataclass(frozen=True, slots=True)
class Manual:
    """Only by hand, or by an event."""


@dataclass(frozen=True, slots=True)
class Every:
    """An interval on a clock that counts suspend, from the start of one run to the start of the next."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Cron:
    """Wall-clock times.

    Attributes:
        expression: Normalised, POSIX weekdays (0 and 7 are Sunday): 5 fields, or 6 with seconds first, or 7 with the
            year last as well.
        timezone: IANA name; None is the machine's zone.
    """

    expression: str
    timezone: str | None = None


@dataclass(frozen=True, slots=True)
class At:
    """Once, at an instant (Unix seconds); then the pipe is disabled."""

    instant: float


@dataclass(frozen=True, slots=True)
class Calendar:
    """`schedule_config`: every so many units at a wall-clock time. Days of the week: 0 is Sunday.

    Attributes:
        starting, ending: Unix seconds; None for open.
        max_occurrences: Runs after which it is over; None for never.
    """

    frequency: Frequency
    interval: int = 1
    days_of_week: tuple[int, ...] = ()
    day_of_month: int | None = None
    at_hour: int = 0
    at_minute: int = 0
    timezone: str | None = None
    starting: float | None = None
    ending: float | None = None
    max_occurrences: int | None = None


Schedule = Manual | Every | Cron | At | Calendar

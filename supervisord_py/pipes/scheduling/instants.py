"""A written instant (RFC 3339) as Unix seconds. Pure."""

from __future__ import annotations

import re
from datetime import datetime
from zoneinfo import ZoneInfo

from supervisord_py.pipes.scheduling.nearest import shown
from supervisord_py.pipes.scheduling.schedule import ScheduleError
from supervisord_py.pipes.scheduling.wall import due_at

_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[Tt ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,9})?)?(Z|z|[+-][0-9]{2}:[0-9]{2})?)?"
)
_FIRST_YEAR, _LAST_YEAR = 1900, 9998
_HINT = "write date, time and offset, for example `at 2099-01-01T09:00:00Z`"


def instant(text: str, timezone: str | None) -> float:
    """Return the instant of `2099-01-01T09:00:00+01:00`, to the whole second; date alone is its midnight.

    Args:
        text: As written.
        timezone: A checked name, for a text without an offset; None makes such a text an error, for the machine's zone
            may change while the text does not.

    Raises:
        ScheduleError: It is no such text, there is no such day or time, or the offset is missing.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ScheduleError(f"{shown(text)} is no date and time", hint=_HINT)
    try:
        moment = datetime.fromisoformat(text.upper()).replace(microsecond=0)
    except ValueError as err:
        raise ScheduleError(f"{shown(text)} is no date and time: {err}", hint=_HINT) from err
    if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        raise ScheduleError(f"the year of {shown(text)} is not in {_FIRST_YEAR}-{_LAST_YEAR}", hint=_HINT)
    if moment.tzinfo is not None:
        return moment.timestamp()
    if timezone is None:
        raise ScheduleError(f"{shown(text)} has no offset, and there is no `timezone:`", hint=_HINT)
    return due_at(moment, ZoneInfo(timezone))

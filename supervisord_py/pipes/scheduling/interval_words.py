"""Intervals in words: `every 30 minutes`, `1d`, `2h 30m`, `hourly`. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from supervisord_py.pipes.scheduling.nearest import shown
from supervisord_py.pipes.scheduling.schedule import ScheduleError

_UNITS = {
    "s": 1.0,
    "sec": 1.0,
    "second": 1.0,
    "m": 60.0,
    "min": 60.0,
    "minute": 60.0,
    "h": 3600.0,
    "hr": 3600.0,
    "hour": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
    "w": 604800.0,
    "wk": 604800.0,
    "week": 604800.0,
}
_WORDS = {"hourly": "every hour", "daily": "every day", "weekly": "every week"}
_BETTER = {
    "daily": "daily at 9:00",
    "every day": "daily at 9:00",
    "weekly": "monday at 9:00",
    "every week": "monday at 9:00",
}
LONGEST_SECONDS = 3660 * 86400.0
_PART = r"[0-9]{1,9}(?:\.[0-9]{1,3})? ?[a-z]+"
_COUNTED = re.compile(rf"(every )?{_PART}(?:(?:,? and |, ?| )?{_PART}){{0,3}}")
_PIECE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]+)")
_BARE = re.compile(r"every (other )?([a-z]+)")


@dataclass(frozen=True, slots=True)
class Interval:
    """Seconds, and what to tell the writer about them."""

    seconds: float
    warnings: tuple[str, ...] = ()


def interval(text: str, shortest_seconds: float) -> Interval | None:
    """Return the interval of a lower-case text, or None when it is written as something else.

    Raises:
        ScheduleError: It is one, and too short or too long.
    """
    found = _bare(_WORDS.get(text, text))
    if found is None and _COUNTED.fullmatch(text):
        found = _counted(text)
    if found is None:
        return None
    warning = f"`{text}` is an interval from start to start, at no fixed hour; for a fixed hour write `{{}}`"
    warnings = (warning.format(_BETTER[text]),) if text in _BETTER else ()
    return Interval(_checked(found, text, shortest_seconds), warnings)


def _bare(text: str) -> float | None:
    bare = _BARE.fullmatch(text)
    size = _UNITS.get(bare[2]) if bare and len(bare[2]) > 1 else None
    if bare is None or size is None:
        return None
    return 2 * size if bare[1] else size


def _counted(text: str) -> float | None:
    total = 0.0
    for count, unit in _PIECE.findall(text):
        size = _size(unit)
        if size is None:
            return None
        total += float(count) * size
    return total


def _size(unit: str) -> float | None:
    if unit in _UNITS:
        return _UNITS[unit]
    single = unit.removesuffix("s")
    return _UNITS.get(single) if len(single) > 1 else None


def _checked(seconds: float, text: str, shortest: float) -> float:
    if seconds < shortest:
        raise ScheduleError(
            f"{shown(text)} is too dense; the shortest interval is {shortest:g} s",
            hint=f"write for example `every {max(60, int(shortest) + 1)} s`",
        )
    if seconds > LONGEST_SECONDS:
        raise ScheduleError(f"{shown(text)} is over ten years", hint="write a date instead: `at 2099-01-01T09:00:00Z`")
    return seconds

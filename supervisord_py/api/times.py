"""Times at the edge: RFC 3339 in UTC going out, RFC 3339 or an age (`10m`) coming in. Pure: `now` is given."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

_AGE_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_AGE_PART = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)")
_AGE = re.compile(r"\d+(?:\.\d+)?[smhdw]?(?:\d+(?:\.\d+)?[smhdw])*")
_LONGEST_AGE = 1e10


def rfc3339(moment: float | None) -> str | None:
    """Write Unix seconds as RFC 3339 UTC with milliseconds; None stays None."""
    if moment is None:
        return None
    text = datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def parse_age(text: str) -> float | None:
    """Return the seconds that `90`, `10m`, `1h30m` or `2d` stand for; None when it is no age."""
    if not text.isascii() or not _AGE.fullmatch(text):
        return None
    seconds = sum(float(count) * _AGE_UNITS[unit] for count, unit in _AGE_PART.findall(text))
    return seconds if math.isfinite(seconds) and seconds <= _LONGEST_AGE else None


def parse_since(text: str, now: float) -> float:
    """Return the Unix time meant by an RFC 3339 time (UTC where it says no zone) or by an age before `now`.

    Raises:
        ValueError: It is neither.
    """
    age = parse_age(text)
    if age is not None:
        return now - age
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"{text!r} is neither an RFC 3339 time (2026-01-31T12:00:00Z) nor an age (90s, 10m, 1h30m, 2d)"
        ) from error

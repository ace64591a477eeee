"""Moments as they stand in the tables of the pipes: UTC, ISO 8601, milliseconds, `Z`. Pure.

Law: texts sort as the moments do, so that SQL compares them; a moment that no calendar knows becomes the nearest one
that it does, because a record must never fail; a damaged text reads as no moment.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_MS = -62_135_596_800_000  # the year 1
_LAST_MS = 253_402_300_799_999  # the end of the year 9999


def to_text(seconds: float) -> str:
    """Return Unix seconds as text, rounded to the millisecond."""
    bounded = min(max(seconds * 1000.0, _FIRST_MS), _LAST_MS)
    moment = _EPOCH + timedelta(milliseconds=round(bounded))
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def optional_text(seconds: float | None) -> str | None:
    """Return the text of a moment, None of none."""
    return None if seconds is None else to_text(seconds)


def to_seconds(text: str | None) -> float | None:
    """Return the Unix seconds of a text, None where there is none or it is damaged."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

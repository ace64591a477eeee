"""Which of the offered media types does an `Accept` header want? Pure; RFC 9110 §12.5.1 without its extensions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

JSON = "application/json"
PROBLEM = "application/problem+json"
NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
RAW = "application/octet-stream"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class _Range:
    """One element of the header: `text/*;q=0.5`."""

    media: str
    quality: float

    def fits(self, offered: str) -> int:
        """Return how exactly this range names the offer: 0 not at all, 1 `*/*`, 2 `text/*`, 3 by its full name."""
        if self.media == offered:
            return 3
        if self.media == f"{offered.partition('/')[0]}/*":
            return 2
        return 1 if self.media == "*/*" else 0


def choose(accept: str | None, offered: Sequence[str]) -> str:
    """Return the wanted one of `offered`; the first is the default, also when nothing fits or nothing was said."""
    ranges = [_parse(part) for part in (accept or "").split(",") if part.strip()]
    if not ranges:
        return offered[0]
    best = max(offered, key=lambda media: _quality(media, ranges))
    return best if _quality(best, ranges) > 0 else offered[0]


def _quality(media: str, ranges: Sequence[_Range]) -> float:
    fitting = [(one.fits(media), one.quality) for one in ranges if one.fits(media)]
    return max(fitting)[1] if fitting else 0.0


def _parse(part: str) -> _Range:
    media, *parameters = (piece.strip() for piece in part.lower().split(";"))
    quality = 1.0
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        if key.strip() == "q":
            quality = _number(value)
    return _Range(media, quality)


def _number(text: str) -> float:
    try:
        return min(max(float(text), 0.0), 1.0)
    except ValueError:
        return 0.0

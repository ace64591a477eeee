"""Counters and the histogram behind `/api/metrics`: plain numbers that only grow."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate

from supervisord_py.api.prometheus import Sample, histogram_samples

COLD_START_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histogram's buckets, seconds."""


@dataclass(slots=True)
class RequestCounts:
    """How many requests each route answered with which status."""

    answered: Counter[tuple[str, int]] = field(default_factory=Counter)

    def count(self, route: str, status: int) -> None:
        """Count one answer."""
        self.answered[route, status] += 1


@dataclass(slots=True)
class Histogram:
    """Observations in buckets; `seconds` is their sum."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(COLD_START_BOUNDS) + 1))
    seconds: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one observation."""
        self.buckets[bisect_left(COLD_START_BOUNDS, seconds)] += 1
        self.seconds += seconds

    def cumulative(self) -> list[int]:
        """Return for each bound how many observations were at most that; the last one counts all."""
        return list(accumulate(self.buckets))

    def samples(self) -> list[Sample]:
        """Return it as lines of the page."""
        return histogram_samples(COLD_START_BOUNDS, self.cumulative(), self.seconds)


@dataclass(slots=True)
class UnitCounts:
    """What the event stream told of one kind of unit since the control plane started."""

    starts: int = 0
    cold_starts: Histogram = field(default_factory=Histogram)
    start_failures: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    events_missed: int = 0


@dataclass(slots=True)
class PipeCounts:
    """What the event stream told of executions: taken in by trigger, ended by status and error type."""

    queued: Counter[str] = field(default_factory=Counter)
    waits: Histogram = field(default_factory=Histogram)
    endings: Counter[tuple[str, str]] = field(default_factory=Counter)

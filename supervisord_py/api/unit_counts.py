"""What happened to each unit since the control plane began, in numbers; of few units that are gone.

Counts of units beyond UNITS_MAX are added to those of their kind, under the empty name, so that
sessions that live for one call cannot fill the memory. They only ever grow, as counters must.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterator

from supervisord_py.process.events import Event

UNITS_MAX = 1000
BUCKET_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the durations that are counted; longer ones are in one more bucket."""


class Durations:
    """A histogram of seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKET_SECONDS) + 1)
        self.total_seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKET_SECONDS, seconds)] += 1
        self.total_seconds += seconds

    def merge(self, other: Durations) -> None:
        self.counts = [
            ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)
        ]
        self.total_seconds += other.total_seconds

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Yield each upper bound, as Prometheus writes it, and how many were at most so long."""
        so_far = 0
        bounds = [*(f"{bound:g}" for bound in BUCKET_SECONDS), "+Inf"]
        for bound, count in zip(bounds, self.counts, strict=True):
            so_far += count
            yield bound, so_far


class OneUnit:
    def __init__(self) -> None:
        self.events: Counter[tuple[str, str]] = Counter()  # by word and reason
        self.runs: Durations | None = None  # of runs and executions that are over


class UnitCounts:
    def __init__(self) -> None:
        # By kind and name; the one that was counted last is the last one.
        self.by_unit: OrderedDict[tuple[str, str], OneUnit] = OrderedDict()

    def count(self, event: Event) -> None:
        """Take in an event."""
        kind, _, name = (event.unit or "daemon").partition(":")
        counts = self._of(kind, name)
        reason = (
            event.reason or event.facts.get("error_type") or event.facts.get("error_kind") or ""
        )
        counts.events[event.event, str(reason)] += 1
        seconds = _run_seconds(event)
        if seconds is not None:
            counts.runs = counts.runs or Durations()
            counts.runs.add(seconds)

    def _of(self, kind: str, name: str) -> OneUnit:
        key = (kind, name)
        counts = self.by_unit.get(key)
        if counts is None:
            counts = self.by_unit[key] = OneUnit()
            if len(self.by_unit) > UNITS_MAX:
                self._fold()
        else:
            self.by_unit.move_to_end(key)
        return counts

    def _fold(self) -> None:
        """Add the counts of the unit of which nothing was heard for the longest time to those of
        its kind.
        """
        kind, name = next(key for key in self.by_unit if key[1])
        gone = self.by_unit.pop((kind, name))
        others = self.by_unit.setdefault((kind, ""), OneUnit())
        others.events.update(gone.events)
        if gone.runs is not None:
            others.runs = others.runs or Durations()
            others.runs.merge(gone.runs)


def _run_seconds(event: Event) -> float | None:
    """Return how long a run or an execution took that this event ends, None for other events."""
    if event.event == "run":
        seconds = event.facts.get("duration_seconds")
        return seconds if isinstance(seconds, int | float) else None
    milliseconds = event.facts.get("duration_ms")
    if event.event.startswith("execution_") and isinstance(milliseconds, int | float):
        return milliseconds / 1000
    return None

"""CPU percent of an instance: the difference between two samples of its CPU time. Pure: time and samples are given.

A sample younger than `_SHORTEST` seconds is not replaced, so that two clients that ask at once do not rob each other of
a meaningful span. The first answer about an instance is None: one sample says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_SHORTEST = 0.5


@dataclass(frozen=True, slots=True)
class _Sample:
    moment: float
    cpu_seconds: float


@dataclass(slots=True)
class CpuSamples:
    """The last two usable samples of each instance."""

    _older: dict[str, _Sample] = field(default_factory=dict)
    _newer: dict[str, _Sample] = field(default_factory=dict)

    def percent(self, instance: str, cpu_seconds: float, now: float) -> float | None:
        """Take a sample (monotonic seconds `now`); return percent of one CPU since the last one, None at first."""
        newer = self._newer.get(instance)
        if newer is None or now - newer.moment >= _SHORTEST:
            if newer is not None:
                self._older[instance] = newer
            self._newer[instance] = _Sample(now, cpu_seconds)
        base = self._older.get(instance)
        if base is None or now <= base.moment:
            return None
        return round(max(0.0, cpu_seconds - base.cpu_seconds) / (now - base.moment) * 100, 1)

    def keep_only(self, instances: Collection[str]) -> None:
        """Forget instances that are gone."""
        for samples in (self._older, self._newer):
            for gone in [key for key in samples if key not in instances]:
                del samples[gone]

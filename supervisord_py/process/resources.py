"""Memory and processor share of single processes, for status. Whole trees are measured by the keeper.

Law: looking is cheap and never fails; a process that is gone or cannot be looked at is absent from the answer. A
processor share is the mean since the last look at the same process, so the first look has none.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process at one moment: resident bytes, percent of one processor (None at first sight), seconds used."""

    rss_bytes: int
    cpu_percent: float | None
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class _Seen:
    process: psutil.Process
    at: float
    cpu_seconds: float


class Sampler:
    """Looks at processes and remembers the last look. Not for several threads at once.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[int, _Seen] = {}

    def sample(self, pids: Iterable[int]) -> dict[int, ProcessSample]:
        """Return a sample of each process that can be seen; what is not asked for this time is forgotten."""
        seen, self._seen = self._seen, {}
        found: dict[int, ProcessSample] = {}
        for pid in pids:
            try:
                found[pid] = self._look(pid, seen.get(pid))
            except (psutil.Error, OSError):
                continue
        return found

    def _look(self, pid: int, last: _Seen | None) -> ProcessSample:
        if last is None or not last.process.is_running():  # also false when the pid has been given to another process
            last = None
        process = psutil.Process(pid) if last is None else last.process
        with process.oneshot():
            times, memory = process.cpu_times(), process.memory_info()
        now, used = self._clock(), times.user + times.system
        self._seen[pid] = _Seen(process, now, used)
        percent = None
        if last is not None and now > last.at:
            percent = max(0.0, 100.0 * (used - last.cpu_seconds) / (now - last.at))
        return ProcessSample(memory.rss, percent, used)

"""When to start the control plane again: pure arithmetic, no clock of its own.

Each unplanned end doubles the pause, from `initial` to `cap`. A life of at least `reset_after` proves health and starts
the count anew. A planned end costs nothing and counts nothing.
"""

from __future__ import annotations


class Backoff:
    """The pauses between unplanned ends. All times in seconds."""

    __slots__ = ("_cap", "_failures", "_initial", "_reset_after")

    def __init__(self, initial: float, cap: float, reset_after: float) -> None:
        self._initial = max(0.0, initial)
        self._cap = max(self._initial, cap)
        self._reset_after = reset_after
        self._failures = 0

    @property
    def failures(self) -> int:
        """Unplanned ends in a row."""
        return self._failures

    def after_end(self, lived: float) -> float:
        """Return the pause after an unplanned end of a life that lasted `lived` seconds."""
        if lived >= self._reset_after:
            self._failures = 0
        self._failures += 1
        # The exponent is bounded: 2.0 ** 2000 would overflow after a night of failures.
        return min(self._cap, self._initial * 2.0 ** min(self._failures - 1, 60))

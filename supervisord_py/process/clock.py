"""The one clock of the pools (tools, kernels): it never goes back and counts suspend (DESIGN law 10)."""

from __future__ import annotations

import time

_COUNTS_SUSPEND: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now() -> float:
    """Return seconds since boot, suspended ones included where the system can tell (clock_gettime(2))."""
    return time.clock_gettime(_COUNTS_SUSPEND)

"""The clock of the pools (tools, kernels, pipes): it never goes back and counts suspend (DESIGN law 10).

Besides it, how clocks stand to each other.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

NEAR_SECONDS = 0.1  # clocks that were read one after the other within this were read together
TRIES = 10
_COUNTS_SUSPEND: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

now = partial(time.clock_gettime, _COUNTS_SUSPEND)
"""Return seconds since boot, suspended ones included where the system can tell (clock_gettime(2))."""


def ahead(clock: Callable[[], float], of: Callable[[], float]) -> float:
    """Return by how many seconds `clock` is ahead of another one.

    Whoever reads two clocks one after the other may be stopped in between, and would find them apart by that long.
    """
    nearest = (float("inf"), 0.0)
    for _ in range(TRIES):
        before, found, after = of(), clock(), of()
        nearest = min(nearest, (abs(after - before), found - before))
        if nearest[0] < NEAR_SECONDS:
            break
    return nearest[1]

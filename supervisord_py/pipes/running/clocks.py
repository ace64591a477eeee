"""The three clocks of the room, in one place so that tests can turn them (DESIGN law 10).

Timeouts and intervals are read off the one that counts suspend; the calendar off the wall; how far the first is ahead
of the one that does not count it says that the machine slept.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.process import clock

if TYPE_CHECKING:
    from collections.abc import Callable

SLEPT_SECONDS = 2.0
"""Clocks that were read together differ by less."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """Where time comes from.

    Attributes:
        wall: Unix seconds.
        boot: Seconds since boot, suspended ones included.
        awake: Seconds since boot in which the machine was awake.
    """

    wall: Callable[[], float] = time.time
    boot: Callable[[], float] = clock.now
    awake: Callable[[], float] = time.monotonic

    def moment(self) -> float:
        """Return Unix seconds as a row keeps them: what was told at first is what is read again later."""
        return whole_ms(self.wall())

    def asleep(self) -> float:
        """Return how long the machine has slept, up to a constant."""
        return clock.ahead(self.boot, of=self.awake)


def whole_ms(seconds: float) -> float:
    """Return a time without what is finer than a millisecond; never later than it was."""
    return math.floor(seconds * 1000) / 1000


class Resumes:
    """Notices that the machine slept between two looks."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._asleep = clocks.asleep()
        self.resumed_at: float | None = None
        """Of the last resume, on the clock that counts suspend."""

    def look(self) -> bool:
        """Say whether it slept since the last look."""
        asleep = self._clocks.asleep()
        slept = asleep - self._asleep >= SLEPT_SECONDS
        self._asleep = asleep
        if slept:
            self.resumed_at = self._clocks.boot()
        return slept

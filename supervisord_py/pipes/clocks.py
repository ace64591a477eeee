"""The clocks of the room of pipes: where time comes from, and what people and machines do to it."""

from __future__ import annotations

import math
import time
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisord_py.pipes.due import Now
from supervisord_py.process import clock

if TYPE_CHECKING:
    from collections.abc import Callable

STEP_SECONDS = 1.0
"""A slewed wall clock differs by less between two looks; what is left over adds up until it is a step."""
SLEPT_SECONDS = 2.0  # clocks that were read together differ by less


class Clocks(NamedTuple):
    """Where time comes from, in one place so that tests can turn it (DESIGN law 10)."""

    wall: Callable[[], float] = time.time  # Unix seconds
    boot: Callable[[], float] = clock.now  # seconds since boot, suspended ones included
    awake: Callable[[], float] = time.monotonic  # seconds since boot in which the machine was awake

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
    """Notices that the machine slept between two looks; `resumed_at` is on the clock that counts suspend."""

    def __init__(self, clocks: Clocks) -> None:
        self._clocks = clocks
        self._asleep = clocks.asleep()
        self.resumed_at: float | None = None

    def look(self) -> float:
        """Return the seconds that it slept since the last look; 0.0 for not."""
        asleep = self._clocks.asleep()
        slept = asleep - self._asleep
        if slept < SLEPT_SECONDS:
            return 0.0
        self._asleep = asleep
        self.resumed_at = self._clocks.boot()
        return slept


class ClockWatch:
    """Looks at the clocks, and notices what people and machines do to them: set the time, change the zone, sleep.

    What is found due at the first look counts as missed while the machine was off. `zone` is the machine's, now.
    """

    def __init__(self, clocks: Clocks, zone: Callable[[], tzinfo] = lambda: UTC) -> None:
        self._clocks = clocks
        self._machine_zone = zone
        self._resumes = Resumes(clocks)
        self._resumes.resumed_at = clocks.boot()
        self._offset = clock.ahead(clocks.wall, of=clocks.boot)
        self._set_boot = clocks.boot()
        self._zone: tzinfo | None = None  # of the last look: who makes the watch may not know the machine's zone yet

    def now(self) -> Now:
        """Return the time; what happened to it waits for the next look."""
        offset, boot = clock.ahead(self._clocks.wall, of=self._clocks.boot), self._clocks.boot()
        zone = self._zone or self._machine_zone()
        return Now(boot + offset, boot, self._resumes.resumed_at, zone, self._set_boot + offset)

    def look(self) -> dict[str, Any]:
        """Return what happened since the last look: seconds `stepped` and `slept`, the new `zone`; {} for nothing."""
        changes: dict[str, Any] = {}
        if slept := self._resumes.look():
            changes["slept"] = slept
        offset, zone = clock.ahead(self._clocks.wall, of=self._clocks.boot), self._machine_zone()
        if abs(stepped := offset - self._offset) >= STEP_SECONDS:
            changes["stepped"] = stepped
            self._offset, self._set_boot = offset, self._clocks.boot()
        if self._zone is not None and zone != self._zone:
            changes["zone"] = str(zone)
        self._zone = zone
        return changes

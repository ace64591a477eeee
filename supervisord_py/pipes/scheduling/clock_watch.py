"""Reads the clocks, and notices what people and machines do to them: set the time, change the zone, close the lid.

Law: three clocks tell it apart. Counting suspend but not being awake: the machine slept. Wall against counting suspend:
somebody set the time. The clocks are passed in, so that tests turn them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING

from supervisord_py.pipes.scheduling.due import Now
from supervisord_py.process import clock

if TYPE_CHECKING:
    from collections.abc import Callable

STEP_SECONDS = 1.0
"""A slewed wall clock differs by less between two looks; what is left over adds up until it is a step."""
SLEPT_SECONDS = 2.0
"""Clocks that were read together differ by less."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one look showed.

    Attributes:
        stepped: Seconds by which the wall clock was set since the last look; 0 for not.
        slept: Seconds that the machine was suspended since the last look; 0 for not.
        moved: Whether the machine's zone is another one.
    """

    now: Now
    stepped: float = 0.0
    slept: float = 0.0
    moved: bool = False


class ClockWatch:
    """Looks at the clocks. What is found due at the first look counts as missed while the machine was off.

    Args:
        wall: Unix seconds.
        boottime: Seconds since boot, suspended ones included.
        awake: Seconds that the machine was awake, from any beginning.
        zone: The machine's time zone now.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        boottime: Callable[[], float] = clock.now,
        awake: Callable[[], float] = time.monotonic,
        zone: Callable[[], tzinfo] = lambda: UTC,
    ) -> None:
        self._clocks = (wall, boottime, awake)
        self._machine_zone = zone
        self._boottime, self._offset, self._asleep = self._read()
        self._zone: tzinfo | None = None
        """Of the last look: who makes the watch may not know the machine's zone yet."""
        self.resumed_at = self._boottime

    def now(self) -> Now:
        """Return the time; what happened to it waits for the next look."""
        boottime, offset, _ = self._read()
        return Now(boottime + offset, boottime, self.resumed_at, self._zone or self._machine_zone())

    def look(self) -> Look:
        """Return the time, and what happened to it since the last look."""
        boottime, offset, asleep = self._read()
        zone = self._machine_zone()
        stepped = offset - self._offset
        slept = asleep - self._asleep
        moved = self._zone is not None and zone != self._zone
        if abs(stepped) >= STEP_SECONDS:
            self._offset = offset
        if slept >= SLEPT_SECONDS:
            self._asleep = asleep
            self.resumed_at = boottime
        self._zone = zone
        return Look(
            Now(boottime + offset, boottime, self.resumed_at, zone),
            stepped if abs(stepped) >= STEP_SECONDS else 0.0,
            slept if slept >= SLEPT_SECONDS else 0.0,
            moved,
        )

    def _read(self) -> tuple[float, float, float]:
        """Return boottime, how far the wall is ahead of it, and how far it is ahead of the time awake."""
        wall, boottime, awake = self._clocks
        offset, asleep = clock.ahead(wall, of=boottime), clock.ahead(boottime, of=awake)
        return boottime(), offset, asleep

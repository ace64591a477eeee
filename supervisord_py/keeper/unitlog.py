"""One unit's output on its way to disk, and what happens while the disk takes nothing.

Degraded: bytes are kept in memory up to `spill_bytes`; what comes beyond that is counted. The disk is asked again after
1 s, then less and less often down to every 5 s, and only while degraded. Once it takes bytes again, those kept are
written with their own times, then one GAP record tells how many were lost. A child never notices.
"""

from __future__ import annotations

import time
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from supervisord_py.keeper.loop import Loop, Timer
    from supervisord_py.keeper.segments import Segments

    Emit = Callable[[dict[str, Any]], None]

RETRY_SECONDS = 1.0
RETRY_MAX_SECONDS = 5.0
RETRY_GROWTH = 1.5
INSTANCE_MODULUS = 2**16


class UnitLog:
    """Where the pipes of one unit's instances end."""

    __slots__ = (
        "_emit", "_loop", "_lost", "_opened_once", "_retry_seconds", "_segments", "_spill", "_spill_bytes",
        "_spill_limit", "_timer", "instance", "pipes", "unit",
    )  # fmt: skip

    def __init__(self, loop: Loop, emit: Emit, unit: str, segments: Segments, spill_limit: int) -> None:
        self._loop = loop
        self._emit = emit
        self.unit = unit
        self._segments = segments
        self._spill: deque[tuple[float, int, int, bytes]] = deque()
        self._spill_bytes = 0
        self._spill_limit = spill_limit
        self._lost = 0
        self._timer: Timer | None = None
        self._retry_seconds = RETRY_SECONDS
        self._opened_once = False
        self.instance = 0
        self.pipes = 0
        """How many pipes end here; the holder closes the log when there are none."""

    @property
    def degraded(self) -> bool:
        """Whether the disk takes nothing at present."""
        return self._timer is not None

    @property
    def position(self) -> int:
        """Cumulative position: where the next byte will be found, those kept in memory included."""
        return self._segments.position + self._spill_bytes

    @property
    def lost_bytes(self) -> int:
        """Bytes lost since the disk gave out."""
        return self._lost

    def next_instance(self) -> int:
        """Open if need be, and return the number that marks the next instance's records (1..65535, wrapping)."""
        self._try_open()
        self.instance = self.instance % (INSTANCE_MODULUS - 1) + 1
        return self.instance

    def write(self, stream: int, instance: int, data: bytes) -> None:
        """Take bytes that just arrived."""
        now = time.time()
        if self.degraded or not self._try_open():
            self._keep(now, stream, instance, data)
            return
        written, error = self._put(now, stream, instance, data)
        if error is not None:
            self._degrade(error)
            self._keep(now, stream, instance, data[written:])

    def close(self) -> None:
        """Write what can be written and give the files back."""
        if self.degraded:
            self._flush()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._segments.close()

    def _try_open(self) -> bool:
        if self._segments.is_open:
            return True
        try:
            self._segments.open()
        except OSError as error:
            if not self.degraded:
                self._degrade(error)
            return False
        if not self._opened_once:
            self._opened_once = True
            self.instance = max(self.instance, self._segments.instance)
        return True

    def _put(self, when: float, stream: int, instance: int, data: bytes) -> tuple[int, OSError | None]:
        written = 0
        self._segments.instance = instance
        try:
            while written < len(data):
                written += self._segments.append(when, stream, memoryview(data)[written:])
        except OSError as error:
            return written, error
        return written, None

    def _keep(self, when: float, stream: int, instance: int, data: bytes) -> None:
        # After the first lost byte everything is lost until the disk is back: what is kept has no holes.
        room = 0 if self._lost else self._spill_limit - self._spill_bytes
        kept = data[: max(0, room)]
        if kept:
            self._spill.append((when, stream, instance, kept))
            self._spill_bytes += len(kept)
        self._lost += len(data) - len(kept)

    def _degrade(self, error: OSError) -> None:
        self._retry_seconds = RETRY_SECONDS
        self._timer = self._loop.later(self._retry_seconds, self._try_again)
        self._emit({"event": "log_degraded", "unit": self.unit, "errno": error.errno, "lost_bytes": self._lost})

    def _try_again(self) -> None:
        if self._flush():
            return
        self._retry_seconds = min(RETRY_MAX_SECONDS, self._retry_seconds * RETRY_GROWTH)
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.later(self._retry_seconds, self._try_again)

    def _flush(self) -> bool:
        if not self._try_open():
            return False
        while self._spill:
            when, stream, instance, data = self._spill.popleft()
            written, error = self._put(when, stream, instance, data)
            self._spill_bytes -= written
            if error is not None:
                self._spill.appendleft((when, stream, instance, data[written:]))
                return False
        return self._recover()

    def _recover(self) -> bool:
        if self._lost:
            try:
                self._segments.gap(time.time(), self._lost)
            except OSError:
                return False
        elif not self._segments.is_open:
            return False
        lost, self._lost = self._lost, 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._emit({"event": "log_recovered", "unit": self.unit, "lost_bytes": lost})
        return True

"""Moves children's output from pipes to their units' logs, a bounded piece a turn, so that a flood starves nobody.

A pipe ends when nobody holds its other side. That says nothing about the child: grandchildren inherit pipes, so an exit
is decided by wait alone, and what is in a pipe at that moment is drained first.
"""

from __future__ import annotations

import os

from supervisord_py.keeper.protocol import STDERR, STDOUT
from supervisord_py.keeper.segments import Segments, unit_directory
from supervisord_py.keeper.unitlog import UnitLog

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from supervisord_py.keeper.loop import Loop
    from supervisord_py.keeper.unitlog import Emit

PIECE_BYTES = 65536
DRAIN_BYTES = 1 << 20
"""No pipe holds more (pipe(7), pipe-max-size): a drain that read this much has seen all there was when it began."""


class Outlet:
    """The reading end of one pipe of one instance."""

    __slots__ = ("_pump", "fd", "instance", "log", "stream")

    def __init__(self, pump: Pump, fd: int, stream: int, log: UnitLog) -> None:
        self._pump = pump
        self.fd = fd
        self.stream = stream
        self.log = log
        self.instance = log.instance

    def pump(self) -> int:
        """Move one piece; return its size, 0 at the end or when there is nothing now."""
        if self.fd < 0:
            return 0
        try:
            piece = os.read(self.fd, PIECE_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            piece = b""
        if not piece:
            self._pump.end(self)
            return 0
        self.log.write(self.stream, self.instance, piece)
        return len(piece)

    def drain(self) -> None:
        """Move all that is in the pipe now."""
        left = DRAIN_BYTES
        while left > 0 and (moved := self.pump()):
            left -= moved


class Pump:
    """All units' logs that are in use."""

    __slots__ = ("_emit", "_log_dir", "_logs", "_loop", "_segment_bytes", "_spill_bytes", "_total_bytes")

    def __init__(
        self, loop: Loop, emit: Emit, log_dir: str, *, segment_bytes: int, total_bytes: int, spill_bytes: int
    ) -> None:
        self._loop = loop
        self._emit = emit
        self._log_dir = log_dir
        self._segment_bytes = segment_bytes
        self._total_bytes = total_bytes
        self._spill_bytes = spill_bytes
        self._logs: dict[str, UnitLog] = {}

    def log(self, unit: str) -> UnitLog:
        """Return the unit's log.

        Raises:
            ValueError: The unit has no proper name.
        """
        log = self._logs.get(unit)
        if log is None:
            directory = unit_directory(self._log_dir, unit)
            segments = Segments(directory, self._segment_bytes, self._total_bytes)
            log = self._logs[unit] = UnitLog(self._loop, self._report, unit, segments, self._spill_bytes)
        return log

    def attach(self, log: UnitLog, stdout: int, stderr: int) -> list[Outlet]:
        """Read from two pipes from now on, as the next instance of the unit; their descriptors are ours then."""
        log.next_instance()
        outlets = []
        for fd, stream in ((stdout, STDOUT), (stderr, STDERR)):
            os.set_blocking(fd, False)
            outlet = Outlet(self, fd, stream, log)
            log.pipes += 1
            self._loop.watch(fd, outlet.pump)
            outlets.append(outlet)
        return outlets

    def move(self, outlets: list[Outlet], log: UnitLog) -> None:
        """Have the output from now on end in another unit's log, as its next instance; not what is in the pipes."""
        instance = log.next_instance()
        for outlet in outlets:
            outlet.drain()
            if outlet.fd < 0:
                continue  # the child has closed it
            before = outlet.log
            outlet.log, outlet.instance = log, instance
            log.pipes += 1
            before.pipes -= 1
            self.tidy(before)
        self.tidy(log)

    def end(self, outlet: Outlet) -> None:
        """Give an outlet's descriptor back; the log follows with its last one."""
        if outlet.fd < 0:
            return
        self._loop.unwatch(outlet.fd)
        os.close(outlet.fd)
        outlet.fd = -1
        outlet.log.pipes -= 1
        self.tidy(outlet.log)

    def tidy(self, log: UnitLog) -> None:
        """Forget a log that no pipe ends in, unless it still holds bytes for a full disk."""
        if log.pipes == 0 and not log.degraded and self._logs.pop(log.unit, None) is not None:
            log.close()

    def _report(self, event: dict[str, Any]) -> None:
        self._emit(event)
        log = self._logs.get(event["unit"])
        if event["event"] == "log_recovered" and log is not None:
            self.tidy(log)

    def degraded(self) -> list[str]:
        """Return the units whose disk takes nothing at present."""
        return sorted(unit for unit, log in self._logs.items() if log.degraded)

    def close(self) -> None:
        """Write what can be written; the end of the keeper."""
        for log in self._logs.values():
            log.close()
        self._logs.clear()


def pipe_pair() -> tuple[int, int, int, int]:
    """Return two pipes: (stdout read, stdout write, stderr read, stderr write).

    Raises:
        OSError: No descriptors are left; none is leaked.
    """
    out_read, out_write = os.pipe()
    try:
        err_read, err_write = os.pipe()
    except OSError:
        os.close(out_read)
        os.close(out_write)
        raise
    return out_read, out_write, err_read, err_write

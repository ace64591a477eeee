"""Children's output, from their pipes to the segments of their unit's log (the files are described
in protocol.py).

A pipe is read a bounded piece a turn, so that a flood starves nobody. It ends when nobody holds its
other side, which says nothing about the child (grandchildren inherit pipes): an exit is decided by
wait alone, and what is in a pipe at that moment is drained first.

While the disk takes nothing, bytes are kept in memory up to `log_spill_bytes`, and what comes
beyond that is counted. The disk is asked again every second. Once it takes bytes again, those kept
are written with their own times, then one GAP record tells how many were lost. A child never
notices.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from collections import deque

from supervisord_py.keeper import protocol
from supervisord_py.keeper.protocol import INDEX_RECORD_SIZE, segment_paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from supervisord_py.keeper.boot import Boot
    from supervisord_py.keeper.loop import Loop

PIECE_BYTES = 65536  # what a pipe holds
FLOOD_BYTES = 4 * PIECE_BYTES
DRAIN_BYTES = 1 << 20
"""No pipe holds more (pipe(7), pipe-max-size): a drain that read this much has seen all there
was when it began.
"""
RETRY_SECONDS = 1.0
LENGTH_MAX = 2**32 - 1
INSTANCES = 2**16 - 1
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_record = struct.Struct(protocol.INDEX_RECORD)


class Segments:
    """Appends to the segments of one unit, in a directory that is made 0700 when first opened."""

    def __init__(self, directory: str, segment_bytes: int, total_bytes: int) -> None:
        self.directory = directory
        self.segment_bytes = segment_bytes  # of bytes or of records, at which a new segment begins
        # of all segments and records together, beyond which the oldest go
        self.total_bytes = total_bytes
        self.position = 0  # the unit's cumulative output position: where the next byte goes
        self.instance = 0  # number of the last instance
        self._sizes: list[tuple[int, int]] = []  # (start, size) of the segments that are full
        self._start = self._idx_size = 0
        self._log = self._idx = -1

    def open(self) -> None:
        if self._log >= 0:
            return
        os.makedirs(self.directory, 0o700, exist_ok=True)
        starts = protocol.segment_starts(self.directory)
        self._sizes = [
            (
                start,
                sum(
                    os.stat(path).st_size
                    for path in segment_paths(self.directory, start)
                    if os.path.exists(path)
                ),
            )
            for start in starts[:-1]
        ]
        self._begin(starts[-1] if starts else 0)
        # A crash may have torn the last record, or taken bytes that records promise: those go.
        count = self._idx_size // INDEX_RECORD_SIZE
        while count and not self._start <= self._last(count)[0] <= self.position:
            count -= 1
        self.instance = max(self.instance, self._last(count)[3] if count else 0)
        self._idx_size = count * INDEX_RECORD_SIZE
        os.ftruncate(self._idx, self._idx_size)

    def append(self, when: float, stream: int, instance: int, data: bytes) -> int:
        """Append bytes with their record, both of at most one segment; return how many bytes
        were written.
        """
        self._rotate_if_full()
        data = data[: self._start + self.segment_bytes - self.position]
        self._put_record(when, len(data), instance, stream)
        written = os.write(self._log, data)
        self.position += written
        return written

    def gap(self, when: float, count: int) -> None:
        self._rotate_if_full()
        self._put_record(when, min(count, LENGTH_MAX), self.instance, protocol.GAP)

    def close(self) -> None:
        for fd in (self._log, self._idx):
            if fd >= 0:
                os.close(fd)
        self._log = self._idx = -1

    def _put_record(self, when: float, length: int, instance: int, stream: int) -> None:
        record = _record.pack(self.position, when, length, instance, stream, 0)
        if os.write(self._idx, record) != len(record):
            os.ftruncate(self._idx, self._idx_size)
            # the disk took a part: nothing else does that
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._idx_size += len(record)

    def _last(self, count: int) -> tuple[int, float, int, int, int, int]:
        found: tuple[int, float, int, int, int, int] = _record.unpack(
            os.pread(self._idx, INDEX_RECORD_SIZE, (count - 1) * INDEX_RECORD_SIZE)
        )
        return found

    def _begin(self, start: int) -> None:
        self.close()
        log, idx = segment_paths(self.directory, start)
        self._idx = os.open(idx, _FLAGS, 0o600)
        self._log = os.open(log, _FLAGS, 0o600)
        self._start = start
        self.position = start + os.fstat(self._log).st_size
        self._idx_size = os.fstat(self._idx).st_size

    def _rotate_if_full(self) -> None:
        size = self.position - self._start
        if size < self.segment_bytes and (self._idx_size < self.segment_bytes or size == 0):
            return
        self._sizes.append((self._start, size + self._idx_size))
        self._begin(self.position)
        excess = sum(size for _, size in self._sizes) + self.segment_bytes - self.total_bytes
        while excess > 0 and self._sizes:
            start, size = self._sizes.pop(0)
            excess -= size
            for path in segment_paths(self.directory, start):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)


class UnitLog:
    def __init__(self, logs: Logs, unit: str, segments: Segments) -> None:
        self.logs, self._segments = logs, segments
        self._pending: deque[tuple[float, int, int, bytes]] = deque()
        self._pending_bytes = 0
        self._lost = 0
        self.degraded = False  # the disk takes nothing now; it is asked again
        self.errno: int | None = None  # why
        self.unit = unit
        self.pipes = 0  # how many end here; the holder closes the log when there are none

    @property
    def position(self) -> int:
        """Cumulative position: where the next byte will be found, those kept in memory included."""
        return self._segments.position + self._pending_bytes

    def open(self, instance: int) -> int:
        """Open if need be; return the number that marks an instance's records: the given one,
        for 0 the next one.
        """
        if not self.degraded:
            self.flush()
        last = self._segments.instance
        self._segments.instance = max(last, instance) if instance else last % INSTANCES + 1
        return instance or self._segments.instance

    def write(self, stream: int, instance: int, data: bytes) -> None:
        size = len(data)
        if self.degraded:
            # After the first lost byte everything is lost until the disk is back: what is kept has
            # no holes.
            data = data[: 0 if self._lost else max(0, self.logs.spill_bytes - self._pending_bytes)]
            self._lost += size - len(data)
        if data:
            self._pending.append((time.time(), stream, instance, data))
            self._pending_bytes += len(data)
        if not self.degraded:
            self.flush()

    def flush(self) -> None:
        """Write what is kept; what the disk does not take now is tried again later."""
        try:
            self._segments.open()
            while self._pending:
                when, stream, instance, data = self._pending.popleft()
                written = 0
                try:
                    written = self._segments.append(when, stream, instance, data)
                finally:
                    self._pending_bytes -= written
                    if written < len(data):
                        self._pending.appendleft((when, stream, instance, data[written:]))
            if self._lost:
                self._segments.gap(time.time(), self._lost)
        except OSError as error:
            was_degraded = self.degraded
            self.degraded = True  # `Logs.reconcile` asks the disk again
            self.errno = error.errno
            if not was_degraded:
                self.logs.emit(self.degradation())
            return
        if self.degraded:
            lost, self._lost, self.degraded = self._lost, 0, False
            self.logs.emit({"event": "log_recovered", "unit": self.unit, "lost_bytes": lost})
            self.logs.tidy(self)

    def degradation(self) -> dict[str, Any]:
        """Return the event that tells of it."""
        return {
            "event": "log_degraded",
            "unit": self.unit,
            "errno": self.errno,
            "lost_bytes": self._lost,
        }

    def close(self) -> None:
        if self.degraded:
            self.flush()
        self._segments.close()


class OutputPipe:
    def __init__(self, log: UnitLog, fd: int, stream: int, instance: int) -> None:
        self.log, self.fd, self.stream, self.instance = log, fd, stream, instance
        self.size = PIECE_BYTES

    def pump(self) -> int:
        """Move one piece; return its size, 0 at the end or when there is nothing now."""
        if self.fd < 0:
            return 0
        try:
            piece = os.read(self.fd, self.size)
        # there is nothing now, or it cannot be read now: the bytes stay in the pipe
        except OSError:
            return 0
        if piece:
            self.log.write(self.stream, self.instance, piece)
            # it floods: larger pieces have fewer records, and wake us less often
            if len(piece) == PIECE_BYTES:
                # Linux knows it, and sets the user a bound
                with contextlib.suppress(AttributeError, OSError):
                    self.size = fcntl.fcntl(self.fd, fcntl.F_SETPIPE_SZ, FLOOD_BYTES)
        else:
            self.close()
        return len(piece)

    def drain(self) -> None:
        left = DRAIN_BYTES
        while left > 0 and (moved := self.pump()):
            left -= moved

    def close(self) -> None:
        if self.fd >= 0:
            self.log.logs.loop.unwatch(self.fd)
            os.close(self.fd)
            self.fd = -1
            self.log.pipes -= 1
            self.log.logs.tidy(self.log)


class Logs:
    """All units' logs that are in use; `emit` is told of `log_degraded` and `log_recovered`."""

    def __init__(self, loop: Loop, emit: Callable[[dict[str, Any]], None], boot: Boot) -> None:
        self.loop, self.emit = loop, emit
        self.spill_bytes = boot.log_spill_bytes
        self._log_dir, self._sizes = boot.log_dir, (boot.log_segment_bytes, boot.log_total_bytes)
        self._open: dict[str, UnitLog] = {}
        self._retry_at: float | None = None  # when the disk is asked again, while it takes nothing

    def log(self, unit: str) -> UnitLog:
        """Return the unit's log. Raises ValueError: its name would lead elsewhere."""
        log = self._open.get(unit)
        if log is None:
            folder = protocol.unit_directory(self._log_dir, unit)
            log = self._open[unit] = UnitLog(self, unit, Segments(folder, *self._sizes))
        return log

    def read_from(self, log: UnitLog, ends: Sequence[Sequence[int]]) -> list[OutputPipe]:
        """Read from the pipes of an instance from now on, each (descriptor, stream, its number or
        0).

        They are ours, also when this raises OSError: then they are closed.
        """
        instance = log.open(ends[0][2])
        pipes = [OutputPipe(log, fd, stream, instance) for fd, stream, _ in ends]
        log.pipes += len(pipes)
        try:
            for pipe in pipes:
                os.set_blocking(pipe.fd, False)
                self.loop.watch(pipe.fd, pipe.pump)
        except BaseException:
            for pipe in pipes:
                pipe.close()
            raise
        return pipes

    def tidy(self, log: UnitLog) -> None:
        """Forget a log that no pipe ends in, unless it still holds bytes for a full disk."""
        if log.pipes == 0 and not log.degraded and self._open.pop(log.unit, None) is not None:
            log.close()

    def reconcile(self, now: float) -> float | None:
        """Ask the disk again, now and then, while it takes nothing; return when to be called
        again.
        """
        degraded = [log for log in self._open.values() if log.degraded]
        if not degraded:
            self._retry_at = None
        elif self._retry_at is None:
            self._retry_at = now + RETRY_SECONDS
        elif now >= self._retry_at:
            self._retry_at = now + RETRY_SECONDS
            for log in degraded:
                log.flush()
        return self._retry_at

    def send_degradations_again(self) -> None:
        """Tell a new control plane which disks take nothing."""
        for log in self._open.values():
            if log.degraded:
                self.emit(log.degradation())

    def degraded(self) -> list[str]:
        return sorted(unit for unit, log in self._open.items() if log.degraded)

    def close(self) -> None:
        """Write what can be written; the end of the keeper."""
        for log in list(self._open.values()):
            log.close()
        self._open.clear()

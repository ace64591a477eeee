"""The files that one unit's output goes to: append only, cut into segments, the oldest thrown away.

    DIR/00000000000000000000.log    the bytes as they came, both streams in order of arrival
    DIR/00000000000000000000.idx    one 24-byte record (protocol.INDEX_RECORD) for each chunk

A segment is named by the cumulative position of its first byte, so a position is found by name, and within the file at
`position - name`: lost bytes do not advance positions. A GAP record says how many bytes are missing at its position.
Bytes are written before their record, so a reader that follows the records never meets bytes that are not there.

After a crash, the last segment is made whole when it is opened: records that promise more bytes than there are get cut;
bytes without a record get one with the time of the file's last write, stream STDOUT and the flag RECOVERED, because
which stream they came from is not known. A segment is full when its bytes, or its records, reach `segment_bytes`.
"""

from __future__ import annotations

import errno
import os
import struct

from supervisord_py.keeper.protocol import GAP, INDEX_RECORD, INDEX_RECORD_SIZE, RECOVERED, STDERR, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    Record = tuple[int, float, int, int, int, int]

NAME_DIGITS = 20
LENGTH_MAX = 2**32 - 1
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_record = struct.Struct(INDEX_RECORD)


class Segments:
    """Appends to the segments of one unit.

    Args:
        directory: Where; made 0700 with its parents when first opened.
        segment_bytes: Size at which a new segment begins.
        total_bytes: Size of all segments and records together, beyond which the oldest go.
    """

    __slots__ = (
        "_idx", "_idx_size", "_log", "_log_size", "_sizes", "_start", "directory", "instance", "segment_bytes",
        "total_bytes",
    )  # fmt: skip

    def __init__(self, directory: str, segment_bytes: int, total_bytes: int) -> None:
        self.directory = directory
        self.segment_bytes = max(1, segment_bytes)
        self.total_bytes = total_bytes
        self.instance = 0
        """Number of the last instance that wrote here, from the records found at opening."""
        self._sizes: list[tuple[int, int]] = []
        self._start = 0
        self._log = self._idx = -1
        self._log_size = self._idx_size = 0

    @property
    def position(self) -> int:
        """The unit's cumulative output position: where the next byte goes."""
        return self._start + self._log_size

    @property
    def is_open(self) -> bool:
        """Whether descriptors are held."""
        return self._idx >= 0

    def open(self) -> None:
        """Open the last segment, made whole, or a first one; nothing when open already.

        Raises:
            OSError: The directory or the files cannot be had.
        """
        if self.is_open:
            return
        os.makedirs(self.directory, 0o700, exist_ok=True)
        starts = self._survey()
        try:
            self._begin(starts[-1] if starts else 0)
            self._mend()
        except OSError:
            self.close()
            raise

    def append(self, when: float, stream: int, data: bytes | memoryview) -> int:
        """Append bytes with their record.

        Args:
            when: Unix seconds of arrival.
            stream: STDOUT or STDERR.
            data: The bytes.

        Returns:
            How many of them are written with a record: all, or fewer when the disk gave out in the middle.

        Raises:
            OSError: The disk took none.
        """
        view = memoryview(data)
        taken = 0
        while taken < len(view):
            try:
                taken += self._append_some(when, stream, view[taken:])
            except OSError:
                if taken:
                    return taken
                raise
        return taken

    def gap(self, when: float, count: int) -> None:
        """Record that `count` bytes are missing here.

        Raises:
            OSError: The disk refused.
        """
        while count > 0:
            part = min(count, LENGTH_MAX)
            self._rotate_if_full()
            self._put_record(self.position, when, part, GAP)
            count -= part

    def close(self) -> None:
        """Give the descriptors back; `open()` may follow."""
        for fd in (self._log, self._idx):
            if fd >= 0:
                os.close(fd)
        self._log = self._idx = -1

    def _append_some(self, when: float, stream: int, view: memoryview) -> int:
        self._rotate_if_full()
        part = view[: min(self.segment_bytes - self._log_size, LENGTH_MAX)]
        written = os.write(self._log, part)
        try:
            self._put_record(self.position, when, written, stream)
        except OSError:
            # Bytes without a record are bytes that nobody can date: take them back; shrinking works on a full disk.
            os.ftruncate(self._log, self._log_size)
            raise
        self._log_size += written
        return written

    def _put_record(self, position: int, when: float, length: int, stream: int, flags: int = 0) -> None:
        record = _record.pack(position, when, length, self.instance, stream, flags)
        written = os.write(self._idx, record)
        if written != len(record):
            os.ftruncate(self._idx, self._idx_size)
            raise OSError(errno.ENOSPC, "short write of a record")
        self._idx_size += written

    def _rotate_if_full(self) -> None:
        if self._log_size < self.segment_bytes and (self._idx_size < self.segment_bytes or self._log_size == 0):
            return
        start, size = self.position, self._log_size + self._idx_size
        full = self._start
        self.close()
        try:
            self._begin(start)
        except OSError:
            self.close()
            raise
        self._sizes.append((full, size))
        self._throw_away()

    def _throw_away(self) -> None:
        excess = sum(size for _, size in self._sizes) + self.segment_bytes - self.total_bytes
        while excess > 0 and self._sizes:
            start, size = self._sizes.pop(0)
            for suffix in (".idx", ".log"):
                try:
                    os.unlink(self._path(start, suffix))
                except FileNotFoundError:
                    continue
            excess -= size

    def _begin(self, start: int) -> None:
        self._log = os.open(self._path(start, ".log"), _FLAGS, 0o600)
        self._idx = os.open(self._path(start, ".idx"), _FLAGS, 0o600)
        self._start = start
        self._log_size = os.fstat(self._log).st_size
        self._idx_size = os.fstat(self._idx).st_size

    def _survey(self) -> list[int]:
        starts = sorted(int(name[:NAME_DIGITS]) for name in os.listdir(self.directory) if is_segment(name))
        self._sizes = [(start, _size(self._path(start, ".log")) + _size(self._path(start, ".idx"))) for start in starts]
        if self._sizes:
            self._sizes.pop()  # the last one is still growing
        return starts

    def _path(self, start: int, suffix: str) -> str:
        return f"{self.directory}/{start:0{NAME_DIGITS}d}{suffix}"

    def _mend(self) -> None:
        """Make bytes and records of the last segment agree (see the head of this file)."""
        path = self._path(self._start, ".idx")
        last = next(_read_records(path, max(0, self._idx_size - INDEX_RECORD_SIZE)), None)
        if self._idx_size % INDEX_RECORD_SIZE == 0 and (self._agrees(last) if last else not self._log_size):
            self.instance = last[3] if last else self.instance
            return
        whole, covered, cut, self.instance = sound(_read_records(path), self._start, self._log_size)
        os.ftruncate(self._idx, whole * INDEX_RECORD_SIZE)
        self._idx_size = whole * INDEX_RECORD_SIZE
        if cut is not None:
            self._put_record(cut[0], cut[1], cut[2], cut[4], cut[5])
        mtime = os.fstat(self._log).st_mtime
        while covered < self._log_size:
            length = min(self._log_size - covered, LENGTH_MAX)
            self._put_record(self._start + covered, mtime, length, STDOUT, RECOVERED)
            covered += length

    def _agrees(self, last: Record) -> bool:
        position, _, length, _, stream, _ = last
        return stream in (STDOUT, STDERR, GAP) and position + (0 if stream == GAP else length) == self.position


def sound(records: Iterable[Record], start: int, log_size: int) -> tuple[int, int, Record | None, int]:
    """Find the records that agree with a log of `log_size` bytes beginning at position `start`.

    Returns:
        How many agree, up to the first that does not follow from those before it; the number of bytes that are covered;
        that first one cut to the bytes there are, if it began rightly; the instance of the last one.
    """
    whole = covered = last = 0
    for record in records:
        position, when, length, instance, stream, flags = record
        room = log_size - covered
        if position != start + covered or stream not in (STDOUT, STDERR, GAP):
            break
        if stream != GAP and length > room:
            if room == 0:
                break
            return whole, covered + room, (position, when, room, instance, stream, flags), instance
        covered += 0 if stream == GAP else length
        whole += 1
        last = instance
    return whole, covered, None, last


def is_segment(name: str) -> bool:
    """Say whether a file name is that of a segment's bytes."""
    return len(name) == NAME_DIGITS + 4 and name.endswith(".log") and name[:NAME_DIGITS].isdigit()


def unit_directory(log_dir: str, unit: str) -> str:
    """Return DIR/<kind>/<name> of a unit `kind:name`.

    Raises:
        ValueError: The unit's name would lead out of the log directory.
    """
    kind, _, name = unit.partition(":")
    for part in (kind, name):
        if part in ("", ".", "..") or "/" in part or "\0" in part:
            raise ValueError(f"unit {unit!r} does not name a kind and a name")
    return f"{log_dir}/{kind}/{name}"


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _read_records(path: str, offset: int = 0) -> Iterator[Record]:
    """Yield the whole records from a byte offset on, a piece at a time: the file may be large, the keeper is not."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while piece := os.pread(fd, INDEX_RECORD_SIZE * 1024, offset):
            yield from _record.iter_unpack(piece[: len(piece) // INDEX_RECORD_SIZE * INDEX_RECORD_SIZE])
            offset += len(piece)
    finally:
        os.close(fd)

"""Writes the two files of a cell: `<id>.out`, the raw bytes, and `<id>.jsonl`, what else happened and at which place.

Law: what was written is on disk when a method returns; `.out` is always an exact beginning of the output, never one
with a hole; and no trouble of a disk ever becomes an exception in a user's `print`. Standard library only, Python 3.8.

A record is one line, written with one write(2) to a descriptor opened with O_APPEND, so that a reader sees whole lines
or an unfinished last one. `at` is the size of `.out` when it happened, asked of the file itself: a KeyboardInterrupt
between a write and its bookkeeping must not shift all that follows.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

STATUS_MIME = "application/x-px-status+json"
"""A display with this type is a status event of a helper: one record `status`, and nothing to be shown as output."""
LEAST_LOG_BYTES = 1 << 20
"""Records may take as much room as output may, and at least this: a small cap must not hide an error's traceback."""
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_OWNER_ONLY = 0o600
_ALWAYS = frozenset(("begin", "error", "capped", "end"))


class _File:
    """One file to append to: opened when first needed, and again after `close`."""

    __slots__ = ("failed", "fd", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = -1
        self.failed = False

    def open(self, create: int = os.O_CREAT) -> int:
        """Return the descriptor.

        Args:
            create: 0 where the file must be there already.
        """
        if self.fd < 0:
            self.fd = os.open(self.path, _FLAGS | create, _OWNER_ONLY)
            os.fchmod(self.fd, _OWNER_ONLY)  # the umask is the user's code's to set
        return self.fd

    def size(self) -> int:
        """Return the size in bytes; 0 where there is none."""
        try:
            return os.fstat(self.fd).st_size if self.fd >= 0 else os.stat(self.path).st_size
        except OSError:
            return 0

    def append(self, data: bytes | memoryview, create: int = os.O_CREAT) -> int:
        """Write all of `data`, or as much as the disk takes; return how many bytes that were."""
        done = 0
        try:
            done = os.write(self.fd if self.fd >= 0 else self.open(create), data)
            while done < len(data):
                done += os.write(self.fd, memoryview(data)[done:])
        except OSError:
            self.failed = True  # a full disk, a limit, a folder that is gone: what is missing is counted
        return done

    def close(self) -> None:
        """Give the descriptor back."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)


class CellWriter:
    """The files of one cell. Every method may be called from any thread, and none raises OSError.

    Args:
        folder: Where the files are; exists.
        cell_id: Their name.
        cap: Largest size of `.out` in bytes; what goes beyond is counted in `lost_bytes`.
    """

    __slots__ = ("_cap", "_dropped", "_ended", "_lock", "_log", "_lost", "_out", "_room", "_stream", "_torn", "_total")

    def __init__(self, folder: str, cell_id: str, cap: int) -> None:
        self._out = _File(os.path.join(folder, cell_id + ".out"))
        self._log = _File(os.path.join(folder, cell_id + ".jsonl"))
        self._lock = threading.RLock()  # a signal handler of the user's may print in the middle of a print
        self._cap = cap
        self._total = self._out.size()
        self._room = max(cap, LEAST_LOG_BYTES) - self._log.size()
        self._torn = -1
        self._lost = 0
        self._dropped = 0
        self._stream = ""
        self._ended = False

    @property
    def total(self) -> int:
        """Bytes in `.out`."""
        return self._total

    @property
    def lost_bytes(self) -> int:
        """Bytes of output and of records that are in no file, because of the cap or of the disk."""
        return self._lost + self._dropped

    @property
    def ended(self) -> bool:
        """Whether `end` was written."""
        return self._ended

    def begin(self, code: str, pid: int | None = None) -> None:
        """Open the cell."""
        self._record("begin", code=code, pid=os.getpid() if pid is None else pid)

    def write(self, stream: str, data: bytes) -> None:
        """Append bytes of `stdout` or `stderr`."""
        with self._lock:
            if stream != self._stream:
                self._turn_to(stream)
            kept = 0
            try:
                if not (self._lost or self._ended) and len(data) <= self._cap - self._total:
                    kept = self._out.append(data)  # every print of a cell passes here
                elif (room := self._room_for_output()) > 0:
                    kept = self._out.append(memoryview(data)[:room])
            except BaseException:
                self._total = self._out.size()  # interrupted between the write and the sum
                raise
            self._total += kept
            self._lost += len(data) - kept

    def display(
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        display_id: str | None = None,
        *,
        update: bool = False,
    ) -> None:
        """Record a rich output, as Jupyter's messages `display_data` and `update_display_data` give it."""
        self._record("display", data=data, metadata=metadata or {}, display_id=display_id, update=update)

    def result(self, data: Mapping[str, Any], metadata: Mapping[str, Any], execution_count: int | None) -> None:
        """Record the value of the cell's last expression."""
        self._record("result", data=data, metadata=metadata, execution_count=execution_count)

    def clear(self, wait: bool) -> None:
        """Record that what was shown so far is to be cleared; with `wait`, when something new comes."""
        self._record("clear", wait=wait)

    def error(self, name: str, value: str, traceback: Sequence[str]) -> None:
        """Record an exception."""
        self._record("error", name=name, value=value, traceback=list(traceback))

    def status(self, event: Mapping[str, Any]) -> None:
        """Record what a helper says that it did."""
        self._record("status", event=event)

    def end(
        self,
        status: str,
        *,
        execution_count: int | None,
        duration: float,
        ask_exit: bool = False,
        error: Mapping[str, Any] | None = None,
    ) -> None:
        """Close the cell: what comes now is late.

        Args:
            status: `ok`, `error` or `aborted`.
            execution_count: The kernel's number for it.
            duration: Seconds.
            ask_exit: The code called exit().
            error: `{"name", "value", "traceback"}` of what was raised.
        """
        with self._lock:
            if self._ended:
                return
            if self.lost_bytes:
                by_disk = {"disk": True} if self._out.failed or self._log.failed else {}
                self._record("capped", lost_bytes=self.lost_bytes, **by_disk)
            self._record(
                "end",
                status=status,
                execution_count=execution_count,
                duration=round(duration, 6),
                ask_exit=ask_exit,
                error=error,
            )
            self._ended = True
            self._stream = ""
            self.close()

    def close(self) -> None:
        """Give the descriptors back; whatever is still to be written opens the files again."""
        with self._lock:
            self._out.close()
            self._log.close()

    def _turn_to(self, stream: str) -> None:
        """Record that the following bytes are another stream's."""
        if self._ended and not self._stream:
            self._append_record({"kind": "late"})
        self._stream = stream
        self._append_record({"kind": "stream", "stream": stream})

    def _record(self, kind: str, **members: Any) -> None:
        with self._lock:
            if self._ended and not self._stream:
                self._stream = "-"
                self._append_record({"kind": "late"})
            self._append_record({"kind": kind, **members})

    def _append_record(self, record: Mapping[str, Any]) -> None:
        """Write one line, with place and time in it; repair the end of the file where the last one was torn."""
        line = _line({"kind": record["kind"], "at": self._size(), "t": round(time.time(), 6), **record})
        if len(line) > self._room and record["kind"] not in _ALWAYS:
            self._dropped += len(line)
            return
        if self._torn >= 0 and not self._mend():
            self._dropped += len(line)
            return
        before = self._log.size()
        written = self._log.append(line, 0 if self._ended else os.O_CREAT)
        self._room -= written
        if written < len(line):
            self._dropped += len(line)
            self._torn = before
            self._mend()

    def _mend(self) -> bool:
        """Cut an unfinished line off, so that the next one begins a line."""
        try:
            os.ftruncate(self._log.open(0), self._torn)
        except OSError:
            return False
        self._torn = -1
        return True

    def _size(self) -> int:
        """Take the true size of `.out`."""
        if self._out.fd >= 0:
            self._total = self._out.size()
        return self._total

    def _room_for_output(self) -> int:
        """Return how many bytes may still be written: none behind a hole, none where the files were swept away."""
        if self._lost or (self._ended and self._swept_away()):
            return 0
        return self._cap - self._total

    def _swept_away(self) -> bool:
        """Say whether the cell's files are there no more: what was swept away stays away."""
        return self._out.fd < 0 and not os.path.exists(self._log.path)


def _line(record: Mapping[str, Any]) -> bytes:
    """Return the record as one line of JSON, whatever a display held."""
    try:
        text = json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain)
        return text.encode() + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair
        return json.dumps(record, separators=(",", ":"), allow_nan=False, default=_plain).encode() + b"\n"
    except (ValueError, TypeError, RecursionError):
        return json.dumps(_tame(record), separators=(",", ":"), default=_plain).encode() + b"\n"


def _plain(value: object) -> str:
    """Return what stands for a value that JSON does not know."""
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    return repr(value)


def _tame(value: Any, depth: int = 32) -> Any:
    """Return `value` with what JSON cannot hold replaced: infinities, keys that are no text, bottomless nesting."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, (dict, list, tuple)) and depth == 0:
        return "…"
    if isinstance(value, dict):
        return {str(key): _tame(each, depth - 1) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_tame(each, depth - 1) for each in value]
    return value

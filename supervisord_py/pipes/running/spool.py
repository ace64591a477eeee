"""The files of one execution: `stdout`, `stderr`, `events.jsonl`, and how far they go.

Law: private (0700, 0600) from the first instant; a byte is at its offset for ever. An append that fails half-way is
done again at the same place, so nothing is doubled and nothing is torn. What is over the cap is counted, not kept.
All of it blocks: call it in a thread.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from supervisord_py.ledger.pipe_executions import Output
from supervisord_py.pipes import rows
from supervisord_py.pipes.room_requests import OutputStream

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from supervisord_py.pipes.execution import Usage


FILES = {OutputStream.STDOUT: "stdout", OutputStream.STDERR: "stderr", OutputStream.EVENTS: "events.jsonl"}
PAGE_MAX = 4 * 1024 * 1024
"""Bytes of the largest page."""
_PROGRESS = "progress.json"
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def folder_of(executions_dir: Path, execution: int) -> Path:
    """Return where the files of an execution lie."""
    return executions_dir / str(execution)


class Spool:
    """Writes the files of one execution. One thread at a time.

    Args:
        folder: Of the execution.
        limit_bytes: Of each file.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self.folder = folder
        self._limit = limit_bytes
        self._fds: dict[OutputStream, int] = {}
        self.sizes: dict[OutputStream, int] = dict.fromkeys(OutputStream, 0)
        """Bytes in each file."""
        self.totals: dict[OutputStream, int] = dict.fromkeys(OutputStream, 0)
        """Bytes of each stream, those included that the cap kept out."""

    def create(self) -> None:
        """Make the folder anew; one that lay there was of an execution that was never recorded: it is set aside.

        Raises:
            OSError: It cannot be made.
        """
        try:
            self.folder.mkdir(mode=0o700)
        except FileNotFoundError:
            self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.chmod(self.folder.parent, 0o700)
            self.folder.mkdir(mode=0o700)
        except FileExistsError:
            self._set_aside()
            self.folder.mkdir(mode=0o700)
        os.chmod(self.folder, 0o700)  # also under a umask that takes more away
        for stream in (OutputStream.STDOUT, OutputStream.STDERR):
            self._fd(stream)

    def _set_aside(self) -> None:
        for number in range(1000):
            aside = self.folder.with_name(f"{self.folder.name}.old{number}")
            if not aside.exists():
                self.folder.rename(aside)
                return
        shutil.rmtree(self.folder)

    def resume(self, sizes: Mapping[OutputStream, int], totals: Mapping[OutputStream, int]) -> None:
        """Go on where an earlier control plane was sure of: what it wrote after that will be written again."""
        for stream in OutputStream:
            self.sizes[stream], self.totals[stream] = sizes.get(stream, 0), totals.get(stream, 0)
            if (self.folder / FILES[stream]).exists():
                os.ftruncate(self._fd(stream), self.sizes[stream])

    def _fd(self, stream: OutputStream) -> int:
        fd = self._fds.get(stream)
        if fd is None:
            fd = self._fds[stream] = os.open(self.folder / FILES[stream], _APPEND, 0o600)
            os.fchmod(fd, 0o600)
        return fd

    def append(self, stream: OutputStream, data: bytes) -> None:
        """Write bytes at the end of a stream.

        Raises:
            OSError: The disk takes nothing; call it again with the same bytes later.
        """
        kept = data[: max(0, self._limit - self.sizes[stream])]
        done = 0
        while done < len(kept):
            done += os.pwrite(self._fd(stream), kept[done:], self.sizes[stream] + done)
        self.sizes[stream] += len(kept)
        self.totals[stream] += len(data)

    @property
    def over_cap(self) -> int:
        """Bytes of all streams that the cap kept out."""
        return sum(self.totals.values()) - sum(self.sizes.values())

    def text(self, stream: OutputStream, limit: int) -> str:
        """Return the text of a stream as a row keeps it."""
        size = self.sizes[stream]
        head, tail = head_tail(size, limit)
        first = read(self.folder, stream, 0, head) if head else b""
        last = read(self.folder, stream, size - tail, tail) if tail else b""
        return row_text(first, last, size, self.totals[stream])

    def output(self, row_bytes: int, *, lost_bytes: int, invalid_utf8: bool, usage: Usage) -> Output:
        """Return what the row is to say of the output so far, with what a file cannot know of it."""
        return Output(
            stdout=self.text(OutputStream.STDOUT, row_bytes),
            stderr=self.text(OutputStream.STDERR, row_bytes),
            stdout_bytes=self.totals[OutputStream.STDOUT],
            stderr_bytes=self.totals[OutputStream.STDERR],
            lost_bytes=lost_bytes,
            invalid_utf8=invalid_utf8,
            usage=rows.usage_row(usage),
        )

    def tail(self, stream: OutputStream, limit: int) -> str:
        """Return the last bytes of a stream as text."""
        if not self.sizes[stream]:
            return ""
        start = max(0, self.sizes[stream] - limit)
        return read(self.folder, stream, start, limit).decode("utf-8", "replace")

    def close(self) -> None:
        """Give the descriptors back."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    # -- how far it is -----------------------------------------------------------------------------------------------

    def save_progress(self, progress: Mapping[str, Any]) -> None:
        """Note, as one whole, how far the output was read and what was made of it.

        Raises:
            OSError: The disk takes nothing; what was noted before stands.
        """
        fresh = self.folder / f"{_PROGRESS}.new"
        fd = os.open(fresh, _APPEND | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, 0o600)
            file.write(json.dumps(progress, separators=(",", ":")).encode())
        fresh.replace(self.folder / _PROGRESS)

    def load_progress(self) -> dict[str, Any] | None:
        """Return what was noted; None where nothing was, or it cannot be read."""
        try:
            found = json.loads((self.folder / _PROGRESS).read_bytes())
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def drop_progress(self) -> None:
        """Forget it: the execution has ended."""
        for name in (_PROGRESS, f"{_PROGRESS}.new"):
            with suppress(OSError):
                (self.folder / name).unlink()


def read(folder: Path, stream: OutputStream, offset: int, limit: int) -> bytes:
    """Return bytes of a stream; empty at its end, or where there is no file."""
    try:
        with (folder / FILES[stream]).open("rb") as file:
            return os.pread(file.fileno(), max(0, limit), max(0, offset))
    except OSError:
        return b""


def size(folder: Path, stream: OutputStream) -> int | None:
    """Return how many bytes of a stream are there; None where there is no file."""
    try:
        return (folder / FILES[stream]).stat().st_size
    except OSError:
        return None


HEAD_SHARE = 4
"""One fourth of the room is for the beginning: the end tells more."""
_CONTINUES = range(0x80, 0xC0)
_CHARACTER_BYTES = 4


def head_tail(total: int, limit: int) -> tuple[int, int]:
    """Return how many bytes of a stream of `total` go into the head and into the tail; (total, 0) when all fit."""
    if total <= limit:
        return total, 0
    head = limit // HEAD_SHARE
    return head, limit - head


def row_text(head: bytes, tail: bytes, kept: int, total: int) -> str:
    """Return the text of a row from the two pieces that `head_tail` named.

    Args:
        head: The first bytes.
        tail: The last ones; empty when the head is all.
        kept: Bytes of the file that they are the ends of.
        total: Bytes of the stream; what is more than `kept` is in no file.
    """
    last = f"\n[... {total - kept} bytes not kept ...]\n" if total > kept else ""
    if not tail:
        return head.decode("utf-8", "replace") + last
    head, tail = _without_cut_end(head), _without_cut_start(tail)
    missing = f"\n[... {kept - len(head) - len(tail)} bytes left out ...]\n"
    return f"{head.decode('utf-8', 'replace')}{missing}{tail.decode('utf-8', 'replace')}{last}"


def _without_cut_start(data: bytes) -> bytes:
    start = 0
    while start < min(_CHARACTER_BYTES, len(data)) and data[start] in _CONTINUES:
        start += 1
    return data[start:]


def _without_cut_end(data: bytes) -> bytes:
    for back in range(1, min(_CHARACTER_BYTES, len(data)) + 1):
        byte = data[-back]
        if byte in _CONTINUES:
            continue
        width = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        return data[:-back] if width > back else data
    return data


class Utf8Check:
    """Says whether a stream of bytes, in whatever pieces it comes, is UTF-8 so far. Pure."""

    def __init__(self, open_bytes: bytes = b"", *, is_valid: bool = True) -> None:
        self.open_bytes = open_bytes
        """The beginning of a character whose end has not come."""
        self.is_valid = is_valid

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        if not self.is_valid:
            return
        whole = self.open_bytes + data
        self.open_bytes = b""
        try:
            whole.decode()
        except UnicodeDecodeError as error:
            self.is_valid = error.end == len(whole) and error.reason == "unexpected end of data"
            self.open_bytes = whole[error.start :] if self.is_valid else b""

    def end(self) -> None:
        """Take the end: a character that was begun stays cut."""
        self.is_valid = self.is_valid and not self.open_bytes

"""The output of executions: where it lies, how it is made fit to be kept, and how it is read.

The file is the descriptor: a plain text agent without secrets writes straight into `stdout` and
`stderr`. Where its format has to be read, or it knows something that must not be stored, the agent
writes `raw.*`, and of that the files that are kept are made, from byte 0 and always the same ones;
a new control plane begins at byte 0 again. `raw.*` goes with the end of the run. Private (0700,
0600) from the first instant; a byte is at its offset for ever.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple

from supervisord_py.ledger.pipes import Execution
from supervisord_py.pipes.streams import PARSERS, TextStream
from supervisord_py.process.supervisor import decode_tail

PAGE_BYTES = 64 * 1024  # default page
PAGE_MAX = 4 * 1024 * 1024  # bytes of the largest page
PIECE_BYTES = 64 * 1024
DISK_PAUSE_SECONDS = 0.5  # between two tries against a disk that takes nothing
STEP_BYTES = 256 * 1024
POLL_SECONDS = 0.05  # so often who follows looks whether a file has grown
MARK = b"[redacted]"
SHORTEST_VALUE = 6  # shorter ones are left alone: `test` as a key would black out half of an answer
LINE_BYTES = 16 * 1024 * 1024
HEAD_SHARE = 4  # one fourth of a row's text is for the beginning: the end tells more
_PRIVATE = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class OutputStream(StrEnum):
    """What can be read of an execution's output: its text, its complaints, and the agent's own
    event lines.
    """

    STDOUT = "stdout"
    STDERR = "stderr"
    EVENTS = "events"


FILES = {
    OutputStream.STDOUT: "stdout",
    OutputStream.STDERR: "stderr",
    OutputStream.EVENTS: "events.jsonl",
}
RAW = {OutputStream.STDOUT: "raw.stdout", OutputStream.STDERR: "raw.stderr"}
BOTH = (OutputStream.STDOUT, OutputStream.STDERR)


# -- files -----------------------------------------------------------------------------------------


def open_for_child(folder: Path, *, copied: bool) -> Iterator[int]:
    """Make an execution's folder anew, and yield descriptors of what its stdout and its stderr
    become. Blocking.
    """
    shutil.rmtree(folder, ignore_errors=True)  # left by an earlier try, or by another ledger
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700)
    for stream in BOTH:
        if copied:
            os.close(_open(folder, FILES[stream], os.O_WRONLY))
        yield _open(folder, (RAW if copied else FILES)[stream], os.O_WRONLY | os.O_APPEND)


def _open(folder: Path, name: str, flags: int) -> int:
    return os.open(f"{folder}/{name}", flags | _PRIVATE, 0o600)


def remove_raw(folder: Path) -> None:
    for file in RAW.values():
        with suppress(OSError):
            (folder / file).unlink()


def read(folder: Path, file: str, offset: int, limit: int) -> bytes:
    """Return bytes of one of the `FILES`; empty at its end, or where there is none. Blocking."""
    with suppress(OSError), open(f"{folder}/{file}", "rb", buffering=0) as opened:
        return os.pread(opened.fileno(), limit, offset)
    return b""


def size(folder: Path, stream: OutputStream) -> int | None:
    try:
        return os.stat(f"{folder}/{FILES[stream]}").st_size
    except OSError:
        return None


def texts(folder: Path, limit: int) -> dict[str, Any]:
    """Return what a row says of both streams: size, and text: all, or head and tail around a
    marker. Blocking.
    """
    facts: dict[str, Any] = {}
    head = limit // HEAD_SHARE
    for stream in BOTH:
        whole = size(folder, stream) or 0
        raw = read(folder, FILES[stream], 0, limit) if whole else b""
        text = raw.decode("utf-8", "replace")
        if whole > limit:
            first = codecs.getincrementaldecoder("utf-8")("replace").decode(raw[:head])
            last = decode_tail(
                read(folder, FILES[stream], whole - limit + head - 4, limit - head + 4),
                limit - head,
            )
            # no cut character on either side
            text = f"{first}\n[... {whole - limit} bytes left out ...]\n{last}"
        facts |= {stream.value: text, f"{stream.value}_bytes": whole}
    return facts


def disk_is_full(folder: Path) -> bool:
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < os.sysconf("SC_PAGE_SIZE")


# -- what is made of it ----------------------------------------------------------------------------


class Redactor:
    """Takes secrets out of one stream, line by line; what comes out does not depend on where its
    pieces were cut.

    `values` are known secrets and what each is called, which stands in its place (of one of several
    lines, each line is one); `patterns` are regular expressions, matched line by line against the
    UTF-8 bytes. A line is held back until it is whole; one over LINE_BYTES is let go in pieces.
    """

    def __init__(self, values: Mapping[str, str], patterns: Iterable[str] = ()) -> None:
        self._marks = {
            form: mark_of(name) for value, name in values.items() for form in _printed_forms(value)
        }
        longest_first = sorted(self._marks, key=len, reverse=True)
        self._known = (
            re.compile(b"|".join(map(re.escape, longest_first))) if longest_first else None
        )
        self._patterns = [re.compile(pattern.encode()) for pattern in patterns]
        self._line = b""  # not whole yet

    def feed(self, data: bytes) -> bytes:
        if self._known is None and not self._patterns:
            return data
        whole, newline, rest = (self._line + data).rpartition(b"\n")
        done = [self._clean(whole), newline] if newline else []
        while len(rest) > LINE_BYTES:
            done.append(self._clean(rest[:LINE_BYTES]))
            rest = rest[LINE_BYTES:]
        self._line = rest
        return b"".join(done)

    def end(self) -> bytes:
        return self._clean(self._line)

    def _clean(self, text: bytes) -> bytes:
        if self._known is not None:
            text = self._known.sub(lambda found: self._marks[found[0]], text)
        for pattern in self._patterns:
            lines = text.split(b"\n")
            text = b"\n".join(
                pattern.sub(lambda found: MARK if found[0] else b"", line) for line in lines
            )
        return text


def mark_of(name: str) -> bytes:
    """Return what stands in the place of a secret: it says of which variable it was."""
    return b"[redacted: %s]" % name.encode("utf-8", "surrogatepass") if name else MARK


def redact(text: str, values: Mapping[str, str], patterns: Iterable[str] = ()) -> str:
    redactor = Redactor(values, patterns)
    done = redactor.feed(text.encode("utf-8", "surrogatepass")) + redactor.end()
    return done.decode("utf-8", "surrogatepass")


def _printed_forms(secret: str) -> set[bytes]:
    forms = set()
    for value in {line.strip() for line in (secret.strip(), *secret.split("\n"))}:
        if len(value) >= SHORTEST_VALUE:
            plain = {value} if "\n" not in value else set()
            forms |= plain | {json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    return {form.encode("utf-8", "surrogatepass") for form in forms}


class Copier:
    """Reads what an agent wrote, and makes of it what is kept. One thread at a time; everything
    blocks.

    Where the agent writes the kept files itself (not `copied`), they are only read: what the agent
    meant by them is known all the same. `secrets` and `patterns` are what must not be stored:
    values with names, and expressions.
    """

    def __init__(
        self,
        folder: Path,
        parser: str,
        *,
        copied: bool,
        secrets: Mapping[str, str],
        patterns: Sequence[str] = (),
    ) -> None:
        self._folder = folder
        self._copied = copied
        self._hidden = (dict(secrets), tuple(patterns))
        self._parser = PARSERS.get(parser, TextStream)()
        self.summary = self._parser.summary
        self._redactors = {stream: Redactor(*self._hidden) for stream in OutputStream if copied}
        self._read = dict.fromkeys(BOTH, 0)
        self._made = dict.fromkeys(OutputStream, 0)
        # made, and not in the files yet: a full disk
        self._waiting = {stream: bytearray() for stream in OutputStream}
        self._ended = False

    def redact(self, text: str | None) -> str | None:
        return None if text is None else redact(text, *self._hidden)

    def step(self) -> bool:
        """Take the next piece of each stream; say whether there was any.

        Raises OSError: the disk takes nothing; what was made waits for the next step.
        """
        self._write()
        moved = False
        for stream in BOTH:
            file = (RAW if self._copied else FILES)[stream]
            if data := read(self._folder, file, self._read[stream], STEP_BYTES):
                moved = True
                self._read[stream] += len(data)
                self._take(stream, data)
        self._write()
        return moved

    def finish(self) -> None:
        """Take all that is left, and the end; nobody writes any more.

        Raises OSError: the disk takes nothing; call it again.
        """
        while self.step():
            pass
        if not self._ended:
            self._ended = True
            for stream in BOTH:
                self._take(stream, b"", final=True)
        self._write()
        for stream in OutputStream if self._copied else ():
            with suppress(FileNotFoundError):
                os.truncate(self._folder / FILES[stream], self._made[stream])

    def _take(self, stream: OutputStream, data: bytes, *, final: bool = False) -> None:
        made = {stream: data}
        if stream is OutputStream.STDOUT:
            text, records = self._parser.end() if final else self._parser.feed(data)
            made = {stream: text, OutputStream.EVENTS: records}
        for each, part in made.items() if self._copied else ():
            redactor = self._redactors[each]
            self._waiting[each] += redactor.feed(part) + (redactor.end() if final else b"")

    def _write(self) -> None:
        for stream, data in self._waiting.items():
            while data:
                with open(
                    _open(self._folder, FILES[stream], os.O_WRONLY), "wb", buffering=0
                ) as file:
                    done = os.pwrite(file.fileno(), data, self._made[stream])
                self._made[stream] += done
                del data[:done]


# -- reading ---------------------------------------------------------------------------------------


class OutputPage(NamedTuple):
    """A piece of an execution's output, from `offset` on; `total_bytes` are there so far."""

    data: bytes
    offset: int
    total_bytes: int
    # `data` reaches the end, no more will come, and nothing of the stream is missing
    complete: bool
    # it is over, and not all of the stream was kept; an empty page is the end then
    truncated: bool = False


class FollowOutput(NamedTuple):
    """Bytes of a stream, in order, each once. `offset` is of the first byte."""

    stream: OutputStream
    offset: int
    data: bytes


class FollowNews(NamedTuple):
    """The execution as it stands: `start` is the first of a follow, `done` the last, `status`
    says that it changed.
    """

    word: Literal["start", "status", "done"]
    execution: Execution


FollowItem = FollowOutput | FollowNews


def pieces(folder: Path, offsets: Mapping[OutputStream, int]) -> list[FollowOutput]:
    """Return what each stream has from its offset on, where it has something. Blocking."""
    found = (
        FollowOutput(each, at, read(folder, FILES[each], at, PIECE_BYTES))
        for each, at in offsets.items()
    )
    return [piece for piece in found if piece.data]


def page(folder: Path, row: Execution, stream: OutputStream, offset: int, limit: int) -> OutputPage:
    """Return a piece of an execution's output, as its `row` stood before. Blocking."""
    total, is_final = size(folder, stream), row.status.is_final
    data = read(folder, FILES[stream], offset, limit)
    is_gone = total is None and getattr(row, f"{stream.value}_bytes", 0) > 0
    is_cut = is_final and (row.lost_bytes > 0 or is_gone)
    is_end = is_final and not is_cut and offset + len(data) >= (total or 0)
    return OutputPage(data, offset, total or 0, is_end, is_cut)

"""Reads the files of one cell; blocking.

Who writes them (`inside/cell_writer.py`) may be killed at any instruction: a last line without its
end is not read yet, a line that makes no sense is passed over, memory is bounded whatever the files
hold. The record file is the sign that a cell is kept: retention removes it first.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct, ValidationError, convert

from supervisord_py.errors import UnknownUnitError
from supervisord_py.kernels.backend import Reply
from supervisord_py.kernels.inside.cell_writer import RECORDS, STREAMS, CellWriter, read_spans
from supervisord_py.kernels.session import CellError, CellStatus

READ_BYTES = 64 * 1024
MOST_PIECES = 256
CELL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
Size = Annotated[int, Meta(ge=0)]
_EVENTS = {
    "display": ("data", "metadata", "display_id", "update"),
    "result": ("data", "metadata", "execution_count"),
    "error": ("name", "value", "traceback"),
    "clear": ("wait",),
}


class OutputGoneError(UnknownUnitError):
    """The files of a cell are not there: it never began, or retention took them."""

    kind = "output_gone"
    title = "Output is not kept"


class Record(Struct, frozen=True):
    """One line: its `kind`, the bytes of stdout and stderr before it, Unix time, and what its
    kind tells.
    """

    kind: str
    at: Size
    err_at: Size = 0
    t: float = 0.0
    offset: int = -1  # of the line: names it
    # display, result, clear, status
    data: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    display_id: str | None = None
    update: bool = False
    wait: bool = False
    event: Any = None
    execution_count: int | None = None
    # error
    name: str = "Error"
    value: str = ""
    traceback: tuple[str, ...] = ()
    # end, capped
    status: CellStatus = CellStatus.ABORTED
    duration: float | None = None
    ask_exit: bool = False
    exit_code: int | None = None
    error: CellError | None = None
    cap: int | None = None
    disk: str | None = None

    @property
    def raised(self) -> CellError:
        return CellError(self.name, self.value, self.traceback)

    @property
    def capped_words(self) -> str:
        if self.disk:
            return f"some output of this cell was not kept: {self.disk}"
        return f"the complete output is cut at its cap of {self.cap} bytes"


class StreamSpan(NamedTuple):  # of what is to be read
    stream: str
    start: int
    end: int


class Piece(NamedTuple):
    """Bytes of one stream as they came, at most 64 KiB, from `offset` of the complete output on."""

    stream: str
    offset: int
    data: bytes


class Page(NamedTuple):
    """A piece of the complete output: bytes from `offset` on, how many there are now, whether
    nothing comes after.
    """

    data: bytes
    offset: int
    total_bytes: int
    complete: bool


class CellLog:
    """The files of one cell, `<folder>/<cell id>.*`; the folder is `cells_dir/<session id>`. Holds
    no descriptor.

    What reads raises OutputGoneError where the cell is not kept; an id that is none is an
    UnknownUnitError.
    """

    def __init__(self, folder: Path, cell_id: str) -> None:
        if not CELL_ID.match(cell_id):
            hint = "the ids are in the answer of `pxctl exec --json`"
            raise UnknownUnitError(f"{cell_id!r} is not the id of a cell", hint=hint)
        self.folder = folder
        self.cell_id = cell_id
        self.paths = {stream: folder / f"{cell_id}{ending}" for stream, ending in STREAMS.items()}
        self.records_path = folder / f"{cell_id}{RECORDS}"

    def exists(self) -> bool:
        return self.records_path.is_file()

    def size(self, stream: str) -> int:
        try:
            whole = self.paths[stream].stat().st_size
        except FileNotFoundError:
            return 0
        # behind the size: what is shared has its span before there is a file
        start, end = self._span(stream)
        return max(0, (whole if end is None else min(whole, end)) - start)

    def _span(self, stream: str) -> tuple[int, int | None]:
        return read_spans(str(self.folder / self.cell_id)).get(STREAMS[stream], (0, None))

    def read(self, stream: str, offset: int, limit: int = READ_BYTES) -> bytes:
        """Return up to `limit` bytes of a stream, fewer only at its end."""
        try:
            with self.paths[stream].open("rb", buffering=0) as file:
                start, end = self._span(stream)
                place = start + offset
                if end is not None:
                    limit = max(0, min(limit, end - place))
                return os.pread(file.fileno(), limit, place)
        except FileNotFoundError:
            if not self.exists():
                raise self._gone() from None
            return b""

    def page(self, offset: int, limit: int = READ_BYTES, stream: str | None = None) -> Page:
        """Return a page of the output, or of one stream of it as if the other were not there."""
        ended = self.ended() is not None  # before the size: what came in between is on a later page
        found, left, total = [], limit, 0
        for span in Reading(self).news():
            if not isinstance(span, StreamSpan) or stream not in (None, span.stream):
                continue
            length, skip = span.end - span.start, max(0, offset - total)
            if left > 0 and skip < length:
                found.append(self.read(span.stream, span.start + skip, min(left, length - skip)))
                left -= len(found[-1])
            total += length
        data = b"".join(found)
        return Page(data, offset, total, ended and offset + len(data) >= total)

    def lines(self, offset: int = 0) -> Iterator[tuple[int, bytes]]:
        try:
            with self.records_path.open("rb") as file:
                file.seek(offset)
                for line in file:
                    if line.endswith(b"\n"):
                        yield offset, line
                    offset += len(line)
        except FileNotFoundError:
            raise self._gone() from None

    def record_at(self, offset: int) -> Record:
        found = next((_record(line, place) for place, line in self.lines(offset)), None)
        if found is None:
            raise self._gone()
        return found

    def ended(self) -> Record | None:
        """Return how the cell ended, None while it has not or its writer was killed."""
        size = self.records_path.stat().st_size if self.exists() else 0
        for start in (max(0, size - READ_BYTES), 0):  # further ahead if much came late
            lines = (_record(line, place) for place, line in self.lines(start) if b'"end"' in line)
            found = [record for record in lines if record is not None and record.kind == "end"]
            if found:
                return found[-1]
        return None

    def seal(self, error: Mapping[str, object] | None, duration: float) -> None:
        with suppress(UnknownUnitError, OSError):
            if self.ended() is None:
                with self.records_path.open("ab", buffering=0) as file:
                    file.write(b"\n")  # a writer that was killed may have left half a line
                writer = CellWriter(str(self.folder), self.cell_id, cap=1 << 62)
                writer.end("error", execution_count=None, duration=duration, error=error)

    def reply(self) -> Reply | None:
        with suppress(OutputGoneError, OSError):
            if (end := self.ended()) is not None:
                return Reply(
                    end.status,
                    end.error,
                    end.execution_count,
                    end.ask_exit,
                    exit_code=end.exit_code,
                )
        return None

    def _gone(self) -> OutputGoneError:
        return OutputGoneError(
            f"the output of cell {self.cell_id} is not kept: it was removed by age or for space, "
            "or the cell never ran",
            hint="output is kept for a week, 16 GiB of all cells at most",
        )


class Reading:
    """How far somebody has read a cell: bytes of both streams that were told, and where the next
    line begins.

    `span_bytes`: how long a span may be, for those who read what it names at once. `ended`: its end
    was given.
    """

    def __init__(
        self, log: CellLog, out: int = 0, err: int = 0, *, span_bytes: int | None = None
    ) -> None:
        self.told = {"stdout": out, "stderr": err}
        self.line = 0
        self.ended = False
        self._log = log
        self._span_bytes = span_bytes

    def news(self) -> Iterator[StreamSpan | Record]:
        """Yield what is there now and was not yielded yet, in the order in which it was written.

        What comes before a record is stderr and then stdout: a record is written before stderr goes
        on behind more of stdout. The sizes are seen first, and then the records: whatever tells the
        order of those bytes is among them. Who stops in the middle goes on there the next time.
        """
        sizes = {stream: self._log.size(stream) for stream in STREAMS}
        for place, line in self._log.lines(self.line):
            record = _record(line, place)
            if record is not None:
                yield from self._up_to(record.err_at, record.at)
            self.line = place + len(line)
            if record is not None:
                yield record
        yield from self._up_to(sizes["stderr"], sizes["stdout"])

    def pieces(self, seen: int = -1) -> list[Piece | Record]:
        """Return the next few things, about one piece of bytes; [] where there is nothing new.

        Of records none up to the offset `seen`, but always the end, behind which nothing is told.
        """
        found: list[Piece | Record] = []
        size = 0
        # it has not begun; or it is gone, and only whoever runs it can tell its end
        with suppress(OutputGoneError):
            for item in self.news():
                if isinstance(item, StreamSpan):
                    data = self._log.read(item.stream, item.start, item.end - item.start)
                    if data:  # else it was cut off since
                        found.append(
                            Piece(
                                item.stream, sum(self.told.values()) - (item.end - item.start), data
                            )
                        )
                    size += len(data)
                else:
                    self.ended = item.kind == "end"
                    if self.ended or item.offset > seen:
                        found.append(item)
                if self.ended or size >= READ_BYTES or len(found) >= MOST_PIECES:
                    break
        return found

    def _up_to(self, err: int, out: int) -> Iterator[StreamSpan]:
        for stream, wanted in (("stderr", err), ("stdout", out)):
            if wanted > self.told[stream]:
                # what a record counts may have been cut off since
                end = min(wanted, self._log.size(stream))
                while (start := self.told[stream]) < end:
                    self.told[stream] = min(end, start + (self._span_bytes or end))
                    yield StreamSpan(stream, start, self.told[stream])


def _record(line: bytes, offset: int) -> Record | None:
    try:
        said = json.loads(line, parse_constant=lambda _: None)  # NaN and infinities are no JSON
        said["offset"] = offset
        return convert(said, Record)
    except (ValueError, TypeError, RecursionError, ValidationError):
        return None


def as_event(record: Record) -> dict[str, Any] | None:
    """Return a record as clients of a stream are told it (without `id`), None for what they are
    not told.
    """
    if record.kind in _EVENTS:
        return {
            "event": record.kind,
            **{name: getattr(record, name) for name in _EVENTS[record.kind]},
        }
    if record.kind == "status":
        return {"event": "status", "status": record.event}
    return {"event": "notice", "text": record.capped_words} if record.kind == "capped" else None


def folder_of_cells(cells_dir: Path, session_id: str) -> Path:
    """Return the folder of a session's cell files, made where it is not there, private with all
    above it.
    """
    folder = cells_dir / session_id
    for each in reversed([it for it in (folder, *folder.parents) if not it.is_dir()]):
        each.mkdir(mode=0o700, exist_ok=True)
        each.chmod(0o700)  # also under a umask that takes more away
    return folder

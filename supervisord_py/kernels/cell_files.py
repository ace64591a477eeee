"""Reads the files of one cell; blocking.

Who writes them (`inside/cell_writer.py`) may be killed at any instruction: a last line without its end is not read yet,
a line that makes no sense is passed over, memory is bounded whatever the files hold. The record file is the sign that a
cell is kept: retention removes it first.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from supervisord_py.errors import UnknownUnitError
from supervisord_py.kernels.backend import Reply
from supervisord_py.kernels.cell import CellError, CellStatus
from supervisord_py.kernels.inside.cell_writer import RECORDS, STREAMS, CellWriter, in_order, told_by

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping
    from pathlib import Path

    from supervisord_py.kernels.backend import ExecuteRequest

READ_BYTES = 64 * 1024
RECORD_BYTES = 1024 * 1024
CELL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
CAP_SECONDS = 1.0
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
    """One line. `offset`: of the line, names it; `at`, `err_at`: bytes of stdout and stderr before it; Unix `time`."""

    kind: str
    offset: int
    at: int
    err_at: int
    time: float
    said: dict[str, Any]


class WrittenEnd(Struct, frozen=True):
    """How a cell ended; `duration` in seconds, `time` as in Record, `size` of both streams."""

    status: CellStatus
    size: int
    time: float
    execution_count: int | None = None
    duration: float | None = None
    asked_exit: bool = False
    error: CellError | None = None


class Page(NamedTuple):
    """A piece of the complete output: bytes from `offset` on, how many there are now, whether nothing comes after."""

    data: bytes
    offset: int
    total_bytes: int
    complete: bool


class CellLog:
    """The files of one cell, `<folder>/<cell id>.*`; the folder is `cells_dir/<session id>`. Holds no descriptor.

    What reads raises OutputGoneError where the cell is not kept; an id that is none is an UnknownUnitError.
    """

    def __init__(self, folder: Path, cell_id: str) -> None:
        if not CELL_ID.match(cell_id):
            raise UnknownUnitError(
                f"{cell_id!r} is not the id of a cell", hint="the ids are in the answer of `pxctl exec --json`"
            )
        self.folder = folder
        self.cell_id = cell_id
        self.paths = {stream: folder / f"{cell_id}{ending}" for stream, ending in STREAMS.items()}
        self.records_path = folder / f"{cell_id}{RECORDS}"

    def exists(self) -> bool:
        return self.records_path.is_file()

    def size(self, stream: str) -> int:
        """Return how many bytes of a stream there are; 0 where nothing was printed."""
        try:
            return self.paths[stream].stat().st_size
        except FileNotFoundError:
            return 0

    def read(self, stream: str, offset: int, limit: int = READ_BYTES) -> bytes:
        """Return up to `limit` bytes of a stream, fewer only at its end."""
        try:
            with self.paths[stream].open("rb", buffering=0) as file:
                return os.pread(file.fileno(), limit, offset)
        except FileNotFoundError:
            if not self.exists():
                raise self._gone() from None
            return b""

    def pieces(self) -> Iterator[tuple[str, int, int]]:
        """Yield stream, start and end of what was written, in order."""
        out, err = self.size("stdout"), self.size("stderr")
        places = ((record.at, record.err_at) for record in self.records()) if err else ()
        return in_order(places, out, err)

    def page(self, offset: int, limit: int = READ_BYTES, stream: str | None = None) -> Page:
        """Return a page of the output, or of one stream of it as if the other were not there."""
        ended = self.ended() is not None  # before the size: what came in between is on a later page
        found, left, total = [], limit, 0
        for each, start, end in self.pieces():
            if stream not in (None, each):
                continue
            skip = max(0, offset - total)
            if left > 0 and skip < end - start:
                found.append(self.read(each, start + skip, min(left, end - start - skip)))
                left -= len(found[-1])
            total += end - start
        data = b"".join(found)
        return Page(data, offset, total, ended and offset + len(data) >= total)

    def records_from(self, offset: int = 0, limit: int = RECORD_BYTES) -> tuple[list[Record], int]:
        """Return the whole lines from `offset`, about `limit` bytes of them and at least one, and where to go on."""
        try:
            with self.records_path.open("rb", buffering=0) as file:
                block = os.pread(file.fileno(), limit, offset)
                while b"\n" not in block and (more := os.pread(file.fileno(), RECORD_BYTES, offset + len(block))):
                    block += more
        except FileNotFoundError:
            raise self._gone() from None
        found, place = [], offset
        for line in block.split(b"\n")[:-1]:
            if (record := _record(line, place)) is not None:
                found.append(record)
            place += len(line) + 1
        return found, place

    def records(self) -> Iterator[Record]:
        """Yield every whole record that there is now."""
        offset, end = -1, 0
        while end != offset:
            offset = end
            found, end = self.records_from(offset)
            yield from found

    def record_at(self, offset: int) -> Record:
        """Return the record whose line begins there."""
        with suppress(FileNotFoundError), self.records_path.open("rb") as file:
            file.seek(offset)
            if (record := _record(file.readline(), offset)) is not None:
                return record
        raise self._gone()

    def ended(self) -> WrittenEnd | None:
        """Return how the cell ended, None while it has not or its writer was killed."""
        try:
            with self.records_path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                for start in sorted({max(0, size - READ_BYTES), 0}, reverse=True):  # further ahead if much came late
                    file.seek(start)
                    lines = (line for line in file if b'"end"' in line and line.endswith(b"\n"))
                    found = [record for line in lines if (record := _record(line, 0)) and record.kind == "end"]
                    if found:
                        return end_of(found[-1])
        except FileNotFoundError:
            raise self._gone() from None
        return None

    def seal(self, error: Mapping[str, object] | None, ended_at: float) -> bool:
        """Write the end (Unix seconds) of a cell that began and has none; say whether it was written."""
        with suppress(UnknownUnitError, OSError):
            if self.ended() is None:
                began = next((record.time for record in self.records()), ended_at)
                with self.records_path.open("ab", buffering=0) as file:
                    file.write(b"\n")  # a writer that was killed may have left half a line
                writer = CellWriter(str(self.folder), self.cell_id, cap=1 << 62)
                writer.end("error", execution_count=None, duration=max(0.0, ended_at - began), error=error)
                return self.ended() is not None
        return False

    def reply(self) -> Reply | None:
        """Return what the end says as a kernel's reply, None where there is no end."""
        with suppress(OutputGoneError):
            if (end := self.ended()) is not None:
                return Reply(end.status, end.error, end.execution_count, end.asked_exit)
        return None

    def _gone(self) -> OutputGoneError:
        return OutputGoneError(
            f"the output of cell {self.cell_id} is not kept: it was removed by age or for space, or the cell never ran",
            hint="output is kept for a week, 8 GiB of a session and 16 GiB of all at most",
        )


def _record(line: bytes, offset: int) -> Record | None:
    try:
        said = json.loads(line)
        at, err_at = max(0, int(said["at"])), max(0, int(said.get("err_at", 0)))
        if not all(isinstance(said.get(name) or {}, dict) for name in ("data", "metadata")):
            return None
        return Record(str(said["kind"]), offset, at, err_at, float(said.get("t", 0)), said)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None


def _status(said: Mapping[str, Any]) -> CellStatus:
    return {"ok": CellStatus.OK, "error": CellStatus.ERROR}.get(str(said.get("status")), CellStatus.ABORTED)


def error_in(said: Mapping[str, Any]) -> CellError:
    """Return what was raised, as a record has it."""
    lines = said.get("traceback")
    traceback = tuple(map(str, lines)) if isinstance(lines, list) else ()
    return CellError(str(said.get("name") or "Error"), str(said.get("value") or ""), traceback)


def end_of(record: Record) -> WrittenEnd:
    said = record.said
    error = error_in(said["error"]) if isinstance(said.get("error"), dict) else None
    size, count, duration = record.at + record.err_at, said.get("execution_count"), said.get("duration")
    return WrittenEnd(_status(said), size, record.time, count, duration, said.get("ask_exit") is True, error)


def reply_of(content: Mapping[str, Any]) -> Reply:
    """Return the word of an execute_reply."""
    said = told_by(content)
    error = error_in(said["error"]) if said["error"] is not None else None
    return Reply(_status(said), error, said["execution_count"], said["ask_exit"])


def as_event(record: Record) -> dict[str, Any] | None:
    """Return a record as clients of a stream are told it (without `id`), None for what they are not told."""
    if record.kind in _EVENTS:
        return {"event": record.kind, **{name: record.said.get(name) for name in _EVENTS[record.kind]}}
    if record.kind == "status":
        return {"event": "status", "status": record.said.get("event")}
    return {"event": "notice", "text": capped_words(record)} if record.kind == "capped" else None


def capped_words(capped: Record) -> str:
    if why := capped.said.get("disk"):
        return f"some output of this cell was not kept: {why}"
    return f"the complete output is cut at its cap of {capped.said.get('cap')} bytes"


@asynccontextmanager
async def held_to_cap(request: ExecuteRequest) -> AsyncIterator[None]:
    """Cut the files of a running cell back to their cap, once a second: whoever writes there asks nobody."""
    writer = CellWriter(str(request.cells_dir), request.cell_id, request.cell_bytes)

    async def look() -> None:
        while True:
            await asyncio.sleep(CAP_SECONDS)
            await asyncio.to_thread(writer.limit)

    task = asyncio.create_task(look())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

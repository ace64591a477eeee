"""Reads the files of one cell: bytes by offset, records by line. Blocking file I/O: call it in a thread.

Law: nothing is assumed of a writer that may have been killed at any instruction. A last line without its end is not
read yet; a line that makes no sense is an `Unreadable` record; memory is bounded by the limits passed in, whatever the
files hold. The record file is the sign that a cell is kept: retention removes it first, so that a reader says that
output is gone instead of giving a part of it for the whole.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from supervisord_py.errors import UnknownUnitError
from supervisord_py.kernels.output import end_record
from supervisord_py.kernels.output.records import End, StreamChange, parse, record_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from supervisord_py.kernels.output.records import Record

READ_BYTES = 64 * 1024
RECORD_BYTES = 1024 * 1024
CELL_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
OUT = ".out"
RECORDS = ".jsonl"


class OutputGoneError(UnknownUnitError):
    """The files of a cell are not there: it never began, or retention took them."""

    kind = "output_gone"
    title = "Output is not kept"


@dataclass(frozen=True, slots=True)
class Page:
    """A piece of the complete output.

    Attributes:
        data: Bytes as they came; empty: the end for now.
        offset: Of the first one.
        total_bytes: That there are now.
        complete: The cell has ended and nothing comes after this piece.
    """

    data: bytes
    offset: int
    total_bytes: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes of one stream, from `start` up to `end`."""

    start: int
    end: int
    stream: str


class CellLog:
    """The files of one cell. Holds no descriptor.

    Args:
        folder: `cells_dir/<session id>`.
        cell_id: Names them.

    Raises:
        UnknownUnitError: The id is not one.
    """

    def __init__(self, folder: Path, cell_id: str) -> None:
        if not CELL_ID.match(cell_id):
            raise UnknownUnitError(
                f"{cell_id!r} is not the id of a cell", hint="the ids are in the answer of `pxctl exec --json`"
            )
        self.folder = folder
        self.cell_id = cell_id
        self.out_path = folder / f"{cell_id}{OUT}"
        self.records_path = folder / f"{cell_id}{RECORDS}"

    def exists(self) -> bool:
        """Say whether it is kept."""
        return os.path.isfile(self.records_path)

    # -- bytes -----------------------------------------------------------------------------------------------------

    def size(self) -> int:
        """Return how many bytes of stream output there are; 0 where nothing was printed."""
        try:
            return os.stat(self.out_path).st_size
        except FileNotFoundError:
            return 0

    def read(self, offset: int, limit: int = READ_BYTES) -> bytes:
        """Return up to `limit` bytes from `offset`, fewer only at the end of what there is.

        Raises:
            OutputGoneError: The cell is not kept.
        """
        try:
            with self.out_path.open("rb", buffering=0) as file:
                return os.pread(file.fileno(), limit, offset)
        except FileNotFoundError:
            if not self.exists():
                raise self._gone() from None
            return b""

    def page(self, offset: int, limit: int = READ_BYTES, stream: str | None = None) -> Page:
        """Return a page of the output, or of one stream of it as if the other were not there.

        Raises:
            OutputGoneError: The cell is not kept.
        """
        ended = self.ended() is not None  # before the size: what came in between is on a later page
        if stream is None:
            data, total = self.read(offset, limit), self.size()
        else:
            data, total = self._read_stream(offset, limit, stream)
        return Page(data, offset, total, ended and offset + len(data) >= total)

    def stretches(self) -> Iterator[Stretch]:
        """Yield which bytes were written to which stream, in order; bytes before any record are stdout."""
        size, start, stream = self.size(), 0, "stdout"
        for record in self.records():
            if isinstance(record, StreamChange) and record.stream != stream:
                end = min(record.at, size)
                if end > start:
                    yield Stretch(start, end, stream)
                start, stream = end, record.stream
        if size > start:
            yield Stretch(start, size, stream)

    def _read_stream(self, offset: int, limit: int, stream: str) -> tuple[bytes, int]:
        """Return up to `limit` bytes from `offset` of one stream, and how many it has."""
        pieces, wanted, total = [], limit, 0
        for part in self.stretches():
            if part.stream != stream:
                continue
            skip = max(0, offset - total)
            length = part.end - part.start
            if wanted and skip < length:
                pieces.append(self.read(part.start + skip, min(wanted, length - skip)))
                wanted -= len(pieces[-1])
            total += length
        return b"".join(pieces), total

    # -- records ---------------------------------------------------------------------------------------------------

    def records_from(self, offset: int = 0, limit: int = RECORD_BYTES) -> tuple[tuple[Record, ...], int]:
        """Return the whole lines from `offset`, about `limit` bytes of them and at least one, and where to go on.

        Raises:
            OutputGoneError: The cell is not kept.
        """
        try:
            with self.records_path.open("rb", buffering=0) as file:
                return _records_at(file.fileno(), offset, limit)
        except FileNotFoundError:
            raise self._gone() from None

    def records(self, offset: int = 0) -> Iterator[Record]:
        """Yield every whole record that there is now."""
        while True:
            records, end = self.records_from(offset)
            yield from records
            if end == offset:
                return
            offset = end

    def ended(self) -> End | None:
        """Return how the cell ended, None while it has not or its writer was killed.

        Raises:
            OutputGoneError: The cell is not kept.
        """
        found = end_record.find(self.folder, self.cell_id)
        if found is None and not self.exists():
            raise self._gone()
        record = None if found is None else record_of(found, 0)
        return record if isinstance(record, End) else None

    def _gone(self) -> OutputGoneError:
        return OutputGoneError(
            f"the output of cell {self.cell_id} is not kept: it was removed by age or for space, or the cell never ran",
            hint="output is kept for a week, 8 GiB of a session and 16 GiB of all at most",
        )


def _records_at(fd: int, offset: int, limit: int) -> tuple[tuple[Record, ...], int]:
    block = os.pread(fd, limit, offset)  # of a regular file: all of it, unless the file ends
    end = block.rfind(b"\n") + 1
    while end == 0 and (more := os.pread(fd, RECORD_BYTES, offset + len(block))):
        block += more
        end = block.find(b"\n") + 1  # one long line
    found, place = [], offset
    for line in block[:end].split(b"\n")[:-1]:
        if (record := parse(line, place)) is not None:
            found.append(record)
        place += len(line) + 1
    return tuple(found), place

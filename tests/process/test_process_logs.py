"""Output by position: every byte once and in order, gaps told, rotation and damage survived,
memory bounded.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from supervisord_py.keeper.logs import Segments
from supervisord_py.keeper.protocol import INDEX_RECORD, STDERR, STDOUT
from supervisord_py.process.logs import Chunk, Cursor, Gap, LogReader, Output, Stream


class SegmentWriter(Segments):
    """The keeper's, which begins a segment when told to; a second passes before each record."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), segment_bytes=1 << 20, total_bytes=1 << 30)
        self.open()
        self.folder, self.clock, self.instance = folder, 1000.0, 1

    def path(self, start: int, suffix: str) -> Path:
        return self.folder / f"{start:020d}{suffix}"

    def rotate(self) -> None:
        self._begin(self.position)

    def write(self, data: bytes, stream: int = STDOUT) -> None:
        self.clock += 1
        self.append(self.clock, stream, 1, data)

    def lose(self, lost: int) -> None:
        self.clock += 1
        self.gap(self.clock, lost)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tool" / "x"


@pytest.fixture
def writer(folder: Path) -> Iterator[SegmentWriter]:
    made = SegmentWriter(folder)
    yield made
    made.close()


def text(items: Sequence[Output]) -> bytes:
    return b"".join(item.data for item in items if isinstance(item, Chunk))


def gaps(items: Sequence[Output]) -> list[Gap]:
    return [item for item in items if isinstance(item, Gap)]


def drain(reader: LogReader, at: int = 0, limit: int = 1 << 20) -> list[Output]:
    items: list[Output] = []
    cursor, before = Cursor(at), None
    for _ in range(10_000):
        if cursor == before:
            return items
        before = cursor
        found, cursor = reader.read(before, limit)
        items += found
    raise AssertionError("reading does not come to an end")


def more(
    reader: LogReader, cursor: Cursor, stream: Stream | None = None
) -> tuple[list[Output], Cursor]:
    """Read what comes next, which may begin in the next segment."""
    found, after = reader.read(cursor, stream=stream)
    return (found, after) if found or after == cursor else more(reader, after, stream)


async def take(stream: AsyncIterator[Output], count: int) -> bytes:
    """Return the next `count` bytes of a followed output."""
    found = b""
    async with asyncio.timeout(60):
        async for item in stream:
            found += item.data if isinstance(item, Chunk) else b"<gap>"
            if len(found) >= count:
                break
    return found


def test_a_gap_is_told_once_by_cursor_and_reading_goes_on(
    folder: Path, writer: SegmentWriter
) -> None:
    writer.write(b"before")
    reader = LogReader(folder)
    _, cursor = reader.read(Cursor(0))
    writer.lose(100)
    found, cursor = more(reader, cursor)
    assert found == [Gap(6, 100, 6, 1002.0)]
    assert more(reader, cursor)[0] == []
    writer.rotate()
    writer.write(b"after")
    found, _ = more(reader, cursor, Stream.STDOUT)
    assert (text(found), gaps(found)) == (b"after", [])
    assert gaps(reader.read(Cursor(0), stream=Stream.STDERR)[0]) == [Gap(6, 100, 6, 1002.0)]
    assert reader.end() == 11
    assert reader.tail_bytes(0, 6) == b"before"


def test_what_rotation_took_is_a_gap(folder: Path, writer: SegmentWriter) -> None:
    writer.write(b"0123456789")
    reader = LogReader(folder)
    _, cursor = reader.read(Cursor(0), limit=4)
    writer.rotate()
    writer.write(b"new")
    for suffix in (".idx", ".log"):
        writer.path(0, suffix).unlink()
    found, _ = reader.read(cursor)
    assert found[0] == Gap(4, 6, 10)
    assert text(found) == b"new"
    assert reader.start() == 10
    assert reader.tail_bytes(0) == b"new"


def test_a_torn_or_missing_index_loses_times_never_bytes(
    folder: Path, writer: SegmentWriter
) -> None:
    for data in (b"one", b"two", b"three"):
        writer.write(data, STDERR)
    writer.rotate()
    writer.write(b"later", STDERR)
    idx = writer.path(0, ".idx")
    whole = idx.read_bytes()
    for damaged in (
        b"",
        whole[:24],
        whole[:37],
        b"\0" * 72,
        whole[:24] + b"\xff" * 48,
        whole[24:],
        whole[48:] * 2,
    ):
        idx.write_bytes(damaged)
        assert text(drain(LogReader(folder))) == b"onetwothreelater"
        assert text(drain(LogReader(folder), 2, limit=4)) == b"etwothreelater"
        assert LogReader(folder).tail_bytes(0) == b"onetwothreelater"
        assert text(LogReader(folder).tail_lines(1)) == b"onetwothreelater"
        assert LogReader(folder).end() == 16
    idx.unlink()
    first, *_ = drain(LogReader(folder))
    assert isinstance(first, Chunk)
    assert (first.data, first.stream, first.time) == (
        b"onetwothree",
        STDOUT,
        writer.path(0, ".log").stat().st_mtime,
    )
    idx.write_bytes(whole[:48])
    found = [(it.data, it.time) for it in drain(LogReader(folder)) if isinstance(it, Chunk)]
    assert found == [(b"one", 1001.0), (b"twothree", 1002.0), (b"later", 1004.0)]


def test_a_record_ahead_of_its_bytes_waits(folder: Path, writer: SegmentWriter) -> None:
    """As the keeper writes: the record, then its bytes; the log may be cut behind it, and go on
    elsewhere.
    """
    writer.write(b"whole")
    reader = LogReader(folder)
    record = struct.pack(INDEX_RECORD, 5, writer.clock, 5, 1, STDERR, 0)
    os.write(writer._idx, record[:11])
    found, cursor = more(reader, Cursor(0))
    assert text(found) == b"whole"
    os.write(writer._idx, record[11:])
    found, cursor = more(reader, cursor)
    assert found == []
    for piece in (b"12", b"345"):
        os.write(writer._log, piece)
        found, cursor = more(reader, cursor)
        assert [(it.data, it.stream) for it in found if isinstance(it, Chunk)] == [
            (piece, Stream.STDERR)
        ]
    os.truncate(writer.path(0, ".log"), 7)
    assert text(drain(reader)) == b"whole12"


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_tail_counts_lines_across_chunks_and_segments(
    folder: Path, writer: SegmentWriter, ending: bytes
) -> None:
    for piece in (b"one\ntw", b"o\n", b"thr", b"ee\nfour", b"\nfive" + ending):
        writer.write(piece)
        writer.rotate()
    lines = [b"one\n", b"two\n", b"three\n", b"four\n", b"five" + ending]
    for count in (0, 1, 2, 4, 99):
        found = LogReader(folder).tail_lines(count)
        assert text(found) == b"".join(lines[-count:] if count else [])
        assert LogReader(folder).tail_lines(count, limit=4) == found, (
            "lines that have more bytes are looked for, too"
        )
        positions = [it.position for it in found if isinstance(it, Chunk)]
        assert positions == sorted(positions)


def test_since_finds_the_first_byte_at_or_after_a_time(folder: Path, writer: SegmentWriter) -> None:
    for number in range(9):
        writer.write(b"%d" % number)  # at 1001, 1002, …
        if number % 3 == 2:
            writer.rotate()
    reader = LogReader(folder)
    assert [reader.since(1000.5 + step) for step in range(11)] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9]
    assert reader.since(1004.0) == 3
    assert text(reader.read(Cursor(0), limit=2)[0]) == b"01", "of all that it has at hand"


async def test_follow_goes_on_across_rotation_and_begins_before_the_folder(folder: Path) -> None:
    stream = LogReader(folder).follow(0)
    first = asyncio.ensure_future(take(stream, 3))
    await asyncio.sleep(0)
    writer = SegmentWriter(folder)
    writer.write(b"one")
    assert await first == b"one"
    writer.write(b"two")
    writer.rotate()
    writer.write(b"three")
    assert await take(stream, 8) == b"twothree"
    writer.lose(5)
    writer.write(b"four")
    assert await take(stream, 9) == b"<gap>four"
    writer.close()
    await stream.aclose()  # type: ignore[attr-defined]  # an async generator, said to be an iterator

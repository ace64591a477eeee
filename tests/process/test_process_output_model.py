"""Output by position against a model: any story of writing, rotating, losing and dropping, read from behind."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from process.segment_writer import STDERR, STDOUT, SegmentWriter
from supervisord_py.process.output import Batch, Chunk, Cursor, Output, OutputReader, Stream

if TYPE_CHECKING:
    from collections.abc import Sequence


def text(items: Sequence[Output]) -> bytes:
    return b"".join(item.data for item in items if isinstance(item, Chunk))


def drain(reader: OutputReader, at: int | Cursor = 0, limit: int = 1 << 20, stream: Stream | None = None) -> Batch:
    """Read to the end in steps."""
    items: list[Output] = []
    cursor = at if isinstance(at, Cursor) else Cursor(at)
    for _ in range(10_000):
        batch = reader.read(cursor, limit, stream)
        items += batch.items
        cursor = batch.cursor
        if batch.at_end:
            return Batch(tuple(items), cursor, at_end=True)
    raise AssertionError("reading does not come to an end")


class OutputMachine(RuleBasedStateMachine):
    """Any story of writing, rotating, losing and dropping, read by a reader that is always somewhere behind."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="px-out"))
        self.writer = SegmentWriter(self.root / "u")
        self.reader = OutputReader(self.root / "u")
        self.cursor = Cursor(0)
        self.seen = b""
        self.told: list[int] = []

    @rule(data=st.binary(min_size=1, max_size=40), stream=st.sampled_from([STDOUT, STDERR]))
    def write(self, data: bytes, stream: int) -> None:
        self.writer.write(data, stream)

    @rule()
    def rotate(self) -> None:
        if self.writer.position > self.writer.start:
            self.writer.rotate()

    @rule(lost=st.integers(1, 99))
    def lose(self, lost: int) -> None:
        self.writer.gap(lost)

    @rule()
    def drop_oldest(self) -> None:
        self.writer.drop_oldest()

    @rule(limit=st.integers(1, 60))
    def read(self, limit: int) -> None:
        batch = self.reader.read(self.cursor, limit)
        self.take(batch.items)
        self.cursor = batch.cursor
        assert len(text(batch.items)) <= limit

    @rule()
    def catch_up(self) -> None:
        batch = drain(self.reader, self.cursor, limit=17)
        self.take(batch.items)
        self.cursor = batch.cursor
        assert self.cursor.position == self.writer.position

    def take(self, items: Sequence[Output]) -> None:
        for item in items:
            if isinstance(item, Chunk):
                assert item.position == len(self.seen), "a byte is missing or comes twice"
                self.seen += item.data
            elif item.end > item.position:
                assert item.position == len(self.seen)
                assert item.end == self.writer.starts()[0], "a gap where nothing was rotated away"
                self.seen += b"\0" * item.lost_bytes
            else:
                self.told.append(item.lost_bytes)

    @invariant()
    def what_was_seen_is_what_was_written(self) -> None:
        for position, _, data in self.writer.written:
            for offset, byte in enumerate(data):
                at = position + offset
                if at < len(self.seen) and self.seen[at] != 0:
                    assert self.seen[at] == byte
        assert len(self.told) <= len(self.writer.gaps), "a gap was told twice"

    @invariant()
    def the_ends_agree(self) -> None:
        assert self.reader.end() == self.writer.position
        assert self.reader.start() == self.writer.starts()[0]

    @rule(count=st.integers(1, 5))
    def tail(self, count: int) -> None:
        kept = self.writer.kept()
        found = text(self.reader.tail_lines(count))
        lines = kept.splitlines(keepends=True) if b"\r" not in kept else None
        assert kept.endswith(found)
        plain = kept.split(b"\n")
        expected = plain[-count - 1 :] if kept.endswith(b"\n") else plain[-count:]
        assert found == b"\n".join(expected), lines

    def teardown(self) -> None:
        shutil.rmtree(self.root)


OutputMachine.TestCase.settings = settings(suppress_health_check=list(HealthCheck))


TestOutputMachine = OutputMachine.TestCase

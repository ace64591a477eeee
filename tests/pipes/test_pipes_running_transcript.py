"""From the keeper's log to the files of an execution, without loss, doubling or tearing."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.pipes.execution import ErrorType
from supervisord_py.pipes.outcome import ErrorPattern, SuccessRule
from supervisord_py.pipes.room_requests import OutputStream
from supervisord_py.pipes.running import spool as spools
from supervisord_py.pipes.running import transcript as transcripts
from supervisord_py.pipes.running.run_terms import RunTerms, decode, encode
from supervisord_py.pipes.running.spool import Spool
from supervisord_py.pipes.running.transcript import Transcript, Veiled
from supervisord_py.process.logs import Batch, Chunk, Cursor, Gap, Stream

if TYPE_CHECKING:
    import pytest

OUT, ERR, EVENTS = OutputStream.STDOUT, OutputStream.STDERR, OutputStream.EVENTS


@dataclass
class Log:
    """A unit's log as a list of chunks; each read gives at most `pieces` of them."""

    chunks: list[tuple[Stream, bytes]] = field(default_factory=list)
    pieces: int = 2
    gaps: dict[int, int] = field(default_factory=dict)

    def read(self, at: Cursor, _limit: int) -> Batch:
        items: list[Any] = []
        position = 0
        for number, (stream, data) in enumerate(self.chunks):
            if position >= at.position and len(items) < self.pieces:
                if number in self.gaps:
                    items.append(Gap(position, self.gaps[number], position))
                items.append(Chunk(0.0, stream, position, data, 1))
            position += len(data)
        end = max([at.position, *(it.end for it in items)])
        return Batch(tuple(items), Cursor(end), at_end=end == position)

    def end(self) -> int:
        return sum(len(data) for _, data in self.chunks)


def a_transcript(
    folder: Path, log: Log, *, parser: str = "text", veiled: Veiled | None = None, limit: int = 1 << 20
) -> Transcript:
    return Transcript(Spool(folder, limit), log, 0, parser, veiled or Veiled())  # type: ignore[arg-type]  # as a reader


def read_out(transcript: Transcript) -> None:
    while not transcript.step().at_end:
        pass
    assert transcript.finish() is None
    transcript.spool.close()


def all_of(folder: Path, stream: OutputStream) -> bytes:
    return spools.read(folder, stream, 0, 1 << 20)


WORDS = st.lists(
    st.tuples(
        st.sampled_from(Stream), st.sampled_from([b"a", b"\n", b"sec", b"ret-1", b"x" * 9, b"\xc3", b"\xa9", b"12-3"])
    ),
    min_size=1,
    max_size=25,
)


@given(WORDS, st.lists(st.integers(0, 8), max_size=4), st.sampled_from([0.0, 60.0]))
def test_however_often_it_is_taken_over_the_files_are_the_same(
    chunks: list[tuple[Stream, bytes]], steps: list[int], note_seconds: float
) -> None:
    """A control plane that dies between two steps leaves files that its successor brings to the same bytes."""
    with patch.object(transcripts, "NOTE_SECONDS", note_seconds):
        _taken_over(chunks, steps)


def _taken_over(chunks: list[tuple[Stream, bytes]], steps: list[int]) -> None:
    veiled = Veiled(("secret-1",), (r"\d\d-\d",))
    log = Log(chunks)
    with tempfile.TemporaryDirectory() as name:
        whole, cut = Path(name, "whole"), Path(name, "cut")
        once = a_transcript(whole, log, veiled=veiled)
        once.spool.create()
        read_out(once)
        Spool(cut, 1).create()
        for count in steps:
            some = a_transcript(cut, log, veiled=veiled)
            some.resume(some.spool.load_progress())
            for _ in range(count):
                some.step()
            some.spool.close()
        last = a_transcript(cut, log, veiled=veiled)
        last.resume(last.spool.load_progress())
        read_out(last)
        for stream in (OUT, ERR):
            assert all_of(cut, stream) == all_of(whole, stream)
            assert b"secret-1" not in all_of(cut, stream)
        assert (last.is_utf8, last.spool.totals) == (once.is_utf8, once.spool.totals)
        assert last.summary == once.summary


def test_records_go_to_their_own_file_and_the_words_to_stdout(tmp_path: Path) -> None:
    message = {"role": "assistant", "content": [{"type": "text", "text": "hi"}], "stopReason": "stop"}
    lines = [{"type": "message_end", "message": message}, {"type": "agent_settled"}]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    log = Log([(Stream.STDOUT, data[:30]), (Stream.STDERR, b"oh"), (Stream.STDOUT, data[30:])])
    transcript = a_transcript(tmp_path / "run", log, parser="pi-jsonl")
    transcript.spool.create()
    read_out(transcript)
    assert (transcript.summary.settled, transcript.summary.final_text) == (True, "hi")
    assert all_of(tmp_path / "run", OUT) == b"hi\n"
    assert all_of(tmp_path / "run", ERR) == b"oh"
    assert b"message_end" in all_of(tmp_path / "run", EVENTS)


def test_a_disk_that_fills_half_way_tears_and_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log([(Stream.STDOUT, b"first "), (Stream.STDOUT, b"second"), (Stream.STDOUT, b" third")], pieces=1)
    transcript = a_transcript(tmp_path / "run", log)
    transcript.spool.create()
    write, room = os.pwrite, [4]

    def short(fd: int, data: bytes, offset: int) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room[0] -= 1
        return write(fd, data[:2], offset)

    monkeypatch.setattr(os, "pwrite", short)
    troubles = [transcript.step().trouble for _ in range(3)]
    assert troubles[-1] is not None
    assert not transcript.step().at_end
    room[0] = 1000
    read_out(transcript)
    assert (all_of(tmp_path / "run", OUT), transcript.lost_bytes) == (b"first second third", 0)


def test_what_is_never_written_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log([(Stream.STDOUT, b"abc"), (Stream.STDOUT, b"defg")], pieces=1, gaps={1: 5})
    transcript = a_transcript(tmp_path / "run", log)
    transcript.spool.create()
    with monkeypatch.context() as full:
        full.setattr(Spool, "append", _refuse)
        full.setattr(Spool, "save_progress", _refuse)
        assert transcript.step().trouble is not None
        transcript.give_up()
    assert transcript.lost_bytes == 7
    lossy = a_transcript(tmp_path / "other", log)
    lossy.spool.create()
    read_out(lossy)
    assert lossy.lost_bytes == 5


def _refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_is_over_the_cap_is_counted_not_kept(tmp_path: Path) -> None:
    transcript = a_transcript(tmp_path / "run", Log([(Stream.STDOUT, b"0123456789"), (Stream.STDOUT, b"ab")]), limit=4)
    transcript.spool.create()
    read_out(transcript)
    assert all_of(tmp_path / "run", OUT) == b"0123"
    assert (transcript.spool.totals[OUT], transcript.spool.sizes[OUT], transcript.lost_bytes) == (12, 4, 8)
    assert transcript.spool.text(OUT, 100) == "0123\n[... 8 bytes not kept ...]\n"
    again = a_transcript(tmp_path / "run", Log(), limit=4)
    again.resume(transcript.notes())
    assert again.lost_bytes == 8
    again.spool.close()


def test_notes_that_are_damaged_or_newer_begin_anew(tmp_path: Path) -> None:
    log = Log([(Stream.STDOUT, b"abc")])
    for notes in (b"{", b"[]", b'{"v": 99}'):
        folder = tmp_path / str(len(notes))
        first = a_transcript(folder, log)
        first.spool.create()
        (folder / "stdout").write_bytes(b"left over")
        (folder / "progress.json").write_bytes(notes)
        first.resume(first.spool.load_progress())
        read_out(first)
        assert all_of(folder, OUT) == b"abc"


def test_the_folder_of_an_execution_is_private_under_any_umask(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        spool = Spool(tmp_path / "executions" / "1", 10)
        spool.create()
        spool.save_progress({"v": 1})
    finally:
        os.umask(before)
    modes = {it.name: it.stat().st_mode & 0o777 for it in spool.folder.iterdir()}
    assert modes == {"stdout": 0o600, "stderr": 0o600, "progress.json": 0o600}
    assert {spool.folder.stat().st_mode & 0o777, spool.folder.parent.stat().st_mode & 0o777} == {0o700}
    spool.close()


def test_terms_come_back_as_they_were() -> None:
    success, errors = SuccessRule((0, 2), scan_output=True), (ErrorPattern(ErrorType.NETWORK, "gone"),)
    terms = RunTerms("pi-jsonl", success, errors, allow_empty=True, patterns=("a",), stop_signal=2)
    assert decode(encode(terms)) == terms
    for text in (None, "", "no JSON", "[]", "7", '{"cursor": 42}', '{"parser": 1, "of_tomorrow": 2}'):
        assert decode(text) is None

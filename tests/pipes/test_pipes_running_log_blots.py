"""Keys are taken out of the keeper's log where they lie, however the output was cut; positions stay."""

from __future__ import annotations

import json
import re
import tempfile
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.keeper.logs import Segments
from supervisord_py.pipes.running.log_blots import MOST_KEYS, RECORD_BYTES, CutValues, LogBlots
from supervisord_py.pipes.secrets import LINE_BYTES
from supervisord_py.process.logs import Chunk, LogReader, Stream

SECRETS, PATTERNS = ("secret-1", 'quo"ted\nkey'), (r"\d\d-\d",)
WORDS = st.lists(
    st.tuples(
        st.sampled_from(Stream),
        st.sampled_from(
            [
                b"a",
                b"\n",
                b"sec",
                b"ret-1",
                b'quo\\"ted\\n',
                b'quo"ted\n',
                b"key",
                b"12-3",
                b"1",
                b"2-",
                b"x" * 30,
            ]
        ),
    ),
    max_size=40,
)


def written(folder: Path, words: list[tuple[Stream, bytes]], segment_bytes: int = 25) -> LogReader:
    log = Segments(str(folder), segment_bytes, 1 << 30)
    log.open()
    for stream, data in words:
        at = 0
        while at < len(data):
            at += log.append(1.0, stream, 1, data[at:])
    log.close()
    return LogReader(folder)


def streams(reader: LogReader) -> dict[Stream, bytes]:
    """Return what the log holds, by stream."""
    found, at = dict.fromkeys(Stream, b""), 0
    while True:
        batch = reader.read(at)
        for item in batch.items:
            assert isinstance(item, Chunk)
            assert item.position >= at
            found[item.stream] += item.data
        at = batch.cursor.position
        if batch.at_end:
            return found


def expected(text: bytes) -> bytes:
    done = bytearray(text)
    places = [found.span() for found in re.finditer(rb'secret-1|quo"ted\nkey|quo\\"ted\\nkey', text)]
    at = 0
    for line in text.split(b"\n"):
        places += [(at + found.start(), at + found.end()) for found in re.finditer(rb"\d\d-\d", line)]
        at += len(line) + 1
    for begin, end in places:
        done[begin:end] = b"*" * (end - begin)
    return bytes(done)


@given(words=WORDS, steps=st.lists(st.integers(0, 400), max_size=4))
def test_what_must_not_be_stored_is_blotted_however_it_was_cut(
    words: list[tuple[Stream, bytes]], steps: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as place:
        reader = written(Path(place), words)
        before, end = streams(reader), reader.end()
        blots = LogBlots(reader, 0, SECRETS, PATTERNS)
        for upto in sorted(min(step, end) for step in steps):
            blots.advance(upto)
        again = LogBlots(reader, 0, SECRETS, PATTERNS)  # another control plane goes on
        again.finish(end)
        assert {stream: expected(text) for stream, text in before.items()} == streams(reader)
        assert reader.end() == end


def test_only_what_is_safe_and_ones_own_is_touched(tmp_path: Path) -> None:
    reader = written(tmp_path, [(Stream.STDOUT, b"secret-1 of another run\n"), (Stream.STDOUT, b"secret-1 secret-1\n")])
    blots = LogBlots(reader, 24, SECRETS, ())
    blots.advance(24 + 10)
    assert streams(reader)[Stream.STDOUT] == b"secret-1 of another run\n******** secret-1\n"
    LogBlots(reader, 0, (), ()).finish(reader.end())
    assert streams(reader)[Stream.STDOUT].endswith(b"******** secret-1\n"), "nothing to look for: nothing is read"
    blots.finish(reader.end())
    assert streams(reader)[Stream.STDOUT] == b"secret-1 of another run\n******** ********\n"


def test_a_line_without_end_is_searched_in_pieces_and_a_segment_that_is_gone_is_no_matter(tmp_path: Path) -> None:
    long = b"y" * LINE_BYTES
    words = [(Stream.STDERR, long), (Stream.STDERR, b"12-3"), (Stream.STDERR, long), (Stream.STDERR, b"secret-1")]
    reader = written(tmp_path, words, LINE_BYTES)
    (tmp_path / f"{0:020d}.log").unlink()
    LogBlots(reader, 0, SECRETS, PATTERNS).finish(reader.end())
    left = b"".join(file.read_bytes() for file in sorted(tmp_path.glob("*.log")))
    assert left == b"****" + long + b"********"


def delta(text: str, kind: str = "delta") -> bytes:
    return json.dumps({"type": "update", kind: text}).encode() + b"\n"


@given(cuts=st.lists(st.integers(0, 12), max_size=6), seam=st.integers(1, 60))
def test_a_key_that_a_stream_cuts_into_deltas_is_blotted_piece_by_piece(cuts: list[int], seam: int) -> None:
    text, secret = "a secret-1 z", b"secret-1"
    places = sorted({0, len(text), *cuts})
    pieces = [text[begin:end] for begin, end in pairwise(places)]
    raw = b"".join(delta(piece) + delta("other", "text") for piece in pieces)
    with tempfile.TemporaryDirectory() as place:
        words = [(Stream.STDOUT, raw[at : at + seam]) for at in range(0, len(raw), seam)]
        reader = written(Path(place), words, 1000)
        LogBlots(reader, 0, SECRETS, ()).finish(reader.end())
        left = streams(reader)[Stream.STDOUT]
    assert [json.loads(line)["type"] for line in left.splitlines()] == ["update", "update"] * len(pieces)
    joined = b"".join(json.loads(line).get("delta", "").encode() for line in left.splitlines())
    assert joined == text.encode().replace(secret, b"********")


def test_records_that_are_long_or_no_json_or_of_too_many_keys_are_left_to_the_plain_search() -> None:
    search = CutValues(SECRETS)
    long = json.dumps({"delta": "x" * RECORD_BYTES}).encode() + b"\n"
    assert list(search.feed(0, delta("secr")[:-1])) == []
    assert list(search.feed(100, b"\nplain secr\n" + long[:-10])) == []
    assert list(search.feed(90_000, long[-10:])) == []
    at = len(b'{"type": "update", "delta": "')
    assert list(search.feed(100_000, delta("et-1"))) == [(at, 4), (100_000 + at, 4)]
    for number in range(MOST_KEYS):
        assert list(search.feed(200_000, delta("x", f"k{number}"))) == []
    assert list(search.feed(300_000, delta("secret-1", "late"))) == []
    assert list(CutValues(()).feed(0, delta("secret-1"))) == []

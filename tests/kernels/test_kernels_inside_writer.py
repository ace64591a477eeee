"""The writer of cell files: an exact beginning of the output, whole lines of JSON, whatever the disk does."""

from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from supervisord_py.kernels.inside import cell_writer
from supervisord_py.kernels.inside.cell_writer import CellWriter

real_write = os.write


def records(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    path = folder / "c.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [record for record in found if kind is None or record["kind"] == kind]


class Disk:
    """Stands before os.write: lets so many bytes through, then fails."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.error = errno.ENOSPC

    def write(self, fd: int, data: Any) -> int:
        if self.room is None:
            return real_write(fd, data)
        if self.room == 0:
            raise OSError(self.error, os.strerror(self.error))
        done = real_write(fd, bytes(data)[: self.room])
        self.room -= done
        return done


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(cell_writer.os, "write", made.write)
    return made


class Writing(RuleBasedStateMachine):
    """A model holds what was written; the files are read after every step, as a reader would."""

    @initialize(cap=st.integers(0, 400))
    def begin(self, cap: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.disk = Disk()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(cell_writer.os, "write", self.disk.write)
        self.writer = CellWriter(str(self.folder), "c", cap)
        self.cap = cap
        self.written: list[tuple[str, bytes]] = []
        self.failed = False
        self.ended = False
        self.writer.begin("code", 7)

    @rule(stream=st.sampled_from(["stdout", "stderr"]), data=st.binary(max_size=60))
    def write(self, stream: str, data: bytes) -> None:
        self.writer.write(stream, data)
        self.written.append((stream, data))

    @rule(text=st.text(max_size=5))
    def display(self, text: str) -> None:
        self.writer.display({"text/plain": text}, {}, None)

    @rule(room=st.none() | st.integers(0, 100), error=st.sampled_from([errno.ENOSPC, errno.EIO, errno.EDQUOT]))
    def fill_or_free_the_disk(self, room: int | None, error: int) -> None:
        self.disk.room, self.disk.error = room, error
        self.failed |= room is not None

    @rule()
    def close(self) -> None:
        self.writer.close()

    @precondition(lambda self: not self.ended)
    @rule()
    def end(self) -> None:
        self.disk.room = None
        self.writer.end("ok", execution_count=1, duration=0.5)
        self.ended = True
        (end,) = records(self.folder, "end")
        assert end["at"] == self.writer.total
        capped = records(self.folder, "capped")
        assert [record["lost_bytes"] for record in capped] == [self.writer.lost_bytes] * bool(self.writer.lost_bytes)

    @invariant()
    def the_output_is_an_exact_beginning(self) -> None:
        path = self.folder / "c.out"
        out = path.read_bytes() if path.exists() else b""
        whole = b"".join(data for _, data in self.written)
        assert whole.startswith(out)
        assert len(out) == self.writer.total <= self.cap
        if not self.failed:
            assert out == whole[: self.cap]
            assert self.writer.lost_bytes == len(whole) - len(out)
        assert self.writer.lost_bytes >= len(whole) - len(out)

    @invariant()
    def every_line_is_whole_and_in_order(self) -> None:
        path = self.folder / "c.jsonl"
        assert path.read_bytes()[-1:] in {b"\n", b""} or self.disk.room == 0
        places = [record["at"] for record in records(self.folder)]
        assert places == sorted(places)

    @invariant()
    def each_byte_has_its_stream(self) -> None:
        if self.failed:
            return
        turns = [(record["at"], record["stream"]) for record in records(self.folder, "stream")]
        expected = "".join(("o" if stream == "stdout" else "e") * len(data) for stream, data in self.written)
        ends = [at for at, _ in turns[1:]] + [self.writer.total] * bool(turns)
        found = "".join(
            ("o" if stream == "stdout" else "e") * (end - at) for (at, stream), end in zip(turns, ends, strict=True)
        )
        assert found == expected[: self.cap]

    def teardown(self) -> None:
        self.writer.close()
        self.patch.undo()
        shutil.rmtree(self.folder)


test_the_files_are_right_whatever_happens = Writing.TestCase


def test_all_kinds_of_records_have_their_members(tmp_path: Path) -> None:
    writer = CellWriter(str(tmp_path), "c", 100)
    writer.begin("x = 1", 7)
    writer.display({"a": 1}, {"m": 2}, "id", update=True)
    writer.result({"b": 2}, {}, 3)
    writer.clear(wait=True)
    writer.error("E", "v", ["line"])
    writer.status({"op": "x"})
    writer.end("error", execution_count=4, duration=1.23456789, ask_exit=True, error={"name": "E"})
    writer.end("ok", execution_count=5, duration=2.0)
    found = records(tmp_path)
    assert all(isinstance(record.pop("t"), float) and record.pop("at") == 0 for record in found)
    assert found == [
        {"kind": "begin", "code": "x = 1", "pid": 7},
        {"kind": "display", "data": {"a": 1}, "metadata": {"m": 2}, "display_id": "id", "update": True},
        {"kind": "result", "data": {"b": 2}, "metadata": {}, "execution_count": 3},
        {"kind": "clear", "wait": True},
        {"kind": "error", "name": "E", "value": "v", "traceback": ["line"]},
        {"kind": "status", "event": {"op": "x"}},
        {
            "kind": "end",
            "status": "error",
            "execution_count": 4,
            "duration": 1.234568,
            "ask_exit": True,
            "error": {"name": "E"},
        },
    ]
    assert writer.ended


def test_what_comes_after_the_end_is_marked_late_once(tmp_path: Path) -> None:
    writer = CellWriter(str(tmp_path), "c", 100)
    writer.begin("")
    writer.end("ok", execution_count=1, duration=0)
    for data in (b"a", b"b"):
        writer.write("stderr", data)
        writer.close()
    writer.display({"x": 1})
    assert [record["kind"] for record in records(tmp_path)] == ["begin", "end", "late", "stream", "display"]
    assert (tmp_path / "c.out").read_bytes() == b"ab"


def test_what_was_swept_away_stays_away(tmp_path: Path) -> None:
    writer = CellWriter(str(tmp_path), "c", 100)
    writer.begin("")
    writer.write("stdout", b"x")
    writer.end("ok", execution_count=1, duration=0)
    (tmp_path / "c.out").unlink()
    (tmp_path / "c.jsonl").unlink()
    writer.write("stdout", b"late")
    writer.display({"x": 1})
    assert not list(tmp_path.iterdir())
    assert writer.lost_bytes > 4


def test_a_writer_goes_on_where_another_stopped(tmp_path: Path) -> None:
    first = CellWriter(str(tmp_path), "c", 10)
    first.begin("")
    first.write("stdout", b"123456")
    first.close()
    second = CellWriter(str(tmp_path), "c", 10)
    assert second.total == 6
    second.write("stdout", b"789012")
    assert (tmp_path / "c.out").read_bytes() == b"1234567890"
    assert second.lost_bytes == 2
    assert [record["at"] for record in records(tmp_path, "stream")] == [0, 6]


def test_a_line_that_the_disk_tore_is_cut_off(tmp_path: Path, disk: Disk) -> None:
    writer = CellWriter(str(tmp_path), "c", 100)
    writer.begin("")
    disk.room = 10
    writer.display({"x": "lost"})
    disk.room = None
    writer.display({"x": "kept"})
    assert [record["data"] for record in records(tmp_path, "display")] == [{"x": "kept"}]


def test_a_line_that_cannot_be_cut_off_yet_is_cut_off_later(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = CellWriter(str(tmp_path), "c", 100)
    writer.begin("")
    with monkeypatch.context() as patch:

        def fail(fd: int, length: int) -> None:
            raise OSError(errno.EIO, "broken")

        patch.setattr(cell_writer.os, "ftruncate", fail)
        disk.room = 10
        writer.display({"x": "lost"})
        disk.room = None
        writer.display({"x": "lost too"})
    writer.display({"x": "kept"})
    assert [record["data"] for record in records(tmp_path, "display")] == [{"x": "kept"}]


def test_a_folder_that_is_gone_does_no_harm(tmp_path: Path) -> None:
    writer = CellWriter(str(tmp_path / "none"), "c", 100)
    writer.begin("")
    writer.write("stdout", b"x")
    writer.end("ok", execution_count=1, duration=0)
    assert writer.total == 0
    assert writer.lost_bytes > 1


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "c.out").symlink_to(tmp_path / "elsewhere")
    writer = CellWriter(str(tmp_path), "c", 100)
    writer.write("stdout", b"x")
    assert not (tmp_path / "elsewhere").exists()


def test_records_have_a_cap_too_but_the_end_is_always_told(tmp_path: Path) -> None:
    writer = CellWriter(str(tmp_path), "c", 10)
    writer.begin("")
    for _ in range(20):
        writer.display({"x": "y" * 100_000})
    writer.error("E", "v", ["t"])
    writer.end("error", execution_count=1, duration=0)
    kinds = [record["kind"] for record in records(tmp_path)]
    assert kinds.count("display") == 10
    assert kinds[-3:] == ["error", "capped", "end"]
    assert records(tmp_path, "capped")[0]["lost_bytes"] == writer.lost_bytes > 1_000_000
    writer.write("stdout", b"x")
    assert writer.total == 1


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (float("nan"), None),
        (float("inf"), None),
        ("\ud800", "\ud800"),
        (b"\xff", "/w=="),
        ({1: [float("nan"), {"x": (1.5,)}]}, {"1": [None, {"x": [1.5]}]}),
        (object, repr(object)),
        ("é😀\u2028", "é😀\u2028"),
    ],
    ids=repr,
)
def test_whatever_a_display_holds_is_one_line_of_json(given: Any, found: Any, tmp_path: Path) -> None:
    writer = CellWriter(str(tmp_path), "c", 10)
    writer.display({"x": given})
    assert records(tmp_path, "display")[0]["data"]["x"] == found


def test_nesting_without_a_bottom_is_cut(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    writer = CellWriter(str(tmp_path), "c", 10)
    writer.display({"x": endless})
    assert "…" in json.dumps(records(tmp_path, "display")[0], ensure_ascii=False)


def test_an_interrupt_between_a_write_and_its_sum_shifts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = CellWriter(str(tmp_path), "c", 100)
    writer.write("stdout", b"before")
    with monkeypatch.context() as patch:

        def write_and_be_interrupted(fd: int, data: bytes) -> int:
            real_write(fd, data)
            raise KeyboardInterrupt

        patch.setattr(cell_writer.os, "write", write_and_be_interrupted)
        with pytest.raises(KeyboardInterrupt):
            writer.write("stdout", b"during")
    assert writer.total == 12
    writer.display({"x": 1})
    assert records(tmp_path, "display")[0]["at"] == 12


def test_threads_do_not_mix_their_pieces(tmp_path: Path) -> None:
    writer = CellWriter(str(tmp_path), "c", 1 << 20)
    pieces = [bytes([97 + number]) * 50 for number in range(4)]

    def work(number: int) -> None:
        for _ in range(100):
            writer.write("stdout" if number % 2 else "stderr", pieces[number])
            writer.display({"n": number})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    out = (tmp_path / "c.out").read_bytes()
    turns = records(tmp_path, "stream")
    ends = [turn["at"] for turn in turns[1:]] + [len(out)]
    for turn, end in zip(turns, ends, strict=True):
        piece = out[turn["at"] : end]
        assert set(piece) <= set(b"bd" if turn["stream"] == "stdout" else b"ac")
    assert sorted(out[start : start + 50] for start in range(0, len(out), 50)) == sorted(pieces * 100)
    assert len(records(tmp_path, "display")) == 400

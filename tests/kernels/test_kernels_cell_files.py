"""The files of a cell: what is written comes back as it was, whatever the disk, the cap or a kill did to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.cell_folder import CELL, finish, log_of, writer_of
from supervisord_py.errors import UnknownUnitError
from supervisord_py.kernels.cell_files import READ_BYTES, CellLog, OutputGoneError, Page, Piece, Reading, Record
from supervisord_py.kernels.session import CellStatus

STREAMS = st.sampled_from(["stdout", "stderr"])


def records(log: CellLog) -> list[Record]:
    return [item for item in Reading(log).news() if isinstance(item, Record)]


def kinds(log: CellLog) -> list[str]:
    return [record.kind for record in records(log)]


# -- writing ---------------------------------------------------------------------------------------------------------


def test_what_comes_after_the_end_is_kept_and_what_was_swept_away_stays_away(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    finish(writer)
    writer.write("stderr", b"late")
    log = log_of(tmp_path)
    assert log.page(0).data == b"late"
    for path in tmp_path.iterdir():
        path.unlink()
    writer.write("stderr", b"late")
    writer.display({"x": 1})
    assert not list(tmp_path.iterdir())


def test_the_cap_holds_for_whoever_writes_and_records_have_one_too(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, cap=10)
    writer.write("stdout", b"0123456")
    with (tmp_path / f"{CELL}.out").open("ab") as child:
        child.write(b"789 and more")
    writer.write("stderr", b"0123456789")
    writer.limit()
    for _ in range(20):
        writer.display({"x": "y" * 100_000})
    writer.error("E", "v", ["t"])
    finish(writer)
    log = log_of(tmp_path)
    assert (log.page(0, 99, "stdout").data, log.page(0, 99, "stderr").data) == (b"0123456789", b"0123456789")
    assert [kind for kind in kinds(log) if kind != "display"] == ["begin", "err", "capped", "error", "end"]
    assert kinds(log).count("display") == 10


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (float("nan"), None),
        ("\ud800", "\ud800"),
        (b"\xff", "/w=="),
        ({1: [float("nan"), {"x": (1.5,)}]}, {"1": [None, {"x": [1.5]}]}),
        (object, repr(object)),
        ("é😀\u2028", "é😀\u2028"),
    ],
    ids=repr,
)
def test_whatever_a_display_holds_is_one_line_of_json(given: Any, found: Any, tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    writer = writer_of(tmp_path)
    writer.display({"x": given})
    writer.display({"x": endless})
    first, second = records(log_of(tmp_path))[1:]
    assert first.data["x"] == found
    assert second.data == {}


@pytest.mark.parametrize(
    "modules", ["inside.cell_writer", "render, supervisord_py.kernels.notebook", "room, supervisord_py.kernels.direct"]
)
def test_large_libraries_come_with_what_needs_them(modules: str) -> None:
    """The writer runs in any kernel, readers and the room are there before the first one."""
    heavy = set("IPython ipykernel zmq traitlets nbformat markdownify bs4 jupyter_client psutil".split())  # noqa: SIM905
    program = f"import sys, supervisord_py.kernels.{modules}; print({heavy} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"


# -- reading ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(STREAMS, st.binary(max_size=9)), max_size=12), st.integers(0, 40), st.integers(1, 40))
def test_pages_are_what_was_written_in_order_and_of_each_stream(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[str, bytes]], offset: int, limit: int
) -> None:
    folder = tmp_path_factory.mktemp("cell")
    writer = writer_of(folder)
    for stream, data in writes:
        writer.write(stream, data)
    writer.close()
    for name in (None, "stdout", "stderr"):
        whole = b"".join(data for stream, data in writes if name in (None, stream))
        page = log_of(folder).page(offset, limit, name)
        assert (page.data, page.total_bytes) == (whole[offset : offset + limit], len(whole))


def test_a_line_that_is_torn_or_makes_no_sense_costs_that_line_only(tmp_path: Path) -> None:
    writer_of(tmp_path).close()
    log = log_of(tmp_path)
    odd = [b'"text"', b"[]", b"{}", b'{"kind":"x"}', b'{"kind":"display","at":0,"data":3}', b'{"kind":"x","at":"y"}']
    odd += [b'{"kind":"x","at":Infinity}', b"[" * 100_000, b"\xff\xfe", b"  ", b'{"kind":"displ{"kind":"late","at":0}']
    with log.records_path.open("ab") as file:
        file.write(b"".join(line + b"\n" for line in odd) + b'{"kind":"end","at":0,"status":"error"}\n{"kind":"dis')
    assert kinds(log) == ["begin", "end"]
    end = log.ended()
    assert end is not None
    assert end.status is CellStatus.ERROR


def test_what_retention_took_is_gone_and_not_empty(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    log = log_of(tmp_path)
    assert log.page(0) == Page(b"", 0, 0, complete=False)
    writer.write("stdout", b"abc")
    finish(writer)
    log.records_path.unlink()
    for read in (log.ended, lambda: list(log.lines()), lambda: log.page(0), lambda: log.page(0, 1, "stdout")):
        with pytest.raises(OutputGoneError, match="is not kept"):
            read()


@pytest.mark.parametrize("cell_id", ["", "../x", "a.b", "x" * 65, "a\n"])
def test_an_id_that_is_none_leads_nowhere(tmp_path: Path, cell_id: str) -> None:
    with pytest.raises(UnknownUnitError):
        CellLog(tmp_path, cell_id)


# -- following -------------------------------------------------------------------------------------------------------


def everything(log: CellLog, out: int = 0, err: int = 0, seen: int = -1) -> list[Any]:
    """Return what a follower is given from there on, up to the end or as long as there is something."""
    reading, found = Reading(log, out, err, span_bytes=READ_BYTES), list[Any]()
    while not reading.ended and (more := reading.pieces(seen)):
        found += more
    return found


def merged(items: list[Any]) -> list[Any]:
    """Return streams' bytes joined and displays, in order."""
    short: list[Any] = []
    for item in items:
        if isinstance(item, (Piece, tuple)):
            stream, data = item[0], item[-1]
            if short and isinstance(short[-1], tuple) and short[-1][0] == stream:
                short[-1] = (stream, short[-1][1] + data)
            else:
                short.append((stream, data))
        elif isinstance(item, str) or item.kind == "display":
            short.append(item if isinstance(item, str) else item.data["text/plain"])
    return short


@given(
    st.lists(st.tuples(STREAMS, st.binary(min_size=1, max_size=5)) | st.text(max_size=3), max_size=15),
)
def test_any_history_is_told_as_it_was_from_any_place(
    tmp_path_factory: pytest.TempPathFactory, history: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("cell")
    writer = writer_of(folder)
    for event in history:
        if isinstance(event, tuple):
            writer.write(*event)
        else:
            writer.display({"text/plain": event})
    finish(writer)
    items = everything(log_of(folder))
    assert merged(items) == merged(history)
    assert items[0].kind == "begin"
    assert items[-1].kind == "end"
    told, record = {"stdout": 0, "stderr": 0}, -1
    for at, item in enumerate(items[:-1]):  # who was given so much is given the rest
        if isinstance(item, Piece):
            assert item.offset == sum(told.values())
            told[item.stream] += len(item.data)
        else:
            record = item.offset
        assert everything(log_of(folder), told["stdout"], told["stderr"], record) == items[at + 1 :]


def test_a_follower_finds_what_comes_while_it_looks(tmp_path: Path) -> None:
    reading = Reading(log_of(tmp_path), span_bytes=READ_BYTES)
    assert reading.pieces() == [], "it has not begun"
    writer = writer_of(tmp_path)
    (begin,) = reading.pieces()
    assert isinstance(begin, Record)
    assert (begin.kind, reading.pieces()) == ("begin", [])
    writer.write("stdout", b"hello")
    assert reading.pieces() == [Piece("stdout", 0, b"hello")]
    finish(writer)
    assert (len(reading.pieces()), reading.ended) == (1, True)


def test_neither_cut_bytes_nor_nonsense_hold_up_the_end_and_late_bytes_are_not_of_the_cell(
    tmp_path: Path,
) -> None:
    writer = writer_of(tmp_path)
    writer.write("stdout", b"0123456789")
    log = log_of(tmp_path)
    with log.records_path.open("ab") as file:
        file.write(b"nonsense\n")
    os.truncate(log.paths["stdout"], 4)
    finish(writer)
    writer.write("stdout", b"late")
    os.truncate(log.paths["stdout"], 4)
    items = everything(log)
    assert merged(items) == [("stdout", b"0123")]
    assert items[-1].kind == "end"

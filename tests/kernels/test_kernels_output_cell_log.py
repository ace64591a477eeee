"""Reading the files of a cell, whoever wrote or removes them meanwhile."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.cell_folder import CELL, finish, log_of, writer_of
from supervisord_py.errors import UnknownUnitError
from supervisord_py.kernels.output.cell_log import CellLog, OutputGoneError, Page, Stretch
from supervisord_py.kernels.output.records import Begin, Display, End, Late, Unreadable

if TYPE_CHECKING:
    from pathlib import Path


def test_bytes_come_back_by_offset_and_limit(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.write("stdout", b"0123456789")
    log = log_of(tmp_path)
    assert (log.size(), log.read(0, 4), log.read(8, 4), log.read(10, 4)) == (10, b"0123", b"89", b"")
    assert log.page(4, 4) == Page(b"4567", 4, 10, complete=False)
    finish(writer)
    assert log.page(4, 4) == Page(b"4567", 4, 10, complete=False)
    assert log.page(4, 99) == Page(b"456789", 4, 10, complete=True)


def test_each_stream_reads_as_if_the_other_were_not_there(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    for stream, data in (("stdout", b"ab"), ("stderr", b"XYZ"), ("stdout", b"cd"), ("stderr", b"W")):
        writer.write(stream, data)
    log = log_of(tmp_path)
    assert list(log.stretches()) == [
        Stretch(0, 2, "stdout"), Stretch(2, 5, "stderr"), Stretch(5, 7, "stdout"), Stretch(7, 8, "stderr"),
    ]  # fmt: skip
    assert log.page(0, 99, "stdout") == Page(b"abcd", 0, 4, complete=False)
    assert log.page(1, 2, "stdout") == Page(b"bc", 1, 4, complete=False)
    assert log.page(2, 99, "stderr") == Page(b"ZW", 2, 4, complete=False)
    finish(writer)
    assert log.page(4, 99, "stderr") == Page(b"", 4, 4, complete=True)


@given(
    st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(max_size=9)), max_size=12),
    st.integers(0, 40),
    st.integers(1, 40),
)
def test_pages_of_one_stream_are_what_was_written_to_it(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[str, bytes]], offset: int, limit: int
) -> None:
    folder = tmp_path_factory.mktemp("cell")
    writer = writer_of(folder)
    for stream, data in writes:
        writer.write(stream, data)
    writer.close()
    for name in ("stdout", "stderr"):
        whole = b"".join(data for stream, data in writes if stream == name)
        page = log_of(folder).page(offset, limit, name)
        assert (page.data, page.total_bytes) == (whole[offset : offset + limit], len(whole))


def test_a_cell_that_printed_nothing_is_empty_and_not_gone(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    finish(writer)
    log = log_of(tmp_path)
    assert (log.size(), log.read(0), list(log.stretches())) == (0, b"", [])
    assert log.page(0) == Page(b"", 0, 0, complete=True)


def test_a_torn_last_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    log = log_of(tmp_path)
    (begin,), offset = log.records_from(0)
    assert isinstance(begin, Begin)
    whole = json.dumps({"kind": "late", "at": 0}).encode() + b"\n"
    with log.records_path.open("ab") as file:
        file.write(whole[:9])
        file.flush()
        assert log.records_from(offset) == ((), offset)
        file.write(whole[9:])
    records, end = log.records_from(offset)
    assert [type(record) for record in records] == [Late]
    assert end == offset + len(whole)
    writer.close()


def test_a_line_torn_by_a_kill_costs_that_line_only(tmp_path: Path) -> None:
    writer_of(tmp_path).close()
    log = log_of(tmp_path)
    with log.records_path.open("ab") as file:
        file.write(b'{"kind":"displ{"kind":"late","at":0}\n{"kind":"end","at":0,"status":"ok"}\n\n')
    kinds = [type(record) for record in log.records()]
    assert kinds == [Begin, Unreadable, End]
    assert log.ended() is not None


def test_records_come_in_bounded_batches_and_none_is_lost(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    for number in range(200):
        writer.display({"text/plain": f"{number}"})
    log, offset, found = log_of(tmp_path), 0, []
    while True:
        records, end = log.records_from(offset, limit=500)
        assert len(records) <= 10
        found += [record.data["text/plain"] for record in records if isinstance(record, Display)]
        if end == offset:
            break
        offset = end
    assert found == [str(number) for number in range(200)]
    writer.close()


def test_a_line_longer_than_a_batch_is_read_whole(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.display({"text/plain": "x" * 3_000_000})
    writer.display({"text/plain": "y"})
    found = [len(record.data["text/plain"]) for record in log_of(tmp_path).records() if isinstance(record, Display)]
    assert found == [3_000_000, 1]
    writer.close()


def test_a_long_line_that_is_torn_is_not_there_yet(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    log.records_path.write_bytes(b'{"kind":"display","at":0,"data":{"text/plain":"' + b"x" * 2_000_000)
    assert log.records_from(0, limit=100) == ((), 0)


def test_a_blank_line_longer_than_a_batch_is_nothing(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    log.records_path.write_bytes(b" " * 50 + b'\n{"kind":"late","at":0}\n')
    assert log.records_from(0, limit=10) == ((), 51)
    assert [type(record) for record in log.records(51)] == [Late]


@pytest.mark.parametrize("late", [0, 5, 5000])
def test_the_end_is_found_however_much_came_late(tmp_path: Path, late: int) -> None:
    writer = writer_of(tmp_path)
    assert log_of(tmp_path).ended() is None
    finish(writer, "error")
    for number in range(late):
        writer.display({"text/plain": f"{number}"})
    end = log_of(tmp_path).ended()
    assert end is not None
    assert end.status == "error"


def test_the_end_is_found_behind_one_enormous_record(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    finish(writer)
    writer.display({"text/plain": "x" * 300_000})
    assert log_of(tmp_path).ended() is not None


def test_what_retention_took_is_gone_and_not_empty(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.write("stdout", b"abc")
    finish(writer)
    log = log_of(tmp_path)
    log.records_path.unlink()
    assert not log.exists()
    for read in (log.ended, lambda: list(log.records()), lambda: log.page(0), lambda: log.page(0, 1, "stdout")):
        with pytest.raises(OutputGoneError, match="is not kept"):
            read()
    log.out_path.unlink()
    with pytest.raises(OutputGoneError):
        log.read(0)


@pytest.mark.parametrize("cell_id", ["", "../x", "a/b", "a.b", "x" * 65, "a\n"])
def test_an_id_that_is_none_leads_nowhere(tmp_path: Path, cell_id: str) -> None:
    with pytest.raises(UnknownUnitError):
        CellLog(tmp_path, cell_id)
    assert CellLog(tmp_path, CELL).cell_id == CELL

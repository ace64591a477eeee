"""What lines of a record file say, whatever is in them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.cell_folder import log_of, writer_of
from supervisord_py.kernels.cell import CellError, CellStatus
from supervisord_py.kernels.output.records import (
    STATUS_MIME,
    Begin,
    Capped,
    Clear,
    Display,
    End,
    Late,
    Raised,
    Result,
    Status,
    StreamChange,
    Unreadable,
    as_event,
    parse,
)

if TYPE_CHECKING:
    from pathlib import Path


def said(**members: Any) -> Any:
    return parse(json.dumps({"at": 3, "t": 1.5, **members}).encode(), 9)


def test_every_record_that_the_writer_writes_is_understood(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, cap=2)
    writer.write("stderr", b"abc")
    writer.display({"text/plain": "x"}, {"a": 1}, "d1", update=True)
    writer.display({STATUS_MIME: {"op": "read"}})
    writer.result({"text/plain": "2"}, {}, 4)
    writer.clear(wait=True)
    writer.error("E", "v", ["line"])
    writer.status({"op": "write"})
    writer.end("error", execution_count=4, duration=0.25, ask_exit=True, error={"name": "E", "value": "v"})
    writer.write("stdout", b"late")
    kinds = [type(record) for record in log_of(tmp_path).records()]
    assert kinds == [
        Begin, StreamChange, Display, Status, Result, Clear, Raised, Status, Capped, End, Late, StreamChange,
    ]  # fmt: skip
    records = list(log_of(tmp_path).records())
    assert isinstance(records[0], Begin)
    assert (records[0].code, records[0].pid) == ("code", 7)
    assert isinstance(records[2], Display)
    assert (records[2].data, records[2].display_id, records[2].update) == ({"text/plain": "x"}, "d1", True)
    end = records[9]
    assert isinstance(end, End)
    assert (end.status, end.execution_count, end.duration, end.asked_exit) == (CellStatus.ERROR, 4, 0.25, True)
    assert end.error == CellError("E", "v")
    assert end.at == 2


def test_place_is_where_and_when() -> None:
    record = said(kind="late")
    assert (record.place.offset, record.at, record.place.time) == (9, 3, 1.5)


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b'"text"',
        b"[]",
        b"{}",
        b'{"kind":"late"}',
        b'{"kind":"unheard of","at":0}',
        b'{"kind":"end","at":0,"status":"odd"}',
        b'{"kind":"display","at":0,"data":3}',
        b'{"kind":"capped","at":0,"lost_bytes":"many"}',
        b'{"kind":["late"],"at":0}',
        b'{"kind":"late","at":"x"}',
        b'{"kind":"late","at":Infinity}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_a_line_that_makes_no_sense_is_unreadable_and_no_error(line: bytes) -> None:
    record = parse(line, 5)
    assert isinstance(record, Unreadable)
    assert (record.place.offset, record.size) == (5, len(line))


def test_an_empty_line_is_nothing() -> None:
    assert parse(b"  ", 0) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


KINDS = ("begin", "stream", "display", "result", "clear", "error", "status", "capped", "end", "late")
MEMBERS = ("code", "data", "metadata", "event", "status", "error", "name", "value", "traceback", "wait", "t", "stream")
LINES = st.fixed_dictionaries(
    {"at": JSON, "kind": st.sampled_from(KINDS)}, optional=dict.fromkeys((*MEMBERS, "lost_bytes", "duration"), JSON)
)


@given(st.binary(max_size=60) | LINES.map(lambda said: json.dumps(said).encode()))
def test_no_line_whatsoever_raises(line: bytes) -> None:
    record = parse(line, 0)
    assert record is None or record.at >= 0


def test_clients_are_told_of_what_they_can_show() -> None:
    assert as_event(said(kind="display", data={"a/b": 1}, display_id="x")) == {
        "event": "display", "data": {"a/b": 1}, "metadata": {}, "display_id": "x", "update": False,
    }  # fmt: skip
    assert as_event(said(kind="result", data={}, execution_count=2)) == {
        "event": "result", "data": {}, "metadata": {}, "execution_count": 2,
    }  # fmt: skip
    assert as_event(said(kind="error", name="E", value="v", traceback=["t"])) == {
        "event": "error", "name": "E", "value": "v", "traceback": ["t"],
    }  # fmt: skip
    assert as_event(said(kind="status", event={"op": "x"})) == {"event": "status", "status": {"op": "x"}}
    assert as_event(said(kind="clear", wait=True)) == {"event": "clear", "wait": True}
    notice = as_event(said(kind="capped", lost_bytes=5))
    assert notice is not None
    assert "5 bytes" in notice["text"]
    assert as_event(said(kind="late")) is None

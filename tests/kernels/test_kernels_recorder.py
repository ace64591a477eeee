"""The recorder writes the same files as a kernel of ours, from messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from supervisord_py.kernels.output.recorder import CellRecorder

if TYPE_CHECKING:
    from pathlib import Path

STATUS = "application/x-px-status+json"


def records(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "c.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if name != "t"} for line in lines]


def test_what_a_kernel_sends_becomes_bytes_and_records_in_order(tmp_path: Path) -> None:
    recorder = CellRecorder(tmp_path, "c", 1 << 20)
    recorder.begin("code", 4711)
    assert recorder.take("stream", {"name": "stdout", "text": "héllo\n"})
    assert recorder.take("stream", {"name": "stderr", "text": "oops\n"})
    assert recorder.take(
        "display_data", {"data": {"text/plain": "d"}, "metadata": {}, "transient": {"display_id": "i"}}
    )
    assert recorder.take("update_display_data", {"data": {"text/plain": "e"}, "transient": {"display_id": "i"}})
    assert recorder.take("display_data", {"data": {STATUS: {"op": "read"}}})
    assert recorder.take("execute_result", {"data": {"text/plain": "1"}, "metadata": {}, "execution_count": 7})
    assert recorder.take("clear_output", {"wait": True})
    assert recorder.take("error", {"ename": "E", "evalue": "v", "traceback": ["t"]})
    assert not recorder.take("status", {"execution_state": "busy"})
    assert not recorder.take("execute_input", {"code": "code"})
    told = {"status": "error", "execution_count": 7, "ename": "E", "evalue": "v", "traceback": ["t"]}
    recorder.end(told)
    assert recorder.take("stream", {"name": "stdout", "text": "late"})
    recorder.close()
    assert (tmp_path / "c.out").read_bytes() == "héllo\noops\nlate".encode()
    assert recorder.total == len("héllo\noops\nlate".encode())
    found = records(tmp_path)
    kinds = "begin stream stream display display status result clear error end late stream"
    assert [it["kind"] for it in found] == kinds.split()
    assert (found[0]["code"], found[0]["pid"]) == ("code", 4711)
    assert (found[3]["display_id"], found[3]["update"], found[4]["update"]) == ("i", False, True)
    assert found[5]["event"] == {"op": "read"}
    assert found[9]["error"] == {"name": "E", "value": "v", "traceback": ["t"]}
    assert (found[9]["status"], found[9]["execution_count"], found[9]["at"]) == ("error", 7, 12)


@pytest.mark.parametrize(
    ("reply", "status", "expected"),
    [
        ({"status": "ok", "payload": [{"source": "ask_exit"}]}, None, ("ok", True)),
        ({"status": "aborted"}, None, ("aborted", False)),
        ({}, None, ("error", False)),
        ({}, "aborted", ("aborted", False)),
    ],
)
def test_the_end_is_the_replys_or_what_is_said(
    tmp_path: Path, reply: dict[str, Any], status: str | None, expected: tuple[str, bool]
) -> None:
    recorder = CellRecorder(tmp_path, "c", 10)
    recorder.end(reply, status=status)
    (end,) = records(tmp_path)
    assert (end["status"], end["ask_exit"]) == expected
    assert end["error"] is None


def test_beyond_the_cap_bytes_are_counted(tmp_path: Path) -> None:
    recorder = CellRecorder(tmp_path, "c", 4)
    recorder.take("stream", {"name": "stdout", "text": "123456"})
    recorder.end({"status": "ok"})
    assert (tmp_path / "c.out").read_bytes() == b"1234"
    assert (recorder.total, recorder.lost_bytes) == (4, 2)
    assert [it["kind"] for it in records(tmp_path)][-2:] == ["capped", "end"]


def test_it_goes_on_where_an_earlier_one_stopped(tmp_path: Path) -> None:
    first = CellRecorder(tmp_path, "c", 100)
    first.begin("code")
    first.take("stream", {"name": "stdout", "text": "one "})
    first.close()
    second = CellRecorder(tmp_path, "c", 100)
    second.take("stream", {"name": "stdout", "text": "two"})
    second.end({"status": "ok"})
    assert (tmp_path / "c.out").read_bytes() == b"one two"
    assert [it["kind"] for it in records(tmp_path)] == ["begin", "stream", "stream", "end"]


def test_odd_messages_harm_nobody(tmp_path: Path) -> None:
    recorder = CellRecorder(tmp_path, "c", 1 << 20)
    odd: list[dict[str, Any]] = [{}, {"data": 3, "transient": 3, "text": 5, "name": 7, "traceback": 3}]
    for content in odd:
        for kind in ("stream", "display_data", "update_display_data", "execute_result", "clear_output", "error"):
            assert recorder.take(kind, content)
    recorder.take("stream", {"name": "stdout", "text": "half \ud800 pair"})
    recorder.end({"status": "error"})
    assert (tmp_path / "c.out").read_bytes().endswith(b"half \xed\xa0\x80 pair")
    assert records(tmp_path)[-1]["error"]["name"] == "Error"

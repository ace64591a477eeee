"""The answer of a cell, from its files."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kernels.cell_folder import CELL, finish, log_of, writer_of
from supervisord_py.errors import UnknownUnitError
from supervisord_py.kernels.artifacts import find_artifact, spill
from supervisord_py.kernels.cell import CellError, CellStatus, Step
from supervisord_py.kernels.config import OutputLimits
from supervisord_py.kernels.render import CellOutput, cell_result, show

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = OutputLimits()


def test_a_small_cell_is_shown_whole(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.write("stdout", b"hello\nworld")
    writer.result({"text/plain": "2"}, {}, 3)
    finish(writer, count=3)
    found = show(log_of(tmp_path), LIMITS)
    assert found.text == "hello\nworld\n2\n"
    assert found.outputs == (
        {"output_type": "stream", "name": "stdout", "text": "hello\nworld"},
        {"output_type": "execute_result", "data": {"text/plain": "2"}, "metadata": {}, "execution_count": 3},
    )
    assert (found.truncated, found.artifact, found.total_bytes, found.total_lines) == (False, CELL, 11, 2)
    assert (found.shown_bytes, found.error, found.notices) == (11, None, ())
    assert found.end is not None


def test_a_cell_that_never_began_or_is_gone_gives_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_of(tmp_path)
    assert show(log, LIMITS) == CellOutput()
    monkeypatch.setattr(type(log), "exists", lambda _: True)  # it goes between the two looks
    assert "not kept" in str(show(log, LIMITS).unkept)


def test_an_update_of_what_another_cell_displayed_is_shown_once_as_it_is_last(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.display({"text/plain": "one"}, {}, "elsewhere", update=True)
    writer.display({"text/plain": "two"}, {}, "elsewhere", update=True)
    writer.display({"text/plain": "nameless"}, {}, None, update=True)
    finish(writer)
    assert show(log_of(tmp_path), LIMITS).text == "two\n"


def test_many_rich_outputs_are_bounded_in_number_and_weight(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    for number in range(700):
        writer.display({"text/plain": f"{number} " + "x" * 5000})
    finish(writer)
    limits = replace(LIMITS, inline_bytes=6000)
    found = show(log_of(tmp_path), limits)
    assert len(found.outputs) == 500
    assert found.notices == ("200 of 700 rich outputs are not listed: only the first and the last are",)
    inline = [output for output in found.outputs if isinstance(output["data"]["text/plain"], str)]
    assert 30 <= len(inline) <= 45
    assert "699 " in str(find_artifact(tmp_path, found.outputs[-1]["data"]["text/plain"]["artifact"]).path.read_text())
    assert len(found.text.encode()) < LIMITS.preview_bytes + 100


# -- artifacts -------------------------------------------------------------------------------------------------------


def test_a_disk_that_takes_no_file_leaves_a_reference_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(tmp_path), "replace", full)
    kept = spill(tmp_path, CELL, 0, {"text/html": "h" * 1000}, 10)
    error = "not kept: No space left on device"
    assert kept == {"text/html": {"artifact": None, "bytes": 1000, "error": error}}
    assert list(tmp_path.iterdir()) == [], "whole or not at all"
    data = {"text/plain": "p" * 10, "text/html": "h" * 1000, "application/json": ["j" * 500]}
    assert spill(tmp_path, CELL, 70, data, 5000) == data
    largest = spill(tmp_path, CELL, 70, data, 600)["text/html"]
    assert largest["bytes"] == 1000


@pytest.mark.parametrize(
    "artifact_id",
    ["", ".", "..", "../secret", f"../{CELL}", f"{CELL}.0.png/../../x", "/etc/passwd", f"{CELL}.jsonl", "x\0y", "a.1"],
)
def test_no_id_leads_out_of_the_folder_or_to_the_records(tmp_path: Path, artifact_id: str) -> None:
    writer_of(tmp_path / "session").close()
    (tmp_path / "secret").write_text("s")
    with pytest.raises(UnknownUnitError):
        find_artifact(tmp_path / "session", artifact_id)


def test_the_complete_output_is_an_artifact_by_the_cells_own_id_and_links_are_none(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    for stream, expected in (("stdout", b"abc"), ("stderr", b"abcabc"), ("stdout", b"abcabcabc")):
        writer.write(stream, b"abc")
        found = find_artifact(tmp_path, CELL)
        assert (found.path.read_bytes(), found.mime) == (expected, "application/octet-stream")
    (tmp_path / "secret").write_text("s")
    os.symlink(tmp_path / "secret", tmp_path / f"{CELL}.1.png")
    with pytest.raises(UnknownUnitError, match="there is no artifact"):
        find_artifact(tmp_path, f"{CELL}.1.png")


# -- the result ------------------------------------------------------------------------------------------------------


def test_a_result_takes_from_the_end_record_what_is_not_given(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.write("stdout", b"x")
    writer.end("error", execution_count=4, duration=0.25, error={"name": "E", "value": "v"})
    output = show(log_of(tmp_path), LIMITS)
    result = cell_result(CELL, "title", output, notices=("told",), steps=(Step("sigint", 0.0),))
    assert (result.status, result.error) == (CellStatus.ERROR, CellError("E", "v"))
    assert (result.execution_count, result.duration_seconds) == (4, 0.25)
    assert (result.text, result.artifact, result.total_bytes, result.total_lines) == ("x", CELL, 1, 1)
    assert (result.notices, result.steps[0].action, result.title) == (("told",), "sigint", "title")
    other = cell_result(CELL, None, output, status=CellStatus.TIMED_OUT, duration_seconds=9.0, execution_count=5)
    assert (other.status, other.duration_seconds, other.execution_count) == (CellStatus.TIMED_OUT, 9.0, 5)

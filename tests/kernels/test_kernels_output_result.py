"""The answer of a cell, from its files: where it is cut, what text and outputs are put together to, and artifacts."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kernels.cell_folder import CELL, finish, log_of, writer_of
from supervisord_py.errors import UnknownUnitError
from supervisord_py.kernels.artifacts import find_artifact
from supervisord_py.kernels.config import CellLimits
from supervisord_py.kernels.render import (
    CellOutput,
    as_on_a_terminal,
    cut_end,
    cut_start,
    show,
)

LIMITS = CellLimits()


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


@pytest.mark.parametrize(
    "artifact_id", ["", "..", "../secret", f"{CELL}.0.png/../../x", f"{CELL}.jsonl", "x\0y", "a.1"]
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


PICTURE = {"image/png": "AAAA"}

# -- where to cut ----------------------------------------------------------------------------------------------------


@given(st.text(min_size=1, max_size=30), st.integers(0, 60))
def test_a_cut_never_divides_a_character(text: str, place: int) -> None:
    data = text.encode()
    place = min(place, len(data))
    data[:place][: cut_end(data[:place])].decode()
    data[place:][cut_start(data[place:]) :].decode()


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain\n", "plain\n"),
        ("10%\r20%\r100%\ndone", "100%\ndone"),
        ("a long line\rshort", "shortg line"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("kept\r", "kept"),
        ("\r\rx", "x"),
        ("a long line\r\x1b[2Kshort", "\x1b[2Kshort"),
        ("\x1b[31mred line\x1b[0m\rover", "over"),
    ],
)
def test_carriage_returns_show_what_a_terminal_shows_last(text: str, seen: str) -> None:
    assert as_on_a_terminal(text) == seen


# -- put together ----------------------------------------------------------------------------------------------------


def shown(folder: Path, parts: list[Any], head: int = 100, tail: int = 100, **options: Any) -> CellOutput:
    """Show a cell that wrote `("stdout", "…")`, displayed "…" as markdown, or a picture where that is ""."""
    writer = writer_of(folder)
    for part in parts:
        if isinstance(part, tuple):
            writer.write(part[0], part[1].encode())
        else:
            writer.display({"text/markdown": part} if part else PICTURE)
    finish(writer)
    return show(log_of(folder), CellLimits(preview_bytes=head + tail, head_bytes=head), **options)


def kinds(found: CellOutput) -> list[str]:
    return [output.get("name") or next(iter(output["data"])) for output in found.outputs]


def test_text_and_outputs_tell_the_same_in_order(tmp_path: Path) -> None:
    parts = [("stdout", "before"), "| a |\n", ("stderr", "oops\n"), ("stdout", "out\n"), ""]
    found = shown(tmp_path, parts)
    assert found.text == "before\n| a |\noops\nout\n"
    assert kinds(found) == ["stdout", "text/markdown", "stderr", "stdout", "image/png"]
    assert [found.outputs[place]["text"] for place in (0, 2, 3)] == ["before", "oops\n", "out\n"]
    assert (found.truncated, found.shown_bytes) == (False, 15)


def test_what_is_left_out_is_counted_in_a_marker_on_a_line_of_its_own(tmp_path: Path) -> None:
    found = shown(tmp_path, [("stdout", "".join(f"line {number:02d}\n" for number in range(20)))], head=18, tail=18)
    marker = f"… [128 bytes, 16 lines omitted; artifact {found.artifact}] …"
    assert found.text == f"line 00\nline 01\n{marker}\nline 18\nline 19\n"
    assert found.outputs == ({"output_type": "stream", "name": "stdout", "text": found.text},)
    assert (found.truncated, found.shown_bytes) == (True, 32)


def test_rich_outputs_whose_words_are_left_out_stay_among_the_outputs(tmp_path: Path) -> None:
    found = shown(tmp_path, [("stdout", "a" * 60), "t" * 300 + "\n", ("stdout", "b" * 60)], head=50, tail=50)
    assert "ttt" not in found.text
    assert kinds(found) == ["stdout", "text/markdown", "stdout"]
    assert f"1 lines omitted; artifact {found.artifact}" in found.text


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(["stdout", "stderr"]), st.text(alphabet="aé\n", max_size=20))
        | st.text(alphabet="bç\n", max_size=20).map(lambda text: text and f"{text}\n"),
        max_size=10,
    ),
    st.integers(0, 40),
    st.integers(0, 40),
)
def test_whatever_comes_the_account_is_right(history: list[Any], head: int, tail: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = shown(Path(folder), history, head, tail)
    everything = "".join(part[1] if isinstance(part, tuple) else part for part in history)
    streamed = sum(len(part[1].encode()) for part in history if isinstance(part, tuple))
    assert found.truncated is (len(everything.encode()) > head + tail)
    assert found.shown_bytes <= streamed
    assert "\ufffd" not in found.text
    rich = [output["data"].get("text/markdown", "") for output in found.outputs if "data" in output]
    assert rich == [part for part in history if isinstance(part, str)]
    if not found.truncated:
        assert found.text.replace("\n", "") == everything.replace("\n", "")
        assert found.shown_bytes == streamed


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        ("out:a clear out:b", "b"),
        ("out:a wait", "a"),
        ("out:a wait out:b", "b"),
        ("out:a md:x wait md:y", "y\n"),
        ("md:x@d out:a update:y@d", "y\na"),
        ("md:x@d clear update:y@d out:a", "a"),
        ("update:y@elsewhere update:z@elsewhere", "z\n"),
        ("md:x@d md:y@d update:z@d", "z\nz\n"),
    ],
)
def test_what_is_cleared_goes_and_updates_stand_where_they_were_displayed(
    steps: str, text: str, tmp_path: Path
) -> None:
    writer = writer_of(tmp_path)
    for step in steps.split():
        what, _, said = step.partition(":")
        words, _, name = said.partition("@")
        if what == "out":
            writer.write("stdout", words.encode())
        elif what in ("clear", "wait"):
            writer.clear(what == "wait")
        else:
            writer.display({"text/markdown": words}, display_id=name or None, update=what == "update")
    finish(writer)
    found = show(log_of(tmp_path), LIMITS)
    assert found.text == text
    assert found.truncated is False

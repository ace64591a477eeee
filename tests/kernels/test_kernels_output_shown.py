"""Where output is cut, and what text and outputs are put together to."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cell_folder import finish, log_of, writer_of
from supervisord_py.kernels import render
from supervisord_py.kernels.config import OutputLimits
from supervisord_py.kernels.render import (
    NEAR_BYTES,
    CellOutput,
    as_on_a_terminal,
    cut_end,
    cut_start,
    show,
)

PICTURE = {"image/png": "AAAA"}

# -- where to cut ----------------------------------------------------------------------------------------------------


@given(st.text(min_size=1, max_size=30), st.integers(0, 60))
def test_a_cut_never_divides_a_character(text: str, place: int) -> None:
    data = text.encode()
    place = min(place, len(data))
    data[:place][: cut_end(data[:place])].decode()
    data[place:][cut_start(data[place:]) :].decode()


def test_a_cut_falls_between_lines_that_are_near() -> None:
    assert cut_end(b"one\ntwo\nthr") == 8
    assert cut_start(b"ne\ntwo\nthree") == 3
    assert cut_end(b"x\n" + b"y" * NEAR_BYTES) == 2 + NEAR_BYTES
    assert cut_start(b"y" * NEAR_BYTES + b"\nx") == 0
    assert cut_start(b"all of it\n") == 0
    assert cut_start(b"\x80\x80\x80\x80\x80") == 0
    assert cut_start(b"\x80\x80") == 2


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
    return show(log_of(folder), OutputLimits(preview_bytes=head + tail, head_bytes=head), **options)


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


def test_a_marker_breaks_an_endless_line_into_its_own(tmp_path: Path) -> None:
    found = shown(tmp_path, [("stdout", "é" * 50)], head=11, tail=11)
    assert found.text == f"ééééé\n… [80 bytes, 0 lines omitted; artifact {found.artifact}] …\nééééé"


def test_rich_outputs_whose_words_are_left_out_stay_among_the_outputs(tmp_path: Path) -> None:
    found = shown(tmp_path, [("stdout", "a" * 60), "t" * 300 + "\n", ("stdout", "b" * 60)], head=50, tail=50)
    assert "ttt" not in found.text
    assert kinds(found) == ["stdout", "text/markdown", "stdout"]
    assert f"1 lines omitted; artifact {found.artifact}" in found.text


def test_only_the_first_and_the_last_rich_outputs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "FIRST_OUTPUTS", 2)
    found = shown(tmp_path, [f"{number}" for number in range(10)], most_outputs=5)
    assert [output["data"]["text/markdown"] for output in found.outputs] == ["0", "1", "7", "8", "9"]
    assert found.text == "0\n1\n7\n8\n9\n"
    assert "5 of 10 rich outputs are not listed" in found.notices[0]


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

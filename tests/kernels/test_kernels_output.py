"""The answer of a cell, from its files: what text and outputs are put together to, artifacts; and when files go."""

from __future__ import annotations

import asyncio
import base64
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kernels.cell_folder import CELL, config_in, finish, log_of, writer_of
from supervisord_py.errors import UnknownUnitError
from supervisord_py.kernels.cell_store import DAY_SECONDS, FORGOTTEN_SECONDS, CellStore, KeptCell, doomed
from supervisord_py.kernels.config import CellLimits
from supervisord_py.kernels.render import CellOutput, as_on_a_terminal, find_artifact, show
from waiting import eventually

LIMITS = CellLimits()
PICTURE = {"image/png": "AAAA"}


def test_many_rich_outputs_are_bounded_in_number_and_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisord_py.kernels.render.INLINE_MOST_BYTES", 200_000)
    writer = writer_of(tmp_path)
    for number in range(700):
        writer.display({"text/plain": f"{number} " + "x" * 5000})
    picture = b"\x89PNG" * 3000
    writer.display({"image/png": base64.b64encode(picture).decode()})
    finish(writer)
    found = show(log_of(tmp_path), replace(LIMITS, inline_bytes=6000))
    assert found.notices == ("201 of 701 rich outputs are not listed: only the last are",)
    inline = [it for it in found.outputs if isinstance(it["data"].get("text/plain"), str)]
    assert (len(found.outputs), len(inline)) == (500, 40)
    path, mime = find_artifact(tmp_path, found.outputs[-1]["data"]["image/png"]["artifact"])
    assert (path.read_bytes(), mime) == (picture, "image/png")
    assert len(found.text.encode()) < LIMITS.preview_bytes + 100


@pytest.mark.parametrize("artifact_id", ["", "..", "../secret", CELL, f"{CELL}.0.png/../../x", f"{CELL}.jsonl", "x\0y"])
def test_no_id_leads_out_of_the_folder_or_to_the_records(tmp_path: Path, artifact_id: str) -> None:
    writer_of(tmp_path / "session").close()
    (tmp_path / "secret").write_text("s")
    os.symlink(tmp_path / "secret", tmp_path / "session" / f"{CELL}.1.png")
    for name in (artifact_id, f"{CELL}.1.png"):
        with pytest.raises(UnknownUnitError, match="there is no artifact"):
            find_artifact(tmp_path / "session", name)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain\n", "plain\n"),
        ("10%\r20%\r100%\ndone", "100%\ndone"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("a\r", "a"),
        ("x" * 10**6, "x" * 10**6),
    ],
    ids=["plain", "progress", "dos", "at the end", "long, and at once"],
)
def test_carriage_returns_show_what_was_written_last(text: str, seen: str) -> None:
    assert as_on_a_terminal(text) == seen


# -- put together ----------------------------------------------------------------------------------------------------


def shown(folder: Path, parts: list[Any], head: int = 100, tail: int = 100) -> CellOutput:
    """Show a cell that wrote `("stdout", "…")`, displayed "…" as markdown, or a picture where that is ""."""
    writer = writer_of(folder)
    for part in parts:
        if isinstance(part, tuple):
            writer.write(part[0], part[1].encode())
        else:
            writer.display({"text/markdown": part} if part else PICTURE)
    finish(writer)
    return show(log_of(folder), CellLimits(preview_bytes=head + tail, head_bytes=head))


def test_text_and_outputs_tell_the_same_in_order(tmp_path: Path) -> None:
    parts = [("stdout", "before"), "| a |\n", ("stderr", "oops\n"), ("stdout", "out\n"), ""]
    found = shown(tmp_path, parts)
    assert found.text == "before\n| a |\noops\nout\n"
    kinds = [output.get("name") or next(iter(output["data"])) for output in found.outputs]
    assert kinds == ["stdout", "text/markdown", "stderr", "stdout", "image/png"]
    assert [found.outputs[place]["text"] for place in (0, 2, 3)] == ["before", "oops\n", "out\n"]
    assert (found.truncated, found.total_bytes) == (False, 15)


def test_what_is_left_out_is_counted_in_a_marker_on_a_line_of_its_own(tmp_path: Path) -> None:
    found = shown(tmp_path, [("stdout", "".join(f"line {number:02d}\n" for number in range(20)))], head=18, tail=18)
    assert found.text == f"line 00\nline 01\nli\n… [124 bytes omitted; artifact {CELL}] …\n7\nline 18\nline 19\n"
    assert found.outputs == ({"output_type": "stream", "name": "stdout", "text": found.text},)
    assert (found.truncated, found.artifact) == (True, CELL)


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
def test_whatever_comes_nothing_is_invented_and_rich_outputs_stay(history: list[Any], head: int, tail: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found = shown(Path(folder), history, head, tail)
    everything = "".join(part[1] if isinstance(part, tuple) else part for part in history)
    assert found.truncated is (len(everything.encode()) > head + tail)
    assert "\ufffd" not in found.text, "no character is divided"
    rich = [output["data"].get("text/markdown", "") for output in found.outputs if "data" in output]
    assert rich == [part for part in history if isinstance(part, str)]
    first, _, rest = found.text.replace("\n", "").partition("…")
    assert everything.replace("\n", "").startswith(first)
    assert everything.replace("\n", "").endswith(rest.rpartition("…")[2])
    assert ("omitted" in rest) is found.truncated


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
    assert show(log_of(tmp_path), LIMITS).text == text


def test_bytes_that_the_end_counts_and_that_are_not_there_are_told(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.write("stdout", b"0123456789")
    finish(writer)
    assert show(log_of(tmp_path), LIMITS).unkept is None
    os.truncate(log_of(tmp_path).paths["stdout"], 4)
    assert "6 bytes of output are lost" in str(show(log_of(tmp_path), LIMITS).unkept)


# -- when files go ---------------------------------------------------------------------------------------------------

NOW = 2_000_000_000.0
CELLS = st.builds(
    KeptCell, st.sampled_from("abc"), st.uuids().map(str), st.integers(0, 90), st.floats(NOW - 10 * DAY_SECONDS, NOW)
)


@given(st.lists(CELLS, max_size=12, unique_by=lambda it: it.changed_at), st.integers(0, 300), st.integers(0, 300))
def test_what_stays_is_within_the_quotas_and_nothing_went_without_need(
    cells: list[KeptCell], of_session: int, of_all: int
) -> None:
    going = doomed(cells, CellLimits(session_bytes=of_session, total_bytes=of_all, keep_days=7.0), NOW)
    stay = [cell for cell in cells if cell not in going]
    assert all(NOW - cell.changed_at <= 7 * DAY_SECONDS for cell in stay)
    assert sum(cell.size for cell in stay) <= of_all
    assert all(sum(it.size for it in stay if it.session_id == session) <= of_session for session in "abc")
    for cell in going:  # too old, or one of the quotas would be exceeded if it and what is younger had stayed
        younger = [it.size for it in cells if it.changed_at >= cell.changed_at]
        mine = [it.size for it in cells if it.changed_at >= cell.changed_at and it.session_id == cell.session_id]
        assert NOW - cell.changed_at > 7 * DAY_SECONDS or sum(mine) > of_session or sum(younger) > of_all


async def test_old_cells_go_with_all_their_files_and_running_ones_stay(tmp_path: Path) -> None:
    def cell(session: str, name: str, age: float) -> None:
        folder = tmp_path / session
        finish(writer_of(folder, name))
        (folder / f"{name}.0.png").write_bytes(b"png")
        for path in (*folder.glob(f"{name}.*"), folder):
            os.utime(path, (time.time() - age, time.time() - age))

    for name in ("old", "runs"):
        cell("s", name, 8 * DAY_SECONDS)
    cell("s", "young", FORGOTTEN_SECONDS + 1)
    cell("forgotten", "c", FORGOTTEN_SECONDS + 1)
    cell("fresh", "c", 1)
    (tmp_path / "a file").write_text("of somebody else")
    store = CellStore(None, lambda: replace(config_in(tmp_path), cells_dir=tmp_path))  # type: ignore[arg-type]
    sweeping = asyncio.ensure_future(store.keep_small(lambda: [("s", "runs")], {"s"}))
    left = {"s/runs", "s/young", "fresh/c"}
    names = lambda: {f"{it.parent.name}/{it.name.partition('.')[0]}" for it in tmp_path.glob("*/*")}  # noqa: E731
    await eventually(lambda: names() == left, "the sweep")
    sweeping.cancel()
    assert (tmp_path / "a file").exists()

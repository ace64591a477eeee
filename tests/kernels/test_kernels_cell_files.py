"""The files of a cell: what is written comes back as it was, and becomes one text and outputs;
when files go.
"""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
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
from supervisord_py.kernels.cell_files import (
    READ_BYTES,
    CellLog,
    OutputGoneError,
    Page,
    Piece,
    Reading,
    Record,
)
from supervisord_py.kernels.cell_store import DAY_SECONDS, EMPTY_SECONDS, CellStore
from supervisord_py.kernels.config import CellLimits
from supervisord_py.kernels.render import CellOutput, as_on_a_terminal, find_artifact, show
from supervisord_py.kernels.session import CellStatus
from waiting import eventually

STREAMS = st.sampled_from(["stdout", "stderr"])


def records(log: CellLog) -> list[Record]:
    return [item for item in Reading(log).news() if isinstance(item, Record)]


def kinds(log: CellLog) -> list[str]:
    return [record.kind for record in records(log)]


# -- writing ---------------------------------------------------------------------------------------


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
    assert (log.page(0, 99, "stdout").data, log.page(0, 99, "stderr").data) == (
        b"0123456789",
        b"0123456789",
    )
    assert [kind for kind in kinds(log) if kind != "display"] == [
        "begin",
        "err",
        "capped",
        "error",
        "end",
    ]
    assert kinds(log).count("display") == 10


def test_whatever_a_display_holds_is_one_line_of_json(tmp_path: Path) -> None:
    endless: list[Any] = []
    endless.append(endless)
    writer = writer_of(tmp_path)
    writer.display(
        {"x": [float("nan"), "\ud800", b"\xff", {1: {"x": (1.5,)}}, object, "é😀\u2028"]}
    )
    writer.display({"x": endless})
    first, second = records(log_of(tmp_path))[1:]
    assert first.data["x"] == [
        None,
        "\ud800",
        "/w==",
        {"1": {"x": [1.5]}},
        repr(object),
        "é😀\u2028",
    ]
    assert second.data == {}


def test_large_libraries_come_with_what_needs_them() -> None:
    heavy = {
        "IPython", "ipykernel", "zmq", "traitlets", "nbformat", "markdownify", "bs4",
        "jupyter_client", "psutil",
    }  # fmt: skip
    modules = "import sys; from supervisord_py.kernels import direct, render, room"
    program = f"{modules}; print({heavy} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "set()\n"


# -- reading ---------------------------------------------------------------------------------------


def test_a_line_that_is_torn_or_makes_no_sense_costs_that_line_only(tmp_path: Path) -> None:
    writer_of(tmp_path).close()
    log = log_of(tmp_path)
    odd = [
        b'"text"',
        b"[]",
        b"{}",
        b'{"kind":"x"}',
        b'{"kind":"display","at":0,"data":3}',
        b'{"kind":"x","at":"y"}',
    ]
    odd += [
        b'{"kind":"x","at":Infinity}',
        b"[" * 100_000,
        b"\xff\xfe",
        b"  ",
        b'{"kind":"displ{"kind":"late","at":0}',
    ]
    with log.records_path.open("ab") as file:
        file.write(
            b"".join(line + b"\n" for line in odd)
            + b'{"kind":"end","at":0,"status":"error"}\n{"kind":"dis'
        )
    assert kinds(log) == ["begin", "end"]
    assert getattr(log.ended(), "status", None) is CellStatus.ERROR


def test_what_retention_took_is_gone_and_not_empty(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    log = log_of(tmp_path)
    assert log.page(0) == Page(b"", 0, 0, complete=False)
    writer.write("stdout", b"abc")
    finish(writer)
    log.records_path.unlink()
    for read in (
        log.ended,
        lambda: list(log.lines()),
        lambda: log.page(0),
        lambda: log.page(0, 1, "stdout"),
    ):
        with pytest.raises(OutputGoneError, match="is not kept"):
            read()


# -- following -------------------------------------------------------------------------------------


def everything(log: CellLog, out: int = 0, err: int = 0, seen: int = -1) -> list[Any]:
    """Return what a follower is given from there on, up to the end or as long as there is
    something.
    """
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
    st.lists(
        st.tuples(STREAMS, st.binary(min_size=1, max_size=5)) | st.text(max_size=3), max_size=15
    ),
    st.integers(0, 40),
    st.integers(1, 40),
)
def test_any_history_is_told_as_it_was_from_any_place_and_read_in_pages(
    tmp_path_factory: pytest.TempPathFactory, history: list[Any], offset: int, limit: int
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
    assert (merged(items), items[0].kind, items[-1].kind) == (merged(history), "begin", "end")
    told, record = {"stdout": 0, "stderr": 0}, -1
    for at, item in enumerate(items[:-1]):  # who was given so much is given the rest
        if isinstance(item, Piece):
            assert item.offset == sum(told.values())
            told[item.stream] += len(item.data)
        else:
            record = item.offset
        assert everything(log_of(folder), told["stdout"], told["stderr"], record) == items[at + 1 :]
    for name in (None, "stdout", "stderr"):
        whole = b"".join(it[1] for it in history if isinstance(it, tuple) and name in (None, it[0]))
        page = log_of(folder).page(offset, limit, name)
        assert (page.data, page.total_bytes) == (whole[offset : offset + limit], len(whole))


def test_neither_cut_bytes_nor_nonsense_hold_up_the_end_and_what_is_late_is_not_of_the_cell(
    tmp_path: Path,
) -> None:
    writer = writer_of(tmp_path)
    writer.write("stdout", b"0123456789")
    log = log_of(tmp_path)
    with log.records_path.open("ab") as file:
        file.write(b"nonsense\n")
    finish(writer)
    writer.write("stdout", b"late")
    assert show(log, LIMITS).unkept is None
    os.truncate(log.paths["stdout"], 4)
    assert "6 bytes of output are lost" in str(show(log, LIMITS).unkept)
    items = everything(log)
    assert merged(items) == [("stdout", b"0123")]
    assert items[-1].kind == "end"
    for path in tmp_path.iterdir():
        path.unlink()
    writer.write("stderr", b"late")
    writer.display({"x": 1})
    assert not list(tmp_path.iterdir()), "what was swept away stays away"


# -- shown -----------------------------------------------------------------------------------------

LIMITS = CellLimits()
PICTURE = {"image/png": "AAAA"}


def test_many_rich_outputs_are_bounded_in_number_and_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize(
    "artifact_id", ["..", "../secret", CELL, f"{CELL}.0.png/../../x", f"{CELL}.1.png", "x\0y"]
)
def test_no_id_leads_out_of_the_folder_or_to_the_records(tmp_path: Path, artifact_id: str) -> None:
    writer_of(tmp_path / "session").close()
    (tmp_path / "secret").write_text("s")
    os.symlink(tmp_path / "secret", tmp_path / "session" / f"{CELL}.1.png")
    with pytest.raises(UnknownUnitError, match="there is no artifact"):
        find_artifact(tmp_path / "session", artifact_id)


def test_carriage_returns_show_what_was_written_last() -> None:
    seen = {"10%\r20%\r100%\ndone": "100%\ndone", "dos\r\nlines\r\n": "dos\nlines\n", "a\r": "a"}
    assert {text: as_on_a_terminal(text) for text in seen} == seen


def held_by_a_child(folder: Path, number: int) -> tuple[Any, subprocess.Popen[bytes]]:
    writer = writer_of(folder, f"{number:016x}")
    child = subprocess.Popen(
        ["sleep", "1000"], stdout=writer.hold(".out"), stderr=writer.hold(".err")
    )
    return writer, child


def test_cells_go_on_in_one_file_while_a_child_holds_it_and_each_has_its_own_bytes(
    tmp_path: Path,
) -> None:
    first, child = held_by_a_child(tmp_path, 1)
    first.write("stdout", b"first")
    finish(first)
    made = [first]
    for number in (2, 3):
        writer = writer_of(tmp_path, f"{number:016x}")
        writer.go_on_after(made[-1])
        writer.hold(".out")
        writer.write("stdout", b"cell %d" % number)
        finish(writer)
        made.append(writer)
    whole = tmp_path / "0000000000000003.out"
    assert whole.read_bytes() == b"firstcell 2cell 3"
    with whole.open("ab") as file:
        file.write(b" and late")
    texts = [show(log_of(tmp_path, f"{number:016x}"), LIMITS).text for number in (1, 2, 3)]
    assert texts == ["first", "cell 2", "cell 3 and late"]
    child.kill()
    child.wait()
    alone = writer_of(tmp_path, "0000000000000004")
    alone.go_on_after(made[-1])
    assert not alone.size(".out")
    assert not (tmp_path / "0000000000000004.out").exists()


def test_where_there_are_no_links_each_cell_has_files_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise PermissionError("no links on this file system")

    first, child = held_by_a_child(tmp_path, 1)
    first.write("stdout", b"first")
    finish(first)
    monkeypatch.setattr(os, "link", link)
    second = writer_of(tmp_path, "0000000000000002")
    second.go_on_after(first)
    second.write("stdout", b"second")
    finish(second)
    child.kill()
    child.wait()
    texts = [show(log_of(tmp_path, f"{number:016x}"), LIMITS).text for number in (1, 2)]
    assert texts == ["first", "second"]


# -- put together ----------------------------------------------------------------------------------


def shown(folder: Path, parts: list[Any], head: int = 100, tail: int = 100) -> CellOutput:
    """Show a cell that wrote `("stdout", "…")`, displayed "…" as markdown, or a picture where
    that is "".
    """
    writer = writer_of(folder)
    for part in parts:
        if isinstance(part, tuple):
            writer.write(part[0], part[1].encode())
        else:
            writer.display({"text/markdown": part} if part else PICTURE)
    finish(writer)
    return show(log_of(folder), CellLimits(preview_bytes=head + tail, head_bytes=head))


def test_what_is_left_out_is_counted_in_a_marker_on_a_line_of_its_own(tmp_path: Path) -> None:
    found = shown(
        tmp_path,
        [("stdout", "".join(f"line {number:02d}\n" for number in range(20)))],
        head=18,
        tail=18,
    )
    assert (
        found.text
        == f"line 00\nline 01\nli\n… [124 bytes omitted; artifact {CELL}] …\n7\nline 18\nline 19\n"
    )
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
def test_whatever_comes_nothing_is_invented_and_rich_outputs_stay(
    history: list[Any], head: int, tail: int
) -> None:
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
            writer.display(
                {"text/markdown": words}, display_id=name or None, update=what == "update"
            )
    finish(writer)
    assert show(log_of(tmp_path), LIMITS).text == text


# -- when files go ---------------------------------------------------------------------------------


async def test_old_cells_go_with_all_their_files_and_what_is_too_much_and_running_ones_stay(
    tmp_path: Path,
) -> None:
    def cell(session: str, name: str, age: float) -> None:
        folder = tmp_path / session
        finish(writer_of(folder, name))
        (folder / f"{name}.0.png").write_bytes(b"png" * 10_000)
        for path in (*folder.glob(f"{name}.*"), folder):
            os.utime(path, (time.time() - age, time.time() - age))

    for name in ("old", "runs"):
        cell("s", name, 8 * DAY_SECONDS)
    cell("s", "large", EMPTY_SECONDS + 2)
    cell("s", "young", EMPTY_SECONDS + 1)
    cell("forgotten", "c", EMPTY_SECONDS)  # of a call that had a kernel of its own, say
    cell("fresh", "c", 1)
    for session, age in (("empty", EMPTY_SECONDS + 1), ("new", 1.0)):
        (tmp_path / session).mkdir()
        os.utime(tmp_path / session, (time.time() - age, time.time() - age))
    (tmp_path / "a file").write_text("of somebody else")
    one = sum(path.lstat().st_blocks * 512 for path in (tmp_path / "fresh").iterdir())
    config = replace(
        config_in(tmp_path), cells_dir=tmp_path, output=CellLimits(total_bytes=one * 7 // 2)
    )
    sweeping = asyncio.ensure_future(
        CellStore(None, lambda: config).keep_small(lambda: [("s", "runs")], {"s"})
    )  # type: ignore[arg-type]
    left = {"s/runs", "s/young", "forgotten/c", "fresh/c"}
    names = lambda: {f"{it.parent.name}/{it.name.partition('.')[0]}" for it in tmp_path.glob("*/*")}  # noqa: E731
    await eventually(lambda: names() == left and not (tmp_path / "empty").exists(), "the sweep")
    sweeping.cancel()
    assert (tmp_path / "new").exists()
    assert (tmp_path / "a file").exists()

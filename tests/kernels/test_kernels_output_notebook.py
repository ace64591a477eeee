"""Notebooks: read, executed, exported. The library's own schema judges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import nbformat
import pytest

from kernels.cell_folder import CELL, finish, log_of, writer_of
from supervisord_py.errors import InvalidInputError
from supervisord_py.kernels.config import CellLimits
from supervisord_py.kernels.inside.cell_writer import STATUS_MIME
from supervisord_py.kernels.notebook import (
    cells_of_notebook,
    cells_of_script,
    detailed_outputs,
    executed,
    export,
)
from supervisord_py.kernels.render import show
from supervisord_py.kernels.session import Cell, CellResult, CellStatus
from supervisord_py.ledger.kernels import KernelCellRow

LIMITS = CellLimits(inline_bytes=1000)
OK = CellStatus.OK


def code(source: str | list[str], **members: Any) -> dict[str, Any]:
    return {
        "cell_type": "code", "source": source, "metadata": {}, "outputs": [], "execution_count": None, **members,
    }  # fmt: skip


def notebook(*cells: Any, minor: int = 5, **metadata: Any) -> str:
    given = [{"id": f"id-{number}", **cell} if minor >= 5 else cell for number, cell in enumerate(cells)]
    return json.dumps({"nbformat": 4, "nbformat_minor": minor, "metadata": metadata, "cells": given})


def valid(text: str) -> Any:
    made = nbformat.reads(text, as_version=nbformat.NO_CONVERT)
    nbformat.validate(made)
    return made


def test_code_cells_are_read_in_order_with_titles() -> None:
    found = cells_of_notebook(
        notebook(
            {"cell_type": "markdown", "source": "# words", "metadata": {}},
            code("x = 1", metadata={"title": "First"}),
            code("  \n"),
            code("skipped", metadata={"tags": ["skip-execution"]}),
            code(["y = 2\n", "y"], metadata={"name": "named"}),
            kernelspec={"name": "python3", "display_name": "P", "language": "python"},
        )
    )
    assert found == ((Cell("x = 1", "First"), Cell("y = 2\ny", "named")), "python3")


@pytest.mark.parametrize(
    ("text", "pointer", "words"),
    [
        ('{"nbformat": 4,\n  oops}', "", "line 2 column 3"),
        ("[1, 2]", "", "None"),
        ("[" * 200_000, "", "recursion"),
        ('{"nbformat": 9, "nbformat_minor": 0, "cells": [], "metadata": {}}', "", "9"),
        ('{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": {}}', "/cells", "array"),
        ('{"nbformat": 3, "nbformat_minor": 0, "metadata": {}, "worksheets": [{"cells": [{}]}]}', "", "cell_type"),
    ],
)
def test_what_is_no_notebook_is_refused_with_the_place(text: str, pointer: str, words: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        cells_of_notebook(text)
    (error,) = caught.value.extra["errors"]
    assert words in caught.value.detail
    assert error["pointer"] == pointer
    assert caught.value.hint


def test_an_old_notebook_is_upgraded_and_runs() -> None:
    old = {
        "nbformat": 3, "nbformat_minor": 0, "metadata": {"name": "old"},
        "worksheets": [{"metadata": {}, "cells": [
            {"cell_type": "heading", "level": 1, "source": "Head", "metadata": {}},
            {"cell_type": "code", "input": "1+1", "language": "python", "outputs": [], "metadata": {}},
        ]}],
    }  # fmt: skip
    text = json.dumps(old)
    assert cells_of_notebook(text) == ((Cell("1+1"),), None)
    made = valid(executed(text, [CellResult(CELL, None, OK, execution_count=1)]))
    assert (made.nbformat, made.cells[1].execution_count) == (4, 1)


def test_an_executed_notebook_has_what_the_cells_gave_and_keeps_the_rest(tmp_path: Path) -> None:
    old = {"output_type": "stream", "name": "stdout", "text": "old"}
    text = notebook(
        {"cell_type": "markdown", "source": "words", "metadata": {"a": 1}},
        code("print('hi'); 1+1", metadata={"tags": ["x"]}, outputs=[old]),
        code("later", execution_count=9),
        custom={"kept": True},
    )  # fmt: skip
    writer = writer_of(tmp_path)
    writer.write("stdout", b"hi\nthere\n")
    writer.display({STATUS_MIME: {"op": "read"}})
    writer.result({"text/plain": "2", "application/json": {"a": [1]}}, {}, 7)
    finish(writer, count=7)
    result = CellResult(CELL, None, OK, outputs=show(log_of(tmp_path), LIMITS).outputs, execution_count=7)
    aborted = CellResult("x", None, CellStatus.ABORTED)
    made = valid(executed(text, [result, aborted]))
    assert [cell.id for cell in made.cells] == ["id-0", "id-1", "id-2"]
    assert made.metadata.custom == {"kept": True}
    assert made.cells[0].metadata == {"a": 1}
    assert (made.cells[1].execution_count, made.cells[1].metadata) == (7, {"tags": ["x"]})
    assert made.cells[1].outputs == [
        {"output_type": "stream", "name": "stdout", "text": "hi\nthere\n"},
        {
            "output_type": "execute_result", "metadata": {}, "execution_count": 7,
            "data": {"text/plain": "2", "application/json": {"a": [1]}},
        },
    ]  # fmt: skip
    assert (made.cells[2].outputs, made.cells[2].execution_count) == ([], None)


def test_a_reference_is_a_sentence_where_the_schema_knows_none(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.display({"image/png": "A" * 4000})
    writer.display({"application/json": {"x": "y" * 4000}, "text/plain": ["a", "b"]})
    writer.display({STATUS_MIME: {"op": "x"}})
    finish(writer)

    def outputs(*, rich: bool) -> list[Any]:
        made = executed(
            notebook(code("1")),
            [CellResult(CELL, None, OK)],
            lambda _: detailed_outputs(log_of(tmp_path), LIMITS, rich=rich),
        )
        return list(valid(made).cells[0].outputs)

    first, second = outputs(rich=False)
    reference = first["metadata"]["px"]["artifacts"]["image/png"]
    assert first["data"] == {"text/plain": f"[image/png, 3000 bytes: artifact {reference['artifact']}]"}
    assert second["data"] == {"text/plain": "ab"}
    assert outputs(rich=True)[0]["data"] == {"image/png": "A" * 4000}


def row(number: int, **changes: Any) -> KernelCellRow:
    made = KernelCellRow(
        f"{number:016x}", "s", "call", number, f"code {number}", "ok", 0.0, 0.0, execution_count=number
    )
    return msgspec.structs.replace(made, **changes)


def test_a_history_becomes_a_valid_notebook(tmp_path: Path) -> None:
    writer = writer_of(tmp_path, f"{1:016x}")
    writer.write("stdout", b"out \xff\n")
    writer.display({"image/png": "A" * 4000})
    finish(writer)
    rows = [
        row(1, title="The first"),
        row(2, status="aborted"),
        row(3, status="error", error={"name": "E", "value": "\ud800", "traceback": ["t"]}),
        row(4, status="running", execution_count=None),
        row(5, total_bytes=99),
    ]
    made = export(rows, lambda each: log_of(tmp_path, each.id), LIMITS, session_id="s-1")
    checked = valid(json.dumps(made))
    assert (checked.nbformat, checked.nbformat_minor) == (4, 5)
    assert checked.metadata.kernelspec == {"name": "python3", "display_name": "Python", "language": "python"}
    assert checked.metadata.language_info.name == "python"
    assert [cell.source for cell in checked.cells] == ["### The first", "code 1", "code 3", "code 4", "code 5"]
    assert checked.cells[1].metadata.title == "The first"
    assert checked.cells[1].outputs[0].text == "out \ufffd\n"
    assert "artifact" in checked.cells[1].outputs[1].data["text/plain"]
    assert checked.cells[2].outputs[0].ename == "E"
    assert checked.cells[3].outputs == []
    assert "99 bytes of output were removed" in checked.cells[4].outputs[0].text
    again, _ = cells_of_notebook(json.dumps(made))
    assert again == (Cell("code 1", "The first"), Cell("code 3"), Cell("code 4"), Cell("code 5"))


# -- scripts ---------------------------------------------------------------------------------------------------------


def test_a_script_is_split_at_its_markers_with_their_titles() -> None:
    script = "import os\n\n# %% Load the data\nx = 1\n#%%\ny = 2\n# %% [markdown] About\n# words\n# %% Last\nz"
    assert cells_of_script(script) == (
        Cell("import os\n\n"),
        Cell("# %% Load the data\nx = 1\n", "Load the data"),
        Cell("#%%\ny = 2\n"),
        Cell("# %% Last\nz", "Last"),
    )
    assert cells_of_script("\n\n# %% nothing\n\n# %%\n  \n# %% [markdown]\n# text\n") == cells_of_script("") == ()
    assert [cell.code for cell in cells_of_script("a\r# %% x\r\nb\n# %%")] == ["a\r", "# %% x\r\nb\n"]

"""Notebooks: read, executed, exported. The library's own schema judges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
from msgspec.structs import replace

from kernels.cell_folder import CELL, finish, log_of, writer_of
from supervisord_py.kernels.config import CellLimits
from supervisord_py.kernels.render import cells_of_notebook, cells_of_script, detailed_outputs, executed, export
from supervisord_py.kernels.session import Cell, CellResult, CellStatus
from supervisord_py.ledger.kernels import KernelCellRow

LIMITS = CellLimits(inline_bytes=1000)
OK = CellStatus.OK


def code(source: str | list[str], **members: Any) -> dict[str, Any]:
    usual = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    return {**usual, "source": source, **members}


def notebook(*cells: Any, **metadata: Any) -> str:
    given = [{"id": f"id-{number}", **cell} for number, cell in enumerate(cells)]
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": given})


def valid(text: str) -> Any:
    made = nbformat.reads(text, as_version=nbformat.NO_CONVERT)
    nbformat.validate(made)
    return made


def test_code_cells_are_read_in_order_with_titles() -> None:
    cells = [
        {"cell_type": "markdown", "source": "# words", "metadata": {}},
        code("x = 1", metadata={"title": "First"}),
        code("  \n"),
        code("skipped", metadata={"tags": ["skip-execution"]}),
        code(["y = 2\n", "y"], metadata={"name": "named"}),
    ]
    text = notebook(*cells, kernelspec={"name": "python3", "display_name": "P", "language": "python"})
    assert cells_of_notebook(text) == ((Cell("x = 1", "First"), Cell("y = 2\ny", "named")), "python3")


def test_a_reference_is_a_sentence_where_the_schema_knows_none(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    writer.display({"image/png": "A" * 4000})
    writer.display({"application/json": {"x": "y" * 4000}, "text/plain": ["a", "b"]})
    finish(writer)

    def outputs(*, rich: bool) -> list[Any]:
        found = detailed_outputs(log_of(tmp_path), LIMITS, rich=rich)
        return list(
            valid(executed(notebook(code("1")), [CellResult(CELL, None, OK)], lambda _: found)).cells[0].outputs
        )

    first, second = outputs(rich=False)
    reference = first["metadata"]["px"]["artifacts"]["image/png"]
    assert first["data"] == {"text/plain": f"[image/png, 3000 bytes: artifact {reference['artifact']}]"}
    assert second["data"] == {"text/plain": "ab"}
    assert outputs(rich=True)[0]["data"] == {"image/png": "A" * 4000}


def test_a_history_becomes_a_valid_notebook(tmp_path: Path) -> None:
    plain = KernelCellRow("", "s", "call", 0, "", "ok", 0.0, 0.0)

    def row(number: int, **changes: Any) -> KernelCellRow:
        return replace(plain, id=f"{number:016x}", code=f"code {number}", execution_count=number, **changes)

    rows = [
        row(1, title="The first"),
        row(2, status="aborted"),
        row(3, status="error", error={"name": "E", "value": "\ud800", "traceback": ["t"]}),
        row(4, status="running"),
        row(5, total_bytes=99),
    ]
    writer = writer_of(tmp_path, rows[0].id)
    writer.write("stdout", b"out \xff\n")
    writer.display({"image/png": "A" * 4000})
    finish(writer)
    made = json.dumps(export(rows, lambda each: log_of(tmp_path, each.id), LIMITS, session_id="s-1"))
    checked = valid(made)
    assert (checked.nbformat, checked.nbformat_minor) == (4, 5)
    assert checked.metadata.kernelspec == {"name": "python3", "display_name": "Python", "language": "python"}
    title, first, failed, running, gone = checked.cells
    assert (title.source, first.metadata.title) == ("### The first", "The first")
    assert (first.outputs[0].text, "artifact" in first.outputs[1].data["text/plain"]) == ("out \ufffd\n", True)
    assert (failed.outputs[0].ename, running.outputs) == ("E", [])
    assert "99 bytes of output were removed" in gone.outputs[0].text
    again, _ = cells_of_notebook(made)
    assert again == (Cell("code 1", "The first"), Cell("code 3"), Cell("code 4"), Cell("code 5"))


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

"""Scripts in cells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.kernels.cell import Cell
from supervisord_py.kernels.output.script import ScriptPart, cells_of_script, split

PIECES = st.sampled_from(
    ["# %%", "#%%", "# %% one", "# %% [markdown]", "\n", "\r\n", "\r", "x = 1", " ", "\x0c", "\u2028", "# %%time"]
)


@given(st.lists(PIECES | st.text(max_size=5), max_size=20).map("".join))
def test_joining_the_parts_gives_the_script_back(script: str) -> None:
    parts = split(script)
    assert "".join(part.source for part in parts) == script
    assert all(part.source for part in parts)
    assert all(cell.code in script for cell in cells_of_script(script))


def test_a_script_is_split_at_its_markers_with_their_titles() -> None:
    script = (
        'import os\n\n# %% Load the data\nx = 1\n#%%\ny = 2\n# %% [markdown] About\n# words\n# %% Last tags=["a"]\nz'
    )
    assert split(script) == (
        ScriptPart("import os\n\n"),
        ScriptPart("# %% Load the data\nx = 1\n", "Load the data"),
        ScriptPart("#%%\ny = 2\n"),
        ScriptPart("# %% [markdown] About\n# words\n", "About", "markdown"),
        ScriptPart('# %% Last tags=["a"]\nz', "Last"),
    )
    assert cells_of_script(script) == (
        Cell("import os\n\n"),
        Cell("# %% Load the data\nx = 1\n", "Load the data"),
        Cell("#%%\ny = 2\n"),
        Cell('# %% Last tags=["a"]\nz', "Last"),
    )


@pytest.mark.parametrize(
    ("marker", "title", "kind"),
    [
        ("# %%", None, "code"),
        ("# %%   ", None, "code"),
        ("# %% A title\t", "A title", "code"),
        ("# %% [md]", None, "md"),
        ("# %% Title [Raw]", "Title", "raw"),
        ('# %% Title {"tags": ["x"]}', "Title", "code"),
        ("# %% name='a b' Title", "Title", "code"),
        ("# %% a=b c", "c", "code"),
    ],
)
def test_what_a_marker_says(marker: str, title: str | None, kind: str) -> None:
    assert split(f"{marker}\nx") == (ScriptPart(f"{marker}\nx", title, kind),)


@pytest.mark.parametrize("line", ["# %%time", "x # %%", " # %%", "## %%", "#  %%", "'# %%'"])
def test_what_is_no_marker_does_not_split(line: str) -> None:
    assert len(split(f"a\n{line}\nb")) == 1


def test_lines_end_as_python_says() -> None:
    assert [part.source for part in split("a\r# %% x\r\nb\x0c# %% no\n# %%")] == [
        "a\r",
        "# %% x\r\nb\x0c# %% no\n",
        "# %%",
    ]


def test_cells_without_code_are_not_run() -> None:
    assert cells_of_script("") == ()
    assert cells_of_script("\n\n# %% nothing\n\n# %%\n  \n# %% [markdown]\n# text\n") == ()

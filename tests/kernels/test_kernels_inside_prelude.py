"""The prelude: what its functions return, what they tell, and that the man page knows them."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernels.inside_rig import InsideRig, kernel, ours
from supervisord_py.kernels.inside import prelude

MAN = Path(__file__).parents[2] / "man" / "man7" / "px-prelude.7"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the status events that are published."""
    published: list[dict[str, Any]] = []
    monkeypatch.setattr("IPython.display.publish_display_data", lambda data: published.append(*data.values()))
    return published


@pytest.fixture(scope="module")
def rig() -> Iterator[InsideRig]:
    folder = Path(tempfile.mkdtemp(prefix="pxi", dir="/tmp"))
    try:
        with kernel(folder, ours()) as made:
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- read, write, append, diff ---------------------------------------------------------------------------------------


def test_what_is_written_can_be_read_whole_or_in_part(here: Path, events: list[dict[str, Any]]) -> None:
    assert prelude.write("new/folder/a.txt", "one\ntwo\n") == Path("new/folder/a.txt")
    prelude.append("new/folder/a.txt", b"thr\xffee")
    assert prelude.read("new/folder/a.txt") == "one\ntwo\nthr�ee"
    assert prelude.read("new/folder/a.txt", 2, 1) == "two\n"
    assert prelude.read("new/folder/a.txt", limit=0) == ""
    assert repr(prelude.read("new/folder/a.txt", limit=2)) == "one\ntwo\n"
    assert [event["op"] for event in events] == ["write", "append", "read", "read", "read", "read"]
    assert events[0] == {"op": "write", "path": "new/folder/a.txt", "bytes": 8, "preview": "one\ntwo\n"}
    assert events[3]["lines"] == 1


def test_diff_tells_what_changed(here: Path, events: list[dict[str, Any]]) -> None:
    (here / "old").write_text("same\nbefore\n")
    (here / "new").write_text("same\nafter\nmore\n")
    shown = ["--- old", "+++ new", "@@ -1,2 +1,3 @@", " same", "-before", "+after", "+more"]
    assert prelude.diff("old", "new").splitlines() == shown
    assert (events[0]["added"], events[0]["removed"]) == (2, 1)
    assert prelude.diff("old", "old") == ""


# -- find, grep, tree ------------------------------------------------------------------------------------------------


@pytest.fixture
def project(here: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(here)], check=True)
    for name, text in {
        "src/main.py": "def main():\n    return 'needle'\n",
        "src/deep/er/test_a.py": "# Needle\n",
        "README.md": "needle.\n",
        "build/out.py": "needle\n",
        "kept.log": "needle\n",
        "other.log": "needle\n",
        ".hidden/x.py": "needle\n",
        "data.bin": "\0needle\n",
        ".gitignore": "build/\n*.log\n!kept.log\n",
    }.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(text)
    return here


def test_find_honours_patterns_gitignore_and_kinds(project: Path, events: list[dict[str, Any]]) -> None:
    assert prelude.find("*.py") == ["src/deep/er/test_a.py", "src/main.py"]
    assert prelude.find("src/**/test_*.py") == ["src/deep/er/test_a.py"]
    assert prelude.find("src/*.py", project) == [f"{project}/src/main.py"]
    assert prelude.find("*.log") == ["kept.log"]
    everything = [".hidden/x.py", "build/out.py", "src/deep/er/test_a.py", "src/main.py"]
    assert prelude.find("*.py", hidden=True) == everything
    assert prelude.find(kind="folder") == ["src", "src/deep", "src/deep/er"]
    assert len(prelude.find(kind="any", limit=2)) == 2
    assert events[-1]["capped"] is True
    assert events[0]["matches"] == ["src/deep/er/test_a.py", "src/main.py"]
    assert repr(prelude.find("nothing.at.all")) == "(nothing)"


def test_grep_tells_file_line_and_text(project: Path, events: list[dict[str, Any]]) -> None:
    lines = [("README.md", 1, "needle."), ("kept.log", 1, "needle"), ("src/main.py", 2, "    return 'needle'")]
    assert prelude.grep("needle") == lines  # and not in data.bin
    assert str(prelude.grep("needle", glob="*.md")[0]) == "README.md:1: needle."
    assert len(prelude.grep("NEEDLE", "src", ignore_case=True)) == 2
    assert prelude.grep("def", "src/main.py") == [("src/main.py", 1, "def main():")]
    assert len(prelude.grep("needle", hidden=True, limit=2)) == events[-1]["count"] == 2


def test_tree_is_cut_by_depth_and_by_lines(project: Path, events: list[dict[str, Any]]) -> None:
    drawn = ["./", "  README.md", "  data.bin", "  kept.log", "  src/", "    deep/", "    main.py"]
    assert prelude.tree(depth=2).splitlines() == drawn
    assert prelude.tree(limit=2).splitlines()[-1] == "… and 5 more"
    assert events[1]["more"] == 5


# -- env, output, display --------------------------------------------------------------------------------------------


def test_env_gets_sets_and_lists_without_telling_values(
    events: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_ONE", "hush")
    assert prelude.env("SECRET_ONE") == "hush"
    assert prelude.env("SECRET_ONE", "hush2") == os.environ["SECRET_ONE"] == "hush2"
    assert prelude.env("NOT_THERE_AT_ALL") is None
    assert "SECRET_ONE" in str(prelude.env()).splitlines()
    assert "hush" not in str(events)
    assert [event["action"] for event in events] == ["get", "set", "get", "list"]
    assert [event.get("found") for event in events] == [True, True, False, None]


def test_output_reads_what_another_cell_printed(rig: InsideRig) -> None:
    first = rig.good("print('é' * 100_000); import sys; print('err', file=sys.stderr)")
    whole = rig.good(f"x = output('{first.id}'); assert x == 'é' * 100_000 + '\\nerr\\n', x[-20:]; x[-4:]")
    assert rig.records(whole.id, "status")[0]["event"]["bytes"] == 200_005
    rig.good(f"assert output('{first.id}', 2, 4) == 'éé'")
    silent = rig.good("pass")
    rig.good(f"assert output('{silent.id}') == ''")
    missing = rig.run("output('0000')").reply
    assert missing["ename"] == "FileNotFoundError"
    assert silent.id in missing["evalue"]
    assert rig.run("output('../x')").reply["ename"] == "FileNotFoundError"


# -- names and documentation -----------------------------------------------------------------------------------------


def test_every_name_is_there_and_help_tells_of_it(rig: InsideRig) -> None:
    ran = rig.good("help(read)")
    assert "Return the text of a file" in rig.out(ran.id).decode()
    rig.good("; ".join(prelude.__all__))


def test_every_function_is_in_the_manual_as_it_is() -> None:
    lines = [line for line in MAN.read_text().splitlines() if line.startswith("\\fB")]
    page = re.sub(r"\\f[BIPR]|\\&", "", "\n".join(lines)).replace("\\-", "-")
    documented = dict(re.findall(r"^(\w+)\((.*)\)$", page, re.MULTILINE))
    assert sorted(documented) == sorted(set(prelude.__all__) - {"display"})
    for name, signature in documented.items():
        told = re.findall(r'(\w+)(?:=("[^"]*"|[\w-]+))?', signature)
        parameters = inspect.signature(getattr(prelude, name)).parameters.values()
        assert told == [(each.name, _shown(each.default)) for each in parameters]


def _shown(default: object) -> str:
    if default is inspect.Parameter.empty:
        return ""
    return f'"{default}"' if isinstance(default, str) else str(default)

"""Patterns of .gitignore mean what git says that they mean; git itself is asked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from supervisord_py.kernels.inside.ignored import Ignoring, ignoring_at, rule_of, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
NAMES = ("a", "b", "ab", "a.b", "b.log", "a b", "]", "-", "[x]", "b\\", "!a", "#b", "B")
FILES = [f"{name}" for name in NAMES]
FILES += [f"d/{name}" for name in NAMES] + [f"d/e/{name}" for name in NAMES] + [f"a/b/{name}" for name in ("c", "d")]
FILES = [name for name in FILES if name not in {"a", "d/a/"}]


@pytest.fixture(scope="module")
def repository(require: Callable[[object, str], None]) -> Iterator[Path]:
    require(shutil.which("git"), "needs git")
    folder = Path(tempfile.mkdtemp(prefix="pxg", dir="/tmp"))
    subprocess.run(["git", "init", "-q", str(folder)], check=True, env=ENVIRON)
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    yield folder
    shutil.rmtree(folder)


def gits_word(folder: Path) -> list[str]:
    """Return the files that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--others", "--exclude-standard"],
        cwd=folder,
        capture_output=True,
        check=True,
        env=ENVIRON,
    )
    return sorted(os.fsdecode(name) for name in listed.stdout.split(b"\0") if name)


def ours(folder: Path) -> list[str]:
    return sorted(
        name for name, entry in walk(str(folder), hidden=True, ignored=False) if not entry.is_dir(follow_symlinks=False)
    )


PIECES = [
    "a",
    "b",
    "d",
    "e",
    ".",
    "*",
    "**",
    "?",
    "/",
    "[ab]",
    "[!a]",
    "[^b]",
    "[a-c]",
    "[]]",
    "[[:alpha:]]",
    "[a",
    "\\",
    " ",
]
PATTERN = st.lists(st.sampled_from(PIECES), min_size=1, max_size=6).map("".join)
LINE = st.builds(
    lambda mark, pattern, end: mark + pattern + end,
    st.sampled_from(["", "", "!", "#", "/"]),
    PATTERN,
    st.sampled_from(["", "", "/", " ", "\r"]),
)


def usual(lines: list[str]) -> bool:
    """Leave out what git takes otherwise than its manual says: `a**/b` for `ab` too, by an optimisation of prefixes."""
    return not any(re.search(r"[^/]\*\*/", line) for line in lines)


@given(top=st.lists(LINE, max_size=4), inner=st.lists(LINE, max_size=3), excluded=st.lists(LINE, max_size=1))
def test_whatever_the_patterns_git_and_we_see_the_same_files(
    repository: Path, top: list[str], inner: list[str], excluded: list[str]
) -> None:
    assume(usual([*top, *inner, *excluded]))
    (repository / ".gitignore").write_text("\n".join(top), newline="")
    (repository / "d" / ".gitignore").write_text("\n".join(inner), newline="")
    (repository / ".git" / "info" / "exclude").write_text("\n".join(excluded), newline="")
    assert ours(repository) == gits_word(repository)


@pytest.mark.parametrize(
    "line",
    [
        "*.log",
        "/a",
        "d/",
        "d/**",
        "**/e",
        "d/**/a",
        "a/b",
        "\\!a",
        "\\#b",
        "a\\ b",
        "b.log ",
        "[!a]",
        "[]-]",
        "[\\]]",
        "b\\\\",
        "[[]x]",
        "*",
        "!*",
        "d/*\n!d/e",
        "d\n!d/a",
        "[z-a]",
        "a**b",
        "***",
        "B",
    ],
)
def test_patterns_of_the_manual_and_of_old_mistakes(repository: Path, line: str) -> None:
    (repository / ".gitignore").write_text(line, newline="")
    (repository / "d" / ".gitignore").write_text("")
    (repository / ".git" / "info" / "exclude").write_text("")
    assert ours(repository) == gits_word(repository)


def test_a_search_below_the_root_knows_the_patterns_above(repository: Path) -> None:
    (repository / ".gitignore").write_text("/d/e/ab\nb.log\n")
    (repository / "d" / ".gitignore").write_text("!b.log\ne/a\n")
    (repository / ".git" / "info" / "exclude").write_text("")
    found = [name for name, _ in walk(str(repository / "d" / "e"), hidden=False, ignored=False)]
    assert "b.log" in found
    assert not {"ab", "a"} & set(found)


def test_outside_of_a_repository_only_files_from_here_on_count(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("x\n")
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "x").write_text("")
    rules = ignoring_at(str(inner))
    assert rules.above is None
    assert [name for name, _ in walk(str(inner), hidden=False, ignored=False)] == ["x"]
    assert [name for name, _ in walk(str(tmp_path), hidden=False, ignored=False)] == ["inner"]


def test_a_repository_within_has_rules_of_its_own(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("x\n")
    (tmp_path / "sub" / ".git").mkdir(parents=True)
    (tmp_path / "sub" / "x").write_text("")
    assert [name for name, _ in walk(str(tmp_path), hidden=False, ignored=False)] == ["sub", "sub/x"]


def test_what_is_hidden_is_shown_where_asked_and_git_never(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".dot").write_text("")
    assert [name for name, _ in walk(str(tmp_path), hidden=True, ignored=True)] == [".dot"]
    assert list(walk(str(tmp_path), hidden=False, ignored=True)) == []


def test_a_folder_that_may_not_be_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shut").mkdir()
    real = os.scandir

    def scandir(path: str) -> object:
        if str(path).endswith("shut"):
            raise PermissionError(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [name for name, _ in walk(str(tmp_path), hidden=False, ignored=True)] == ["shut"]


@pytest.mark.parametrize("line", ["", "   ", "# remark", "!", "/", "!/"])
def test_a_line_that_says_nothing_makes_no_rule(line: str) -> None:
    assert rule_of(line) is None


def test_a_path_without_rules_is_not_ignored(tmp_path: Path) -> None:
    assert not Ignoring(str(tmp_path)).ignores(str(tmp_path / "x"), is_folder=False)

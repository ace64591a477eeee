"""The catalog: read again when files change; what is added is there whole or not at all."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from supervisord_py.config.settings import ToolsSettings
from supervisord_py.errors import (
    BadRequestError,
    ConfigError,
    ConflictError,
    PxError,
    UnknownUnitError,
)
from supervisord_py.tools import catalog as catalog_module
from supervisord_py.tools.catalog import TEMPLATE, Catalog, ToolsDiskError, add_tool, remove_tool
from supervisord_py.tools.environment import lacks_bytecode, needs_sync
from tool_folders import age, pixie_manifest, write_tool


def test_names_that_are_none_and_names_that_are_nearly_one(tmp_path: Path) -> None:
    write_tool(tmp_path.parent, "x")
    write_tool(tmp_path, "curve-fitting")
    catalog = Catalog([tmp_path])
    for name in ("../x", "/etc", "", "a/b", "a\0b", "..", ".", "x" * 300, "A", "tool:x", "\ud800"):
        with pytest.raises(UnknownUnitError, match="is no tool's name") as caught:
            catalog.get(name)
        assert len(caught.value.detail) < 400
    with pytest.raises(UnknownUnitError, match=r"did you mean 'curve-fitting'\?") as caught:
        catalog.get("curve-fiting")
    assert caught.value.unit == "tool:curve-fiting"
    with pytest.raises(UnknownUnitError) as caught:
        catalog.get("text-stats")
    assert caught.value.hint == "pxctl tools add example:text-stats"


def test_who_asks_is_not_refused_for_what_an_earlier_look_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "FRESH_SECONDS", 600.0)
    catalog = Catalog([tmp_path])
    folder = write_tool(tmp_path, "x", "")
    with pytest.raises(ConfigError):
        catalog.get("x")
    for concurrency, seen in ((2, 2), (33, 2)):
        (folder / "tool.json").write_text(json.dumps({"name": "x", "concurrency": concurrency}))
        assert catalog.get("x").concurrency == seen, "a look that found it whole serves for a while"
    monkeypatch.setattr(catalog_module, "FRESH_SECONDS", 0.0)
    assert catalog.get("x").concurrency == 33
    catalog.reconfigure([tmp_path / "elsewhere"], ToolsSettings())
    with pytest.raises(UnknownUnitError):
        catalog.get("x")


@pytest.mark.parametrize("file", [None, "tool.json", "main.py", ".env", ".venv/pyvenv.cfg"])
def test_what_changed_is_read_again_and_nothing_else(tmp_path: Path, file: str | None) -> None:
    folder = write_tool(tmp_path, "x")
    age(folder)
    catalog = Catalog([tmp_path])
    before = catalog.get("x")
    if file is not None:
        (folder / file).parent.mkdir(exist_ok=True)
        with (folder / file).open("a") as changed:
            changed.write("\n")
        os.utime(folder / file, (1_600_000_000, 1_600_000_000))
    catalog.refresh()
    assert (catalog.get("x") is before) == (file is None)


def test_the_second_folder_of_an_id_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a blind look forgets none."""
    for folder in ("A folder", "b"):
        write_tool(tmp_path, folder, pixie_manifest("curve-fit"))
    catalog = Catalog([tmp_path, tmp_path])
    assert catalog.get("curve-fit").folder == tmp_path / "A folder"

    def none_left(path: object) -> object:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    for _ in range(2):
        first, second = catalog.entries()
        assert (first.name, first.error, second.name, second.folder) == (
            "curve-fit",
            None,
            "curve-fit",
            tmp_path / "b",
        )
        assert second.error is not None
        assert "is hidden by" in second.error.detail
        monkeypatch.setattr(os, "scandir", none_left)


# -- added, removed --------------------------------------------------------------------------------


def left_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_what_is_there_is_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").symlink_to("/nowhere")
    with pytest.raises(ConflictError):
        add_tool(TEMPLATE, tmp_path, name="x")
    with monkeypatch.context() as patched, pytest.raises(ConflictError):
        patched.setattr(
            Path, "chmod", lambda draft, _mode: (draft.parent / "y" / "z").mkdir(parents=True)
        )
        add_tool(TEMPLATE, tmp_path, name="y")
    assert left_in(tmp_path) == ["x", "y"]
    (tmp_path / "file").touch()
    with pytest.raises(ToolsDiskError, match="cannot write"):
        add_tool(TEMPLATE, tmp_path / "file" / "tools", name="x")


def test_a_folder_is_copied_without_what_is_no_part_of_the_tool(tmp_path: Path) -> None:
    source = write_tool(tmp_path / "src", "x", extra__txt="1", requirements__txt="demo")
    for name in (
        "__pycache__",
        ".git",
        ".venv.old",
        "data/__pycache__",
        ".venv/lib/python3.11/site-packages/demo",
    ):
        (source / name).mkdir(parents=True)
    (source / ".venv/lib/python3.11/site-packages/demo/__init__.py").touch()
    (source / "link").symlink_to("extra.txt")
    added, copy = add_tool(str(source), tmp_path / "tools"), tmp_path / "tools" / "x"
    assert left_in(copy) == [
        ".venv",
        "data",
        "extra.txt",
        "link",
        "main.py",
        "requirements.txt",
        "tool.json",
    ]
    assert (left_in(copy / "data"), os.readlink(copy / "link")) == (["__pycache__"], "extra.txt")
    assert (needs_sync(added), lacks_bytecode(copy / ".venv")) == (False, True)
    packages = next(copy.glob(".venv/lib/*/*"))
    (packages / "demo" / "__pycache__").mkdir()
    (packages / "demo" / "__pycache__" / "__init__.cpython-311.pyc").touch()
    assert not lacks_bytecode(copy / ".venv")
    (packages / "single.py").touch()
    assert lacks_bytecode(copy / ".venv")


@pytest.mark.parametrize(("listed", "needed"), [("[]", False), ("['demo']", True), ("5", True)])
def test_a_project_that_asks_for_nothing_needs_no_environment(
    tmp_path: Path, listed: str, needed: bool
) -> None:
    source = write_tool(
        tmp_path / "src", "x", pyproject__toml=f"[project]\ndependencies = {listed}\n"
    )
    assert needs_sync(add_tool(str(source), tmp_path / "tools")) is needed


def test_what_cannot_be_added(tmp_path: Path) -> None:
    good, tools = write_tool(tmp_path / "src", "good"), tmp_path / "tools"
    write_tool(tools, "good")
    cases: list[tuple[Any, str | None, type[PxError], str]] = [
        (good, None, ConflictError, "is there already"),
        (good, "Good One", BadRequestError, "lower-case"),
        (good, "../x", BadRequestError, "lower-case"),
        (tmp_path / "src", None, BadRequestError, r"no folder with a tool\.json"),
        ("a\0b", None, BadRequestError, "is no folder"),
        ("example:compound-intrest", None, UnknownUnitError, "did you mean 'compound-interest'"),
        ("example:../x", None, UnknownUnitError, r"no example '\.\./x'"),
    ]
    for source, name, kind, words in cases:
        with pytest.raises(kind, match=words):
            add_tool(str(source), tools, name=name)
    bad = write_tool(tmp_path / "src", "bad", {"name": "bad", "concurrency": 0})
    with pytest.raises(ConfigError) as broken:
        add_tool(str(bad), tools)
    assert broken.value.extra["file"] == str(bad / "tool.json"), "the user's own"
    with pytest.raises(BadRequestError, match="contains the tools directory"):
        add_tool(str(good), good / "tools")
    assert left_in(tools) == ["good"]


def test_a_tool_is_removed_and_of_a_link_the_link_only(tmp_path: Path) -> None:
    tools, real = tmp_path / "tools", write_tool(tmp_path / "real", "x")
    (write_tool(tools, "y") / "out").symlink_to(tmp_path / "real")
    write_tool(tools, "broken", "{")
    (tools / "x").symlink_to(real)
    catalog, elsewhere = Catalog([tools]), Catalog([tmp_path / "real"])
    for name in ("x", "y", "broken"):
        assert remove_tool(catalog, name, tools) == tools / name
    assert (left_in(tools), left_in(real)) == ([], ["main.py", "tool.json"])
    with pytest.raises(ConflictError, match="lies outside"):
        remove_tool(elsewhere, "x", tools)
    remove_tool(elsewhere, "x", tools, anywhere=True)
    assert left_in(tmp_path / "real") == []

"""The catalog: read again when files change, and a broken tool harms no other."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisord_py.config.settings import ToolsSettings
from supervisord_py.errors import ConfigError, UnknownUnitError
from supervisord_py.tools import catalog as catalog_module
from supervisord_py.tools.catalog import Catalog
from tool_folders import age, pixie_manifest, write_tool


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the folders that were read, in order."""
    seen: list[str] = []
    real: Callable[..., Any] = catalog_module.load_tool

    def counted(folder: Path, settings: ToolsSettings) -> Any:
        seen.append(folder.name)
        return real(folder, settings)

    monkeypatch.setattr(catalog_module, "load_tool", counted)
    return seen


@pytest.mark.parametrize("name", ["../x", "/etc", "", "a/b", "a\0b", "..", ".", "x" * 300, "A", "tool:x", "\ud800"])
def test_names_that_cannot_be_are_refused_in_words(tmp_path: Path, name: str) -> None:
    write_tool(tmp_path.parent, "x") if name == "../x" else None
    with pytest.raises(UnknownUnitError, match="is no tool's name") as caught:
        Catalog([tmp_path]).get(name)
    assert len(caught.value.detail) < 400


def test_an_unknown_name_gets_the_nearest_or_the_example(tmp_path: Path) -> None:
    write_tool(tmp_path, "curve-fitting")
    with pytest.raises(UnknownUnitError) as caught:
        Catalog([tmp_path]).get("curve-fiting")
    assert "did you mean 'curve-fitting'?" in caught.value.detail
    assert caught.value.unit == "tool:curve-fiting"
    with pytest.raises(UnknownUnitError) as caught:
        Catalog([tmp_path]).get("text-stats")
    assert caught.value.hint == "pxctl tools add example:text-stats"


def test_who_asks_is_not_refused_for_what_an_earlier_look_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog_module, "FRESH_SECONDS", 600.0)
    catalog = Catalog([tmp_path])
    catalog.refresh()
    folder = write_tool(tmp_path, "x", "")
    with pytest.raises(ConfigError):
        catalog.get("x")
    (folder / "tool.json").write_text('{"name": "x", "concurrency": 2}')
    assert catalog.get("x").concurrency == 2
    (folder / "tool.json").write_text('{"name": "x", "concurrency": 33}')
    assert catalog.get("x").concurrency == 2, "a look serves for a while"
    monkeypatch.setattr(catalog_module, "FRESH_SECONDS", 0.0)
    assert catalog.get("x").concurrency == 33
    catalog.reconfigure([tmp_path / "elsewhere"], ToolsSettings())
    with pytest.raises(UnknownUnitError):
        catalog.get("x")


@pytest.mark.parametrize("file", [None, "tool.json", "main.py", ".env", ".venv/pyvenv.cfg"])
def test_what_changed_is_read_again_and_nothing_else(tmp_path: Path, reads: list[str], file: str | None) -> None:
    folder = write_tool(tmp_path, "x")
    age(folder)
    catalog = Catalog([tmp_path])
    catalog.refresh()
    if file is not None:
        (folder / file).parent.mkdir(exist_ok=True)
        with (folder / file).open("a") as changed:
            changed.write("\n")
        os.utime(folder / file, (1_600_000_000, 1_600_000_000))
    catalog.refresh()
    assert reads == (["x"] if file is None else ["x", "x"])


def test_two_folders_with_one_id_are_one_tool_and_one_error(tmp_path: Path) -> None:
    write_tool(tmp_path, "A folder", pixie_manifest("curve-fit"))
    write_tool(tmp_path, "b", pixie_manifest("curve-fit"))
    catalog = Catalog([tmp_path, tmp_path])
    assert catalog.get("curve-fit").folder == tmp_path / "A folder"
    first, second = catalog.entries()
    assert (first.name, second.name, second.folder) == ("curve-fit", "curve-fit", tmp_path / "b")
    assert second.error is not None
    assert "is hidden by" in second.error.detail


def test_a_look_without_descriptors_keeps_what_the_last_one_saw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tool(tmp_path, "kept")
    catalog = Catalog([tmp_path])
    assert len(catalog.entries()) == 1

    def none_left(path: object) -> object:
        raise OSError(errno.EMFILE, "Too many open files", str(path))

    monkeypatch.setattr(os, "scandir", none_left)
    assert len(catalog.entries()) == 1

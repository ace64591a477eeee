"""New, added and removed tools: whole or not at all, and never over something that is there."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import supervisord_py
from supervisord_py.errors import BadRequestError, ConfigError, ConflictError, UnknownUnitError
from supervisord_py.tools.checking.validate import validate_tool
from supervisord_py.tools.declaring.catalog import Catalog
from supervisord_py.tools.making.add import DiskError, RemovalScope, add_tool, placed, remove_tool
from supervisord_py.tools.making.scaffold import REQUEST, Template, new_tool
from supervisord_py.tools.making.sync import lacks_bytecode
from tool_folders import pixie_manifest, write_tool

if TYPE_CHECKING:
    from tools.tool_house import ToolHouse

EXAMPLES = Path(supervisord_py.__file__).parent / "examples" / "tools"


def left_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


@pytest.mark.parametrize("template", list(Template))
async def test_a_new_tool_works_at_once(house: ToolHouse, template: Template, request: pytest.FixtureRequest) -> None:
    if template is Template.NODE:
        request.getfixturevalue("require")(shutil.which("node") is not None, "node is not installed")
    folder = await asyncio.to_thread(new_tool, house.tools, "my-tool", template)
    assert left_in(house.tools) == ["my-tool"]
    assert (folder.stat().st_mode & 0o777) == 0o700
    assert "pxctl run my-tool" in (folder / "README.md").read_text()
    report = await validate_tool(house.launcher, folder, datetime.now(UTC))
    assert report["overall"] == "pass", report
    assert report["sample_output"] == {"result": "hello" * REQUEST["times"], "length": 15}


def test_a_new_tool_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("/nowhere")
    with pytest.raises(ConflictError):
        new_tool(tmp_path, "x")
    with pytest.raises(BadRequestError):
        new_tool(tmp_path, "../x")
    assert left_in(tmp_path) == ["x"]


def test_two_at_once_cannot_both_win(tmp_path: Path) -> None:

    def lose() -> None:
        with placed(tmp_path / "x") as draft:
            draft.mkdir()
            (tmp_path / "x").mkdir()
            (tmp_path / "x" / "file").touch()

    with pytest.raises(ConflictError):
        lose()
    assert left_in(tmp_path) == ["x"]
    assert left_in(tmp_path / "x") == ["file"]


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskError, match="cannot write"):
        new_tool(tmp_path / "file" / "tools", "x")


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir() if (path / "tool.json").exists()))
def test_examples_can_be_added(tmp_path: Path, name: str) -> None:
    added = add_tool(f"example:{name}", tmp_path, examples_dir=EXAMPLES)
    assert added.spec.name == name
    assert added.spec.folder == tmp_path / name
    assert added.needs_sync == (EXAMPLES / name / "requirements.txt").exists()
    assert not added.needs_compile
    assert left_in(tmp_path) == [name]


def test_a_folder_is_copied_without_what_is_no_part_of_the_tool(tmp_path: Path) -> None:
    source = write_tool(tmp_path / "src", "x", extra__txt="1")
    for name in ("__pycache__", ".git", ".venv.old", "data/__pycache__"):
        (source / name).mkdir(parents=True)
    (source / "link").symlink_to("extra.txt")
    os.mkfifo(source / "pipe")
    add_tool(str(source), tmp_path / "tools", examples_dir=EXAMPLES)
    copy = tmp_path / "tools" / "x"
    assert left_in(copy) == ["data", "extra.txt", "link", "main.py", "tool.json"]
    assert left_in(copy / "data") == ["__pycache__"]
    assert os.readlink(copy / "link") == "extra.txt"


def test_a_virtual_environment_comes_along_and_may_want_bytecode(tmp_path: Path) -> None:
    source = write_tool(tmp_path / "src", "x", requirements__txt="demo")
    package = source / ".venv" / "lib" / "python3.11" / "site-packages" / "demo"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package.parent / "single.py").touch()
    added = add_tool(str(source), tmp_path / "tools", examples_dir=EXAMPLES)
    assert (added.needs_sync, added.needs_compile) == (False, True)
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "__init__.cpython-311.pyc").touch()
    assert not lacks_bytecode(source / ".venv")


def test_a_copy_declares_the_name_it_was_given_and_is_else_as_it_was(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    declared = {"version": "1.0", "description": "naïve", "name": "x", "env": {"name": "x"}}
    source = write_tool(tmp_path / "src", "x", declared)
    added = add_tool(str(source), tools, examples_dir=EXAMPLES, name="other-one")
    assert added.spec.name == "other-one"
    copied = json.loads((tools / "other-one" / "tool.json").read_text())
    assert list(copied.items()) == list((declared | {"name": "other-one"}).items())
    assert json.loads((source / "tool.json").read_text()) == declared


def test_a_pixie_tool_changes_its_id_and_keeps_its_title(tmp_path: Path) -> None:
    source = write_tool(tmp_path / "src", "x", pixie_manifest("x"))
    added = add_tool(str(source), tmp_path / "tools", examples_dir=EXAMPLES, name="other")
    assert added.spec.manifest == pixie_manifest("other")


def test_renaming_does_not_write_through_a_link(tmp_path: Path) -> None:
    source = write_tool(tmp_path / "src", "x")
    original = tmp_path / "elsewhere.json"
    (source / "tool.json").rename(original)
    (source / "tool.json").symlink_to(original)
    add_tool(str(source), tmp_path / "tools", examples_dir=EXAMPLES, name="other")
    assert json.loads(original.read_text()) == {"name": "x"}
    assert not (tmp_path / "tools" / "other" / "tool.json").is_symlink()


@pytest.mark.parametrize("manifest", ["{", "[]", "{}", {"name": 5}, {"name": "other", "version": 5}])
def test_a_declaration_that_cannot_be_renamed_is_refused_as_it_is(tmp_path: Path, manifest: Any) -> None:
    source = write_tool(tmp_path / "src", "x", manifest)
    with pytest.raises(ConfigError) as caught:
        add_tool(str(source), tmp_path / "tools", examples_dir=EXAMPLES, name="other")
    assert caught.value.extra["file"] == str(tmp_path / "tools" / "other" / "tool.json")
    assert left_in(tmp_path / "tools") == []


def test_what_cannot_be_added(tmp_path: Path) -> None:
    write_tool(tmp_path / "src", "bad", {"name": "bad", "concurrency": 0})
    write_tool(tmp_path / "src", "good")
    write_tool(tmp_path / "tools", "good")
    (tmp_path / "empty").mkdir()
    tools = tmp_path / "tools"

    def add(source: str, name: str | None = None) -> None:
        add_tool(source, tools, examples_dir=EXAMPLES, name=name)

    with pytest.raises(ConfigError) as broken:
        add(str(tmp_path / "src" / "bad"))
    assert broken.value.extra["file"] == str(tools / "bad" / "tool.json")
    assert broken.value.extra["errors"][0]["file"] == str(tools / "bad" / "tool.json")
    assert ".adding-" not in json.dumps(broken.value.problem())
    with pytest.raises(ConflictError):
        add(str(tmp_path / "src" / "good"))
    with pytest.raises(BadRequestError, match="is no folder"):
        add(str(tmp_path / "nowhere"))
    with pytest.raises(BadRequestError, match=r"holds no tool\.json"):
        add(str(tmp_path / "empty"))
    with pytest.raises(BadRequestError, match="lower-case"):
        add(str(tmp_path / "src" / "good"), "Good One")
    for source in ("", "a\0b"):
        with pytest.raises(BadRequestError, match="a folder or example:NAME"):
            add(source)
    with pytest.raises(UnknownUnitError, match="did you mean 'compound-interest'"):
        add("example:compound-intrest")
    with pytest.raises(UnknownUnitError, match=r"no example '\.\./x'"):
        add("example:../x")
    with pytest.raises(UnknownUnitError):
        add_tool("example:x", tools, examples_dir=tmp_path / "nowhere")
    assert left_in(tools) == ["good"]


def test_a_folder_is_not_copied_into_itself(tmp_path: Path) -> None:
    source = write_tool(tmp_path, "x")
    for tools in (source, source / "tools"):
        with pytest.raises(BadRequestError, match="contains the tools directory"):
            add_tool(str(source), tools, examples_dir=EXAMPLES)


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_tool(tmp_path / "src", "x")

    def broken(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copy2", broken)
    with pytest.raises(DiskError, match="No space left"):
        add_tool(str(source), tmp_path / "tools", examples_dir=EXAMPLES)
    assert left_in(tmp_path / "tools") == []


def test_broken_metadata_asks_for_a_sync_that_will_say_so(tmp_path: Path) -> None:
    source = write_tool(tmp_path / "src", "x", pyproject__toml="[[")
    assert add_tool(str(source), tmp_path / "tools", examples_dir=EXAMPLES).needs_sync
    own = write_tool(tmp_path / "src", "y", {"name": "y", "python": "python3"}, requirements__txt="a")
    assert not add_tool(str(own), tmp_path / "tools", examples_dir=EXAMPLES).needs_sync


def test_a_tool_is_removed(tmp_path: Path) -> None:
    write_tool(tmp_path, "x")
    write_tool(tmp_path, "broken", "{")
    catalog = Catalog([tmp_path])
    assert remove_tool(catalog, "x", tmp_path) == tmp_path / "x"
    remove_tool(catalog, "broken", tmp_path)
    assert left_in(tmp_path) == []
    with pytest.raises(UnknownUnitError):
        remove_tool(catalog, "x", tmp_path)


def test_a_link_loses_the_link_only(tmp_path: Path) -> None:
    real = write_tool(tmp_path / "real", "x")
    inside = write_tool(tmp_path / "tools", "y")
    (tmp_path / "tools" / "x").symlink_to(real)
    (inside / "out").symlink_to(tmp_path / "real")
    catalog = Catalog([tmp_path / "tools"])
    remove_tool(catalog, "x", tmp_path / "tools")
    remove_tool(catalog, "y", tmp_path / "tools")
    assert left_in(tmp_path / "tools") == []
    assert left_in(real) == ["main.py", "tool.json"]


def test_a_tool_of_another_directory_is_removed_only_when_that_is_meant(tmp_path: Path) -> None:
    write_tool(tmp_path / "extra", "x")
    catalog = Catalog([tmp_path / "own", tmp_path / "extra"])
    with pytest.raises(ConflictError, match="lies outside"):
        remove_tool(catalog, "x", tmp_path / "own")
    remove_tool(catalog, "x", tmp_path / "own", RemovalScope.ANYWHERE)
    assert left_in(tmp_path / "extra") == []


def test_a_tool_that_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tool(tmp_path, "x")

    def broken(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "rename", broken)
    with pytest.raises(DiskError, match="cannot remove"):
        remove_tool(Catalog([tmp_path]), "x", tmp_path)

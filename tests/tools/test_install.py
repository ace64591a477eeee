"""New, added and removed tools: whole or not at all, and never over something that is there."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from supervisord_py.errors import BadRequestError, ConfigError, ConflictError, PxError, UnknownUnitError
from supervisord_py.tools.catalog import Catalog, ToolsDiskError, add_tool, new_tool, placed, remove_tool
from supervisord_py.tools.environment import lacks_bytecode, needs_sync
from supervisord_py.tools.manifest import ToolSpec
from supervisord_py.tools.validate import validate_tool
from tool_folders import write_tool
from tools.tool_house import ToolHouse


def left_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


def add(tmp_path: Path, source: Path | str, name: str | None = None) -> ToolSpec:
    return add_tool(str(source), tmp_path / "tools", name=name)


async def test_a_new_tool_works_at_once(house: ToolHouse) -> None:
    folder = await asyncio.to_thread(new_tool, house.tools, "my-tool")
    assert left_in(house.tools) == ["my-tool"]
    assert (folder.stat().st_mode & 0o777) == 0o700
    report = await validate_tool(house.launcher, folder, datetime.now(UTC))
    assert {check["status"] for check in report["checks"]} <= {"pass", "skip"}, report
    assert {check["name"]: check["status"] for check in report["checks"]}["streaming_check"] == "pass"
    assert report["sample_output"] == {"result": "hellohellohello", "length": 15}
    assert not report["spawn_log"], "nothing is said of probes"


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "x").symlink_to("/nowhere")
    with pytest.raises(ConflictError):
        new_tool(tmp_path, "x")
    with pytest.raises(BadRequestError):
        new_tool(tmp_path, "../x")
    with pytest.raises(ConflictError), placed(tmp_path / "y") as draft:
        draft.mkdir()
        (tmp_path / "y" / "z").mkdir(parents=True)
    assert left_in(tmp_path) == ["x", "y"]
    (tmp_path / "file").touch()
    with pytest.raises(ToolsDiskError, match="cannot write"):
        new_tool(tmp_path / "file" / "tools", "x")


def test_a_folder_is_copied_without_what_is_no_part_of_the_tool(tmp_path: Path) -> None:
    source = write_tool(tmp_path / "src", "x", extra__txt="1", requirements__txt="demo")
    for name in ("__pycache__", ".git", ".venv.old", "data/__pycache__", ".venv/lib/python3.11/site-packages/demo"):
        (source / name).mkdir(parents=True)
    (source / ".venv/lib/python3.11/site-packages/demo/__init__.py").touch()
    (source / "link").symlink_to("extra.txt")
    added = add(tmp_path, source)
    copy = tmp_path / "tools" / "x"
    assert left_in(copy) == [".venv", "data", "extra.txt", "link", "main.py", "requirements.txt", "tool.json"]
    assert (left_in(copy / "data"), os.readlink(copy / "link")) == (["__pycache__"], "extra.txt")
    assert (needs_sync(added), lacks_bytecode(copy / ".venv")) == (False, True)


@pytest.mark.parametrize(("listed", "needed"), [("[]", False), ("['demo']", True), ("5", True)])
def test_a_project_that_asks_for_nothing_needs_no_environment(tmp_path: Path, listed: str, needed: bool) -> None:
    source = write_tool(tmp_path / "src", "x", pyproject__toml=f"[project]\ndependencies = {listed}\n")
    assert needs_sync(add(tmp_path, source)) is needed


def test_what_cannot_be_added(tmp_path: Path) -> None:
    good = write_tool(tmp_path / "src", "good")
    write_tool(tmp_path / "tools", "good")
    (tmp_path / "empty").mkdir()
    cases: list[tuple[Any, str | None, type[PxError], str]] = [
        (good, None, ConflictError, "is there already"),
        (good, "Good One", BadRequestError, "lower-case"),
        (tmp_path / "nowhere", None, BadRequestError, "is no folder"),
        (tmp_path / "empty", None, BadRequestError, r"no folder with a tool\.json"),
        ("a\0b", None, BadRequestError, "is no folder"),
        ("example:compound-intrest", None, UnknownUnitError, "did you mean 'compound-interest'"),
        ("example:../x", None, UnknownUnitError, r"no example '\.\./x'"),
    ]
    for source, name, kind, words in cases:
        with pytest.raises(kind, match=words):
            add(tmp_path, source, name)
    for manifest in ("{", "[]", {"name": 5}, {"name": "bad", "concurrency": 0}):
        with pytest.raises(ConfigError) as broken:
            add(tmp_path, write_tool(tmp_path / "src", "bad", manifest))
        assert broken.value.extra["file"] == str(tmp_path / "src" / "bad" / "tool.json"), "the user's own"
        assert ".adding-" not in json.dumps(broken.value.problem())
    with pytest.raises(BadRequestError, match="contains the tools directory"):
        add_tool(str(good), good / "tools")
    assert left_in(tmp_path / "tools") == ["good"]


def test_a_tool_is_removed_and_of_a_link_the_link_only(tmp_path: Path) -> None:
    tools, real = tmp_path / "tools", write_tool(tmp_path / "real", "x")
    (write_tool(tools, "y") / "out").symlink_to(tmp_path / "real")
    write_tool(tools, "broken", "{")
    (tools / "x").symlink_to(real)
    catalog = Catalog([tools])
    for name in ("x", "y", "broken"):
        assert remove_tool(catalog, name, tools) == tools / name
    assert (left_in(tools), left_in(real)) == ([], ["main.py", "tool.json"])
    with pytest.raises(UnknownUnitError):
        remove_tool(catalog, "x", tools)
    elsewhere = Catalog([tmp_path / "real"])
    with pytest.raises(ConflictError, match="lies outside"):
        remove_tool(elsewhere, "x", tools)
    remove_tool(elsewhere, "x", tools, anywhere=True)
    assert left_in(tmp_path / "real") == []

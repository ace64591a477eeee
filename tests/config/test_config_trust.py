"""Whose code runs as us: folders and files that others could have written are not used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisord_py.config.trust import untrusted, untrusted_directory
from supervisord_py.errors import ConfigError
from supervisord_py.pipes.catalog import PipeCatalog
from supervisord_py.pipes.models import BrokenPipe
from supervisord_py.tools.catalog import Catalog
from tool_folders import write_tool

STRANGER = 65534
PIPE = '---\nschedule: manual\nagent: command\ncommand: "/bin/true"\n---\nhi\n'


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o750])
def test_what_only_we_can_write_is_trusted(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    assert untrusted(tmp_path) is None


def test_our_own_group_may_write_and_another_may_not(tmp_path: Path, require_root: None) -> None:
    tmp_path.chmod(0o775)
    assert untrusted(tmp_path) is None
    os.chown(tmp_path, -1, STRANGER)
    assert f"the group {STRANGER}" in (untrusted(tmp_path) or "")
    tmp_path.chmod(0o755)
    assert untrusted(tmp_path) is None


def test_what_everybody_can_write_is_not_trusted(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert "by everybody (mode 0777)" in (untrusted(tmp_path) or "")
    tmp_path.chmod(0o1777)
    assert untrusted(tmp_path) is not None, "anybody may add to it"
    assert untrusted(tmp_path, sticky=True) is None, "but exchange nothing of ours"


def test_a_link_is_as_good_as_its_owner_and_its_target(tmp_path: Path, require_root: None) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.mkdir()
    link.symlink_to(target)
    assert untrusted(link) is None
    os.chown(link, STRANGER, STRANGER, follow_symlinks=False)
    assert f"{link} belongs to uid {STRANGER}" in (untrusted(link) or "")
    os.chown(link, 0, 0, follow_symlinks=False)
    target.chmod(0o777)
    assert str(target) in (untrusted(link) or "")


def test_a_directory_is_not_trusted_if_another_user_can_exchange_it(
    tmp_path: Path, require_root: None
) -> None:
    home = tmp_path / "home"
    (home / "tools").mkdir(parents=True)
    assert untrusted_directory(home / "tools") is None
    os.chown(home, STRANGER, STRANGER)
    assert f"{home} belongs to uid {STRANGER}" in (untrusted_directory(home / "tools") or "")


def test_what_is_not_there_is_nobodys(tmp_path: Path) -> None:
    assert untrusted(tmp_path / "nothing") is None


@pytest.mark.parametrize("place", ["pipes", "pipes/a", "pipes/a/pipe.md"])
def test_a_pipe_that_others_can_write_is_broken_until_that_is_mended(
    tmp_path: Path, place: str
) -> None:
    folder = tmp_path / "pipes" / "a"
    folder.mkdir(parents=True)
    (folder / "pipe.md").write_text(PIPE)
    catalog = PipeCatalog(tmp_path / "pipes")
    assert catalog.refresh() == [("added", "a")]
    path = tmp_path / place
    mode = path.stat().st_mode & 0o777
    for _ in (1, 2):
        path.chmod(0o777)
        assert not catalog.is_current("a")
        assert catalog.refresh() == [("broken", "a")]
        assert catalog.refresh() == [], "it is told once"
        pipe = catalog.declared("a")
        assert isinstance(pipe, BrokenPipe)
        assert str(path) in pipe.problem.message
        path.chmod(mode)
        assert catalog.refresh() == [("mended", "a")]


@pytest.mark.parametrize("place", [".", "x", "x/tool.json", "x/main.py"])
def test_a_tool_that_others_can_write_is_broken(tmp_path: Path, place: str) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    write_tool(tools, "x")
    path = tools / place
    mode = path.stat().st_mode & 0o777
    for _ in (1, 2):
        path.chmod(0o777)
        with pytest.raises(ConfigError, match="written by everybody"):
            Catalog([tools]).get("x")
        path.chmod(mode)
        assert Catalog([tools]).get("x").name == "x"


def test_a_tool_of_another_user_is_broken(tmp_path: Path, require_root: None) -> None:
    write_tool(tmp_path, "x")
    os.chown(tmp_path / "x", STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=f"belongs to uid {STRANGER}"):
        Catalog([tmp_path]).get("x")

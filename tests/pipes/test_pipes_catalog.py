"""The catalog sees what happens to the folders of pipes, reads only what changed, and tells each change once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pipe_texts import pipe_text, write_folder
from supervisord_py.errors import ConfigError, UnknownUnitError
from supervisord_py.pipes import catalog as catalog_module
from supervisord_py.pipes.catalog import (
    ChangeKind,
    DiskError,
    PipeCatalog,
    write_pipe,
)
from supervisord_py.pipes.models import BrokenPipe, PipeDefinition, usable

ADDED, CHANGED, REMOVED, BROKEN, MENDED = ChangeKind


class World:
    """A pipes directory; what does not read counts at once, unless `patience` says for how long it is waited for."""

    def __init__(self, pipes_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pipes_dir = pipes_dir
        self.catalog = PipeCatalog(pipes_dir)
        self._monkeypatch = monkeypatch
        self.patience(0.0)

    def patience(self, seconds: float) -> None:
        self._monkeypatch.setattr(catalog_module, "SETTLE_SECONDS", seconds)

    def refresh(self) -> list[tuple[ChangeKind, str]]:
        return [(each.kind, each.name) for each in self.catalog.refresh()]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path / "pipes", monkeypatch)


def test_the_life_of_a_pipe(world: World) -> None:
    assert world.refresh() == []
    folder = write_folder(world.pipes_dir, "a")
    write_folder(world.pipes_dir, "b", "timeout: soon")
    (world.pipes_dir / "notes.txt").write_text("x")
    (world.pipes_dir / "empty").mkdir()
    write_folder(world.pipes_dir, ".hidden")
    assert world.refresh() == [(ADDED, "a"), (BROKEN, "b")]
    assert list(world.catalog.pipes) == ["a", "b"]
    assert world.refresh() == []
    write_folder(world.pipes_dir, "a", "timeout: 5m")
    write_folder(world.pipes_dir, "b", "timeout: 6m")
    assert world.refresh() == [(CHANGED, "a"), (MENDED, "b")]
    assert getattr(world.catalog.declared("a"), "timeout_seconds", None) == 300
    write_folder(world.pipes_dir, "b", "timeout: soon")
    (folder / "pipe.md").unlink()
    folder.rmdir()
    assert world.refresh() == [(REMOVED, "a"), (BROKEN, "b")]
    assert world.catalog.pipes.get("a") is None
    assert isinstance(world.catalog.pipes.get("b"), BrokenPipe)
    write_folder(world.pipes_dir, "b", "timeout: later")
    assert world.refresh() == [(BROKEN, "b")]


def test_one_pipe_is_looked_at_alone_and_read_only_where_it_changed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(world.pipes_dir, "a")
    assert isinstance(world.catalog.fresh("a"), PipeDefinition), "it is not known yet"
    assert world.catalog.fresh("../a") is None
    world.refresh()
    with monkeypatch.context() as patch:
        patch.setattr(catalog_module, "read_pipe", pytest.fail)
        patch.setattr(catalog_module.os, "scandir", pytest.fail)
        assert world.catalog.fresh("a") is world.catalog.pipes.get("a")
        assert world.catalog.fresh("b") is None
    (folder / "pipe.md").write_text("---\ntime")
    assert isinstance(world.catalog.fresh("a"), BrokenPipe)
    (folder / "pipe.md").unlink()
    assert world.catalog.fresh("a") is world.catalog.pipes.get("a"), "an editor may be about to put it back"


def test_links_to_folders_and_files_are_followed(world: World, tmp_path: Path) -> None:
    kept = write_folder(tmp_path / "dotfiles", "kept")
    world.pipes_dir.mkdir()
    (world.pipes_dir / "a").symlink_to(kept)
    (world.pipes_dir / "b").mkdir()
    (world.pipes_dir / "b" / "pipe.md").symlink_to(kept / "pipe.md")
    (world.pipes_dir / "nowhere").symlink_to(tmp_path / "absent")
    (world.pipes_dir / "c").mkdir()
    (world.pipes_dir / "c" / "pipe.md").symlink_to(tmp_path / "absent.md")
    assert world.refresh() == [(ADDED, "a"), (ADDED, "b"), (BROKEN, "c")]
    found = world.catalog.pipes.get("c")
    assert isinstance(found, BrokenPipe)
    assert "link that leads nowhere" in found.problem.hint
    (kept / "pipe.md").write_text(pipe_text("timeout: 7"))
    assert world.refresh() == [(CHANGED, "a"), (CHANGED, "b")]
    (tmp_path / "absent.md").write_text(pipe_text())
    assert world.refresh() == [(MENDED, "c")]


def test_a_file_that_makes_no_sense_the_moment_it_was_written_gets_a_second_look(world: World) -> None:
    folder = write_folder(world.pipes_dir, "a")
    world.refresh()
    world.patience(1000.0)
    (folder / "pipe.md").write_text("---\ntime")
    assert (world.refresh(), world.catalog.unsettled) == ([], True)
    (folder / "pipe.md").write_text(pipe_text("timeout: 9"))
    assert (world.refresh(), world.catalog.unsettled) == ([(CHANGED, "a")], False)
    (folder / "pipe.md").write_text("---\ntime")
    assert world.refresh() == []
    world.patience(0.0)
    assert (world.refresh(), world.catalog.unsettled) == ([(BROKEN, "a")], False)


def test_a_file_that_an_editor_moves_away_and_back_is_no_removal(world: World) -> None:
    file = write_folder(world.pipes_dir, "a") / "pipe.md"
    world.refresh()
    world.patience(1000.0)
    file.rename(file.with_suffix(".bak"))
    assert (world.refresh(), world.catalog.unsettled) == ([], True)
    file.with_suffix(".bak").rename(file)
    assert (world.refresh(), world.catalog.unsettled) == ([], False)
    file.unlink()
    assert world.refresh() == []
    world.patience(0.0)
    assert world.refresh() == [(REMOVED, "a")]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO])
def test_a_look_without_descriptors_changes_nothing(world: World, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    write_folder(world.pipes_dir, "a")
    world.refresh()

    def blind(*_args: object, **_kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(catalog_module.os, "open", blind)
        write_folder_by_hand = world.pipes_dir / "a" / "pipe.md"
        os.utime(write_folder_by_hand)
        assert world.refresh() == []
        assert "cannot read" in (world.catalog.trouble or "")
        assert world.catalog.fresh("a") is world.catalog.pipes.get("a")
    with monkeypatch.context() as patch:
        patch.setattr(catalog_module.os, "scandir", blind)
        assert world.refresh() == []
        assert "cannot look into" in (world.catalog.trouble or "")
    assert world.refresh() == []
    assert world.catalog.trouble is None


def test_writing_goes_through_links_keeps_the_mode_and_leaves_nothing_behind(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "real.md"
    real.parent.mkdir()
    real.write_bytes(b"\xef\xbb\xbfold\r\n")
    real.chmod(0o640)
    link = tmp_path / "pipe.md"
    link.symlink_to(real)
    write_pipe(link, "\ufeffnew\r\n")
    assert link.is_symlink()
    assert real.read_bytes() == b"\xef\xbb\xbfnew\r\n"
    assert real.stat().st_mode & 0o777 == 0o640
    write_pipe(tmp_path / "fresh.md", "x")
    assert (tmp_path / "fresh.md").stat().st_mode & 0o777 == 0o600
    assert sorted(each.name for each in tmp_path.rglob("*.md*")) == ["fresh.md", "pipe.md", "real.md"]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "pipe.md"
    file.write_text("old")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(catalog_module.os, "fsync", full)
    with pytest.raises(DiskError, match="No space left"):
        write_pipe(file, "new")
    assert file.read_text() == "old"
    assert os.listdir(tmp_path) == ["pipe.md"]
    with pytest.raises(DiskError):
        write_pipe(tmp_path / "absent" / "pipe.md", "x")


def test_a_usable_pipe_is_given_and_all_others_say_why(world: World) -> None:
    write_folder(world.pipes_dir, "digest")
    write_folder(world.pipes_dir, "broken", "a: *x")
    world.refresh()
    with pytest.raises(ConfigError, match=r"pipe\.md, line 2, .* begins with \*") as caught:
        usable(world.catalog.declared("broken"))
    assert caught.value.unit == "pipe:broken"
    with pytest.raises(UnknownUnitError, match="did you mean 'digest'"):
        world.catalog.declared("digset")

"""The catalog sees what happens to the folders of pipes, reads only what changed, and tells each change once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pipe_texts import pipe_text, write_folder
from supervisord_py.errors import ConfigError, UnknownUnitError
from supervisord_py.pipes import catalog as catalog_module
from supervisord_py.pipes.catalog import DiskError, PipeCatalog, write_pipe
from supervisord_py.pipes.models import BrokenPipe, usable

ADDED, CHANGED, REMOVED, BROKEN, MENDED = "added", "changed", "removed", "broken", "mended"


@pytest.fixture
def catalog(tmp_path: Path) -> PipeCatalog:
    return PipeCatalog(tmp_path / "pipes")


def look(catalog: PipeCatalog) -> list[tuple[str, str]]:
    return [(each.kind, each.name) for each in catalog.refresh()]


def test_the_life_of_a_pipe(catalog: PipeCatalog) -> None:
    assert look(catalog) == []
    folder = write_folder(catalog.pipes_dir, "a")
    write_folder(catalog.pipes_dir, "b", "timeout: soon")
    (catalog.pipes_dir / "notes.txt").write_text("x")
    (catalog.pipes_dir / "empty").mkdir()
    write_folder(catalog.pipes_dir, ".hidden")
    assert look(catalog) == [(ADDED, "a"), (BROKEN, "b")]
    assert (list(catalog.pipes), look(catalog)) == (["a", "b"], [])
    write_folder(catalog.pipes_dir, "a", "timeout: 5m")
    write_folder(catalog.pipes_dir, "b", "timeout: 6m")
    assert not catalog.is_current("a")
    assert look(catalog) == [(CHANGED, "a"), (MENDED, "b")]
    assert catalog.is_current("a")
    assert getattr(catalog.declared("a"), "timeout_seconds", None) == 300
    write_folder(catalog.pipes_dir, "b", "timeout: soon")
    (folder / "pipe.md").unlink()
    folder.rmdir()
    assert not catalog.is_current("a")
    assert look(catalog) == [(REMOVED, "a"), (BROKEN, "b")]
    write_folder(catalog.pipes_dir, "b", "timeout: later")
    assert look(catalog) == [(BROKEN, "b")]
    with pytest.raises(ConfigError, match=r"pipe\.md, line 2, .* is no time") as caught:
        usable(catalog.declared("b"))
    assert caught.value.unit == "pipe:b"
    write_folder(catalog.pipes_dir, "digest")
    look(catalog)
    with pytest.raises(UnknownUnitError, match="did you mean 'digest'"):
        catalog.declared("digset")


def test_links_to_folders_and_files_are_followed(catalog: PipeCatalog, tmp_path: Path) -> None:
    kept = write_folder(tmp_path / "dotfiles", "kept")
    catalog.pipes_dir.mkdir()
    (catalog.pipes_dir / "a").symlink_to(kept)
    for name, target in (("b", kept / "pipe.md"), ("c", tmp_path / "absent.md")):
        (catalog.pipes_dir / name).mkdir()
        (catalog.pipes_dir / name / "pipe.md").symlink_to(target)
    (catalog.pipes_dir / "nowhere").symlink_to(tmp_path / "absent")
    assert look(catalog) == [(ADDED, "a"), (ADDED, "b"), (BROKEN, "c")]
    found = catalog.pipes["c"]
    assert isinstance(found, BrokenPipe)
    assert "link that leads nowhere" in (found.problem.hint or "")
    (kept / "pipe.md").write_text(pipe_text("timeout: 7"))
    (tmp_path / "absent.md").write_text(pipe_text())
    assert look(catalog) == [(CHANGED, "a"), (CHANGED, "b"), (MENDED, "c")]


def test_a_file_that_an_editor_moves_away_and_back_is_no_removal(
    catalog: PipeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_folder(catalog.pipes_dir, "a") / "pipe.md"
    look(catalog)
    monkeypatch.setattr(catalog_module, "SETTLE_SECONDS", 1000.0)
    file.rename(file.with_suffix(".bak"))
    assert look(catalog) == []
    file.with_suffix(".bak").rename(file)
    assert look(catalog) == []
    file.unlink()
    assert look(catalog) == []
    monkeypatch.setattr(catalog_module, "SETTLE_SECONDS", 0.0)
    assert look(catalog) == [(REMOVED, "a")]


def test_what_cannot_be_looked_at_for_now_is_no_removal_and_looked_at_again(
    catalog: PipeCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_folder(catalog.pipes_dir, "a") / "pipe.md"
    look(catalog)

    def blind(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(catalog_module.os, "open", blind)
        os.utime(file)
        assert look(catalog) == [(BROKEN, "a")]
    assert look(catalog) == [(MENDED, "a")]
    with monkeypatch.context() as patch:
        patch.setattr(catalog_module.os, "scandir", blind)
        assert look(catalog) == []
        assert "cannot look into" in (catalog.trouble or "")
    assert (look(catalog), catalog.trouble) == ([], None)


def test_writing_goes_through_links_keeps_the_mode_and_leaves_nothing_behind(tmp_path: Path) -> None:
    real = tmp_path / "dotfiles" / "real.md"
    real.parent.mkdir()
    real.write_bytes(b"\xef\xbb\xbfold\r\n")
    real.chmod(0o640)
    link = tmp_path / "pipe.md"
    link.symlink_to(real)
    write_pipe(link, "\ufeffnew\r\n")
    assert link.is_symlink()
    assert (real.read_bytes(), real.stat().st_mode & 0o777) == (b"\xef\xbb\xbfnew\r\n", 0o640)
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
    assert (file.read_text(), os.listdir(tmp_path)) == ("old", ["pipe.md"])

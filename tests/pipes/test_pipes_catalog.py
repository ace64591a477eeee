"""The catalog sees what happens to the folders of pipes, reads only what changed, and tells each change once."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from pipe_texts import pipe_text, write_folder
from supervisord_py.errors import UnknownUnitError
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
    assert (catalog.is_current("a"), usable(catalog.declared("a")).timeout_seconds) == (True, 300)
    (folder / "pipe.md").unlink()
    folder.rmdir()
    assert not catalog.is_current("a")
    for wrong, more in (("soon", [(REMOVED, "a")]), ("later", [])):
        write_folder(catalog.pipes_dir, "b", f"timeout: {wrong}")
        assert look(catalog) == [*more, (BROKEN, "b")]
    with pytest.raises(UnknownUnitError, match="did you mean 'b'"):
        catalog.declared("bb")


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

    for call, told, trouble in (("open", [(BROKEN, "a")], False), ("scandir", [], True)):
        with monkeypatch.context() as patch:
            patch.setattr(catalog_module.os, call, blind)
            os.utime(file)
            assert (look(catalog), "cannot look into" in (catalog.trouble or "")) == (told, trouble)
        assert (look(catalog), catalog.trouble) == ([] if trouble else [(MENDED, "a")], None)


def test_writing_goes_through_links_keeps_the_mode_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, link = tmp_path / "dotfiles" / "real.md", tmp_path / "pipe.md"
    real.parent.mkdir()
    real.write_bytes(b"\xef\xbb\xbfold\r\n")
    real.chmod(0o640)
    link.symlink_to(real)
    write_pipe(link, "\ufeffnew\r\n")
    write_pipe(tmp_path / "fresh.md", "x")
    assert (real.read_bytes(), real.stat().st_mode & 0o777) == (b"\xef\xbb\xbfnew\r\n", 0o640)
    assert (link.is_symlink(), (tmp_path / "fresh.md").stat().st_mode & 0o777) == (True, 0o600)

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(catalog_module.os, "fsync", full)
    with pytest.raises(DiskError, match="No space left"):
        write_pipe(link, "newer")
    assert real.read_bytes() == b"\xef\xbb\xbfnew\r\n"
    assert sorted(each.name for each in tmp_path.rglob("*.md*")) == ["fresh.md", "pipe.md", "real.md"]

"""Pipes are added whole, validated and disabled, from folders, files, addresses and the examples; or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipe_texts import pipe_text, pipes_config, write_folder
from supervisord_py.errors import BadRequestError, ConfigError, ConflictError, UnknownUnitError
from supervisord_py.pipes import files
from supervisord_py.pipes.catalog import DiskError, read_pipe
from supervisord_py.pipes.models import PipeDefinition
from supervisord_py.pipes.schedule import Manual


async def add(pipes_dir: Path, source: str, name: str | None = None) -> PipeDefinition:
    return await files.add(source, pipes_config(pipes_dir.parent, pipes_dir=pipes_dir), name=name)


def left_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder)) if folder.exists() else []


async def test_a_folder_is_copied_without_what_its_runs_left(tmp_path: Path) -> None:
    origin = write_folder(tmp_path / "from", "mine", "schedule: every 5m  # often\nenabled: yes\n")
    (origin / "agent.sh").write_text("#!/bin/sh\n")
    (origin / "agent.sh").chmod(0o755)
    (origin / ".env").write_text("KEY=1\n")
    (origin / ".env").chmod(0o644)
    (origin / "lib").mkdir()
    (origin / "lib" / "output").write_text("kept: not at the top\n")
    (origin / "link").symlink_to("agent.sh")
    for left in ("output", ".git"):
        (origin / left).mkdir()
    pipes_dir = tmp_path / "pipes"
    added = await add(pipes_dir, str(origin))
    folder = pipes_dir / "mine"
    assert added.folder == folder
    assert not added.enabled
    assert (folder / "pipe.md").read_text() == pipe_text("schedule: every 5m  # often\nenabled: false\n")
    assert left_in(folder) == [".env", "agent.sh", "lib", "link", "pipe.md"]
    assert left_in(folder / "lib") == ["output"]
    assert os.access(folder / "agent.sh", os.X_OK)
    assert [(folder / each).stat().st_mode & 0o777 for each in (".env", "pipe.md", ".")] == [0o600, 0o600, 0o700]
    assert left_in(pipes_dir) == ["mine"]
    assert (origin / "pipe.md").read_text().count("enabled: yes") == 1


async def test_one_file_is_a_pipe_too(tmp_path: Path) -> None:
    path = tmp_path / "around" / "pipe.md"
    path.parent.mkdir()
    path.write_bytes(b"\xef\xbb\xbf---\r\nname: N\r\n---\r\nDo\r\nit.\r\n")
    added = await add(tmp_path / "pipes", str(path))
    assert added.name == "around"
    written = (added.folder / "pipe.md").read_bytes()
    assert written == b"\xef\xbb\xbf---\r\nname: N\r\nenabled: false\r\n---\r\nDo\r\nit.\r\n"


@pytest.mark.parametrize(
    ("source", "name", "error", "words"),
    [
        ("", None, BadRequestError, "there is no file or folder"),
        ("http://example.org/x/pipe.md", None, BadRequestError, "http:// is refused"),
        ("{tmp}/Two words.md", None, BadRequestError, "is not 1 to"),
        ("https://example.org/x.md", "a b", BadRequestError, "is not 1 to"),
        ("{tmp}/absent", None, BadRequestError, "there is no file or folder"),
        ("{tmp}/good", "../x", BadRequestError, "is not 1 to"),
        ("{tmp}/good", "taken", ConflictError, "is there already"),
        ("https://example.org/taken/pipe.md", None, ConflictError, "is there already"),
        ("{tmp}/bad", None, ConfigError, "'continuous' is no schedule"),
        ("{tmp}", "x", BadRequestError, "contains the pipes directory"),
    ],
)
async def test_what_is_refused_leaves_nothing(
    tmp_path: Path, source: str, name: str | None, error: type[Exception], words: str
) -> None:
    write_folder(tmp_path, "good")
    write_folder(tmp_path, "bad", "schedule: continuous")
    (tmp_path / "pipe.md").write_text(pipe_text())
    (tmp_path / "Two words.md").write_text(pipe_text())
    write_folder(tmp_path / "pipes", "taken")
    with pytest.raises(error) as caught:
        await add(tmp_path / "pipes", source.format(tmp=tmp_path), name)
    assert words in str(caught.value)
    assert left_in(tmp_path / "pipes") == ["taken"]
    if isinstance(caught.value, ConfigError):
        assert caught.value.detail.startswith(f"{tmp_path}/bad/pipe.md:2:")
        assert "add it again" in (caught.value.hint or "")
    if isinstance(caught.value, ConflictError):
        assert "--name taken-2" in (caught.value.hint or "")


async def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    origin = write_folder(tmp_path / "from", "mine")
    (origin / "big").write_text("x")

    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("supervisord_py.pipes.files.shutil.copytree", full)
    with pytest.raises(DiskError, match="No space left"):
        await add(tmp_path / "pipes", str(origin))
    assert left_in(tmp_path / "pipes") == []


def test_a_removed_folder_is_gone_and_a_link_loses_the_link_only(tmp_path: Path) -> None:
    real = write_folder(tmp_path / "real", "a")
    (tmp_path / "link").symlink_to(real)
    files.delete(tmp_path / "link")
    assert real.exists()
    files.delete(real)
    files.delete(real)
    assert left_in(tmp_path / "real") == []


async def test_the_examples_are_added_by_name(tmp_path: Path) -> None:
    added = await add(tmp_path, "example:disk-digest")
    assert added.agent == "command"
    assert os.access(added.folder / "digest.sh", os.X_OK)
    with pytest.raises(UnknownUnitError, match="did you mean 'disk-digest'"):
        await add(tmp_path, "example:disk-digets")


def test_a_new_pipe_is_usable_and_runs_by_hand_only(tmp_path: Path) -> None:
    folder = files.scaffold("mine", tmp_path / "pipes")
    found = read_pipe(folder)
    assert isinstance(found, PipeDefinition)
    assert found.schedule == Manual()
    assert found.warnings == ()
    assert folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(ConflictError):
        files.scaffold("mine", tmp_path / "pipes")
    with pytest.raises(BadRequestError):
        files.scaffold("a/b", tmp_path / "pipes")
    (tmp_path / "file").write_text("x")
    with pytest.raises(DiskError):
        files.scaffold("mine", tmp_path / "file")

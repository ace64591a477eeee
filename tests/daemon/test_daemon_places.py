"""Directories are private from their first instant, and never somebody else's."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from supervisord_py.daemon.paths import PlaceError, guard_directory, make_places, resolve_paths
from supervisord_py.errors import EXIT_PERMISSION, ForbiddenError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from supervisord_py.daemon.paths import Paths


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def paths_in(folder: Path, **environ: str) -> Paths:
    return resolve_paths({"PX_HOME": str(folder), **environ})


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_every_directory_is_private_under_any_umask(umask: int, tmp_path: Path) -> None:
    home = tmp_path / "a/b"
    paths = paths_in(home, PX_SOCKET=str(tmp_path / "elsewhere/x.sock"))
    make_places(paths)
    made = [paths.run_dir, paths.state_dir, paths.log_dir, paths.tools_dir, paths.pipes_dir, home, home.parent]
    assert {path.name: mode(path) for path in [*made, tmp_path / "elsewhere"]} == dict.fromkeys(
        [path.name for path in [*made, tmp_path / "elsewhere"]], 0o700
    )


def test_they_are_never_open_not_even_for_an_instant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The call itself is asked for 0700; chmod only ever adds the owner's own bits."""
    asked = []
    real = os.mkdir

    def watch(path: Path, mode: int = 0o777) -> None:
        asked.append(mode)
        real(path, mode)

    monkeypatch.setattr(os, "mkdir", watch)
    make_places(paths_in(tmp_path / "h"))
    assert set(asked) == {0o700}


def test_an_open_directory_of_ours_is_closed(tmp_path: Path) -> None:
    paths = paths_in(tmp_path)
    paths.run_dir.mkdir()
    paths.run_dir.chmod(0o777)
    make_places(paths)
    assert mode(paths.run_dir) == 0o700


def test_what_is_not_ours_alone_is_left_as_it_is(tmp_path: Path) -> None:
    """The folder of tools may be a checkout, PX_HOME and the socket's folder may be shared."""
    tmp_path.chmod(0o755)
    paths = paths_in(tmp_path, PX_SOCKET=str(tmp_path / "pub/x.sock"))
    for shared in (paths.tools_dir, tmp_path / "pub"):
        shared.mkdir()
        shared.chmod(0o755)
    make_places(paths)
    assert {mode(paths.tools_dir), mode(tmp_path / "pub"), mode(tmp_path)} == {0o755}


@pytest.mark.parametrize("which", ["run", "state"])
def test_a_symbolic_link_is_refused(which: str, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / which).symlink_to(tmp_path / "target")
    with pytest.raises(ForbiddenError, match="symbolic link") as caught:
        make_places(paths_in(tmp_path))
    assert str(tmp_path / which) in caught.value.detail
    assert caught.value.exit_code == EXIT_PERMISSION


def test_somebody_elses_directory_is_refused_and_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(ForbiddenError, match=rf"belongs to uid {os.getuid()}, not to uid 4242"):
        guard_directory(tmp_path)
    assert mode(tmp_path) == 0o755


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").touch()
    with pytest.raises(PlaceError, match=r"cannot use .*/run as a directory: Not a directory"):
        make_places(paths_in(tmp_path))
    with pytest.raises(PlaceError, match="Not a directory"):
        make_places(paths_in(tmp_path / "run"))


def test_a_place_that_may_not_be_made_is_a_matter_of_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(ForbiddenError, match="Permission denied"):
        make_places(paths_in(tmp_path))


def test_two_starts_at_once_do_not_trip_over_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.mkdir

    def late(path: Path, mode: int) -> None:
        real(path, mode)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "mkdir", late)
    make_places(paths_in(tmp_path))
    assert (tmp_path / "run").is_dir()

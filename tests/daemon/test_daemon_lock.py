"""One daemon a directory."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisord_py.daemon.lock import Holder, read_holder, sign_lock, start_time, take_lock


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def test_the_lock_is_signed_and_not_inherited(tmp_path: Path) -> None:
    path = tmp_path / "pxd.lock"
    fd = take_lock(path)
    sign_lock(fd)
    assert read_holder(path) == Holder(os.getpid(), start_time(os.getpid()))
    assert not os.get_inheritable(fd)
    os.close(fd)


def test_a_held_lock_of_a_dead_keeper_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What guards a killed keeper holds the lock until it has cleaned up; then the start goes on."""
    path = tmp_path / "pxd.lock"
    guard = take_lock(path)
    path.write_text(f"{dead_pid()} 1\n")
    turns = []

    def turn(seconds: float) -> None:
        turns.append(seconds)
        if len(turns) == 3:
            os.close(guard)

    monkeypatch.setattr(time, "sleep", turn)
    os.close(take_lock(path))
    assert len(turns) == 3


def test_a_pid_that_was_given_away_again_is_no_holder() -> None:
    """The recorded pid lives, but started at another time: the holder is dead."""
    own = start_time(os.getpid())
    assert Holder(os.getpid(), own).alive
    assert Holder(os.getpid(), 0).alive
    assert not Holder(os.getpid(), own + 1).alive
    assert not Holder(dead_pid(), 0).alive


@pytest.mark.parametrize("replaced", [True, False])
def test_a_lock_file_that_was_removed_meanwhile_is_locked_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, replaced: bool
) -> None:
    """Between open and flock the file may be unlinked, or another may take its name: only the named one counts."""
    path = tmp_path / "pxd.lock"
    real = fcntl.flock
    raced: list[int] = []

    def racing(fd: int, operation: int) -> None:
        real(fd, operation)
        if not raced:
            raced.append(fd)
            path.unlink()
            if replaced:
                path.touch()

    monkeypatch.setattr(fcntl, "flock", racing)
    fd = take_lock(path)
    assert os.fstat(fd).st_ino == path.stat().st_ino
    os.close(fd)

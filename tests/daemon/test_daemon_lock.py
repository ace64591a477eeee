"""One daemon a directory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from supervisord_py.daemon.lock import holder, sign_lock, take_lock


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def test_the_lock_is_signed_and_not_inherited(tmp_path: Path) -> None:
    path = tmp_path / "pxd.lock"
    fd = take_lock(path)
    sign_lock(fd)
    assert holder(path) == os.getpid()
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


def test_a_pid_that_was_given_away_again_is_no_holder(tmp_path: Path) -> None:
    path = tmp_path / "pxd.lock"
    path.write_text(f"{os.getpid()} 1\n")
    assert holder(path) is None, "it started at another time"
    for text in (f"{dead_pid()} 1", "", "x y"):
        path.write_text(text)
        assert holder(path) is None

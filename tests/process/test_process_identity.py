"""Identity: the pid alone proves nothing; what cannot be seen is unknown, not dead."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import psutil
import pytest

from supervisord_py.process import identity
from supervisord_py.process.spec import Identity, Liveness

if TYPE_CHECKING:
    from pathlib import Path

linux = pytest.mark.skipif(sys.platform != "linux", reason="only on macOS there is no /proc")


def test_this_process_has_an_identity_and_lives() -> None:
    found = identity.identity_of(os.getpid())
    assert found is not None
    assert found.pid == os.getpid()
    assert found.start_time == identity.start_time(os.getpid())
    assert identity.liveness(found) is Liveness.ALIVE


def test_another_process_with_the_same_pid_is_not_ours() -> None:
    found = identity.identity_of(os.getpid())
    assert found is not None
    assert identity.liveness(replace(found, start_time=found.start_time + 1)) is Liveness.DEAD


@linux
def test_nothing_of_an_earlier_boot_lives() -> None:
    found = identity.identity_of(os.getpid())
    assert found is not None
    assert identity.liveness(replace(found, boot_id="an earlier one")) is Liveness.DEAD
    assert identity.liveness(replace(found, boot_id="")) is Liveness.ALIVE  # recorded where boots have no names


def test_a_zombie_is_dead_and_so_is_what_was_reaped() -> None:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert child.stdin is not None
    found = identity.identity_of(child.pid)
    assert found is not None
    assert identity.liveness(found) is Liveness.ALIVE
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, not reaped
    assert identity.liveness(found) is Liveness.DEAD
    assert identity.identity_of(child.pid) is None
    child.wait()
    assert identity.liveness(found) is Liveness.DEAD


def test_there_is_no_process_below_one() -> None:
    assert identity.start_time(0) is None
    assert identity.liveness(Identity(-1, 5, "")) is Liveness.DEAD


@linux
def test_a_process_that_proc_hides_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hidepid there is no entry for another user's process."""
    monkeypatch.setattr(identity, "_PROC", str(tmp_path))
    assert identity.liveness(Identity(os.getpid(), 5, "")) is Liveness.UNKNOWN
    folder = tmp_path / str(os.getpid())
    folder.mkdir()
    (folder / "stat").write_text("1 (odd) name) R")
    assert identity.liveness(Identity(os.getpid(), 5, "")) is Liveness.UNKNOWN
    (folder / "stat").unlink()
    (folder / "stat").mkdir()  # an error that is neither "no such file" nor "no such process"
    assert identity.liveness(Identity(os.getpid(), 5, "")) is Liveness.UNKNOWN


def test_a_name_with_spaces_and_parentheses_does_not_confuse(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/cat")
    child = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        expected = psutil.Process(child.pid).create_time()
        found = identity.start_time(child.pid)
        assert found is not None
        if sys.platform == "linux":
            assert abs(psutil.boot_time() + found / os.sysconf("SC_CLK_TCK") - expected) < 2
    finally:
        child.communicate()


def test_the_rung_without_proc_agrees() -> None:
    started = identity.look_by_psutil(os.getpid())
    assert isinstance(started, int)
    assert started == identity.look_by_psutil(os.getpid())
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identity.look_by_psutil(child.pid) is Liveness.DEAD
    child.wait()
    assert identity.look_by_psutil(child.pid) is Liveness.DEAD


def test_what_psutil_may_not_see_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> psutil.Process:
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil, "Process", refuse)
    assert identity.look_by_psutil(1) is Liveness.UNKNOWN


def test_a_boot_without_a_name_has_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "_PROC", str(tmp_path))
    assert identity.boot_id.__wrapped__() == ""


def test_keys_are_fresh_name_their_daemon_and_sort_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {identity.new_key("0badc0de") for _ in range(30)}  # of a thousand two are alike in one run of two thousand
    assert len(keys) == 30
    assert all(len(key) == 21 and key.startswith("0badc0de.") for key in keys)
    made = []
    for seconds in (1_700_000_000, 1_700_000_001, 1_700_010_000):
        monkeypatch.setattr("time.time", lambda seconds=seconds: seconds)
        made.append(identity.new_key("0badc0de"))
    assert made == sorted(made)

"""Who a process is: the pid alone proves nothing, what cannot be seen is unknown, not dead."""

from __future__ import annotations

import os
import subprocess

import pytest
from msgspec.structs import replace

from supervisord_py.process import host
from supervisord_py.process.model import Identity


def identity_of(pid: int) -> Identity:
    return Identity(pid, host.start_time(pid) or 0, host.boot_id())


def test_this_process_lives_and_neither_its_pid_s_next_owner_nor_an_earlier_boot_does() -> None:
    found = identity_of(os.getpid())
    assert (found.pid, found.start_time) == (os.getpid(), host.start_time(os.getpid()))
    assert not host.is_dead(found)
    assert not host.is_dead(replace(found, boot_id=""))  # recorded where boots have no names
    assert host.is_dead(replace(found, start_time=found.start_time + 1))
    assert host.is_dead(replace(found, boot_id="an earlier one"))
    assert host.is_dead(Identity(-1, 5, ""))
    assert host.start_time(0) is None


def test_a_zombie_is_dead_and_so_is_what_was_reaped() -> None:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert child.stdin is not None
    found = identity_of(child.pid)
    assert not host.is_dead(found)
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, not reaped
    assert host.is_dead(found)
    child.wait()
    assert host.is_dead(found)


def test_keys_are_fresh_name_their_daemon_and_sort_by_age(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {host.new_key("0badc0de") for _ in range(30)}  # of a thousand two are alike in one run of two thousand
    assert len(keys) == 30
    assert all(len(key) == 21 and key.startswith("0badc0de.") for key in keys)
    made = []
    for seconds in (1_700_000_000, 1_700_000_001, 1_700_010_000):
        monkeypatch.setattr("time.time", lambda seconds=seconds: seconds)
        made.append(host.new_key("0badc0de"))
    assert made == sorted(made)

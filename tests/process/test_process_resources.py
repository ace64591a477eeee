"""Samples of single processes: cheap, and absent rather than wrong."""

from __future__ import annotations

import os
import subprocess

import psutil
import pytest

from supervisord_py.process.resources import Sampler


def test_the_first_look_has_memory_and_the_second_a_share() -> None:
    now = [100.0]
    sampler = Sampler(clock=lambda: now[0])
    first = sampler.sample([os.getpid()])[os.getpid()]
    assert first.rss_bytes > 1 << 20
    assert first.cpu_percent is None
    sum(range(2_000_000))
    now[0] += 2.0
    second = sampler.sample([os.getpid()])[os.getpid()]
    assert second.cpu_percent is not None
    assert second.cpu_percent == pytest.approx(100 * (second.cpu_seconds - first.cpu_seconds) / 2.0)
    third = sampler.sample([os.getpid()])[os.getpid()]
    assert third.cpu_percent is None  # no time passed: nothing to divide by


def test_what_is_gone_is_absent_and_forgotten() -> None:
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    sampler = Sampler()
    assert child.pid in sampler.sample([child.pid])
    child.communicate()
    assert sampler.sample([child.pid, os.getpid()]).keys() == {os.getpid()}


def test_a_reused_pid_starts_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    sampler = Sampler(clock=lambda: now[0])
    sampler.sample([os.getpid()])
    now[0] = 5.0
    monkeypatch.setattr(psutil.Process, "is_running", lambda _: False)
    assert sampler.sample([os.getpid()])[os.getpid()].cpu_percent is None

"""What needs no keeper: reasons of an end, identities, backoff, clocks."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from supervisord_py.keeper import procfs
from supervisord_py.process import clock
from supervisord_py.process.instance import describe, outcome
from supervisord_py.process.model import ExitRecord, Identity, Reason, Verdict
from supervisord_py.process.pool import Backoff, BackoffPolicy
from supervisord_py.process.supervisor import is_dead
from waiting import PATIENCE

RECORD = ExitRecord("k", "tool:x", Identity(1, 2, "b"), 10.0, 12.5, 0, None, 0.5, 0.25, 100, 0, 0)
KILLED = replace(RECORD, code=None, signal=9)
VERDICT = Verdict(Reason.MEMORY_LIMIT, "watchdog", 12.0, 9, 600 << 20, 512 << 20)


@pytest.mark.parametrize(
    ("record", "wanted", "ready", "reason"),
    [
        (replace(KILLED, verdict=VERDICT), Reason.STOPPED, True, Reason.MEMORY_LIMIT),
        (KILLED, Reason.EVICTED_TTL, False, Reason.EVICTED_TTL),
        (RECORD, None, False, Reason.EARLY_EXIT),
        (KILLED, None, True, Reason.SIGNAL),
        (replace(RECORD, code=137), None, True, Reason.EXIT),
    ],
)
def test_the_verdict_comes_first_then_the_wish_then_readiness_then_how_it_ended(
    record: ExitRecord, wanted: Reason | None, ready: bool, reason: Reason
) -> None:
    assert outcome(record, wanted, ready) is reason


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({}, VERDICT, "SIGKILL by pxd's memory watchdog (over its memory limit: 600 MiB resident, "
                      "limit 512 MiB)"),
        ({}, Verdict(Reason.OOM_KILL, "cgroup", 1.0, limit_bytes=512 << 20),
         "SIGKILL by the kernel (out of memory: limit 512 MiB)"),
        ({"signal": 24}, Verdict(Reason.CPU_LIMIT, "rlimit", 1.0),
         "SIGXCPU by the kernel (CPU limit reached: 0.8 s used)"),
    ],
)  # fmt: skip
def test_an_end_by_a_limit_is_told(changes: dict[str, Any], verdict: Verdict, words: str) -> None:
    assert describe(replace(KILLED, **changes), verdict) == f"killed by {words}, after 2.5 s"


# -- who a process is ------------------------------------------------------------------------------


def test_a_process_lives_until_it_is_a_zombie_and_nobody_else_is_taken_for_it() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        row = procfs.look(child.pid)
        assert row is not None
        found = Identity(child.pid, row.start_time, "")
        assert not is_dead(found)
        assert is_dead(replace(found, start_time=row.start_time + 1))
        child.communicate()  # closes its stdin; it ends
    assert is_dead(found)


# -- backoff ---------------------------------------------------------------------------------------


POLICY = BackoffPolicy(initial_seconds=1.0, max_seconds=10.0, reset_seconds=60.0)


def test_waits_double_up_to_a_cap_until_a_calm_period_makes_the_next_failure_the_first() -> None:
    assert Backoff(POLICY).came_up(5.0) == Backoff(POLICY)
    backoff, waits = Backoff(POLICY), []
    for _ in range(100):
        backoff = backoff.failed(0.0)
        waits.append(backoff.wait_seconds(0.0))
    assert waits == [1, 2, 4, 8, *([10] * 96)]
    failed = Backoff(POLICY).failed(5.0)
    assert [failed.wait_seconds(now) for now in (5.25, 6.0)] == [0.75, 0.0]
    tried = failed.settled(6.0)
    assert (failed.settled(5.5), tried.blocked_until, tried.failures) == (failed, None, 1)
    three = Backoff(POLICY).failed(0.0).failed(0.0).failed(0.0)
    up = three.came_up(10.0)
    assert (up.wait_seconds(10.0), up.settled(70.0)) == (0.0, Backoff(POLICY))
    assert [up.failed(now).failures for now in (69.0, 70.0)] == [4, 1]
    assert three.failed(64.0).failures == 1, "quiet for the whole period, though it never came up"


# -- clocks that are read together -----------------------------------------------------------------


@given(st.floats(-1e6, 1e6), st.lists(st.floats(0.0, 100.0), max_size=3 * (clock.TRIES - 1)))
def test_a_pause_between_two_readings_does_not_part_the_clocks(
    apart: float, stalls: list[float]
) -> None:
    """Two clocks go alike, one `apart` ahead; after each reading whoever reads is stopped for a
    while.
    """
    readings = itertools.accumulate([*stalls, *([0.0] * 9)], initial=1000.0)
    found = clock.ahead(lambda: next(readings) + apart, of=lambda: next(readings))
    assert abs(found - apart) < clock.NEAR_SECONDS + 1e-6


async def test_who_watches_is_called_when_the_timer_says_so(
    require: Callable[[object, str], None],
) -> None:
    """Only a virtual machine's clock may be set (tests/e2e/sleeper.py): here the timer is made
    to run out instead.
    """
    require(sys.platform == "linux", "needs Linux")
    called = asyncio.Event()
    os.close(free := os.dup(0))  # the number that the next descriptor gets
    with clock.watched(called.set):
        at_once = (ctypes.c_long * 4)(0, 0, 0, 1)  # struct itimerspec
        assert ctypes.CDLL(None).timerfd_settime(free, 0, at_once, None) == 0
        await asyncio.wait_for(called.wait(), PATIENCE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(free)

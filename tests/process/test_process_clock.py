"""Clocks that are read together."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisord_py.process import clock
from waiting import PATIENCE


class Stalled:
    """Two clocks that go alike, one `apart` ahead; after each reading whoever reads is stopped for a while."""

    def __init__(self, apart: float, stalls: list[float]) -> None:
        self.time = 1000.0
        self.apart = apart
        self.stalls = stalls

    def behind(self) -> float:
        found = self.time
        self.time += self.stalls.pop(0) if self.stalls else 0.0
        return found

    def ahead(self) -> float:
        return self.behind() + self.apart


@given(st.floats(-1e6, 1e6), st.lists(st.floats(0.0, 100.0), max_size=3 * (clock.TRIES - 1)))
def test_a_pause_between_two_readings_does_not_part_the_clocks(apart: float, stalls: list[float]) -> None:
    two = Stalled(apart, stalls)
    assert abs(clock.ahead(two.ahead, of=two.behind) - apart) < clock.NEAR_SECONDS + 1e-6


async def test_who_watches_is_called_when_the_timer_says_so(require: Callable[[object, str], None]) -> None:
    """Only a virtual machine's clock may be set (tests/e2e/sleeper.py): here the timer is made to run out instead."""
    require(sys.platform == "linux", "needs Linux")
    called = asyncio.Event()
    os.close(free := os.dup(0))  # the number that the next descriptor gets
    with clock.watched(called.set):
        at_once = (ctypes.c_long * 4)(0, 0, 0, 1)  # struct itimerspec
        assert ctypes.CDLL(None).timerfd_settime(free, 0, at_once, None) == 0
        await asyncio.wait_for(called.wait(), PATIENCE)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(free)

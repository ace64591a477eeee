"""The clock of the pools (tools, kernels, pipes): it never goes back and counts suspend (DESIGN law
10).

Besides it, how clocks stand to each other, and who tells that one of them has jumped.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

NEAR_SECONDS = 0.1  # clocks that were read one after the other within this were read together
TRIES = 10
_ABSTIME_CANCEL_ON_SET = 3  # flags of timerfd_settime(2)
_COUNTS_SUSPEND: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

now = partial(time.clock_gettime, _COUNTS_SUSPEND)
"""Return seconds since boot, suspended ones included where the system can tell
(clock_gettime(2)).
"""


def ahead(clock: Callable[[], float], of: Callable[[], float]) -> float:
    """Return by how many seconds `clock` is ahead of another one.

    Whoever reads two clocks one after the other may be stopped in between, and would find them
    apart by that long.
    """
    nearest = (float("inf"), 0.0)
    for _ in range(TRIES):
        before, found, after = of(), clock(), of()
        nearest = min(nearest, (abs(after - before), found - before))
        if nearest[0] < NEAR_SECONDS:
            break
    return nearest[1]


async def tick(seconds: float) -> None:
    """Wait for the loop's next whole multiple of so many seconds: all who look as often wake it
    up together.
    """
    await asyncio.sleep(seconds - asyncio.get_running_loop().time() % seconds)


@contextmanager
def watched(jumped: Callable[[], None]) -> Iterator[None]:
    """Have the running loop call `jumped` whenever the wall clock was set, or the machine has woken
    up.

    Linux tells both (timerfd_create(2), TFD_TIMER_CANCEL_ON_SET: a resume sets the clock, too).
    Where nobody does, whoever waits by one of these clocks looks at it once a minute.
    """
    try:
        fd = _open_timer()
    except (AttributeError, OSError):  # this system has no such timer, or refuses it
        yield
        return

    def told() -> None:
        with suppress(OSError):  # ECANCELED is what it tells
            os.read(fd, 8)
        jumped()

    loop = asyncio.get_running_loop()
    loop.add_reader(fd, told)
    try:
        yield
    finally:
        loop.remove_reader(fd)
        os.close(fd)


def _open_timer() -> int:
    """Return a timer that becomes readable when the wall clock is set; os.timerfd_create needs
    Python 3.13.
    """
    import ctypes  # after the start, where nobody waits for it

    libc = ctypes.CDLL(None, use_errno=True)
    far = (ctypes.c_long * 4)(0, 0, 2**31 - 1, 0)  # struct itimerspec: once, in 2038
    fd: int = libc.timerfd_create(time.CLOCK_REALTIME, os.O_NONBLOCK | os.O_CLOEXEC)
    if fd >= 0 and libc.timerfd_settime(fd, _ABSTIME_CANCEL_ON_SET, far, None) == 0:
        return fd
    error = ctypes.get_errno()
    if fd >= 0:
        os.close(fd)
    raise OSError(error, os.strerror(error))

"""Bounded waits on conditions, looks at processes, and what a killed daemon leaves: what every
rig stands on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE = 60.0
"""Seconds; a bound, never a measure: the machine may be ten times slower than it should."""


def until(probe: Callable[[], T], what: str = "the condition", seconds: float = PATIENCE) -> T:
    """Return the first truthy value of `probe`; fail, naming `what`, when none came in time."""
    end = time.monotonic() + seconds
    while not (value := probe()):
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)
    return value


async def eventually(probe: Callable[[], Any], what: str = "the condition") -> Any:
    """Do the same in a loop that goes on meanwhile; `probe` may be a coroutine function."""
    end = time.monotonic() + PATIENCE
    while True:
        value = probe()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < end, f"not within {PATIENCE} s: {what}"
        await asyncio.sleep(0.005)


def alive(pid: int) -> bool:
    """Say whether a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


def bearing(*marks: str) -> list[int]:
    """Return the living processes in whose environment one of these texts stands."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # gone, or not ours to read
            environ = Path(f"/proc/{entry}/environ").read_bytes()
            found += (
                [int(entry)]
                if any(os.fsencode(mark) in environ for mark in marks) and alive(int(entry))
                else []
            )
    return found


def marked(daemon_id: str) -> list[int]:
    """Return the living processes that bear a mark of that daemon: what a leak looks like."""
    return bearing(f"PX_INSTANCE={daemon_id}.", f"PX_CONTROL={daemon_id}")


def remove_group(daemon_id: str) -> None:
    """Remove the empty control group of a daemon that was killed: only its own end would have done
    it.

    One that root starts outside of a service has its group at the top of cgroup2.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            if " - cgroup2 " in line:
                for folder, _, _ in os.walk(
                    Path(line.split()[4]) / f"pxd-{daemon_id}", topdown=False
                ):
                    with contextlib.suppress(OSError):
                        os.rmdir(folder)

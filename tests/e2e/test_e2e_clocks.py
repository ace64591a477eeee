"""Clocks that part: in a time namespace, and in a machine that is suspended and whose clock is
set.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from e2e import machine
from e2e.house import server, until
from e2e.pipe_house import pipes_house

LONG_ASLEEP = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
assert libc.unshare(0x80) == 0, "CLONE_NEWTIME"
with open("/proc/self/timens_offsets", "w") as offsets:
    offsets.write("monotonic 5000 0\\nboottime 1000000 0\\n")
assert libc.setns(os.open("/proc/self/ns/time_for_children", os.O_RDONLY), 0x80) == 0, "the namespace"
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Become a command on a machine that has been asleep for eleven days since its boot: needs root."""


def test_no_deadline_mixes_the_clock_that_counts_suspend_with_the_one_that_does_not(
    require_root: None,
) -> None:
    """Age of a tool, timeouts of an execution and of a cell, an interval, and what a new control
    plane adopts.
    """
    with pipes_house(start=False) as home:
        home.runner = (sys.executable, "-c", LONG_ASLEEP)
        home.tool("brief", server("return 1"), warm_keep_seconds=0.2)
        home.tool("kept", server("return 1"))
        home.shell("endless", "sleep 1000", "timeout: 1")
        home.shell("hourly", "true", "schedule: every 1h")
        home.start()
        assert [home.run("kept").status, home.run("brief").status] == [200, 200]
        until(lambda: home.status("brief")["state"] == "cold", "it was evicted by age")
        assert home.get("/api/units/tool:brief/why")["reason"] == "evicted_ttl"
        late = home.execute("endless")
        assert (late.status, late.duration_ms >= 1000) == ("timed_out", True)
        cell = home.pxctl("exec", "--bash", "--timeout", "1", "sleep 1000")
        assert cell.returncode == 7, cell
        pid = home.status("kept")["pid"]
        home.kill_brain()
        assert home.status("kept")["pid"] == pid
        due = datetime.fromisoformat(home.get("/api/pipes/hourly")["next_run"]).timestamp()
        assert 3500 < due - time.time() <= 3600


@pytest.mark.deep
@pytest.mark.timeout(560)
def test_a_suspend_ends_nothing_falsely_and_a_clock_that_is_set_is_noticed_within_a_second(
    require: Callable[[object, str], None], short_tmp: Path
) -> None:
    """A run goes on by its timeout awake, what has become too old in the meantime goes, a
    calendar is asked anew.
    """
    not_shown = "not shown here: " if os.environ.get("PX_TEST_NOT_SHOWN") == "machine" else ""
    require(machine.is_possible(), f"{not_shown}needs {machine.NEEDED}")
    console = machine.play(short_tmp, Path(__file__).with_name("sleeper.py"), seconds=500)
    print(console)
    assert "exit code 0" in console

"""The shared gateway as users meet it: a unit among the others, replaced when it cannot go on,
adopted.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator

import pytest

from e2e.house import alive, until
from e2e.kernel_house import GATEWAY, PATIENT, Calls, gateways, kernels_house, waits_for

UNIT = "kernel:gateway"
pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def calls() -> Iterator[Calls]:
    with kernels_house(PATIENT) as made:
        yield made


def pid_of_gateway(calls: Calls) -> int:
    (pid,) = gateways(calls.house)
    return pid


def leave_descriptors(pid: int, count: int) -> None:
    """Let a process open so many more files, and no more."""
    limit = len(os.listdir(f"/proc/{pid}/fd")) + count
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limit))


def test_a_gateway_without_descriptors_is_replaced_unless_a_kernel_in_it_is_busy(
    calls: Calls,
) -> None:
    """Twice in a row. With none left it does not even answer."""
    calls.value("first", "1", backend=GATEWAY)
    for turn, left in enumerate((3, 0)):
        before = pid_of_gateway(calls)
        leave_descriptors(before, left)
        if left:
            doctor = {
                check["name"]: check for check in calls.house.json("doctor", code=None)["checks"]
            }
            assert "file descriptors" in doctor[UNIT]["detail"], doctor
            assert doctor[UNIT]["repair"] == f"pxctl restart {UNIT}"
            busy = calls.begun(
                "first",
                "import time\ntry: time.sleep(1000)\nexcept KeyboardInterrupt: pass",
                backend=GATEWAY,
            )
            refused = calls.ask("other", "1", backend=GATEWAY).refused(503)
            assert calls.show("first")["unit"] in refused["detail"]
            assert refused["hint"].endswith(f"pxctl restart {UNIT}")
            calls.interrupt("first")
            busy.result()
        assert calls.value(f"next{turn}", "40 + 2", backend=GATEWAY) == "42"
        until(lambda before=before: not alive(before), "the old one is gone")
        assert pid_of_gateway(calls) != before
    assert calls.show("first")["failure"] is None
    assert calls.value("first", "2", backend=GATEWAY) == "2", (
        "the end of its gateway is no crash of a kernel"
    )
    (told, *_) = calls.house.events(UNIT, "recycled")
    assert "run out of file descriptors" in told["detail"]


def test_the_gateway_is_a_unit_that_commands_know(calls: Calls) -> None:
    calls.value("first", "mine = 1", backend=GATEWAY)
    pid, home = pid_of_gateway(calls), calls.house
    (unit,) = home.json("status", UNIT)["units"]
    assert (unit["state"], unit["pid"], unit["rss_bytes"] > 0) == ("ready", pid, True)
    assert UNIT in {each["unit"] for each in home.get("/api/status")["units"]}
    assert home.json("why", UNIT)["state"] == "ready"
    assert home.pxctl("logs", UNIT).returncode == 0
    for _ in range(2):
        restarted = home.pxctl("restart", UNIT)
        assert restarted.returncode == 0, restarted.stderr
        assert not alive(pid)
        pid = pid_of_gateway(calls)
        assert home.pxctl("wait", UNIT).returncode == 0
    assert calls.value("first", "'mine' in globals()", backend=GATEWAY) == "False"
    stopped = home.pxctl("stop", UNIT)
    assert (stopped.returncode, gateways(home)) == (0, {}), stopped.stderr
    assert calls.state("first") == "stopped"
    assert home.json("why", UNIT)["reason"] == "stopped"
    assert UNIT not in {each["unit"] for each in home.get("/api/status")["units"]}
    assert home.pxctl("start", UNIT).returncode == 0
    assert pid_of_gateway(calls) != pid


def test_gateway_and_its_kernels_are_adopted_each_time_the_control_plane_dies(calls: Calls) -> None:
    calls.value("kept", "mine = 1", backend=GATEWAY)
    gateway, kernel = (
        pid_of_gateway(calls),
        calls.value("kept", "import os; os.getpid()", backend=GATEWAY),
    )
    go = calls.house.home / "go"
    running = calls.begun("works", waits_for(go), backend=GATEWAY)
    for turn in range(2):
        calls.house.kill_brain()
        assert (
            calls.value("kept", "mine += 1; import os; (mine, os.getpid())", backend=GATEWAY)
            == f"({turn + 2}, {kernel})"
        )
        assert pid_of_gateway(calls) == gateway
        (unit,) = calls.house.json("status", UNIT)["units"]
        assert (unit["state"], unit["pid"]) == ("ready", gateway)
    go.touch()
    running.cut_off()
    assert calls.last("works")["status"] == "ok"
    calls.end("kept")
    calls.end("works")
    calls.house.kill_brain()  # one that has no kernel is adopted, too
    (unit,) = calls.house.json("status", UNIT)["units"]
    assert (unit["state"], unit["pid"]) == ("ready", gateway)


def test_a_gateway_that_did_not_answer_the_next_control_plane_is_restarted(calls: Calls) -> None:
    """Twice in a row: how it was started is in the keeper's note."""
    for _ in range(2):
        calls.value("silent", "1", backend=GATEWAY)
        pid = pid_of_gateway(calls)
        os.kill(pid, signal.SIGSTOP)
        calls.house.kill_brain()
        until(lambda pid=pid: not alive(pid), "the control plane has ended it")
        restarted = calls.house.pxctl("restart", UNIT)
        assert restarted.returncode == 0, restarted.stderr
        assert pid_of_gateway(calls) != pid

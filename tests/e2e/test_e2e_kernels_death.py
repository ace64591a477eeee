"""`kill -9` of brain, keeper and kernel at random moments, in all orders: nothing leaked or lost,
rows that are true.

Each seed chooses the moment and what the kernel is doing then. A brain's death is nothing to a
kernel: its variables stay, its cell goes on and is followed to its end. The kernel's own death is
told at once. The keeper's takes all along.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator

import pytest

from e2e.house import (
    DEADLINE,
    House,
    Later,
    a_moment,
    alive,
    gone,
    marked,
    of_module,
    until,
    written_pid,
)
from e2e.kernel_house import Calls, descendants, gateways, kernels_house
from e2e.pipe_house import whole
from rounds import rounds

PRINTS = """
import os, time
count = 0
while not os.path.exists({go!r}):
    print("line", count, flush=True)
    count += 1
    time.sleep(0.002)
print("END", count)
"""
CHILDREN = """
import os, subprocess, time
apart = subprocess.Popen(["sleep", "1000"], start_new_session=True)
open({apart!r}, "w").write(str(apart.pid))
os.system("nohup sleep 1000 > /dev/null 2>&1 & echo $! > {nohup}")
"""
ENDING = {
    "nothing": "",
    "prints": PRINTS,
    "C": "total = sum(range(2 * 10 ** 7)); print('END', 0)",
    "await": "import asyncio; await asyncio.sleep(0.5); print('END', 0)",
    "children": CHILDREN + PRINTS,
}
"""What a kernel is busy with; what prints says END and leaves once `go` is there."""
ENDLESS = {
    **ENDING,
    "C": "sum(range(10 ** 10))",
    "await": "import asyncio; await asyncio.sleep(1000)",
}
SLEEPS = "import time; time.sleep(1000)"
fallen = of_module(kernels_house)


def code_of(home: House, what: str, codes: dict[str, str] = ENDING) -> str:
    places = {name: home.home / name for name in ("go", "apart", "nohup")}
    for place in places.values():
        place.unlink(missing_ok=True)
    return codes[what].format(**{name: str(place) for name, place in places.items()})


def busy(
    calls: Calls, session: str, seed: int, codes: dict[str, str]
) -> tuple[Later | None, list[int]]:
    """Make a session busy with what the seed says; return the call, and the pids of what left
    its session.
    """
    what = list(codes)[(seed + 1) % len(codes)]
    print(f"seed {seed}: {what}")
    code = code_of(calls.house, what, codes)
    later = calls.begun(session, code) if code else None
    return later, escaped(calls.house) if what == "children" else []


def escaped(home: House) -> list[int]:
    return [written_pid(home.home / name) for name in ("apart", "nohup")]


@pytest.fixture(scope="module")
def besieged() -> Iterator[Calls]:
    """One daemon for all deaths of brains and kernels: it must stand them all, and `other` never
    notices.
    """
    # An interrupt has long enough to show itself: a kernel that this machine lets wait is not taken
    # for a deaf one.
    patient = {
        "PX_KERNELS__LADDER_TERMINATE_SECONDS": "20",
        "PX_KERNELS__LADDER_KILL_SECONDS": "21",
    }
    with kernels_house(patient, PX_API__DRAIN_SECONDS="1") as calls:
        calls.run("other", "keep = 42")
        pid = calls.show("other")["pid"]
        yield calls
        assert (calls.value("other", "keep"), calls.show("other")["pid"]) == ("42", pid)


def strays(home: House) -> list[int]:
    """Return the living processes of this daemon that neither a row of it nor the shared gateway
    explains.
    """
    known = {home.pids()[1]}
    listed = home.get("/api/kernels")
    rows = [
        each["pid"] for each in (*listed["kernels"], *listed["zygotes"]) if each["pid"] is not None
    ]
    for pid in (*rows, *gateways(home)):
        known |= {pid, *descendants(pid)} if alive(pid) else set()
    return [pid for pid in marked(home.daemon_id) if pid not in known]


def assert_lost(calls: Calls, session: str) -> None:
    again = calls.run(session, "x")
    assert again.cell["error"]["name"] == "NameError", again.document
    assert "variables" in again.told, again.document


@pytest.mark.parametrize("seed", rounds(1, of=10))
def test_kill_of_the_brain_keeps_variables_and_follows_the_cell(besieged: Calls, seed: int) -> None:
    calls, home = besieged, besieged.house
    calls.run("brain", f"x = {seed}")
    before, keeper = calls.show("brain"), home.pids()[0]
    later, left = busy(calls, "brain", seed, ENDING)
    a_moment(random.Random(seed), 0.3)
    home.kill_brain()
    (home.home / "go").touch()
    assert home.pids()[0] == keeper
    assert all(map(alive, left)), "what the living kernel's cell started is left alone"
    if later is not None:
        later.cut_off()
        ended = calls.last("brain")
        assert (ended["status"], ended["variables"], ended["lossy"]) == ("ok", "kept", False), ended
        printed = calls.output("brain", ended["id"])
        assert ended["total_bytes"] == len(printed)
        whole(printed.decode())
    assert calls.value("brain", "x") == str(seed)
    after = calls.show("brain")
    assert (after["pid"], after["started_at"]) == (before["pid"], before["started_at"])
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not strays(home), f"nothing is left beside the kernels: {strays(home)}")


def test_pxctl_exec_sees_its_cell_through_the_death_of_the_brain(besieged: Calls) -> None:
    """The client reads on where it was: its stdout has every byte once, and it exits with the
    cell's outcome.
    """
    calls, home = besieged, besieged.house
    options = ("--kernel", "client", "--timeout", "110")
    client = home.pxctl_later("exec", *options, code_of(home, "prints"))
    # it knows its cell now: before that there would be nothing to go on with
    first = client.stdout.readline()
    until(lambda: calls.history("client"), "the cell has its row")
    home.kill_brain()
    (home.home / "go").touch()
    out, said = client.stdout.read(), client.stderr.read()
    assert client.wait(DEADLINE) == 0, said
    whole(first + out)
    calls.end("client")


@pytest.mark.deep
def test_the_time_of_a_call_is_over_also_where_its_brain_died(besieged: Calls) -> None:
    besieged.run("late", "x = 5")  # the seconds below are the cell's, not the start's
    later = besieged.begun("late", SLEEPS, timeout=8)
    besieged.house.kill_brain()
    later.cut_off()
    ended = besieged.last("late")
    assert (ended["status"], ended["variables"]) == ("timed_out", "kept"), ended
    assert ended["steps"], "its rungs are in its row"
    assert besieged.value("late", "x") == "5"
    besieged.end("late")


@pytest.mark.parametrize("seed", rounds(1, of=20))
def test_kill_of_the_kernel_is_told_and_takes_its_children_along_also_without_a_brain(
    besieged: Calls, seed: int
) -> None:
    """The keeper holds the exit record until the next brain has read it: a death that nobody saw
    is told as well.
    """
    calls, dice = besieged, random.Random(200 + seed)
    order = [["kernel"], ["brain", "kernel"], ["kernel"], ["kernel", "brain"]][seed % 4]
    calls.run("kernel", f"x = {seed}")
    pid = calls.show("kernel")["pid"]
    later, left = busy(calls, "kernel", seed, ENDLESS)
    a_moment(dice, 0.2)
    calls.house.strike(order, dice, kernel=pid)
    if later is not None and order == ["kernel"]:
        # the cell itself would have gone on for minutes, and its call for seconds
        call = later.result()
        assert call.ended == ("error", "lost"), call.document
        assert "SIGKILL" in call.told
    gone(pid, *left)
    if later is not None:
        later.cut_off()
        ended = calls.last("kernel")
        assert (ended["status"], ended["variables"], bool(ended["error"])) == (
            "error",
            "lost",
            True,
        ), ended
    if order == ["kernel"]:
        until(
            lambda: calls.show("kernel")["pid"] not in {pid, None},
            "it has come back by itself, once",
        )
    assert_lost(calls, "kernel")
    died = [event for event in calls.events("kernel", "died") if event.get("pid") == pid]
    assert [(event["reason"], event["signal"]) for event in died] == [("signal", 9)]


ORDERS = (
    "keeper, keeper brain, brain keeper, keeper kernel, kernel keeper, brain kernel keeper, kernel "
    "keeper brain"
)


@pytest.mark.deep
@pytest.mark.parametrize("seed", rounds(2, of=10))
def test_kill_of_the_keeper_leaves_nothing_and_the_next_start_says_what_was_cut_off(
    fallen: Calls, seed: int
) -> None:
    calls, home, dice = fallen, fallen.house, random.Random(400 + seed)
    orders = [order.split() for order in ORDERS.split(", ")]
    order = orders[seed % len(orders)]
    calls.run("k", "x = 1")
    pid = calls.show("k")["pid"]
    later, left = busy(calls, "k", seed, ENDLESS)
    a_moment(dice, 0.2)
    home.strike(order, dice, kernel=pid)
    if later is not None:
        later.cut_off()
    left += [pid, *marked(home.daemon_id)]
    home.start()
    assert not any(map(alive, left)), "the next start sweeps what nobody guarded"
    # its own first zygote may be on its way
    until(lambda: not strays(home), "all that bears its mark has a row")
    found = calls.show("k")
    assert (found["state"], found["pid"], found["running"]) == ("stopped", None, None)
    assert found["reason"] in (
        {"interrupted"} if "kernel" not in order else {"interrupted", "signal"}
    )
    if later is not None:
        ended = calls.history("k")[-1]
        assert ended["ended_at"], "no row says for ever that a cell runs"
        is_told = ended["status"] in {"error", "cancelled"} and bool(ended["error"])
        assert (is_told, ended["variables"]) == (True, "lost"), ended
    assert home.pxctl("why", f"kernel:{found['id']}").returncode == 0
    assert_lost(calls, "k")


@pytest.mark.deep
def test_a_stop_of_the_daemon_ends_cells_and_says_so(fallen: Calls) -> None:
    """A C loop, escaped children and a shell cell at once: exit 0, nothing left, all told."""
    calls, home = fallen, fallen.house
    running = {
        what: calls.begun(what, code_of(home, what, ENDLESS), timeout=105)
        for what in ("C", "children")
    }
    running["shell"] = calls.begun("shell", "sleep 1000", language="bash", timeout=105)
    left = escaped(home)
    assert home.stop() == 0
    home.wait_gone()
    assert not any(map(alive, left))
    assert not list((home.home / "run").glob("k/*/connection.json"))
    for later in running.values():
        call = later.cut_off()
        assert call is None or call.ended == ("cancelled", "lost")
    home.start()
    for session in running:
        ended = calls.history(session)[-1]
        assert (ended["status"], bool(ended["error"])) == ("cancelled", True), ended
        assert calls.show(session)["pid"] is None

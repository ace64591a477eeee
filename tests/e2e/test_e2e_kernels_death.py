"""`kill -9` of brain, keeper and kernel at random moments, in all orders: nothing leaked or lost, rows that are true.

Each seed chooses the moment and what the kernel is doing then. A brain's death is nothing to a kernel: its variables
stay, its cell goes on and is followed to its end. The kernel's own death is told at once. The keeper's takes all along.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Iterator

import pytest

from e2e.house import House, alive, house, marked, until
from e2e.kernel_house import (
    BUSY_WITH,
    GATEWAY,
    QUICK,
    Later,
    begun,
    busy,
    cells,
    code_of,
    descendants,
    escaped,
    events,
    gone,
    kernels_house,
    output,
    pxctl_later,
    row,
    run,
    value,
)
from rounds import rounds


@pytest.fixture(scope="module")
def besieged() -> Iterator[House]:
    """One daemon for all deaths of brains and kernels: it must stand them all, and `other` never notices."""
    # An interrupt has long enough to show itself: a kernel that this machine lets wait is not taken for a deaf one.
    patient = {"PX_KERNELS__LADDER_TERMINATE_SECONDS": "20", "PX_KERNELS__LADDER_KILL_SECONDS": "21"}
    with kernels_house(PX_API__DRAIN_SECONDS="1", **patient) as home:
        assert run(home, "other", "keep = 42").ok
        yield home
        assert value(home, "other", "keep") == "42"


@pytest.fixture(scope="module")
def fallen() -> Iterator[House]:
    """A house whose keeper dies again and again."""
    with house(QUICK) as home:
        yield home


def a_moment(dice: random.Random, most: float) -> None:
    threading.Event().wait(dice.uniform(0, most))


def whole(printed: bytes) -> None:
    """Assert that every line which the cell printed is there once, in its order."""
    *lines, last = printed.decode().splitlines()
    assert last == f"END {len(lines)}", printed[-200:]
    assert lines == [f"line {n}" for n in range(len(lines))]


def strays(home: House) -> list[int]:
    """Return the living processes of this daemon that no row of it explains; the shared gateway has its own file."""
    known = {home.pids()[1]}
    gateway = home.home / "state" / "gateway" / "gateway.json"
    listed = home.get("/api/kernels")
    rows = [*listed["kernels"], *listed["zygotes"], *([json.loads(gateway.read_text())] if gateway.exists() else [])]
    for pid in [each["pid"] for each in rows if each["pid"] is not None]:
        known |= {pid, *descendants(pid)} if alive(pid) else set()
    return [pid for pid in marked(home.daemon_id) if pid not in known]


def last_cell(home: House, session: str) -> dict[str, object]:
    """Return the newest cell of a session once it has ended."""
    ended = until(lambda: [c for c in cells(home, session)[-1:] if c["ended_at"]], f"the last cell of {session} ended")
    return dict(ended[0])


@pytest.mark.parametrize("seed", rounds(1, of=10))
def test_kill_of_the_brain_keeps_variables_and_follows_the_cell(besieged: House, seed: int) -> None:
    home, dice = besieged, random.Random(seed)
    what = BUSY_WITH[(seed + 1) % len(BUSY_WITH)]
    print(f"seed {seed}: {what}")
    assert run(home, "brain", f"x = {seed}").ok
    before, (keeper, control) = row(home, "brain"), home.pids()
    later = busy(home, "brain", what, ends=True)
    left = escaped(home, what)
    a_moment(dice, 0.3)
    os.kill(control, signal.SIGKILL)
    until(home.answers, "the next brain answers")
    (home.home / "go").touch()
    assert home.pids()[0] == keeper
    assert row(home, "brain")["pid"] == before["pid"]
    assert all(alive(pid) for pid in left), "what the living kernel's cell started is left alone"
    if later is not None:
        later.cut_off()
        ended = last_cell(home, "brain")
        assert (ended["status"], ended["variables"], ended["lossy"]) == ("ok", "kept", False), ended
        printed = output(home, "brain", str(ended["id"]))
        assert ended["total_bytes"] == len(printed)
        whole(printed)
    assert value(home, "brain", "x") == str(seed)
    assert row(home, "brain")["started_at"] == before["started_at"]
    assert row(home, "other")["state"] == "idle"
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not strays(home), f"nothing is left beside the kernels: {strays(home)}")


def forget_one(home: House, session: str) -> None:
    assert home.pxctl("kernel", "stop", row(home, session)["id"]).returncode == 0


def test_pxctl_exec_sees_its_cell_through_the_death_of_the_brain(besieged: House) -> None:
    """The client reads on where it was: its stdout has every byte once, and it exits with the cell's outcome."""
    home = besieged
    (home.home / "go").unlink(missing_ok=True)
    code = code_of(home, "prints", ends=True)
    order = ("exec", "--cwd", str(home.home), "--kernel", "client", "--timeout", "110", code)
    client = pxctl_later(home, *order)
    assert client.stdout is not None
    assert client.stderr is not None
    first = client.stdout.readline()  # it knows its cell now: before that there would be nothing to go on with
    assert first == "line 0\n", client.stderr.read()
    until(lambda: cells(home, "client"), "the cell has its row")
    os.kill(home.pids()[1], signal.SIGKILL)
    until(home.answers, "the next brain answers")
    (home.home / "go").touch()
    out, said = first + client.stdout.read(), client.stderr.read()
    assert client.wait(60) == 0, said
    whole(out.encode())
    forget_one(home, "client")


@pytest.mark.deep
def test_the_local_gateways_kernels_outlive_the_brain_but_not_their_gateway(besieged: House) -> None:
    home, mark = besieged, besieged.home / "begun"
    (home.home / "go").unlink(missing_ok=True)
    assert run(home, "g", "x = 5", backend=GATEWAY).ok
    later = begun(home, "g", code_of(home, "prints", ends=True), mark, backend=GATEWAY)
    os.kill(home.pids()[1], signal.SIGKILL)
    later.cut_off()
    until(home.answers, "the next brain answers")
    (home.home / "go").touch()
    last = last_cell(home, "g")
    assert (last["status"], last["variables"]) == ("ok", "kept")
    whole(output(home, "g", str(last["id"])))
    assert value(home, "g", "x", backend=GATEWAY) == "5"
    later = begun(home, "g", "import time; time.sleep(1000)", mark, backend=GATEWAY)
    os.kill(json.loads((home.home / "state" / "gateway" / "gateway.json").read_text())["pid"], signal.SIGKILL)
    assert (later.result()["status"], later.result()["variables"]) == ("error", "lost")
    assert "variables are gone" in run(home, "g", "x", backend=GATEWAY).told
    forget_one(home, "g")


@pytest.mark.deep
def test_the_time_of_a_call_is_over_also_where_its_brain_died(besieged: House) -> None:
    """The next brain knows until when a cell may run, and ends it by the same ladder."""
    home = besieged
    mark = home.home / "begun"
    assert run(home, "late", "x = 5").ok  # the seconds below are the cell's, not the start's
    later = begun(home, "late", "import time; time.sleep(1000)", mark, timeout=8)
    os.kill(home.pids()[1], signal.SIGKILL)
    later.cut_off()
    until(home.answers, "the next brain answers")
    ended = last_cell(home, "late")
    assert (ended["status"], ended["variables"]) == ("timed_out", "kept"), ended
    assert ended["steps"], "its rungs are in its row"
    assert value(home, "late", "x") == "5"
    forget_one(home, "late")


@pytest.mark.parametrize("seed", rounds(1, of=10))
def test_kill_of_the_kernel_is_told_at_once_and_takes_its_children_along(besieged: House, seed: int) -> None:
    home, dice = besieged, random.Random(200 + seed)
    what = BUSY_WITH[(seed + 1) % len(BUSY_WITH)]
    print(f"seed {seed}: {what}")
    assert run(home, "kernel", f"x = {seed}").ok
    pid, other = row(home, "kernel")["pid"], row(home, "other")["pid"]
    later = busy(home, "kernel", what, ends=False)
    left = escaped(home, what)
    a_moment(dice, 0.2)
    os.kill(pid, signal.SIGKILL)
    if later is not None:
        call = later.result()  # the cell itself would have gone on for minutes, and its call for 55 s
        assert (call.status, call["status"], call["variables"]) == (200, "error", "lost"), call.document
        assert "SIGKILL" in call.told
        assert "lost" in call.told
        assert last_cell(home, "kernel")["status"] == "error"
    for each in (pid, *left):
        gone(each)
    until(lambda: row(home, "kernel")["pid"] not in {pid, None}, "it has come back by itself, once")
    again = run(home, "kernel", "x")
    assert again.cell["error"]["name"] == "NameError", again.document
    assert "variables are gone" in again.told
    died = [e for e in events(home, "kernel") if e["event"] == "died" and e.get("pid") == pid]
    assert [(e["reason"], e["signal"]) for e in died] == [("signal", 9)]
    assert row(home, "other")["pid"] == other


@pytest.mark.deep
@pytest.mark.parametrize("order", ["brain first", "kernel first"])
@pytest.mark.parametrize("seed", rounds(1, of=5))
def test_kill_of_brain_and_kernel_together_keeps_the_rows_true(besieged: House, seed: int, order: str) -> None:
    """The keeper holds the exit record until the next brain has read it: a death that nobody saw is told as well."""
    home, dice = besieged, random.Random(300 + seed)
    what = BUSY_WITH[seed % len(BUSY_WITH)]
    print(f"seed {seed}: {what}")
    assert run(home, "pair", "x = 1").ok
    pid, control = row(home, "pair")["pid"], home.pids()[1]
    later = busy(home, "pair", what, ends=False)
    left = escaped(home, what)
    for victim in (control, pid) if order == "brain first" else (pid, control):
        os.kill(victim, signal.SIGKILL)
        a_moment(dice, 0.05)
    until(home.answers, "the next brain answers")
    for each in (pid, *left):
        gone(each)
    if later is not None:
        later.cut_off()
        ended = last_cell(home, "pair")
        assert (ended["status"], ended["variables"]) == ("error", "lost"), ended
        assert ended["error"], "it ran, and the row says what became of it"
    again = run(home, "pair", "x")
    assert again.cell["error"]["name"] == "NameError", again.document
    assert "variables are gone" in again.told
    died = [e for e in events(home, "pair") if e["event"] == "died" and e.get("pid") == pid]
    assert [(e["reason"], e["signal"]) for e in died] == [("signal", 9)]


ALL_ORDERS = (
    ("keeper",),
    ("keeper", "brain"),
    ("brain", "keeper"),
    ("keeper", "kernel"),
    ("kernel", "keeper"),
    ("brain", "kernel", "keeper"),
    ("kernel", "keeper", "brain"),
)


@pytest.mark.deep
@pytest.mark.parametrize("seed", rounds(2, of=10))
def test_kill_of_the_keeper_leaves_nothing_and_the_next_start_says_what_was_cut_off(fallen: House, seed: int) -> None:
    home, dice = fallen, random.Random(400 + seed)
    order, what = ALL_ORDERS[seed % len(ALL_ORDERS)], BUSY_WITH[seed % len(BUSY_WITH)]
    print(f"seed {seed}: {order}, {what}")
    if home.process is None:
        home.start()
    assert run(home, "k", "x = 1").ok
    keeper, control = home.pids()
    pid = row(home, "k")["pid"]
    later = busy(home, "k", what, ends=False)
    left = escaped(home, what)
    a_moment(dice, 0.2)
    for victim in order:
        os.kill({"keeper": keeper, "brain": control, "kernel": pid}[victim], signal.SIGKILL)
        a_moment(dice, 0.02)
    assert home.process is not None
    home.process.wait(30)
    if "brain" not in order:
        home.wait_gone()  # the brain is the keeper's guard; where both are gone the next start is
    if later is not None:
        later.cut_off()
    left += marked(home.daemon_id)
    home.start()
    for each in (pid, *left):
        assert not alive(each), "the next start sweeps what nobody guarded"
    until(lambda: not strays(home), "all that bears its mark has a row")  # its own first zygote may be on its way
    found = row(home, "k")
    assert (found["state"], found["pid"], found["running"]) == ("stopped", None, None)
    assert found["reason"] in ({"interrupted"} if "kernel" not in order else {"interrupted", "signal"})
    if later is not None:
        ended = cells(home, "k")[-1]
        assert ended["ended_at"], "no row says for ever that a cell runs"
        assert ended["status"] in {"error", "cancelled"}, ended
        assert (ended["variables"], bool(ended["error"])) == ("lost", True)
    assert home.pxctl("why", f"kernel:{found['id']}").returncode == 0
    again = run(home, "k", "x")
    assert again.cell["error"]["name"] == "NameError"
    assert "variables are gone" in again.told


@pytest.mark.deep
def test_a_stop_of_the_daemon_ends_cells_and_says_so(fallen: House) -> None:
    """A C loop, escaped children and a shell cell at once: exit 0, nothing left, all told."""
    home = fallen
    if home.process is None:
        home.start()
    mark = home.home / "shell"
    mark.unlink(missing_ok=True)
    for name in ("go", "apart", "nohup"):
        (home.home / name).unlink(missing_ok=True)
    calls = {  # their time is not over while the others start
        what: begun(home, what, code_of(home, what, ends=False), home.home / "begun", seconds=110)
        for what in ("C", "children")
    }
    calls["shell"] = Later(lambda: run(home, "shell", f"touch {mark}; sleep 1000", language="bash", seconds=110))
    until(mark.exists, "the shell cell runs")
    left = escaped(home, "children")
    assert home.stop() == 0
    home.wait_gone()
    assert not any(alive(pid) for pid in left)
    assert not list((home.home / "run").glob("k/*/connection.json"))
    for session, later in calls.items():
        call = later.cut_off()
        assert call is None or (call["status"], call["variables"]) == ("cancelled", "lost"), session
    home.start()
    for session in calls:
        ended = cells(home, session)[-1]
        assert (ended["status"], bool(ended["error"])) == ("cancelled", True), ended
        assert row(home, session)["pid"] is None

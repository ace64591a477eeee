"""How cells are made to end: the interrupt matrix (timeout), and every way to cancel, against a real daemon.

Law: what the answer says of the variables is what the next cell finds, and the next call works at once.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from beside import beside
from e2e.house import BIN, UnixConnection, alive, house, until
from e2e.kernel_house import Calls, actions, descendants
from rounds import DEEP, mostly_deep

PATIENT = {
    "PX_KERNELS__TIMEOUT_MIN_SECONDS": "0.1",
    "PX_KERNELS__TIMEOUT_SECONDS": "50",
    "PX_KERNELS__LADDER_AGAIN_SECONDS": "20",
    "PX_KERNELS__LADDER_TERMINATE_SECONDS": "40",
    "PX_KERNELS__LADDER_KILL_SECONDS": "45",
}
"""One SIGINT must do: a cell that needs more would show it."""
QUICK = {
    "PX_KERNELS__TIMEOUT_MIN_SECONDS": "0.1",
    "PX_KERNELS__TIMEOUT_SECONDS": "50",
    "PX_KERNELS__LADDER_AGAIN_SECONDS": "0.2",
    "PX_KERNELS__LADDER_TERMINATE_SECONDS": "0.4",
    "PX_KERNELS__LADDER_KILL_SECONDS": "5",
    "PX_KERNELS__OUTPUT_CELL_BYTES": "1000000",
}
"""The last rung is far enough that what dies of SIGTERM is reaped before it, on a busy machine, too."""
ONCE = ["sigint"]
AT_ITS_BEGIN = [ONCE, [*ONCE, *ONCE]]
"""Of an interrupt that may come just as the code goes to sleep: what Python notes between its last look for signals and
the system call ends nothing by itself, and the second rung does."""
TO_TERM = [*ONCE, *ONCE, "sigterm"]
BEGUN = """
def begun():
    import time
    with open({path!r}, "w") as mark: mark.write(str(time.monotonic()))
"""
"""What a cell calls where the end of its time is to find it."""
YIELDING = {
    "endless loop": ("begun()\nwhile True: pass", "KeyboardInterrupt"),
    "sleep": ("import time; begun(); time.sleep(60)", "KeyboardInterrupt"),
    "socket": ("import socket\nleft, right = socket.socketpair()\nbegun()\nleft.recv(1)", "KeyboardInterrupt"),
    "numpy": ("x = numpy.ones(8)\nbegun()\nwhile True: x = x * 1.0", "KeyboardInterrupt"),
    "regex": ("import re; begun(); re.match(r'(a+)+$', 'a' * 60 + 'b')", "KeyboardInterrupt"),
    "bigint": ("begun(); big = 3 ** (10 ** 9)", "KeyboardInterrupt"),
    "child": ("import subprocess; begun(); subprocess.run(['sleep', '60'])", "KeyboardInterrupt"),
    "child with a session": (
        "import subprocess; begun(); subprocess.run(['sleep', '60'], start_new_session=True)",
        "KeyboardInterrupt",
    ),
    "await": ("import asyncio; begun(); await asyncio.sleep(60)", "CancelledError"),
    "gather": ("import asyncio; begun(); await asyncio.gather(*(asyncio.sleep(60) for _ in '123'))", "CancelledError"),
    "helper run": ("begun(); run('sleep 60')", "KeyboardInterrupt"),
}
DEAF = """
import signal, time
for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)
begun()
while True:
    try: time.sleep(60)
    except BaseException: pass
"""
SWALLOWED = """
import time
begun()
while True:
    try: time.sleep(60)
    except KeyboardInterrupt: pass
"""
STUBBORN = {
    "C loop": ("begun(); sum(range(10 ** 12))", TO_TERM),
    "SVD": ("begun(); numpy.linalg.svd(matrix)", TO_TERM),
    "swallowed": (SWALLOWED, TO_TERM),
    "SIG_IGN": ("import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nbegun(); time.sleep(60)", TO_TERM),
    "all ignored": (DEAF, [*TO_TERM, "sigkill"]),
}
NEEDS = {"numpy": "import numpy", "SVD": "import numpy; matrix = numpy.random.rand(3000, 3000)"}
IGNORING = """
import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print('deaf')
time.sleep(600)
"""
SWALLOWING = """
print('before' * 1000)
import os, subprocess, time
os.write(1, b'raw\\n'); print()
same = subprocess.Popen(["sleep", "600"])
own = subprocess.Popen(["sleep", "600"], start_new_session=True)
open({path!r}, "w").write(f"{{same.pid}} {{own.pid}}")
begun()
while True:
    try: time.sleep(60)
    except KeyboardInterrupt: pass
"""


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    """A daemon whose second rung is far away."""
    with house(PATIENT) as made:
        made.start()
        yield Calls(made, str(tmp_path_factory.mktemp("patient")))


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    """A daemon that climbs its ladder to SIGTERM in less than a second."""
    with house(QUICK) as made:
        made.start()
        yield Calls(made, str(tmp_path_factory.mktemp("quick")))


def ended_by_time(calls: Calls, code: str, timeout: float = 1.0, *, needs: str = "") -> dict[str, Any]:
    """Return the cell that ran out of its time; the document around it must agree with it.

    The code calls `begun()` where its end is to find it. What comes there late, or never, is hit on its way on a busy
    machine, and proves nothing: it is given more time.

    Args:
        calls: Whose session `row` runs it.
        code: The cell.
        timeout: Its time.
        needs: Run before it, in a cell of its own.
    """
    mark = Path(calls.cwd, "begun-at")
    while True:
        mark.unlink(missing_ok=True)
        calls.run("row", f"{BEGUN.format(path=str(mark))}\n{needs}")
        sent = time.monotonic()
        answer = calls.ask("row", code, timeout=timeout)
        begun_at = mark.read_text(encoding="utf-8") if mark.exists() else ""
        if begun_at and float(begun_at) - sent < timeout * 0.4:
            break
        assert timeout < 25, f"the cell never comes to where it is to be hit: {answer.body!r}"
        timeout *= 3
    assert answer.status == 200, answer.body
    document = answer.json()
    assert document["status"] == "timed_out", document
    (cell,) = document["cells"]
    assert cell["status"] == "timed_out", document
    assert document["timeout_seconds"] == timeout
    assert document["message"], document
    return {**cell, "variables": document["variables"], "message": document["message"], "timeout": timeout}


def interrupted(calls: Calls, name: str) -> list[dict[str, Any]]:
    return [item for item in calls.events(calls.show(name)["unit"]) if item["event"] == "interrupted_cell"]


@pytest.mark.parametrize("row", mostly_deep(YIELDING, "sleep", "await"))
def test_a_cell_that_yields_ends_by_the_first_rung_and_keeps_its_variables(patient: Calls, row: str) -> None:
    code, error = YIELDING[row]
    before = patient.run("row", "mine = 42")
    cell = ended_by_time(patient, code, needs=NEEDS.get(row, ""))
    assert (actions(cell), cell["variables"], cell["error"]["name"]) == (ONCE, "kept", error), cell
    assert "kept" in cell["message"], cell
    assert "supervisord_py" not in cell["text"], "a traceback shows the user's code, not how the launcher raises"
    after = patient.run("row", "print(mine)")
    assert (after["cells"][0]["text"], after["instance"]) == ("42\n", before["instance"]), after


@pytest.mark.deep
@pytest.mark.parametrize("row", STUBBORN)
def test_a_cell_that_never_yields_ends_with_its_kernel_and_the_answer_says_lost(quick: Calls, row: str) -> None:
    code, wanted = STUBBORN[row]
    before = quick.run("row", "mine = 42")
    cell = ended_by_time(quick, code, needs=NEEDS.get(row, ""))
    assert (actions(cell), cell["variables"]) == (wanted, "lost"), cell
    assert "lost" in cell["message"], cell
    times = [step["after_seconds"] for step in cell["steps"]]
    assert times == sorted(times), times
    after = quick.run("row", "print('mine' in globals())")
    assert (after["cells"][0]["text"], after["status"]) == ("False\n", "ok"), after
    assert after["instance"] != before["instance"]
    assert after["cold_start_ms"], after
    assert any("variables" in notice for notice in after["notices"]), after["notices"]


def test_a_kernel_that_had_to_be_killed_leaves_its_output_and_no_process_and_all_tell_the_same(
    quick: Calls, tmp_path: Path
) -> None:
    """Also what has a session of its own is gone; answer, history and event agree about how it ended.

    What a cell wrote to the descriptor is read from a pipe by a thread of the kernel, at the latest before the next
    print; a C loop that begins at once and holds the GIL until the kill leaves it there (DESIGN D28).
    """
    path = tmp_path / "children"
    cell = ended_by_time(quick, SWALLOWING.format(path=str(path)))
    assert (actions(cell), cell["variables"]) == (TO_TERM, "lost"), cell
    children = [int(word) for word in path.read_text(encoding="utf-8").split()]
    assert len(children) == 2
    until(lambda: not any(alive(pid) for pid in children), "the children of the killed kernel are gone")
    assert quick.output("row", cell["id"]) == b"before" * 1000 + b"\nraw\n\n"
    assert cell["total_bytes"] == 6006
    (row,) = [item for item in quick.history("row") if item["id"] == cell["id"]]
    assert (row["status"], row["variables"]) == ("timed_out", "lost"), row
    assert [step["action"] for step in row["steps"]] == actions(cell)
    event = interrupted(quick, "row")[-1]
    assert (event["cell"], event["variables"], event["why"]) == (cell["id"], "lost", "timed_out"), event
    assert [step["action"] for step in event["steps"]] == actions(cell)
    died = [item for item in quick.events(quick.show("row")["unit"]) if item["event"] in {"died", "stopped"}][-1]
    assert died["reason"] == "timeout", died


# -- whose time it is -----------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_the_default_times_bring_no_step_early(tmp_path: Path) -> None:
    """SIGINT at 0 and 1 s, SIGTERM at 3 s (notes §4.8). 30 s is the default, 1 s the least."""
    with house() as made:
        made.start()
        calls = Calls(made, str(tmp_path))
        assert [calls.run("row", "1", **more)["timeout_seconds"] for more in ({}, {"timeout": 0.2})] == [30, 1]
        cell = ended_by_time(calls, STUBBORN["SIG_IGN"][0])
        assert actions(cell)[:3] == TO_TERM
        first, second, term = (step["after_seconds"] for step in cell["steps"][:3])
        assert (first, second >= 1.0, term >= 3.0) == (0, True, True)


@pytest.mark.deep
def test_the_time_is_that_of_the_whole_call_also_what_was_spent_in_line(patient: Calls, tmp_path: Path) -> None:
    """The second cell of the waiting call gets what line and first cell have left: it is ended, the third not run."""
    go = tmp_path / "go"
    first = patient.later(
        "whole", f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)"
    )
    patient.wait_running("whole")
    second = patient.later("whole", ["a = 1", "time.sleep(600); b = 1", "c = 1"], timeout=5)
    until(lambda: patient.show("whole")["queued"] == 1, "the second call waits")
    go.touch()
    assert first.document()["status"] == "ok"
    document = second.document()
    assert [cell["status"] for cell in document["cells"]] == ["ok", "timed_out", "aborted"], document
    assert document["cells"][1]["duration_seconds"] < 30
    assert (document["status"], document["variables"]) == ("timed_out", "kept")
    assert patient.value("whole", "[name for name in 'abc' if name in globals()]") == "['a']"


@pytest.mark.deep
def test_a_cell_that_ends_in_the_moment_of_its_timeout_leaves_no_late_sigint_behind(patient: Calls) -> None:
    """SIGINTs that come between cells must hit neither the kernel nor the next cell."""
    patient.run("edge", "1")
    for _ in range(1 + 4 * DEEP):
        patient.ask("edge", "import time; time.sleep(0.98)", timeout=1)
        document = patient.run("edge", "x = sum(range(200000)); 'well'")
        assert (document["status"], document["variables"]) == ("ok", "kept"), document


# -- cancelling -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["stream", "plain JSON"])
def test_a_client_that_goes_away_cancels_its_cell_and_nothing_else(patient: Calls, form: str) -> None:
    patient.run("gone", "mine = 42")
    if form == "stream":
        with patient.stream("gone", "import time; time.sleep(600)") as stream:
            cell = stream.until("cell_started")["id"]
    else:
        connection = UnixConnection(patient.house.socket)
        payload = json.dumps(patient.body("import time; time.sleep(600)")).encode()
        connection.request("POST", "/api/kernels/gone/execute", payload, {"Content-Type": "application/json"})
        cell = patient.wait_running("gone")
        connection.close()
    patient.wait_state("gone", "idle")
    assert patient.value("gone", "mine") == "42"
    (row,) = [item for item in patient.history("gone") if item["id"] == cell]
    assert (row["status"], row["variables"]) == ("cancelled", "kept"), row
    assert [step["action"] for step in row["steps"]] in AT_ITS_BEGIN
    assert interrupted(patient, "gone")[-1]["why"] == "cancelled"
    assert patient.interrupt("gone")["running"] is None, "an interrupt of an idle kernel harms nothing"
    assert patient.value("gone", "mine") == "42"


def test_interrupt_ends_the_running_cell_and_says_by_what(patient: Calls, tmp_path: Path) -> None:
    patient.run("asked", "mine = 42")
    mark = tmp_path / "begun"
    call = patient.later("asked", [f"open({str(mark)!r}, 'w').close()\nimport time; time.sleep(600)", "never = 1"])
    until(mark.exists, "the first cell has begun")
    cell = patient.show("asked")["running"]
    report = patient.interrupt("asked")
    assert (report["schema"], report["running"]) == ("px.interrupt/1", cell), report
    assert [step["action"] for step in report["steps"]] in AT_ITS_BEGIN
    document = call.document()
    assert (document["status"], document["variables"]) == ("cancelled", "kept"), document
    assert [item["status"] for item in document["cells"]] == ["cancelled", "aborted"], document
    assert document["cells"][0]["id"] == cell
    assert patient.value("asked", "mine, 'never' in globals()") == "(42, False)"


@pytest.mark.deep
def test_each_further_interrupt_goes_on_to_the_next_rung(patient: Calls) -> None:
    """The second rung of this daemon is 20 s away: only the asking can bring it sooner.

    The cell is deaf before it is interrupted first: one that catches each KeyboardInterrupt may be hit on its way in,
    or while it catches the last one, and ends well.
    """
    with patient.stream("twice", IGNORING) as stream:
        cell = stream.until("cell_started")["id"]
        assert stream.printed(5) == "deaf\n"
        first = patient.interrupt("twice")
        assert (first["running"], [step["action"] for step in first["steps"]]) == (cell, ONCE), first
        second = patient.interrupt("twice")
        assert (second["running"], [step["action"] for step in second["steps"]]) == (cell, [*ONCE, *ONCE]), second
        patient.interrupt("twice")
        document = stream.until("done")["result"]
    assert (document["status"], document["variables"]) == ("cancelled", "lost"), document
    assert actions(document["cells"][0]) == TO_TERM, document
    assert patient.value("twice", "'mine' in globals()") == "False"
    ends = [item for item in patient.events(patient.show("twice")["unit"]) if item["event"] in {"died", "stopped"}]
    assert [item["reason"] for item in ends] == ["cancelled"], ends


def test_a_call_that_is_cancelled_in_the_queue_runs_nothing_and_hurts_nobody(patient: Calls, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    first = patient.later("queue", f"run('while ! [ -e {tmp_path}/go ]; do sleep 0.02; done')")
    patient.wait_running("queue")
    with patient.stream("queue", f"open({str(mark)!r}, 'w')") as waiting:
        assert waiting.until("queued")["position"] == 1
        until(lambda: patient.show("queue")["queued"] == 1, "the second call waits")
    until(lambda: patient.show("queue")["queued"] == 0, "the waiter is gone")
    (tmp_path / "go").touch()
    assert first.document()["status"] == "ok"
    assert patient.value("queue", "1 + 1") == "2"
    assert not mark.exists()


# -- while it starts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", mostly_deep(["its time is over", "it is interrupted"], "its time is over"))
def test_a_call_that_ends_while_its_kernel_starts_runs_nothing(patient: Calls, tmp_path: Path, how: str) -> None:
    """A start that lost its callers goes on, and serves the next call; an interrupt ends the start itself."""
    modules = tmp_path / ".pxd" / "modules"
    modules.mkdir(parents=True)
    begun, go = tmp_path / "begun", tmp_path / "go"
    (modules / "slow.py").write_text(
        f"import os, pathlib, time\nopen({str(begun)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\n"
    )
    name = f"slow-{len(how)}"
    timeout = 3 if how == "its time is over" else 50
    call = patient.later(name, "open('ran', 'w')", cwd=str(tmp_path), timeout=timeout)
    until(lambda: begun.exists() and begun.read_text(), "the kernel is starting")
    if how == "it is interrupted":
        assert [step["action"] for step in patient.interrupt(name)["steps"]] == ["end_start"]
    assert call.result().status == (504 if timeout == 3 else 409), call.result().body
    if how == "it is interrupted":
        until(lambda: not any(alive(int(pid)) for pid in begun.read_text().split()), "nothing is left of the start")
    go.touch()
    assert patient.value(name, "import os; os.path.exists('ran'), os.getpid()", cwd=str(tmp_path)).startswith("(False")
    assert len(begun.read_text().split()) == (1 if timeout == 3 else 2)


# -- from a terminal ------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_a_second_ctrl_c_goes_on_to_the_next_rung(patient: Calls) -> None:
    # Whoever reads a word may interrupt at once: it is said inside of `try`. And the cell sleeps in short pieces: a
    # signal that comes right before a sleep is noticed after it, here before anybody has to interrupt again.
    stubborn = """import time
word = 'begun'
while True:
    try:
        if word: print(word, flush=True)
        word = None
        while True: time.sleep(0.05)
    except KeyboardInterrupt: word = 'no'
"""
    process = beside(
        [BIN / "pxctl", "exec", "--kernel", "harder", "--cwd", patient.cwd, stubborn],
        env=patient.house.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for word in ("begun", "no", "no"):
        assert process.stdout.readline() == f"{word}\n"
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "lost" in err, err
    until(lambda: patient.state("harder") in {"stopped", "idle", "failed"}, "the kernel is gone")
    assert actions({"steps": patient.history("harder")[-1]["steps"]}) == TO_TERM


# -- what comes in between ------------------------------------------------------------------------------------------


def test_stop_while_a_cell_runs_ends_both_and_the_caller_is_told(patient: Calls) -> None:
    patient.run("stopped", "mine = 42")
    call = patient.later("stopped", "run('sleep 600')")
    patient.wait_running("stopped")
    kernel = patient.known()["stopped"]
    tree = [kernel["pid"], *until(lambda: descendants(kernel["pid"]), "the cell has a child")]
    answer = patient.house.request("DELETE", f"/api/kernels/{kernel['id']}")
    assert answer.status == 200, answer.body
    assert not [pid for pid in tree if alive(pid)]
    document = call.document()
    assert (document["status"], document["variables"]) == ("cancelled", "lost"), document
    assert "stopped" in (document["message"] or ""), document
    assert patient.value("stopped", "'mine' in globals()") == "False"


@pytest.mark.deep
def test_an_output_over_the_cap_is_cut_and_says_so(quick: Calls) -> None:
    """It has nothing to do with interrupts but the daemon, whose cells may print a megabyte."""
    document = quick.run("capped", "for at in range(300): print(str(at).rjust(9999, '.'))")
    (cell,) = document["cells"]
    kept = quick.output("capped", cell["id"])
    assert kept == b"".join(b"%s\n" % str(at).rjust(9999, ".").encode() for at in range(300))[: len(kept)]
    assert 0 < len(kept) <= 1_000_000
    assert (cell["status"], cell["truncated"]) == ("ok", True)
    told = [notice.replace(",", "").lower() for notice in cell["notices"]]
    assert any("2000000" in notice or "cap" in notice for notice in told), told

"""How cells are made to end: the interrupt matrix (timeout), and every way to cancel, against a
real daemon.

Law: what the answer says of the variables is what the next cell finds, and the next call works at
once.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from e2e.house import UnixConnection, alive, gone, house, of_module, until
from e2e.kernel_house import PATIENT, Call, Calls, actions, descendants, kernels_house, waits_for
from rounds import DEEP, mostly_deep

QUICK_LADDER = {
    **PATIENT,
    "PX_KERNELS__LADDER_TERMINATE_SECONDS": "0.5",
    "PX_KERNELS__LADDER_KILL_SECONDS": "5",
    "PX_KERNELS__OUTPUT_CELL_BYTES": "1000000",
}
"""The last rung is far enough that what dies of SIGTERM is reaped before it, on a busy machine,
too.
"""
ONCE = ["sigint"]
AT_ITS_BEGIN = [ONCE, [*ONCE, *ONCE]]
"""Of an interrupt that may come just as the code goes to sleep: what Python notes between its last
look for signals and the system call ends nothing by itself, and the second rung does.
"""
TO_TERM = [*ONCE, *ONCE, "sigterm"]
BEGUN = """
def begun():
    import time
    with open({path!r}, "w") as mark: mark.write(str(time.monotonic()))
"""
"""What a cell calls where the end of its time is to find it."""
YIELDING = {
    "endless loop": "begun()\nwhile True: pass",
    "sleep": "import time; begun(); time.sleep(60)",
    "socket": "import socket\nleft, right = socket.socketpair()\nbegun()\nleft.recv(1)",
    "regex": "import re; begun(); re.match(r'(a+)+$', 'a' * 60 + 'b')",
    "bigint": "begun(); big = 3 ** (10 ** 9)",
    "child": "import subprocess; begun(); subprocess.run(['sleep', '60'])",
    "child with a session": "import subprocess; begun(); subprocess.run(['sleep', '60'], "
    "start_new_session=True)",
    "await": "import asyncio; begun(); await asyncio.sleep(60)",
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
begun()
while True:
    try: time.sleep(60)
    except KeyboardInterrupt: pass
"""
STUBBORN = {
    "C loop": ("begun(); sum(range(10 ** 12))", TO_TERM),
    "SIG_IGN": (
        "begun(); import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(600)",
        TO_TERM,
    ),
    "all ignored": (DEAF, [*TO_TERM, "sigkill"]),
}
LEAVES_CHILDREN = """
print('before' * 1000)
import os, subprocess
os.write(1, b'raw\\n'); print()
same = subprocess.Popen(["sleep", "600"])
own = subprocess.Popen(["sleep", "600"], start_new_session=True)
open({path!r}, "w").write(f"{{same.pid}} {{own.pid}}")
"""
patient = of_module(kernels_house, PATIENT)
quick = of_module(kernels_house, QUICK_LADDER)


def ended_by_time(calls: Calls, code: str) -> Call:
    """Return the call whose cell ran out of its time, in the session `row`.

    The code calls `begun()` where its end is to find it. What comes there late, or never, is hit on
    its way on a busy machine, and proves nothing: it is given more time.
    """
    mark, timeout = Path(calls.cwd, "begun-at"), 1.0
    while True:
        mark.unlink(missing_ok=True)
        calls.run("row", f"import time\n{BEGUN.format(path=str(mark))}")
        sent = time.monotonic()
        call = calls.ask("row", code, timeout=timeout)
        begun_at = mark.read_text(encoding="utf-8") if mark.exists() else ""
        if begun_at and float(begun_at) - sent < timeout * 0.4:
            break
        assert timeout < 25, f"the cell never comes to where it is to be hit: {call.body!r}"
        timeout *= 3
    assert (call["status"], call.cell["status"], call["timeout_seconds"]) == (
        "timed_out",
        "timed_out",
        timeout,
    )
    assert call["variables"] in call["message"], call.document
    return call


@pytest.mark.parametrize("row", mostly_deep(YIELDING, "sleep", "await"))
def test_a_cell_that_yields_ends_by_the_first_rung_and_keeps_its_variables(
    patient: Calls, row: str
) -> None:
    before = patient.run("row", "mine = 42")
    call = ended_by_time(patient, YIELDING[row])
    error = "CancelledError" if "await" in YIELDING[row] else "KeyboardInterrupt"
    assert (actions(call.cell), call["variables"], call.cell["error"]["name"]) == (
        ONCE,
        "kept",
        error,
    ), call.cell
    assert "supervisord_py" not in call.text, (
        "a traceback shows the user's code, not how the launcher raises"
    )
    after = patient.run("row", "print(mine)")
    assert (after.text, after["instance"]) == ("42", before["instance"])


@pytest.mark.deep
@pytest.mark.parametrize("row", STUBBORN)
def test_a_cell_that_never_yields_ends_with_its_kernel_and_the_answer_says_lost(
    quick: Calls, row: str
) -> None:
    code, wanted = STUBBORN[row]
    before = quick.run("row", "mine = 42")
    call = ended_by_time(quick, code)
    assert (actions(call.cell), call["variables"]) == (wanted, "lost"), call.cell
    after = quick.run("row", "print('mine' in globals())")
    assert (after.text, after.ok, "variables" in after.told) == ("False", True, True), (
        after.document
    )
    assert (after["instance"] != before["instance"], bool(after["cold_start_ms"])) == (True, True)


def test_a_kernel_that_had_to_be_killed_leaves_its_output_and_no_process_and_all_tell_the_same(
    quick: Calls, tmp_path: Path
) -> None:
    """Also what has a session of its own is gone; answer, history and event agree about how it
    ended.
    """
    path = tmp_path / "children"
    call = ended_by_time(quick, LEAVES_CHILDREN.format(path=str(path)) + SWALLOWED)
    cell = call.cell
    assert (actions(cell), call["variables"]) == (TO_TERM, "lost"), cell
    children = [int(word) for word in path.read_text(encoding="utf-8").split()]
    assert len(children) == 2
    gone(*children)
    assert quick.output("row", cell["id"]) == b"before" * 1000 + b"\nraw\n\n"
    assert cell["total_bytes"] == 6006
    (row,) = [item for item in quick.history("row") if item["id"] == cell["id"]]
    event = quick.events("row", "interrupted_cell")[-1]
    assert (row["status"], row["variables"], actions(row)) == ("timed_out", "lost", TO_TERM), row
    assert (event["cell"], event["variables"], event["why"]) == (cell["id"], "lost", "timed_out"), (
        event
    )
    assert actions(event) == TO_TERM
    assert quick.events("row", "died", "stopped")[-1]["reason"] == "timeout"


@pytest.mark.deep
def test_an_output_over_the_cap_is_cut_and_says_so(quick: Calls) -> None:
    """It has nothing to do with interrupts but the daemon, whose cells may print a megabyte."""
    cell = quick.run("capped", "print('x' * 3_000_000)").cell
    kept = quick.output("capped", cell["id"])
    assert (kept == b"x" * len(kept), 0 < len(kept) <= 1_000_000) == (True, True)
    assert (cell["status"], cell["truncated"], "cap" in str(cell["notices"])) == (
        "ok",
        True,
        True,
    ), cell["notices"]


# -- whose time it is ------------------------------------------------------------------------------


@pytest.mark.deep
def test_the_default_times_bring_no_step_early() -> None:
    """SIGINT at 0 and 1 s, SIGTERM at 3 s (notes §4.8). 30 s is the default, 1 s the least."""
    with house(start=True) as made:
        calls = Calls(made)
        assert [
            calls.run("row", "1", **more)["timeout_seconds"] for more in ({}, {"timeout": 0.2})
        ] == [30, 1]
        cell = ended_by_time(calls, STUBBORN["SIG_IGN"][0]).cell
        assert actions(cell)[:3] == TO_TERM
        first, second, term = (step["after_seconds"] for step in cell["steps"][:3])
        assert (first, second >= 1.0, term >= 3.0) == (0, True, True)


@pytest.mark.deep
def test_the_time_is_that_of_the_whole_call_also_what_was_spent_in_line(
    patient: Calls, tmp_path: Path
) -> None:
    """The second cell of the waiting call gets what line and first cell have left: it is ended,
    the third not run.
    """
    first = patient.begun("whole", waits_for(tmp_path / "go"))
    second = patient.later("whole", ["a = 1", "time.sleep(600); b = 1", "c = 1"], timeout=5)
    until(lambda: patient.show("whole")["queued"] == 1, "the second call waits")
    (tmp_path / "go").touch()
    assert first.result().ok
    call = second.result()
    assert (call.statuses, call.ended) == (["ok", "timed_out", "aborted"], ("timed_out", "kept")), (
        call.document
    )
    assert call["cells"][1]["duration_seconds"] < 30
    assert patient.value("whole", "[name for name in 'abc' if name in globals()]") == "['a']"


@pytest.mark.deep
def test_a_cell_that_ends_in_the_moment_of_its_timeout_leaves_no_late_sigint_behind(
    patient: Calls,
) -> None:
    patient.run("edge", "1")
    for _ in range(1 + 4 * DEEP):
        patient.ask("edge", "import time; time.sleep(0.98)", timeout=1)
        assert patient.run("edge", "x = sum(range(200000)); 'well'").ended == ("ok", "kept")


# -- cancelling ------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["stream", "plain JSON"])
def test_a_client_that_goes_away_cancels_its_cell_and_nothing_else(
    patient: Calls, form: str
) -> None:
    patient.run("gone", "mine = 42")
    code = "import time; time.sleep(600)"
    if form == "stream":
        with patient.stream("gone", code) as stream:
            cell = stream.until("cell_started")["id"]
    else:
        connection, kind = (
            UnixConnection(patient.house.socket),
            {"Content-Type": "application/json"},
        )
        connection.request(
            "POST", "/api/kernels/gone/execute", json.dumps(patient.body(code)), kind
        )
        cell = patient.wait_running("gone")
        connection.close()
    patient.wait_state("gone", "idle")
    assert patient.value("gone", "mine") == "42"
    (row,) = [item for item in patient.history("gone") if item["id"] == cell]
    assert (row["status"], row["variables"], actions(row) in AT_ITS_BEGIN) == (
        "cancelled",
        "kept",
        True,
    ), row
    assert patient.events("gone", "interrupted_cell")[-1]["why"] == "cancelled"
    assert patient.interrupt("gone")["running"] is None, (
        "an interrupt of an idle kernel harms nothing"
    )
    assert patient.value("gone", "mine") == "42"


def test_interrupt_ends_the_running_cell_and_says_by_what(patient: Calls) -> None:
    patient.run("asked", "mine = 42")
    call = patient.begun("asked", "import time; time.sleep(600)")
    cell = patient.show("asked")["running"]
    report = patient.interrupt("asked")
    assert (report["schema"], report["running"], actions(report) in AT_ITS_BEGIN) == (
        "px.interrupt/1",
        cell,
        True,
    )
    assert (call.result().ended, call.result().cell["id"]) == (("cancelled", "kept"), cell)
    call = patient.later("asked", ["import time; time.sleep(600)", "never = 1"])
    patient.wait_running("asked")
    assert "sigint" in patient.house.pxctl("kernel", "interrupt", "asked").stdout
    assert (call.result().statuses, call.result()["variables"]) == (
        ["cancelled", "aborted"],
        "kept",
    )
    assert patient.house.pxctl("kernel", "interrupt", "asked").stdout.endswith(
        " no cell is running\n"
    )
    assert patient.value("asked", "mine, 'never' in globals()") == "(42, False)"


@pytest.mark.parametrize(
    "how", mostly_deep(["its time is over", "it is interrupted"], "its time is over")
)
def test_a_call_that_ends_while_its_kernel_starts_runs_nothing(
    patient: Calls, tmp_path: Path, how: str
) -> None:
    """A start that lost its callers goes on, and serves the next call; an interrupt ends the
    start itself.
    """
    module, begun, go = (
        tmp_path / ".pxd" / "modules" / "slow.py",
        tmp_path / "begun",
        tmp_path / "go",
    )
    module.parent.mkdir(parents=True)
    module.write_text(
        f"import os\nopen({str(begun)!r}, 'a').write(f'{{os.getpid()}}\\n')\n{waits_for(go)}"
    )
    is_late, name, cwd = how == "its time is over", f"slow-{len(how)}", str(tmp_path)
    call = patient.later(name, "open('ran', 'w')", cwd=cwd, timeout=3 if is_late else 50)
    until(lambda: begun.exists() and begun.read_text(), "the kernel is starting")
    if not is_late:
        assert actions(patient.interrupt(name)) == ["end_start"]
    assert call.result().status == (504 if is_late else 409), call.result().body
    if not is_late:
        gone(*map(int, begun.read_text().split()))
    go.touch()
    assert patient.value(name, "import os; os.path.exists('ran')", cwd=cwd) == "False"
    assert len(begun.read_text().split()) == (1 if is_late else 2)


@pytest.mark.deep
def test_a_second_ctrl_c_goes_on_to_the_next_rung(patient: Calls) -> None:
    # It says its word inside of `try`: whoever reads it may interrupt at once. And it sleeps in
    # short pieces: a signal that comes right before a sleep is noticed after it.
    stubborn = """import time
word = 'begun'
while True:
    try:
        if word: print(word, flush=True)
        word = None
        while True: time.sleep(0.05)
    except KeyboardInterrupt: word = 'no'
"""
    process = patient.house.pxctl_later(
        "exec", "--kernel", "harder", stubborn, start_new_session=True
    )
    for word in ("begun", "no", "no"):
        assert process.stdout.readline() == f"{word}\n"
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode != 0, "lost" in err) == (True, True), err
    patient.wait_state("harder", "stopped", "idle", "failed")
    assert actions(patient.history("harder")[-1]) == TO_TERM


@pytest.mark.parametrize("verb", ["stop", "restart"])
def test_stop_and_restart_cut_the_running_cell_off_with_its_children_and_the_caller_is_told(
    patient: Calls, verb: str
) -> None:
    call = patient.later(verb, ["mine = 1", "import subprocess; subprocess.run(['sleep', '600'])"])

    def processes() -> list[int]:
        pid = patient.known().get(verb, {}).get("pid")
        return [pid, *children] if pid and (children := descendants(pid)) else []

    tree = until(processes, "the cell has a child")
    told = patient.house.json("kernel", verb, patient.show(verb)["id"])
    assert not [pid for pid in tree if alive(pid)]
    assert patient.state(verb) == ("stopped" if verb == "stop" else "idle"), told
    assert (call.result().statuses, call.result()["variables"]) == (["ok", "cancelled"], "lost")
    assert ("stopped" if verb == "stop" else "replaced") in call.result()["message"]
    assert patient.value(verb, "'mine' in globals()") == "False"
    reasons = [event["reason"] for event in patient.events(verb, "stopped")]
    assert reasons == ["stopped" if verb == "stop" else "replaced"]

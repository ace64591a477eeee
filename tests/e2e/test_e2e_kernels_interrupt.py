"""How cells are made to end: the interrupt matrix (timeout), and every way to cancel, against a real daemon.

Law: what the answer says of the variables is what the next cell finds, and the next call works at once.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from beside import beside
from e2e.house import BIN, UnixConnection, alive, house, marked, until, written_pid
from e2e.kernel_calls import Calls, actions
from e2e.kernel_house import descendants
from rounds import DEEP, mostly_deep

if TYPE_CHECKING:
    from collections.abc import Iterator

    from e2e.house import Answer

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
CHILD = """
import contextlib, os, subprocess, threading, time
with contextlib.suppress(FileNotFoundError): os.remove('{path}')
def look():
    while not (os.path.exists('{path}') and os.path.getsize('{path}')): time.sleep(0.01)
    begun()
threading.Thread(target=look, daemon=True).start()
subprocess.run(['sh', '-c', 'echo $$ > {path}; exec sleep 600'], start_new_session=True)
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
    after = patient.run("row", "print(mine)")
    assert (after["cells"][0]["text"], after["instance"]) == ("42\n", before["instance"]), after


@pytest.mark.deep
def test_a_cell_whose_child_alone_was_interrupted_is_timed_out_all_the_same(patient: Calls) -> None:
    """os.system() returns without an exception (notes §3.4): the cell ends, what it printed then is there."""
    patient.run("row", "mine = 42")
    cell = ended_by_time(patient, "import os; begun(); print('returned', os.system('sleep 60'))")
    assert (actions(cell), cell["variables"], cell["text"]) == (ONCE, "kept", "returned 2\n"), cell
    assert patient.value("row", "mine") == "42"


@pytest.mark.deep
def test_the_children_of_an_interrupted_cell_are_gone(patient: Calls, tmp_path: Path) -> None:
    """subprocess.run() ends its child when it is interrupted, in whatever session that is."""
    mark = tmp_path / "pid"
    cell = ended_by_time(patient, CHILD.format(path=mark))
    assert (actions(cell), cell["variables"]) == (ONCE, "kept"), cell
    until(lambda: not alive(written_pid(mark)), "the child of the cell is gone")


def test_an_interrupted_traceback_shows_the_users_code_and_nothing_of_ours(patient: Calls) -> None:
    """A user reads where the own code was, not how the launcher raises."""
    cell = ended_by_time(patient, "import time\nbegun()\nwhile True:\n    time.sleep(0.01)")
    assert "time.sleep(0.01)" in cell["text"], cell
    assert "supervisord_py" not in cell["text"], cell["text"]


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


@pytest.mark.deep
def test_the_default_ladder_comes_no_rung_early_and_is_over_two_seconds_after_its_grace(tmp_path: Path) -> None:
    """SIGINT at 0 and 1 s, SIGTERM at 3 s; over by grace + 2 s (notes §4.8). 30 s is the default, 1 s the least.

    A busy machine takes a second now and then; a ladder that is too long takes it each time.
    """
    with house() as made:
        made.start()
        calls = Calls(made, str(tmp_path))
        assert (calls.run("row", "1")["timeout_seconds"], calls.run("row", "1", timeout=0.2)["timeout_seconds"]) == (
            30,
            1,
        )
        for _ in range(3):
            cell = ended_by_time(calls, STUBBORN["SIG_IGN"][0])
            assert actions(cell)[:3] == TO_TERM
            first, second, term = (step["after_seconds"] for step in cell["steps"][:3])
            assert first == 0
            assert second >= 1.0
            assert term >= 3.0
            if actions(cell) == TO_TERM and cell["duration_seconds"] <= cell["timeout"] + 3 + 2:
                break
        else:
            pytest.fail(f"each time it takes too long: {cell}")
        calls.run("row", "1")


# -- whose time it is -----------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_the_time_is_that_of_the_whole_call(patient: Calls) -> None:
    """Each cell alone would have had the time; the call of all has not.

    A busy machine takes a second now and then; a second cell that had two of its own would have them each time.
    """
    for _ in range(6):
        patient.run("whole", "import time", reset=True)
        document = patient.run("whole", ["time.sleep(1); a = 1", "time.sleep(60); b = 1", "c = 1"], timeout=2)
        first, second, _ = document["cells"]
        if first["status"] == "ok" and second["duration_seconds"] < 2:
            break
    else:
        pytest.fail(f"each time it has more than the call: {document}")
    assert [cell["status"] for cell in document["cells"]] == ["ok", "timed_out", "aborted"], document
    assert (document["status"], document["variables"]) == ("timed_out", "kept")
    assert patient.value("whole", "[name for name in 'abc' if name in globals()]") == "['a']"


@pytest.mark.deep
def test_the_time_counts_from_the_arrival_also_what_was_spent_in_line(patient: Calls, tmp_path: Path) -> None:
    for number in range(6):
        answer = waited_for_half(patient, tmp_path / f"go{number}")
        if answer.status == 200 and answer.json()["cells"][0]["duration_seconds"] < 1.9:
            break
    else:
        pytest.fail(f"each time the cell has more than the line has left: {answer.body!r}")
    assert answer.json()["status"] == "timed_out"


def waited_for_half(calls: Calls, go: Path) -> Answer:
    """Return the answer of a call that waits in line for half of its two seconds, and then would run for ever."""
    first = calls.later("half", f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)")
    calls.wait_running("half")
    began = time.monotonic()
    second = calls.later("half", "time.sleep(600)", timeout=2)
    until(lambda: second.answers or calls.show("half")["queued"] == 1, "the second call waits")
    until(lambda: time.monotonic() - began > 1, "half of its time is over")
    go.touch()
    assert first.document()["status"] == "ok"
    return second.answer()


# -- cancelling -----------------------------------------------------------------------------------------------------


def test_a_client_that_goes_away_cancels_its_cell_and_nothing_else(patient: Calls) -> None:
    patient.run("gone", "mine = 42")
    with patient.stream("gone", "import time; time.sleep(600)") as stream:
        cell = stream.until("cell_started")["id"]
    patient.wait_state("gone", "idle")
    assert patient.value("gone", "mine") == "42"
    (row,) = [item for item in patient.history("gone") if item["id"] == cell]
    assert (row["status"], row["variables"]) == ("cancelled", "kept"), row
    assert [step["action"] for step in row["steps"]] in AT_ITS_BEGIN
    assert interrupted(patient, "gone")[-1]["why"] == "cancelled"


def test_a_client_that_reads_no_stream_cancels_as_well(patient: Calls) -> None:
    """The plain JSON form: the connection is closed while the answer is awaited."""
    patient.run("plain", "mine = 42")
    connection = UnixConnection(patient.house.socket)
    payload = json.dumps(patient.body("import time; time.sleep(600)")).encode()
    connection.request("POST", "/api/kernels/plain/execute", payload, {"Content-Type": "application/json"})
    cell = patient.wait_running("plain")
    connection.close()
    patient.wait_state("plain", "idle")
    assert patient.value("plain", "mine") == "42"
    (row,) = [item for item in patient.history("plain") if item["id"] == cell]
    assert row["status"] == "cancelled", row


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


def test_interrupt_of_an_idle_kernel_harms_nothing(patient: Calls) -> None:
    first = patient.run("idle", "mine = 42")
    for _ in range(3):
        assert patient.interrupt("idle")["running"] is None
    after = patient.run("idle", "mine")
    assert (after["cells"][0]["text"], after["instance"]) == ("42\n", first["instance"])


@pytest.mark.deep
def test_an_interrupted_cell_gives_way_to_the_next_call_in_line(patient: Calls, tmp_path: Path) -> None:
    patient.run("line", "order = []")
    mark = tmp_path / "begun"
    code = f"import time; order.append('a'); open({str(mark)!r}, 'w').close(); time.sleep(600)"
    first = patient.later("line", code)
    until(mark.exists, "the first call's cell has done what it is to do before it is interrupted")
    second = patient.later("line", "order.append('b'); order")
    until(lambda: patient.show("line")["queued"] == 1, "the second call waits")
    patient.interrupt("line")
    assert first.document()["status"] == "cancelled"
    document = second.document()
    assert (document["status"], document["cells"][0]["text"]) == ("ok", "['a', 'b']\n"), document


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


@pytest.mark.deep
def test_a_call_whose_time_is_over_in_the_queue_is_a_504_and_the_running_one_goes_on(
    patient: Calls, tmp_path: Path
) -> None:
    first = patient.later("late", f"run('while ! [ -e {tmp_path}/go ]; do sleep 0.02; done').returncode")
    patient.wait_running("late")
    status, problem = patient.problem("late", f"open({str(tmp_path / 'ran')!r}, 'w')", timeout=1)
    assert (status, problem["kind"]) == (504, "timed_out"), problem
    assert problem["hint"], problem
    (tmp_path / "go").touch()
    assert first.document()["status"] == "ok"
    assert not (tmp_path / "ran").exists()


# -- while it starts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SlowProject:
    """A project whose module takes its time: each start of a kernel there says who it is and waits for the file `go`.

    A kernel that was started ahead bears the marks of that start, so that its environment does not tell what it is now.
    """

    folder: Path

    @classmethod
    def made(cls, folder: Path) -> SlowProject:
        modules = folder / ".pxd" / "modules"
        modules.mkdir(parents=True)
        (modules / "slow.py").write_text(
            "import os, pathlib, time\n"
            f"open({str(folder / 'starting')!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
            f"while not pathlib.Path({str(folder / 'go')!r}).exists(): time.sleep(0.01)\n"
        )
        return cls(folder)

    def begun(self) -> list[int]:
        """Return the pids of all kernels whose start came to the module."""
        path = self.folder / "starting"
        return [int(line) for line in path.read_text(encoding="utf-8").split()] if path.exists() else []

    def left(self, calls: Calls, unit: str) -> list[int]:
        """Return what lives of a unit whose sessions are all in this project."""
        return sorted({*bearing(calls, unit), *filter(alive, self.begun())})

    def go(self) -> None:
        """Let every start go on."""
        (self.folder / "go").touch()

    @property
    def has_run(self) -> bool:
        """Whether the cell ran that was not to."""
        return (self.folder / "ran").exists()


@pytest.fixture
def slow(tmp_path: Path) -> SlowProject:
    return SlowProject.made(tmp_path)


def bearing(calls: Calls, unit: str) -> list[int]:
    """Return the living processes that bear the mark of a unit: not a kernel that was started ahead."""
    wanted = f"PX_UNIT={unit}".encode()
    found = []
    for pid in marked(calls.house.daemon_id):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environ:
            if wanted in environ.read().split(b"\0"):
                found.append(pid)
    return found


def test_the_time_of_a_call_covers_the_start_and_a_start_that_is_given_up_leaves_nothing(
    patient: Calls, slow: SlowProject
) -> None:
    for seconds in (1, 4, 16):
        status, problem = patient.problem("slow", "open('ran', 'w')", cwd=str(slow.folder), timeout=seconds)
        assert (status, problem["kind"]) == (504, "timed_out"), problem
        if slow.begun():  # else a busy machine had not even chosen an interpreter
            break
    assert slow.begun()
    unit = patient.known()["slow"]["unit"]
    until(lambda: not slow.left(patient, unit), "nothing is left of the start")
    slow.go()
    assert patient.value("slow", "1 + 1", cwd=str(slow.folder)) == "2"
    assert not slow.has_run


@pytest.mark.deep
def test_a_client_that_goes_away_during_the_start_leaves_a_session_that_works(
    patient: Calls, slow: SlowProject
) -> None:
    with patient.stream("leaves", "open('ran', 'w')", cwd=str(slow.folder)) as stream:
        stream.until("starting")
        until(slow.begun, "the kernel is starting")
    slow.go()
    assert patient.value("leaves", "1 + 1", cwd=str(slow.folder)) == "2"
    assert not slow.has_run
    kernel = patient.known()["leaves"]
    assert slow.left(patient, kernel["unit"]) == [kernel["pid"]], "exactly one kernel"


@pytest.mark.deep
def test_interrupt_during_the_start_ends_the_start(patient: Calls, slow: SlowProject) -> None:
    """While it starts SIGINT is not sent; the start is ended, and the caller is told (notes §4.4)."""
    call = patient.later("early", "open('ran', 'w')", cwd=str(slow.folder))
    until(slow.begun, "the kernel is starting")
    report = patient.interrupt("early")
    assert "sigint" not in [step["action"] for step in report["steps"]], report
    answer = call.answer()
    assert answer.status in {409, 503}, answer.body
    assert "cancel" in answer.body.decode(), answer.body
    unit = patient.known()["early"]["unit"]
    until(lambda: not slow.left(patient, unit), "nothing is left of the start")
    slow.go()
    assert patient.value("early", "1 + 1", cwd=str(slow.folder)) == "2"
    assert not slow.has_run


# -- from a terminal ------------------------------------------------------------------------------------------------


def exec_in_background(calls: Calls, kernel: str, code: str) -> subprocess.Popen[str]:
    command = [BIN / "pxctl", "exec", "--kernel", kernel, "--cwd", calls.cwd, code]
    return beside(
        command,
        env=calls.house.environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


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
    process = exec_in_background(patient, "harder", stubborn)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "no\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "no\n"
    process.send_signal(signal.SIGINT)
    code, _, err = finished(process)
    assert code != 0
    assert "lost" in err, err
    until(lambda: patient.state("harder") in {"stopped", "idle", "failed"}, "the kernel is gone")
    assert actions({"steps": patient.history("harder")[-1]["steps"]}) == TO_TERM


# -- what comes in between ------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_a_stubborn_cell_does_not_hold_up_another_session(quick: Calls, tmp_path: Path) -> None:
    """Neither while it runs, for hours if it could, nor while it is made to end."""
    mark = tmp_path / "begun"
    stubborn = quick.later("holds", f"open({str(mark)!r}, 'w').close()\nsum(range(10 ** 12))", timeout=600)
    until(mark.exists, "the cell has begun")
    assert quick.value("free", "1 + 1") == "2"
    assert not stubborn.answers
    quick.interrupt("holds")
    while stubborn.thread.is_alive():
        assert quick.value("free", "1 + 1") == "2"
    assert stubborn.document()["variables"] == "lost"


def test_stop_while_a_cell_runs_ends_both_and_the_caller_is_told(patient: Calls) -> None:
    patient.run("stopped", "mine = 42")
    call = patient.later("stopped", "run('sleep 600')")
    patient.wait_running("stopped")
    kernel = patient.known()["stopped"]
    tree = [kernel["pid"], *until(lambda: descendants(kernel["pid"]), "the cell has a child")]
    answer = patient.house.request("DELETE", f"/api/kernels/{kernel['id']}")
    assert answer.status == 200, answer.body
    assert not [pid for pid in [*tree, *bearing(patient, kernel["unit"])] if alive(pid)]
    document = call.document()
    assert (document["status"], document["variables"]) == ("cancelled", "lost"), document
    assert "stopped" in (document["message"] or ""), document
    assert patient.value("stopped", "'mine' in globals()") == "False"


@pytest.mark.deep
def test_a_cell_that_ends_in_the_moment_of_its_timeout_leaves_no_late_sigint_behind(patient: Calls) -> None:
    """SIGINTs that come between cells must hit neither the kernel nor the next cell."""
    patient.run("edge", "1")
    for _ in range(1 + 4 * DEEP):
        patient.ask("edge", "import time; time.sleep(0.98)", timeout=1)
        document = patient.run("edge", "x = sum(range(200000)); 'well'")
        assert (document["status"], document["variables"]) == ("ok", "kept"), document


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

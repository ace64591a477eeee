"""Sessions: what makes two calls share a kernel, lines, places, ends, and crashes.

Law: a crashed cell is never run again (counted in a file that only the cell writes), and a running
or queued session is never evicted.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from e2e.house import gone, of_module, until
from e2e.kernel_house import PATIENT, Calls, environment, kernels_house, waits_for
from rounds import mostly_deep

calls = of_module(kernels_house, PATIENT)
narrow = of_module(kernels_house, PATIENT, PX_KERNELS__MAX_SESSIONS="2", PX_KERNELS__QUEUE_MAX="2")


def test_name_real_folder_and_interpreter_make_a_session_also_right_after_a_call(
    calls: Calls, tmp_path: Path
) -> None:
    real, link, other = (tmp_path / name for name in ("real", "link", "other"))
    real.mkdir()
    other.mkdir()
    link.symlink_to(real)
    first = calls.run("key", "mine = 1", cwd=str(real))
    second = calls.run("key", "mine", cwd=f"{link}/../link/")
    assert (second.text, second["cwd"]) == ("1", os.path.realpath(real))
    assert (first["kernel"], first["instance"]) == (second["kernel"], second["instance"])
    there = calls.run(
        "key", "import os; 'mine' in globals(), os.path.basename(os.getcwd())", cwd=str(other)
    )
    assert there.text == "(False, 'other')"
    environment(real / ".venv")
    third = calls.run("key", "import sys; print('mine' in globals(), sys.prefix)", cwd=str(real))
    assert third.text == f"False {real / '.venv'}"
    assert calls.value("key", "mine", cwd=str(real), interpreter=first["interpreter"]) == "1"
    shell = calls.run("key", "echo $((1 + 1))", cwd=str(real), language="bash")
    assert (shell["backend"], shell.text) == ("bash", "2")
    assert len({call["kernel"] for call in (first, there, third, shell)}) == 4


def test_a_waiter_is_told_its_place_and_each_change(narrow: Calls, tmp_path: Path) -> None:
    first = narrow.begun("places", waits_for(tmp_path / "go"))
    with contextlib.ExitStack() as leaves:
        second = leaves.enter_context(narrow.stream("places", "'second'"))
        assert second.until("queued")["position"] == 1
        with narrow.stream("places", "'third'") as third:
            assert third.until("queued")["position"] == 2
            refused = narrow.ask("places", "'fourth'")
            assert (refused.status, refused["kind"]) == (429, "overloaded")
            assert int(refused.headers["retry-after"]) >= 1
            leaves.close()
            assert third.until("queued")["position"] == 1
            (tmp_path / "go").touch()
            assert third.until("done")["result"]["cells"][0]["text"] == "'third'\n"
    assert first.result().ok


def test_beyond_its_places_the_least_recently_used_idle_session_is_evicted(
    narrow: Calls, tmp_path: Path
) -> None:
    for name in "abc":
        narrow.run(name, f"mine = {name!r}")
    assert narrow.known()["a"]["reason"] == "evicted_lru", "of two idle ones the older"
    held = narrow.begun("b", waits_for(tmp_path / "go", "mine"))
    narrow.run("d", "1")
    narrow.wait_state("c", "stopped")
    assert {name: narrow.state(name) for name in "bd"} == {"b": "busy", "d": "idle"}
    (tmp_path / "go").touch()
    assert held.result().text == "'b'"
    again = narrow.run("c", "'mine' in globals()")
    assert (again.text, again["variables"], "variables" in again.told) == ("False", "kept", True), (
        again.document
    )
    assert [event["reason"] for event in narrow.events("c", "stopped")] == ["evicted_lru"]


def test_a_per_call_kernel_starts_empty_and_is_removed(calls: Calls) -> None:
    calls.run("percall", "mine = 1")
    call = calls.run("percall", ["import os; 'mine' in globals()", "os.getpid()"], per_call=True)
    assert (call["cells"][0]["text"], call["variables"]) == ("False\n", "lost")
    gone(int(call["cells"][1]["text"]))
    until(
        lambda: "per_call" not in {it["owner"] for it in calls.known().values() if it["pid"]},
        "none of it is left",
    )
    session, cell = call["kernel"], call["cells"][1]["id"]
    assert session not in {it["id"] for it in calls.known().values()}
    kept = f"/api/kernels/{session}"
    printed = calls.run("percall", "print('kept')", per_call=True)
    output = calls.house.paged(
        f"/api/kernels/{printed['kernel']}/cells/{printed.cell['id']}/output"
    )
    assert output == b"kept\n"
    assert [row["id"] for row in calls.house.get(f"{kept}/cells")["cells"]][1] == cell
    exported = calls.house.pxctl("kernel", "export", session)
    assert "'mine' in globals()" in exported.stdout, exported.stderr
    assert calls.value("percall", "mine") == "1"


def count(path: Path) -> str:
    return f"print('counted', flush=True); open({str(path)!r}, 'a').write('x')\n"


CRASHES = {
    "exit code": ("import os; os._exit(3)", "code 3"),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    "segmentation fault": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
}


@pytest.mark.parametrize("row", mostly_deep(CRASHES, "killed"))
def test_a_crash_is_told_at_once_and_its_cell_is_never_run_again(
    calls: Calls, tmp_path: Path, row: str
) -> None:
    code, how = CRASHES[row]
    before = calls.run("crash", "mine = 1", reset=True)
    call = calls.run("crash", [count(tmp_path / "ran") + code, "never = 1"], timeout=50)
    assert (call.ended, call.statuses) == (("error", "lost"), ["error", "aborted"]), call.document
    assert (call["cells"][0]["text"][:8], how in call["cells"][0]["error"]["value"]) == (
        "counted\n",
        True,
    )
    calls.wait_state("crash", "idle")
    after = calls.run("crash", "'mine' in globals(), 'never' in globals()")
    assert (after.text, "variables" in after.told) == ("(False, False)", True), after.document
    assert after["instance"] != before["instance"]
    assert (tmp_path / "ran").read_text() == "x"
    assert calls.events("crash", "died")[-1]["reason"] in {"exit", "signal"}


@pytest.mark.parametrize("remedy", mostly_deep(["restart", "start", "reset"], "restart"))
def test_a_second_crash_in_a_row_is_a_hard_failure_until_somebody_asks(
    calls: Calls, tmp_path: Path, remedy: str
) -> None:
    name, crash = f"hard-{remedy}", count(tmp_path / "ran") + "import os; os._exit(3)"
    assert calls.run(name, "import os; os._exit(3)")["variables"] == "lost"
    assert calls.value(name, "1") == "1", "a good cell between two crashes forgives the first"
    for state in ("idle", "failed"):
        assert calls.run(name, crash)["variables"] == "lost"
        calls.wait_state(name, state)
    for _ in range(2):
        refused = calls.ask(name, crash)
        assert (refused.status, "pxctl kernel restart" in refused["hint"]) == (503, True), refused
    done = calls.house.pxctl("exec", "--kernel", name, "1")
    assert (done.returncode, "pxctl kernel restart" in done.stderr) == (1, True), done
    assert calls.show(name)["failure"], "the failure is told"
    if remedy != "reset":
        assert calls.house.pxctl("kernel", remedy, calls.show(name)["id"]).returncode == 0
    assert calls.value(name, "'well'", reset=remedy == "reset") == "'well'"
    assert calls.show(name)["failure"] is None
    assert (tmp_path / "ran").read_text() == "xx"


def test_d11_exit_in_a_cell_is_no_crash(calls: Calls) -> None:
    for _ in range(2):
        call = calls.run("leaves", ["mine = 1", "exit()", "never = 1"])
        assert (call.statuses, call["variables"]) == (["ok", "ok", "aborted"], "lost"), (
            call.document
        )
        assert "exit" in call["message"]
        assert calls.state("leaves") != "failed"
    left = calls.house.pxctl("exec", "exit()", "--kernel", "leaves")
    assert (left.returncode, "Variables are gone" in left.stderr) == (0, True), left
    assert calls.value("leaves", "'mine' in globals()") == "False"


# -- what a kernel may become ----------------------------------------------------------------------

HOLDS_THE_LOCK = """
import ctypes, threading, time
threading.Thread(target=lambda: (time.sleep(0.2), ctypes.PyDLL(None).sleep(300)), daemon=True).start()
"""


def test_a_kernel_that_does_not_answer_is_not_idle_and_a_cell_that_never_began_is_told_so() -> None:
    """A thread of it holds the interpreter's lock, for which no cell of ours is to blame."""
    soon = {"PX_KERNELS__LADDER_TERMINATE_SECONDS": "0.3", "PX_KERNELS__LADDER_KILL_SECONDS": "0.6"}
    with kernels_house(soon) as calls:
        calls.run("hung", HOLDS_THE_LOCK)
        until(lambda: calls.state("hung") == "unresponsive", "it does not answer")
        unit = calls.show("hung")["unit"]
        assert "does not answer" in calls.known()["hung"]["silent"]
        why = calls.house.json("why", unit)
        assert (why["state"], why["next_step"]) == ("unresponsive", f"pxctl restart {unit}")
        assert "does not answer" in why["summary"]
        late = calls.run("hung", "1", timeout=1)
        assert "never began" in late["message"], late.document
        assert late.ended == ("timed_out", "lost")
        assert late.cell["error"]["name"] == "KernelUnresponsive"
        why = calls.house.json("why", unit)
        restart = f"pxctl kernel restart {calls.show('hung')['id']}"
        assert (why["reason"], why["next_step"]) == ("watchdog", restart)
        calls.run("hung", HOLDS_THE_LOCK)
        until(lambda: calls.state("hung") == "unresponsive", "it does not answer")
        done = calls.house.pxctl("exec", "--kernel", "hung", "1", "--timeout", "1")
        assert (done.returncode, f"hint: {restart}" in done.stderr) == (7, True), done
        assert calls.value("hung", "2", timeout=50) == "2"


def test_a_kernel_that_was_stopped_by_a_signal_is_told_so_everywhere(calls: Calls) -> None:
    calls.run("halted", "1")
    session = calls.show("halted")
    os.kill(session["pid"], signal.SIGSTOP)
    try:
        until(lambda: calls.state("halted") == "unresponsive", "it does not answer")
        refused = calls.ask("halted", "1")
        why = calls.house.json("why", session["unit"])
        (unit,) = calls.house.get(f"/api/status?unit={session['unit']}")["units"]
        for told in (
            refused["detail"],
            why["summary"],
            unit["silent"],
            calls.known()["halted"]["silent"],
        ):
            assert "was stopped by a signal: it runs nothing" in told
        assert why["next_step"] == refused["hint"]
        assert f"kill -CONT {session['pid']}" in why["next_step"]
    finally:
        os.kill(session["pid"], signal.SIGCONT)
    assert calls.value("halted", "1") == "1"
    assert calls.known()["halted"]["silent"] is None


def test_what_a_cell_forks_is_no_second_kernel(calls: Calls, tmp_path: Path) -> None:
    """It ends with the cell, and what it printed is there."""
    for turn in range(2):
        code = f"import os\nmine = {turn}\npid = os.fork()\n"
        code += "if pid == 0: print('child')\nelse: os.waitpid(pid, 0); print('parent')"
        call = calls.run("fork", code)
        assert (sorted(call.text.splitlines()), call.cell["status"]) == (["child", "parent"], "ok")
        assert calls.value("fork", "mine") == str(turn)
    (unit,) = calls.house.get(f"/api/status?unit={calls.show('fork')['unit']}")["units"]
    assert unit["processes"] == 1


def test_a_folder_that_was_made_again_is_entered_by_the_kernel_and_that_is_told(
    calls: Calls, tmp_path: Path
) -> None:
    place = tmp_path / "tree"
    place.mkdir()
    calls.run("again", "mine = 1", cwd=str(place))
    for turn in range(2):
        place.rmdir()
        place.mkdir()
        (place / "f.txt").write_text(str(turn))
        call = calls.run("again", "print(mine, open('f.txt').read())", cwd=str(place))
        assert call.text == f"1 {turn}"
        assert "is another folder than before" in call.told
        assert calls.run("again", "1", cwd=str(place))["notices"] == []
        (place / "f.txt").unlink()


def test_a_folder_that_was_renamed_and_made_again_gets_the_output_of_its_session(
    calls: Calls, tmp_path: Path
) -> None:
    """Also after a restart of the control plane; a kernel in a folder below goes, and one
    elsewhere stays.
    """
    place = tmp_path / "tree"
    (place / "below").mkdir(parents=True)
    calls.run("renamed", "import os; mine = 1", cwd=str(place))
    calls.run("renamed-below", "import os; os.chdir('below')", cwd=str(place))
    calls.run("renamed-elsewhere", f"import os; os.chdir({str(tmp_path)!r})", cwd=str(place))
    for turn in range(2):
        place.rename(tmp_path / f"old-{turn}")
        place.mkdir()
        if turn:
            assert calls.house.pxctl("daemon", "restart").returncode == 0
        for name in ("renamed", "renamed-below"):
            call = calls.run(
                name, f"open({name!r}, 'w').close(); print(os.getcwd())", cwd=str(place)
            )
            assert call.text == str(place)
            assert "is another folder than before" in call.told
            assert (place / name).exists()
            assert calls.run(name, "1", cwd=str(place))["notices"] == []
        call = calls.run("renamed-elsewhere", "print(os.getcwd())", cwd=str(place))
        assert (call.text, call["notices"]) == (str(tmp_path), [])
    assert calls.value("renamed", "mine", cwd=str(place)) == "1"


def test_a_call_from_a_folder_that_is_gone_says_so_with_the_way_out(
    calls: Calls, tmp_path: Path
) -> None:
    for command in ("exec 1", "kernel show again", "kernel start"):
        script = f"mkdir gone && cd gone && rmdir ../gone && exec pxctl {command}"
        here = {"cwd": tmp_path, "env": calls.house.environ}
        done = subprocess.run(
            ["sh", "-c", script], capture_output=True, text=True, check=False, **here
        )
        assert done.returncode == 1
        assert "the present folder does not exist any more" in done.stderr
        assert "hint: " in done.stderr

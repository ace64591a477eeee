"""Sessions: what makes two calls share a kernel, lines, places, ends, crashes, and cells that call back.

Law: a crashed cell is never run again (counted in a file that only the cell writes), and a running or queued session is
never evicted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.house import alive, house, until
from e2e.kernel_house import Calls, environment
from rounds import mostly_deep


@pytest.fixture(scope="module")
def calls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    """A daemon with room for six sessions."""
    with house({"PX_KERNELS__MAX_SESSIONS": "6", "PX_KERNELS__TIMEOUT_SECONDS": "50"}) as made:
        made.start()
        yield Calls(made, str(tmp_path_factory.mktemp("sessions")))


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calls]:
    """A daemon with two places and short lines; times below a second."""
    settings = {
        "PX_KERNELS__MAX_SESSIONS": "2",
        "PX_KERNELS__QUEUE_MAX": "2",
        "PX_KERNELS__TIMEOUT_MIN_SECONDS": "0.1",
        "PX_KERNELS__TIMEOUT_SECONDS": "50",
    }
    with house(settings) as made:
        made.start()
        yield Calls(made, str(tmp_path_factory.mktemp("narrow")))


def waits_for(path: Path, also: str = "None") -> str:
    """Return a cell that runs until `path` exists."""
    return f"import pathlib, time\nwhile not pathlib.Path({str(path)!r}).exists(): time.sleep(0.01)\n{also}"


# -- the key --------------------------------------------------------------------------------------------------------


def test_the_same_name_and_folder_share_a_kernel_also_through_a_link(calls: Calls, tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    first = calls.run("key", "shared = 1", cwd=str(real))
    second = calls.run("key", "shared", cwd=f"{link}/../link/")
    assert second["cells"][0]["text"] == "1\n"
    assert (first["kernel"], first["instance"]) == (second["kernel"], second["instance"])
    assert second["cwd"] == os.path.realpath(real)


def test_another_folder_is_another_session(calls: Calls, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    calls.run("folder", "mine = 1", cwd=str(tmp_path / "a"))
    second = calls.run(
        "folder", "import os; 'mine' in globals(), os.path.basename(os.getcwd())", cwd=str(tmp_path / "b")
    )
    assert second["cells"][0]["text"] == "(False, 'b')\n"
    answer = calls.house.request("GET", "/api/kernels/folder")
    problem = answer.json()
    assert (problem["kind"], len(problem["candidates"])) == ("ambiguous_name", 2), problem
    done = calls.house.pxctl("kernel", "restart", "folder")
    assert (done.returncode, done.stderr.count("candidate: kernel:folder-")) == (2, 2), done
    assert "--cwd" not in done.stderr, "the hint must not name an option that this command has not"
    assert calls.house.get(f"/api/kernels/folder?cwd={tmp_path / 'b'}")["id"] == second["kernel"]
    assert calls.house.get(f"/api/kernels/{second['kernel']}")["id"] == second["kernel"]
    assert calls.house.get(f"/api/kernels/kernel:{second['kernel']}")["id"] == second["kernel"]


def test_another_interpreter_is_another_session_also_right_after_a_call(calls: Calls, tmp_path: Path) -> None:
    first = calls.run("python", "mine = 1", cwd=str(tmp_path))
    environment(tmp_path / ".venv")
    second = calls.run("python", "import sys; print('mine' in globals(), sys.prefix)", cwd=str(tmp_path))
    assert second["cells"][0]["text"] == f"False {tmp_path / '.venv'}\n"
    assert first["kernel"] != second["kernel"]
    assert calls.value("python", "mine", cwd=str(tmp_path), interpreter=first["interpreter"]) == "1"
    third = calls.run("python", "echo $((1 + 1))", cwd=str(tmp_path), language="bash")
    assert (third["backend"], third["cells"][0]["text"]) == ("bash", "2\n")
    assert third["kernel"] not in {first["kernel"], second["kernel"]}


# -- the line -------------------------------------------------------------------------------------------------------


def test_calls_of_a_session_run_one_after_the_other_in_the_order_of_their_arrival(calls: Calls, tmp_path: Path) -> None:
    calls.run("fifo", "order = []")
    first = calls.later("fifo", waits_for(tmp_path / "go", "order.append(0)"))
    calls.wait_running("fifo")
    others = []
    for number in range(1, 5):
        others.append(calls.later("fifo", f"order.append({number})"))
        until(lambda number=number: calls.show("fifo")["queued"] == number, "it waits in line")
    (tmp_path / "go").touch()
    for call in (first, *others):
        assert call.document()["status"] == "ok"
    assert calls.value("fifo", "order") == "[0, 1, 2, 3, 4]"


def test_a_waiter_is_told_its_place_and_each_change(narrow: Calls, tmp_path: Path) -> None:
    narrow.run("places", "1")
    first = narrow.later("places", waits_for(tmp_path / "go"))
    narrow.wait_running("places")
    with narrow.stream("places", "'second'") as second:
        assert second.until("queued")["position"] == 1
        with narrow.stream("places", "'third'") as third:
            assert third.until("queued")["position"] == 2
            status, problem = narrow.problem("places", "'fourth'")
            assert (status, problem["kind"]) == (429, "overloaded"), problem
            answer = narrow.ask("places", "'fifth'")
            assert int(answer.headers["retry-after"]) >= 1
            second.hang_up()
            assert third.until("queued")["position"] == 1
            (tmp_path / "go").touch()
            assert third.until("done")["result"]["cells"][0]["text"] == "'third'\n"
    assert first.document()["status"] == "ok"


# -- places ---------------------------------------------------------------------------------------------------------


def test_beyond_its_places_the_least_recently_used_idle_session_is_evicted(narrow: Calls, tmp_path: Path) -> None:
    for name in "abc":
        narrow.run(name, f"mine = {name!r}")
    assert narrow.known()["a"]["reason"] == "evicted_lru", "of two idle ones the older"
    held = narrow.later("b", waits_for(tmp_path / "go", "mine"))
    narrow.wait_running("b")
    narrow.run("d", "1")
    until(lambda: narrow.state("c") == "stopped", "the only idle one is stopped")
    assert {name: narrow.state(name) for name in "bd"} == {"b": "busy", "d": "idle"}
    (tmp_path / "go").touch()
    assert held.document()["cells"][0]["text"] == "'b'\n"
    again = narrow.run("c", "'mine' in globals()")
    assert (again["cells"][0]["text"], again["variables"]) == ("False\n", "kept")
    assert any("variables" in notice or "evict" in notice for notice in again["notices"]), again["notices"]
    stopped = [item for item in narrow.events(f"kernel:{again['kernel']}") if item["event"] == "stopped"]
    assert [item["reason"] for item in stopped] == ["evicted_lru"]


@pytest.mark.deep
def test_running_and_queued_sessions_are_never_evicted(narrow: Calls, tmp_path: Path) -> None:
    """Two places, both busy: a third session waits for one, and is told so when its time is over."""
    held = [narrow.later(name, waits_for(tmp_path / "go", "'well'")) for name in ("busy1", "busy2")]
    for name in ("busy1", "busy2"):
        narrow.wait_running(name)
    for seconds in (0.3, 3, 30):
        status, problem = narrow.problem("third", "1", timeout=seconds)
        assert (status, problem["kind"]) == (504, "timed_out"), problem
        if narrow.state("third") is not None:  # else a busy machine had not even chosen an interpreter
            break
    assert "2" in problem["detail"], problem
    patient = narrow.later("third", "'had a place'")
    until(lambda: narrow.show("third")["queued"] == 1, "the third session waits for a place")
    assert {narrow.state("busy1"), narrow.state("busy2")} == {"busy"}
    (tmp_path / "go").touch()
    assert [call.document()["cells"][0]["text"] for call in held] == ["'well'\n", "'well'\n"]
    assert patient.document()["cells"][0]["text"] == "'had a place'\n"


@pytest.mark.deep
def test_an_idle_session_is_evicted_and_a_running_one_is_not(narrow: Calls, tmp_path: Path) -> None:
    settings = narrow.house.home / "pxd.toml"
    narrow.run("idle", "1")
    held = narrow.later("runs", waits_for(tmp_path / "go", "'still here'"))
    narrow.wait_running("runs")
    settings.write_text("[kernels]\nidle_seconds = 0.5\n")
    try:
        assert narrow.house.request("POST", "/api/daemon/reload").json()["changed"] == ["kernels.idle_seconds"]
        until(lambda: narrow.state("idle") == "stopped", "the idle one is evicted")
        assert narrow.known()["idle"]["reason"] == "evicted_ttl"
        assert narrow.state("runs") == "busy"
        (tmp_path / "go").touch()
        assert held.document()["cells"][0]["text"] == "'still here'\n"
        until(lambda: narrow.state("runs") == "stopped", "it is evicted when it has been idle")
        assert narrow.known()["runs"]["pid"] is None
    finally:
        settings.unlink()
        narrow.house.request("POST", "/api/daemon/reload")


# -- per call, reset, stop ------------------------------------------------------------------------------------------


def test_a_per_call_kernel_starts_empty_and_is_removed(calls: Calls) -> None:
    calls.run("percall", "mine = 1")
    document = calls.run("percall", ["import os; 'mine' in globals()", "os.getpid()"], per_call=True)
    assert document["cells"][0]["text"] == "False\n"
    assert document["variables"] == "lost"
    pid = int(document["cells"][1]["text"])
    until(lambda: not alive(pid), "the kernel of the call is gone")
    until(
        lambda: all(item["owner"] != "per_call" or item["pid"] is None for item in calls.known().values()),
        "no session of it is left",
    )
    assert calls.value("percall", "mine") == "1"


def test_reset_replaces_the_kernel_once_before_the_first_cell(calls: Calls) -> None:
    before = calls.run("reset", "mine = 1")
    document = calls.run("reset", ["'mine' in globals()", "other = 2", "other"], reset=True)
    assert [cell["text"] for cell in document["cells"]] == ["False\n", "", "2\n"]
    assert document["instance"] != before["instance"]
    assert calls.value("reset", "other") == "2"
    stopped = [item for item in calls.events(f"kernel:{document['kernel']}") if item["event"] == "stopped"]
    assert [item["reason"] for item in stopped] == ["replaced"]


def test_stop_returns_when_nothing_is_left_and_the_next_call_starts_afresh(calls: Calls) -> None:
    document = calls.run(
        "stop",
        "import os, subprocess; child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print(os.getpid(), child.pid)",
    )
    pids = [int(word) for word in document["cells"][0]["text"].split()]
    done = calls.house.pxctl("--json", "kernel", "stop", document["kernel"])
    assert done.returncode == 0, done
    assert not any(alive(pid) for pid in pids)
    assert (calls.state("stop"), calls.known()["stop"]["reason"]) == ("stopped", "stopped")
    assert calls.value("stop", "'child' in globals()") == "False"


def test_a_restart_cuts_the_running_cell_off_and_its_caller_is_told(calls: Calls) -> None:
    call = calls.later("cut", ["mine = 1", "import time; time.sleep(600)"])
    until(lambda: len(calls.history("cut")) == 2 if calls.state("cut") else None, "the second cell runs")
    before = calls.show("cut")
    answer = calls.house.request("POST", f"/api/kernels/{before['id']}/restart")
    assert (answer.status, answer.json()["state"]) == (200, "idle"), answer.body
    document = call.document()
    assert [cell["status"] for cell in document["cells"]] == ["ok", "cancelled"], document
    assert document["variables"] == "lost"
    assert "replaced" in document["message"], document["message"]
    assert calls.value("cut", "'mine' in globals()") == "False"


# -- crashes --------------------------------------------------------------------------------------------------------


def count(path: Path) -> str:
    return f"print('counted', flush=True); open({str(path)!r}, 'a').write('x')\n"


CRASHES = {
    "exit code": ("import os; os._exit(3)", "code 3"),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    "segmentation fault": ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
}


@pytest.mark.parametrize("row", mostly_deep(CRASHES, "killed"))
def test_a_crash_is_told_at_once_and_its_cell_is_never_run_again(calls: Calls, tmp_path: Path, row: str) -> None:
    code, how = CRASHES[row]
    calls.run("crash", "mine = 1", reset=True)
    before = calls.show("crash")
    document = calls.run("crash", [count(tmp_path / "ran") + code, "never = 1"], timeout=50)
    assert (document["status"], document["variables"]) == ("error", "lost"), document
    first, second = document["cells"]
    assert (first["status"], second["status"]) == ("error", "aborted")
    assert first["text"].startswith("counted\n")
    assert how in first["error"]["value"], first["error"]
    assert document["message"]
    until(lambda: calls.state("crash") == "idle", "it is started again by itself")
    after = calls.run("crash", "'mine' in globals(), 'never' in globals()")
    assert after["cells"][0]["text"] == "(False, False)\n"
    assert after["instance"] != before["instance"]
    assert any("variables" in notice for notice in after["notices"]), after["notices"]
    assert (tmp_path / "ran").read_text() == "x"
    died = [item for item in calls.events(f"kernel:{after['kernel']}") if item["event"] == "died"]
    assert died, "the death is an event"
    assert died[-1]["reason"] in {"exit", "signal"}, died


@pytest.mark.parametrize("remedy", mostly_deep(["restart", "start", "reset"], "restart"))
def test_a_second_crash_in_a_row_is_a_hard_failure_until_somebody_asks(
    calls: Calls, tmp_path: Path, remedy: str
) -> None:
    name = f"hard-{remedy}"
    assert calls.run(name, "import os; os._exit(3)")["variables"] == "lost"
    assert calls.value(name, "1") == "1", "a good cell between two crashes forgives the first"
    for number in range(2):
        document = calls.run(name, count(tmp_path / "ran") + "import os; os._exit(3)")
        assert document["variables"] == "lost", document
        if number == 0:
            until(lambda: calls.state(name) == "idle", "it is started again by itself")
            assert calls.show(name)["restarts"] == 2
    until(lambda: calls.state(name) == "failed", "the second crash in a row is a hard failure")
    for _ in range(2):
        status, problem = calls.problem(name, count(tmp_path / "ran"))
        assert status == 503, problem
        assert "pxctl kernel restart" in problem["hint"], problem
    done = calls.house.pxctl("exec", "--kernel", name, "--cwd", calls.cwd, "1")
    assert done.returncode == 1, done
    assert "hint: pxctl kernel restart" in done.stderr or "pxctl kernel restart" in done.stderr, done.stderr
    assert calls.show(name)["failure"], "the failure is told"
    identity = calls.show(name)["id"]
    if remedy == "reset":
        assert calls.run(name, "'well'", reset=True)["cells"][0]["text"] == "'well'\n"
    else:
        answer = calls.house.request("POST", f"/api/kernels/{identity}/{remedy}")
        assert answer.status == 200, answer.body
    assert calls.value(name, "'well'") == "'well'"
    assert calls.show(name)["failure"] is None
    assert (tmp_path / "ran").read_text() == "xx"


def test_exit_in_a_cell_is_no_crash(calls: Calls) -> None:
    """D11: the session ends by the user's wish; as often as the user likes."""
    for _ in range(2):
        document = calls.run("leaves", ["mine = 1", "exit()", "never = 1"])
        assert [cell["status"] for cell in document["cells"]] == ["ok", "ok", "aborted"], document
        assert document["variables"] == "lost"
        assert "exit" in document["message"], document["message"]
        assert calls.state("leaves") != "failed"
    assert calls.value("leaves", "'mine' in globals()") == "False"

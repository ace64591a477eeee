"""D6 to D11: the known defects of earlier designs, each as a test of what is promised instead."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.house import House, alive, house, marked, until, written_pid
from e2e.kernel_house import (
    DIRECT,
    GATEWAY,
    HOLDS_THE_LOCK,
    QUICK,
    Call,
    begun,
    command_lines,
    deaf_stream,
    ended,
    forget,
    kernels_house,
    row,
    run,
    value,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def home() -> Iterator[House]:
    """One daemon for all; made under an umask that would open everything."""
    before = os.umask(0)
    try:
        with kernels_house() as made:
            os.umask(before)
            yield made
    finally:
        os.umask(before)


# -- D6 -----------------------------------------------------------------------------------------------------------


def test_d6_a_start_that_fails_touches_no_other_session(home: House, short_tmp: Path) -> None:
    assert run(home, "d6", "x = 1").ok
    before = row(home, "d6")["pid"]
    dead = short_tmp / "python"
    dead.write_text("#!/bin/sh\nexit 3\n")
    dead.chmod(0o700)
    for _ in range(3):
        call = run(home, "d6-dead", "1", interpreter=str(dead))
        assert call.status == 422, call.document
    assert (row(home, "d6")["pid"], value(home, "d6", "x")) == (before, "1")


def test_d6_running_out_of_descriptors_touches_no_busy_session() -> None:
    """The start is refused in clear words, or one idle session makes room; the busy one goes on, the daemon too."""
    with house({**QUICK, "PX_KERNELS__SPARES": "0"}) as home:  # one that begins takes some and gives them back
        home.start()
        go = home.home / "go"
        waits = f"x = 1\nimport os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('END')"
        later = begun(home, "busy", waits, home.home / "m")
        assert run(home, "idle", "x = 1").ok
        pid = row(home, "busy")["pid"]
        lowered = [limit_files(each) for each in home.pids()]
        calls = [run(home, f"new{n}", "1") for n in range(3)]
        for call in calls:
            if not call.ok:
                assert call.status in {429, 503}, call.document
                assert "open files" in call.told or "descriptor" in call.told, call.document
                assert call.document["hint"]
        assert not all(call.ok for call in calls), "the limit was met"
        for each, limits in zip(home.pids(), lowered, strict=True):
            resource.prlimit(each, resource.RLIMIT_NOFILE, limits)
        assert row(home, "busy")["pid"] == pid
        go.touch()
        assert (later.result().ok, later.result().text) == (True, "END")
        assert (row(home, "busy")["pid"], value(home, "busy", "x")) == (pid, "1")
        assert run(home, "after", "1").ok


def limit_files(pid: int) -> tuple[int, int]:
    """Leave a process a few descriptors more than it has; return its limits."""
    used = max(int(fd) for fd in os.listdir(f"/proc/{pid}/fd"))
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 4, before[1]))
    return before


# -- D7 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [DIRECT, GATEWAY])
def test_d7_kernels_of_a_crashed_daemon_do_not_live_on(backend: str) -> None:
    """Keeper and brain killed at once; the kernel holds the GIL, its child sits in a session of its own."""
    with house(QUICK) as home:
        home.start()
        code = f"""import subprocess
open({str(home.home / "child")!r}, "w").write(str(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid))
{HOLDS_THE_LOCK}"""
        later = begun(home, "d7", code, home.home / "d7", backend=backend)
        child = written_pid(home.home / "child")
        for pid in home.pids():
            os.kill(pid, signal.SIGKILL)
        later.cut_off()
        assert home.process is not None
        home.process.wait(30)
        left = [child, *marked(home.daemon_id)]
        home.start()
        assert not [pid for pid in left if alive(pid)]
        assert row(home, "d7")["pid"] is None
        assert run(home, "d7", "1", backend=backend).ok


# -- D8 -----------------------------------------------------------------------------------------------------------

MEGABYTES = 40
MUCH = f"for n in range({MEGABYTES * 16}): print(str(n).rjust(65535, '.'))"


def test_d8_a_reader_that_stalls_costs_neither_bytes_nor_memory_nor_anybodys_time(home: House) -> None:
    """40 MB to a client that reads nothing, then reads on: every byte comes, and meanwhile others were served."""
    control = home.pids()[1]
    assert value(home, "d8-other", "1") == "1"  # what the first kernel of all makes it import is not this reader's
    before = resident(control)
    with deaf_stream(home, "d8", MUCH) as stream:
        until(lambda: ended(home, "d8"), "the kernel did not wait for the reader")
        assert value(home, "d8-other", "1 + 1") == "2"
        grown = resident(control) - before
        assert grown < 60 * 2**20, f"the daemon held {grown} bytes for a client that does not read"
        told = [json.loads(line) for line in stream]
    digest = hashlib.sha256()
    for event in told:
        if event["event"] == "output":
            digest.update(event["text"].encode())
    wanted = hashlib.sha256(b"".join(b"%s\n" % str(n).rjust(65535, ".").encode() for n in range(MEGABYTES * 16)))
    assert digest.hexdigest() == wanted.hexdigest()
    assert told[-1]["event"] == "done"
    assert told[-1]["result"]["cells"][0]["total_bytes"] == MEGABYTES * 2**20


def resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


# -- D9 -----------------------------------------------------------------------------------------------------------


def test_d9_kernels_started_all_at_once_share_no_ports_and_no_folders(home: House) -> None:
    forget(home)
    with ThreadPoolExecutor(6) as pool:
        calls = list(pool.map(lambda n: run(home, f"d9-{n}", f"x = {n}"), range(6)))
    assert all(call.ok for call in calls), [call.document for call in calls if not call.ok]
    assert [value(home, f"d9-{n}", "x") for n in range(6)] == [str(n) for n in range(6)]
    files = [json.loads(Path(row(home, f"d9-{n}")["connection_file"]).read_text()) for n in range(6)]
    assert {file["transport"] for file in files} == {"ipc"}
    assert len({file["ip"] for file in files}) == len({file["key"] for file in files}) == 6
    forget(home)


def test_d9_sessions_that_need_the_gateway_at_once_get_one(home: House) -> None:
    with ThreadPoolExecutor(4) as pool:
        calls = list(pool.map(lambda n: run(home, f"d9-g{n}", "1", backend=GATEWAY), range(4)))
    assert all(call.ok for call in calls), [call.document for call in calls if not call.ok]
    assert command_lines(home).count("run_module('kernel_gateway'") == 1
    forget(home)


# -- D10 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [DIRECT, GATEWAY])
def test_d10_nobody_else_can_read_what_a_kernel_says(home: House, backend: str) -> None:
    """Folders 0700, files and sockets closed to others, under umask 0; no channel on TCP."""
    assert run(home, f"d10-{backend}", "print('private')", backend=backend).ok
    places = [home.home / "run", home.home / "state", home.home / "kernels"]
    for place in places:
        assert stat.S_IMODE(place.stat().st_mode) == 0o700, place
    for folder, names, files in os.walk(home.home / "run"):
        for name in names:
            assert (found := mode(f"{folder}/{name}")) is None or found & 0o777 == 0o700, f"{folder}/{name}"
        for name in files:
            assert not (mode(f"{folder}/{name}") or 0) & 0o077, f"{folder}/{name}"
    for folder, names, files in os.walk(home.home / "state" / "cells"):
        for name in names:
            assert mode(f"{folder}/{name}") in {0o700, None}, f"{folder}/{name}"
        for name in files:
            assert mode(f"{folder}/{name}") in {0o600, None}, f"{folder}/{name}"
    connections = []
    for folder, _, files in os.walk(home.home / "run"):
        named = [name for name in files if name.endswith(".json") and ("kernel" in name or "conn" in name)]
        for path in [Path(folder, name) for name in named]:
            with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):  # gone again, or just being written
                connections.append(json.loads(path.read_text()))
    assert connections
    assert {connection["transport"] for connection in connections} == {"ipc"}


def mode(path: str) -> int | None:
    """Return the permissions of a path; None where it is gone: kernels beside the test's own come and go."""
    try:
        return stat.S_IMODE(os.lstat(path).st_mode)
    except FileNotFoundError:
        return None


def test_d10_another_user_is_refused(home: House, require_root: None) -> None:
    """Neither the connection file, nor the sockets, nor the cells' output, whatever the umask was."""
    assert run(home, "d10-other", "print('private')").ok
    kernel = row(home, "d10-other")
    connection = kernel["connection_file"]
    code = """import os, socket, sys
connection, cells, pxd = sys.argv[1:]
for path in (connection, cells):
    try: os.listdir(path) if os.path.isdir(path) else open(path).read()
    except PermissionError: continue
    sys.exit(f"read {path}")
for path in [pxd, connection.replace("connection.json", "ipc-1")]:
    try: socket.socket(socket.AF_UNIX).connect(path)
    except PermissionError: continue
    except FileNotFoundError: sys.exit(f"sees that {path} is not there")
    sys.exit(f"talks to {path}")
"""
    stranger = subprocess.run(
        [
            "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable,
            "-c",
            code,
            connection,
            str(home.home / "state" / "cells"),
            home.socket,
        ],
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
    )
    assert stranger.returncode == 0, stranger.stderr


# -- D11 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", [DIRECT, GATEWAY])
@pytest.mark.parametrize("word", ["exit()", "quit()"])
def test_d11_exit_in_a_cell_is_no_crash(home: House, backend: str, word: str) -> None:
    """However often: the cell is ok, the loss is told, and no failure is counted."""
    session = f"d11-{backend}"
    for _ in range(3):
        call = run(home, session, f"x = 1\nprint('bye')\n{word}", backend=backend)
        assert (call["status"], call["variables"], call.text) == ("ok", "lost", "bye"), call.document
        assert "exit()" in call.told
    until(lambda: row(home, session)["state"] == "stopped", "the session is over")
    found = row(home, session)
    assert (found["reason"], found["failure"], found["restarts"]) == ("exit", None, 0), found
    again = run(home, session, "x", backend=backend)
    assert again.cell["error"]["name"] == "NameError"
    assert "exit()" in again.told


def test_d11_later_cells_of_a_call_that_exits_are_not_run(home: House) -> None:
    call: Call = run(home, "d11-later", cells=[{"code": "exit()"}, {"code": "print('never')"}])
    assert [cell["status"] for cell in call["cells"]] == ["ok", "aborted"], call.document
    done = home.pxctl("exec", "--cwd", str(home.home), "--kernel", "d11-cli", "exit()")
    assert (done.returncode, "exit()" in done.stderr) == (0, True), done.stderr

"""The daemon's own life, seen from outside: start, second daemon, modes, stop, restart, bad settings."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import stat
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from beside import beside
from e2e.house import BIN, DEADLINE, House, alive, marked, server, until

if TYPE_CHECKING:
    from collections.abc import Callable

ECHO = server("return {'echo': body}")


def mode(path: object) -> int:
    return stat.S_IMODE(os.stat(str(path)).st_mode)


def daemons_of(home: House) -> set[int]:
    """Return the processes of pxd in that house, those included that hold no lock yet; clients do not count."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            is_client = any(word.endswith(b"/pxctl") for word in words)
            if not is_client and f"PX_HOME={home.home}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found


def test_run_answers_through_the_daemon_and_stop_leaves_nothing(running: House) -> None:
    running.tool("echo", ECHO)
    done = running.pxctl("run", "echo", "a=1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"echo": {"a": 1}} or json.loads(done.stdout) == {"echo": {"a": "1"}}
    pid = running.status("echo")["pid"]
    assert alive(pid)
    assert running.pxctl("stop", "echo").returncode == 0
    assert not alive(pid)
    assert running.stop() == 0
    assert marked(running.daemon_id) == []
    assert not os.path.exists(running.socket)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_nobody_else_may_read_what_the_daemon_keeps(home: House, umask: int) -> None:
    before = os.umask(umask)
    try:
        home.start()
        home.tool("echo", ECHO)
        assert home.run("echo", {}).status == 200
    finally:
        os.umask(before)
    state = home.home / "state"
    for folder in (home.home / "run", state, state / "logs", state / "logs" / "tool" / "echo"):
        assert mode(folder) == 0o700, folder
    files = [home.home / "run" / "pxd.sock", *state.glob("pxd.db*"), *(state / "logs" / "tool" / "echo").iterdir()]
    assert len(files) >= 3
    for file in files:
        assert mode(file) == 0o600, file


def test_a_second_daemon_refuses_and_names_the_first(running: House) -> None:
    second = subprocess.run([BIN / "pxd"], env=running.environ, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 8
    assert str(running.pids()[0]) in second.stderr
    assert running.request("GET", "/api/health").status == 200


def test_bad_settings_name_file_line_key_and_nearest_match(home: House) -> None:
    (home.home / "pxd.toml").write_text("[tools]\n\nwarm_keep_mxa = 3\n")
    failed = subprocess.run([BIN / "pxd"], env=home.environ, capture_output=True, text=True, timeout=60, check=False)
    assert failed.returncode == 78
    for word in ("pxd.toml", "3", "warm_keep_mxa", "warm_keep_max"):
        assert word in failed.stderr


def test_daemon_start_status_stop(home: House) -> None:
    assert home.pxctl("daemon", "status").returncode == 3
    assert home.pxctl("status").returncode == 5
    try:
        assert home.pxctl("daemon", "start").returncode == 0
        assert home.pxctl("daemon", "start").returncode == 0, "starting what runs is no error"
        document = json.loads(home.pxctl("daemon", "status", "--json").stdout)
        assert alive(document["keeper"]["pid"])
        keeper = document["keeper"]["pid"]
    finally:
        assert home.pxctl("daemon", "stop").returncode == 0
    assert not alive(keeper)
    assert home.pxctl("daemon", "stop").returncode == 0, "stopping what does not run is no error"


def test_run_starts_the_daemon_unless_told_not_to(home: House) -> None:
    home.tool("echo", ECHO)
    assert home.pxctl("run", "echo", "--no-autostart").returncode == 5
    assert home.pxctl("run", "echo", env={"PX_AUTOSTART": "0"}).returncode == 5
    try:
        done = home.pxctl("run", "echo")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"echo": {}}
    finally:
        home.pxctl("daemon", "stop")


@pytest.mark.deep
def test_ten_parallel_starts_give_one_daemon(home: House) -> None:
    # Twenty interpreters come up at once: the thirty seconds that one start has by itself may not do.
    argv = [str(BIN / "pxctl"), "daemon", "start", "--timeout", "85"]
    starts = [beside(argv, env=home.environ, stderr=subprocess.PIPE) for _ in range(10)]
    try:
        results = [(start.wait(90), start.stderr.read() if start.stderr else b"") for start in starts]
        assert [code for code, _ in results] == [0] * 10, results
        keeper, control = home.pids()
        # A start returns when a daemon answers, its own or not: one that has not lost yet would win after the stop.
        until(lambda: daemons_of(home) <= {keeper, control}, "those that lost to another are gone")
        assert [pid for pid in marked(home.daemon_id) if pid not in {keeper, control}] == []
    finally:
        for start in starts:
            if start.stderr:
                start.stderr.close()
        assert home.pxctl("daemon", "stop").returncode == 0


def test_restart_replaces_the_brain_and_keeps_the_tools(running: House) -> None:
    running.tool("echo", ECHO)
    running.run("echo")
    tool = running.status("echo")["pid"]
    keeper, control = running.pids()
    names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in (keeper, control)]
    assert names == ["pxd: keeper", "pxd: control"]  # what `pgrep pxd` finds
    assert running.pxctl("daemon", "restart").returncode == 0
    assert running.pids()[0] == keeper
    assert running.pids()[1] != control
    assert running.status("echo")["pid"] == tool
    assert running.status("echo")["state"] == "ready"
    assert running.run("echo").status == 200
    assert running.status("echo")["pid"] == tool


def test_restart_all_replaces_everything(running: House) -> None:
    running.tool("echo", ECHO)
    running.run("echo")
    tool = running.status("echo")["pid"]
    _, control = running.pids()
    assert running.pxctl("daemon", "restart", "--all").returncode == 0
    until(running.answers, "the daemon is back")
    assert running.pids()[1] != control
    assert not alive(tool)
    assert running.status("echo")["state"] == "cold"


def test_sighup_reloads_and_keeps_the_last_good_settings(running: House) -> None:
    assert running.process is not None
    (running.home / "pxd.toml").write_text("[tools]\nwarm_keep_max = 1\n")
    assert running.pxctl("daemon", "reload").returncode == 0
    running.tool("one", ECHO)
    running.tool("two", ECHO)
    running.run("one")
    running.run("two")
    until(lambda: running.status("one")["state"] == "cold", "the cap of one is in force")
    (running.home / "pxd.toml").write_text("[tools]\nwarm_keep_mux = 1\n")
    assert running.pxctl("daemon", "reload").returncode != 0
    running.process.send_signal(signal.SIGHUP)
    assert running.run("one").status == 200


def test_a_second_sigterm_stops_at_once(running: House) -> None:
    running.tool(
        "deaf", "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + ECHO, stop_timeout_seconds=500
    )
    assert running.run("deaf").status == 200
    pid = running.status("deaf")["pid"]
    assert running.process is not None
    running.process.send_signal(signal.SIGTERM)
    until(lambda: "stopping" in running.said(), "it stops: only now a second signal is a second one")
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(DEADLINE) == 0
    assert "killing_everything" in running.said()
    until(lambda: not alive(pid), "the tool is gone")


def no_database(_: bytes) -> bytes:
    return b"this is no database" * 1000


def no_utf8_in_the_schema(content: bytes) -> bytes:
    """What sqlite then says of the file is no text either."""
    assert content.count(b"CREATE TABLE runs") == 1
    return content.replace(b"CREATE TABLE runs", b"CREATE \xff\xfe\xff\xfe\xff runs")


def another_schema(_: bytes) -> bytes:
    """A sound database that says it is a ledger and has none of its tables."""
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE instances (something TEXT)")
        return connection.serialize()


@pytest.mark.parametrize("damaged", [no_database, no_utf8_in_the_schema, another_schema])
def test_a_broken_ledger_is_moved_aside_and_said(home: House, damaged: Callable[[bytes], bytes]) -> None:
    home.start()
    home.tool("echo", ECHO)
    home.run("echo")
    home.stop()
    ledger = home.home / "state" / "pxd.db"
    ledger.write_bytes(damaged(ledger.read_bytes()))
    for rest in (home.home / "state").glob("pxd.db-*"):
        rest.unlink()
    home.start()
    assert home.run("echo").status == 200
    [moved] = (home.home / "state").glob("pxd.db.corrupt*")
    told = [json.loads(line) for line in home.pxctl("events", "--json").stdout.splitlines()]
    assert [event["moved_to"] for event in told if event["event"] == "ledger_rebuilt"] == [str(moved)]


@pytest.mark.parametrize("kind", ["fifo", "device", "huge", "nested"])
def test_settings_that_are_no_proper_file_are_refused_and_block_nothing(running: House, kind: str) -> None:
    file = running.home / "pxd.toml"
    match kind:
        case "fifo":
            os.mkfifo(file)
        case "device":
            file.symlink_to("/dev/zero")
        case "huge":
            file.write_text("#" * (2 << 20))
        case _:
            file.write_text("a = " + "[" * 5000)
    reloaded = running.pxctl("daemon", "reload", seconds=20)
    assert reloaded.returncode == 2
    assert "pxd.toml" in reloaded.stderr
    assert running.request("GET", "/api/health", seconds=5).status in {200, 503}
    running.stop()
    started = subprocess.run(
        [BIN / "pxd"], env=running.environ, capture_output=True, text=True, timeout=20, check=False
    )
    assert started.returncode == 78
    assert "pxd.toml" in started.stderr


def test_settings_of_earlier_versions_are_told_and_ignored(home: House) -> None:
    (home.home / "pxd.toml").write_text("[daemon]\nbackoff_reset_seconds = 60\n")
    environ = {**home.environ, "PX_DAEMON__BACKOFF_RESET_SECONDS": "60"}
    argv = [BIN / "pxd", "--check-config", "--set", "daemon.backoff_reset_seconds=60"]
    checked = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stderr
    places = [f"{home.home}/pxd.toml:2: ", "env PX_DAEMON__BACKOFF_RESET_SECONDS: ", "flag --set daemon."]
    told = checked.stderr.splitlines()
    assert len(told) == 3
    for place, line in zip(places, told, strict=True):
        assert place in line
        assert "daemon.backoff_reset_seconds no longer exists" in line


def test_a_socket_path_over_the_limit_is_a_clear_error(home: House) -> None:
    deep = home.home / ("x" * 120)
    failed = subprocess.run(
        [BIN / "pxd"],
        env={**home.environ, "PX_SOCKET": str(deep / "pxd.sock")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert failed.returncode not in {0, 1} or "PX_SOCKET" in failed.stderr
    assert "PX_SOCKET" in failed.stderr
    assert "Traceback" not in failed.stderr

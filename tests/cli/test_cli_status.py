"""`pxctl status` and how every call reports: documents, tables, errors, exit codes."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cli.fake_daemon import FakeDaemon, document, problem, reply
from cli.px import DEADLINE

if TYPE_CHECKING:
    from cli.px import Px

UNIT = {
    "unit": "tool:lorenz", "kind": "tool", "name": "lorenz", "state": "ready", "reason": None, "pid": 4711,
    "uptime_seconds": 75.2, "rss_bytes": 12_897_485, "cpu_percent": 3.14, "last_used": "2020-01-01T00:00:00Z",
    "pinned": True, "next_run": None, "config_error": None,
}  # fmt: skip
NOTHING = {"pid": None, "uptime_seconds": None, "rss_bytes": None, "pinned": False}
COLD = UNIT | {"unit": "tool:cold", "state": "cold"} | NOTHING
STATUS: dict[str, Any] = {
    "schema": "px.status/1",
    "daemon": {"version": "1.2.3", "keeper": {"pid": 10}, "control": {"pid": 11, "restarts": 2}},
    "units": [UNIT, COLD | {"config_error": "tool.json:3: unknown key"}],
}


def test_a_pipe_gets_every_column_whole_and_no_colour(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/status", document(STATUS))
    ended = px("status")
    assert ended.code == 0
    heading = ["UNIT", "STATE", "PID", "UPTIME", "MEMORY", "CPU", "LAST USED / NEXT RUN", "PIN", "REASON"]
    assert re.split(r"  +", ended.lines[0]) == heading
    assert all(
        word in ended.lines[1] for word in ("tool:lorenz", "ready", "4711", "1m15s", "12.3M", "3.1%", "ago", "pinned")
    )
    assert ended.lines[2].split()[1] == "broken"
    assert "tool.json:3: unknown key" in ended.lines[2]
    assert "\x1b" not in ended.text
    assert ended.err == ""


def test_json_is_the_document_as_it_came(px: Px, daemon: FakeDaemon) -> None:
    raw = b'{ "schema":"px.status/1" , "units":[], "new": 1.50 }'
    daemon.on("GET /api/status", reply(raw))
    for arguments in (["status", "--json"], ["--json", "status"]):
        assert px(*arguments).out == raw + b"\n"


@pytest.mark.parametrize("state", ["failed", "stopping", "cold"])
def test_what_is_not_up(px: Px, daemon: FakeDaemon, state: str) -> None:
    daemon.on("GET /api/status", document(STATUS | {"units": [UNIT | {"state": state, "reason": "memory_limit"}]}))
    ended = px("status", "lorenz")
    assert ended.code == 3
    assert "memory_limit" in ended.text


def test_candidates_errors_and_survivors_are_listed(px: Px, daemon: FakeDaemon) -> None:
    errors = [{"pointer": "/a", "message": "odd"}, {"pointer": "", "message": "all"}]
    lists = {"candidates": ["tool:x", "pipe:x"], "survivors": [{"pid": 7, "name": "sh"}], "errors": errors}
    daemon.on("GET /api/status", problem(400, "ambiguous_name", 2, stderr_tail="one\ntwo\n", **lists))
    err = px("status", "x").err
    for line in ("candidate: tool:x", "/a: odd", "(the whole input): all", "survived: pid 7 (sh)", "stderr: two"):
        assert f"  {line}\n" in err


AS_NOBODY = """
import importlib, locale, os, sys
from pxctl.main import main
importlib.import_module("pxctl.commands.units")
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(main(["status"]))
"""


def test_a_socket_that_may_not_be_used_exits_6(px: Px, daemon: FakeDaemon, require: Any) -> None:
    require(os.geteuid() == 0, "needs root to become somebody else")
    ended = px(argv=[sys.executable, "-c", AS_NOBODY])
    assert (ended.code, ended.out) == (6, b"")
    assert "no access to" in ended.err


def test_a_read_is_asked_again_once_when_the_connection_is_lost(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/status", b"", document(STATUS))
    assert px("status").code == 0
    assert len(daemon.seen) == 2


def status_into(stdout: Any, px: Px) -> subprocess.CompletedProcess[bytes]:
    argv, env = [sys.executable, "-m", "pxctl", "status"], px.environment()
    return subprocess.run(argv, stdout=stdout, stderr=subprocess.PIPE, env=env, check=False)


def test_a_reader_that_goes_away_ends_it_without_a_word(px: Px, daemon: FakeDaemon) -> None:
    many = [UNIT | {"unit": f"tool:x{at}"} for at in range(5000)]
    daemon.on("GET /api/status", document(STATUS | {"units": many}))
    reading, writing = socket.socketpair()
    reading.close()
    with writing:
        done = status_into(writing, px)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_under_stdout_is_an_error(px: Px, daemon: FakeDaemon, require: Any) -> None:
    require(Path("/dev/full").exists(), "only on macOS is there no /dev/full")
    daemon.on("GET /api/status", document(STATUS))
    with open("/dev/full", "wb") as full:
        done = status_into(full, px)
    assert done.returncode == 1
    assert b"No space left" in done.stderr


def test_watching_survives_a_daemon_that_is_away(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/status", document(STATUS))
    process = px.popen("status", "--watch")
    daemon.await_request("GET /api/status", 2)
    daemon.stop()
    assert process.stderr is not None
    assert b"pxd is away" in process.stderr.readline()
    daemon.start()
    daemon.await_request("GET /api/status", len(daemon.seen) + 3)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert out.count(b"tool:lorenz") >= 3


def test_version_names_both_sides(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/daemon", document({"version": "0.0.1"}))
    assert px("version", "--json").json()["daemon"] == "0.0.1"
    ended = px("version", "--socket", px.socket, PX_SOCKET="/nowhere")
    assert ended.lines[1] == "pxd 0.0.1"
    assert "differ" in ended.err
    ended = px("version", PX_SOCKET="/nowhere")
    assert (ended.code, ended.lines[1]) == (0, "pxd not running")


def test_eighty_columns_keep_the_next_run_beside_pin_and_reason(px: Px, daemon: FakeDaemon) -> None:
    pipe = COLD | {"unit": "pipe:disk-digest", "kind": "pipe", "next_run": "2099-01-01T00:00:00Z", "running": 12}
    daemon.on("GET /api/status", document(STATUS | {"units": [UNIT, pipe]}))
    with px.terminal("status", columns=80) as screen:
        assert screen.end() == 0
    heading, tool, execution = screen.text.splitlines()[:3]
    assert "NEXT RUN" in heading
    assert " ago" in tool
    assert " in " in execution
    assert "execution 12" in execution


def test_watching_says_what_does_not_fit_and_steers_no_dumb_terminal(px: Px, daemon: FakeDaemon) -> None:
    units = [COLD | {"unit": f"tool:t{at}"} for at in range(40)]
    daemon.on("GET /api/status", document(STATUS | {"units": units}))
    with px.terminal("status", "--watch") as screen:  # of 24 lines
        screen.see("… 19 more lines")
    with px.terminal("status", "--watch", TERM="dumb") as screen:
        screen.see("tool:t39")
        assert b"\x1b" not in screen.screen


def test_a_slow_answer_is_waited_for_with_a_word(px: Px, daemon: FakeDaemon) -> None:
    go_on = threading.Event()

    def late(_: object, connection: socket.socket) -> None:
        assert go_on.wait(DEADLINE)
        connection.sendall(document({"units": [{"unit": "tool:a", "state": "ready"}]}))

    daemon.on("GET /api/status", late)
    with px.terminal("status") as screen:
        screen.see("pxd: waiting for its answer")
        go_on.set()
        assert screen.end() == 0
        screen.see("tool:a")

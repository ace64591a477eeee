"""`pxctl status` and how every call reports: documents, tables, errors, exit codes; and what it
may import.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.fake_daemon import FakeDaemon, document, problem
from cli.px import DEADLINE, Px
from pxctl import output
from pxctl.output import Column, clean, table, wants_colour, width_of
from waiting import until

UNIT = {
    "unit": "tool:lorenz", "kind": "tool", "name": "lorenz", "state": "ready", "reason": None,
    "pid": 4711,
    "uptime_seconds": 75.2, "rss_bytes": 12_897_485, "cpu_percent": 3.14,
    "last_used": "2020-01-01T00:00:00Z",
    "pinned": True, "next_run": None, "config_error": None,
}  # fmt: skip
NOTHING = {"pid": None, "uptime_seconds": None, "rss_bytes": None, "pinned": False}
COLD = UNIT | {"unit": "tool:cold", "state": "cold"} | NOTHING
STATUS: dict[str, Any] = {
    "schema": "px.status/1",
    "daemon": {"version": "1.2.3", "keeper": {"pid": 10}, "control": {"pid": 11, "restarts": 2}},
    "units": [UNIT, COLD | {"config_error": "tool.json:3: unknown key"}],
}
ROUTE, ARGV = "GET /api/status", [sys.executable, "-m", "pxctl", "status"]


# -- on a pipe -------------------------------------------------------------------------------------


def test_a_pipe_gets_every_column_whole_and_no_colour(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(ROUTE, document(STATUS))
    ended = px("status")
    assert (ended.code, ended.err) == (0, "")
    heading = [
        "UNIT",
        "STATE",
        "PID",
        "UPTIME",
        "MEMORY",
        "CPU",
        "LAST USED / NEXT RUN",
        "PIN",
        "REASON",
    ]
    assert re.split(r"  +", ended.lines[0]) == heading
    for word in ("tool:lorenz", "ready", "4711", "1m15s", "12.3M", "3.1%", "ago", "pinned"):
        assert word in ended.lines[1]
    assert ended.lines[2].split()[1] == "broken"
    assert "tool.json:3: unknown key" in ended.lines[2]
    assert "\x1b" not in ended.text
    assert px("--json", "status").json() == STATUS


def test_candidates_errors_and_survivors_are_listed(px: Px, daemon: FakeDaemon) -> None:
    errors = [{"pointer": "/a", "message": "odd"}, {"pointer": "", "message": "all"}]
    lists = {
        "candidates": ["tool:x", "pipe:x"],
        "survivors": [{"pid": 7, "name": "sh"}],
        "errors": errors,
    }
    daemon.on(ROUTE, problem(400, "ambiguous_name", 2, stderr_tail="one\ntwo\n", **lists))
    err = px("status", "x").err
    for line in (
        "candidate: tool:x",
        "/a: odd",
        "(the whole input): all",
        "survived: pid 7 (sh)",
        "stderr: two",
    ):
        assert f"  {line}\n" in err


AS_NOBODY = """
import importlib, locale, os, sys
from pxctl.main import main
importlib.import_module("pxctl.commands.units")
importlib.import_module("pxctl.hints")
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(main(["status"]))
"""


def test_a_socket_that_may_not_be_used_exits_6(
    px: Px, daemon: FakeDaemon, require_root: None
) -> None:
    ended = px(argv=[sys.executable, "-c", AS_NOBODY])
    assert (ended.code, ended.out, "no access to" in ended.err) == (6, b"", True)


def test_a_reader_that_goes_away_ends_it_without_a_word_and_a_full_disk_is_an_error(
    px: Px, daemon: FakeDaemon, require: Any
) -> None:
    def status_into(stdout: Any) -> tuple[int, bytes]:
        done = subprocess.run(
            ARGV, stdout=stdout, stderr=subprocess.PIPE, env=px.environment(), check=False
        )
        return done.returncode, done.stderr

    many = document(STATUS | {"units": [UNIT | {"unit": f"tool:x{at}"} for at in range(5000)]})
    daemon.on(ROUTE, b"", many)  # a read is asked again once when the connection is lost
    reading, writing = socket.socketpair()
    reading.close()
    with writing:
        assert (status_into(writing), len(daemon.seen)) == ((1, b""), 2)
    require(Path("/dev/full").exists(), "only on macOS is there no /dev/full")
    with open("/dev/full", "wb") as full:
        code, err = status_into(full)
    assert (code, b"No space left" in err) == (1, True)


def test_watching_survives_a_daemon_that_is_away(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(ROUTE, document(STATUS))
    process = px.popen("status", "--watch")
    until(lambda: daemon.seen, "it is asked")
    daemon.stop()
    assert process.stderr is not None
    assert b"pxd is away" in process.stderr.readline()
    seen = len(daemon.seen)
    daemon.start()
    until(lambda: len(daemon.seen) > seen, "it is asked again")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 0


# -- on a terminal ---------------------------------------------------------------------------------


def test_eighty_columns_keep_the_next_run_and_watching_says_what_does_not_fit(
    px: Px, daemon: FakeDaemon
) -> None:
    pipe = COLD | {
        "unit": "pipe:disk-digest",
        "kind": "pipe",
        "next_run": "2099-01-01T00:00:00Z",
        "running": 12,
    }
    cold = [COLD | {"unit": f"tool:t{at}"} for at in range(38)]
    daemon.on(ROUTE, document(STATUS | {"units": [UNIT, pipe, *cold]}))
    with px.terminal("status", columns=80) as screen:
        assert screen.end() == 0
    heading, tool, execution = screen.text.splitlines()[:3]
    assert ("NEXT RUN" in heading, " ago" in tool, " in " in execution) == (True, True, True)
    assert "execution 12" in execution, "beside PIN and REASON"
    with px.terminal("status", "--watch") as screen:  # of 24 lines
        screen.see("… 19 more lines")
    with px.terminal("status", "--watch", TERM="dumb") as screen:
        screen.see("tool:t37")
        assert b"\x1b" not in screen.screen


def test_a_slow_answer_is_waited_for_with_a_word(px: Px, daemon: FakeDaemon) -> None:
    go_on = threading.Event()

    def late(_: object, connection: socket.socket) -> None:
        assert go_on.wait(DEADLINE)
        connection.sendall(document(STATUS))

    daemon.on(ROUTE, late)
    with px.terminal("status") as screen:
        screen.see("pxd: waiting for its answer")
        go_on.set()
        assert screen.end() == 0
        screen.see("tool:lorenz")


# -- a thin client ---------------------------------------------------------------------------------

ALLOWED = {
    "json", "json.decoder", "json.encoder", "json.scanner", "_json",  # documents
    "socket", "_socket", "select", "selectors", "array",  # the socket
    "gc", "signal",  # Ctrl-C
    "locale", "_locale",  # click's translations, where a language is set
    "difflib", "_heapq", "heapq",  # click, when it meets a short option
    "pxctl", "pxctl.app", "pxctl.client", "pxctl.commands", "pxctl.commands.units",
    "pxctl.main", "pxctl.output", "pxctl.paths",
}  # fmt: skip
LOOK = """
import sys, click
before = set(sys.modules)
from pxctl.main import main
code = main(sys.argv[1:])
sys.stderr.write("\\n".join(sorted(set(sys.modules) - before)))
sys.exit(code)
"""


@pytest.mark.parametrize("arguments", ["status", "--color always status --json"])
def test_status_loads_nothing_beyond_the_list(px: Px, daemon: FakeDaemon, arguments: str) -> None:
    daemon.on(ROUTE, document(STATUS))
    ended = px(*arguments.split(), argv=[sys.executable, "-c", LOOK])
    assert (ended.code, set(ended.err.split()) - ALLOWED) == (0, set())


# -- tables and words ------------------------------------------------------------------------------

COLUMNS = [
    Column("UNIT", "0"),
    Column("STATE", "1", 1),
    Column("PID", "2", 4, right=True),
    Column("REASON", "3", 2, minimum=8),
]
rows = st.lists(st.lists(st.text(max_size=30), min_size=4, max_size=4), min_size=1, max_size=5)


def lines_of(texts: list[list[str]], width: int | None) -> list[str]:
    rows = [{str(at): text for at, text in enumerate(row)} for row in texts]
    return table(COLUMNS, rows, width)


@given(rows, st.integers(1, 90))
def test_no_line_is_wider_than_asked_and_the_first_column_stays(
    texts: list[list[str]], width: int
) -> None:
    lines = lines_of(texts, width)
    assert len(lines) == len(texts) + 1
    assert all(width_of(line) <= width for line in lines)
    for row, line in zip(texts, lines[1:], strict=True):
        name = clean(row[0]) if row[0] != "-" else ""
        assert name.isprintable()
        assert (
            not name.strip()
            or width_of(name[0]) > width
            or line.lstrip()[:1] in {name.lstrip()[:1], "…"}
        )


def test_what_matters_least_goes_first() -> None:
    texts = [["tool:some-name", "ready", "12345", "memory_limit"]]
    seen = [" ".join(lines_of(texts, width)[0].split()) for width in (60, 38, 31, 21, 9)]
    assert seen == [
        "UNIT STATE PID REASON",
        "UNIT STATE PID REASON",
        "UNIT STATE REASON",
        "UNIT STATE",
        "UNIT",
    ]


def test_numbers_in_words() -> None:
    durations = {
        0: "0s",
        0.44: "0.4s",
        12.9: "12s",
        200: "3m20s",
        7500: "2h05m",
        356_400: "4d03h",
        None: "-",
    }
    sizes = {0: "0B", 812: "812B", 12_897_485: "12.3M", 2**62: "4096.0P", None: "-"}
    for words, known in ((output.duration, durations), (output.size, sizes)):
        assert {number: words(number) for number in known} == known


def test_when_there_is_colour() -> None:
    rows: list[tuple[str, dict[str, str], bool, bool]] = [
        ("auto", {}, True, True), ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"TERM": "dumb"}, True, False), ("auto", {"CLICOLOR_FORCE": "1"}, False, True),
        ("always", {"NO_COLOR": "1"}, False, True), ("never", {"CLICOLOR_FORCE": "1"}, True, False),
    ]  # fmt: skip
    assert [wants_colour(choice, env, terminal=is_one) for choice, env, is_one, _ in rows] == [
        row[3] for row in rows
    ]

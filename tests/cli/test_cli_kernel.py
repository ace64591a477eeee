"""`pxctl kernel …` against a stand-in: names, tables, documents, exit codes. Real kernels: tests/e2e."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from cli.fake_daemon import FakeDaemon, document, ndjson, pausing, results
from cli.px import Px, without_spinner

ID = "default-3fa9c1"


def kernel(name: str = ID, **members: Any) -> dict[str, Any]:
    known = {
        "id": name, "name": name.rpartition("-")[0], "unit": f"kernel:{name}", "cwd": "/w", "interpreter": "/w/py",
        "backend": "direct", "state": "idle", "pid": 17, "queued": 0, "last_used": None, "started_at": None,
        "rss_bytes": 1024, "reason": None, "running": None, "failure": None, "language": "python",
        "connection_file": "/run/k/connection.json", "notices": [],
    }  # fmt: skip
    return known | members


def on_kernel(daemon: FakeDaemon, name: str = "default", **members: Any) -> FakeDaemon:
    return daemon.on(f"GET /api/kernels/{name}", document({"schema": "px.kernel/1", **kernel(**members)}))


# -- names ------------------------------------------------------------------------------------------------------------


def test_a_name_of_another_kind_is_a_usage_error(px: Px, daemon: FakeDaemon) -> None:
    assert px("kernel", "show", "tool:x").code == 2
    for nothing in ("", " ", "kernel:", "kernel: "):
        ended = px("exec", "1", "--kernel", nothing)
        assert (ended.code, f"{nothing!r} does not name a kernel" in ended.err) == (2, True)
    assert daemon.seen == []


# -- list and show ----------------------------------------------------------------------------------------------------


PROBLEM = {"type": "urn:px:problem:start_failed", "status": 503, "detail": "it died twice"}


def test_living_sessions_come_first_and_old_ones_only_when_asked_for(px: Px, daemon: FakeDaemon) -> None:
    off = [
        kernel(f"old{at}-a", state="stopped", pid=None, reason="evicted_ttl", last_used=f"2026-01-0{at}T00:00:00Z")
        for at in range(1, 9)
    ]
    everything = {
        "schema": "px.kernels/1",
        "kernels": [*off, kernel(), kernel("broken-b", state="failed", failure=PROBLEM)],
    }
    daemon.on("GET /api/kernels", document(everything))
    ended = px("kernel", "list")
    names = [line.split()[0] for line in ended.lines]
    assert names == ["ID", ID, "broken-b", "old8-a", "old7-a", "old6-a", "old5-a", "old4-a"]
    assert ended.lines[1].split()[1:4] == ["idle", "17", "1.0K"]
    assert ended.lines[2].endswith("it died twice"), "a sentence, not the whole problem"
    assert ended.err == "… 3 stopped sessions more: pxctl kernel list --all\n"
    assert len(px("kernel", "list", "--all").lines) == 11
    assert len(px("kernel", "list", "-q").lines) == 10
    assert px("kernel", "list", "--json").json() == everything


# -- stop, restart, interrupt -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["stop", "restart"])
def test_a_session_of_another_folder_is_steered_by_its_folder(px: Px, daemon: FakeDaemon, verb: str) -> None:
    """The daemon is told the folder, and of a glob only those that are there are meant."""
    here, there = kernel("default-a", cwd=os.path.realpath(px.folder)), kernel("default-b", cwd="/")
    daemon.on("GET /api/kernels/default", document(there)).on("GET /api/kernels", document({"kernels": [here, there]}))
    daemon.on("GET /api/units", document({"units": [{"unit": here["unit"]}, {"unit": there["unit"]}]}))
    daemon.on(f"POST /api/units/{verb}", results(kernel__default_b=there | {"state": "stopped"}))
    for name in ("default", "def*"):
        ended = px("kernel", verb, name, "--cwd", "/")
        assert (ended.code, len(ended.lines)) == (0, 1)
        assert ended.text.startswith("kernel:default-b ")
        assert daemon.seen[-1].query == [("unit", "kernel:default-b")]
    assert daemon.seen[0].arguments == {"cwd": "/"}
    ended = px("kernel", verb, "def*", "--cwd", "/nowhere")
    assert (ended.code, "no session of /nowhere" in ended.err) == (4, True)


# -- attach -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "code", "words"),
    [
        ({"state": "stopped", "connection_file": None}, 3, "it is stopped"),
        ({"language": "bash", "connection_file": None}, 1, "there is no kernel to join"),
        ({"backend": "gateway-external", "connection_file": None}, 1, "held by a gateway"),
    ],
)
def test_what_cannot_be_joined_says_why(
    px: Px, daemon: FakeDaemon, members: dict[str, Any], code: int, words: str
) -> None:
    on_kernel(daemon, **members)
    ended = px("kernel", "attach", "default")
    assert ended.code == code
    assert words in ended.err
    assert "hint: " in ended.err


# -- completion -------------------------------------------------------------------------------------------------------


BUILDING = {"event": "notice", "text": "building an overlay\x07"}
STARTING = {"event": "starting", "kernel": ID, "interpreter": "py"}


def done(**members: Any) -> dict[str, Any]:
    return {"event": "done", "result": {"schema": "px.kernel/1", **kernel(**members)}}


def test_start_sends_what_decides_the_interpreter(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("POST /api/kernels", ndjson(done(notices=["look"])))
    ended = px("kernel", "start", "kernel:work", "--interpreter", "p", "--backend", "direct", "--timeout", "9")
    assert (ended.code, ended.text, ended.err) == (0, f"kernel:{ID} idle (pid 17)\n", "pxctl: look\n")
    assert daemon.seen[0].json() == {
        "name": "work", "cwd": str(px.folder), "interpreter": "p", "backend": "direct", "timeout": 9.0,
        "environ": {"PATH": "/usr/bin:/bin"},
    }  # fmt: skip
    assert px("kernel", "start", "-q").text == f"{ID}\n"
    assert daemon.seen[1].json()["name"] == "default"


def test_on_a_terminal_the_wait_is_told_and_erased(px: Px, daemon: FakeDaemon) -> None:
    go_on = threading.Event()
    daemon.on("POST /api/kernels", pausing(go_on, [BUILDING, STARTING], [done()]))
    with px.terminal("kernel", "start") as screen:
        screen.see("starting the kernel…")
        go_on.set()
        assert screen.end() == 0
        building, kernel_line = without_spinner(screen.text).splitlines()
    assert building.startswith("pxctl: building an overlay")
    assert kernel_line == f"kernel:{ID} idle (pid 17)"


def test_a_build_that_fails_while_it_is_told_is_a_failure(px: Px, daemon: FakeDaemon) -> None:
    failed = {"type": "urn:px:problem:start_failed", "status": 503, "kind": "start_failed", "detail": "no network"}
    daemon.on("POST /api/kernels", ndjson(BUILDING, failed, whole=False))
    ended = px("kernel", "start", "work")
    assert (ended.code, ended.err.splitlines()[-1]) == (1, "pxctl: cannot start kernel:work: no network")
    daemon.on("POST /api/kernels", ndjson(BUILDING))
    ended = px("kernel", "start", "work")
    assert (ended.code, "ended before the kernel was ready" in ended.err) == (1, True)

"""`pxctl kernel …` against a stand-in: names, tables, documents, exit codes. Real kernels: tests/e2e."""

from __future__ import annotations

import threading
from typing import Any

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


def test_living_sessions_come_first(px: Px, daemon: FakeDaemon) -> None:
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
    assert names == ["ID", ID, "broken-b", *(f"old{at}-a" for at in range(8, 0, -1))]
    assert ended.lines[1].split()[1:4] == ["idle", "17", "1.0K"]
    assert ended.lines[2].endswith("it died twice"), "a sentence, not the whole problem"
    assert len(px("kernel", "list", "-q").lines) == 10
    assert px("kernel", "list", "--json").json() == everything


# -- stop, restart, interrupt -----------------------------------------------------------------------------------------


def test_a_session_of_another_folder_is_steered_by_its_folder(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/kernels/default", document(kernel("default-b", cwd="/")))
    daemon.on("POST /api/units/stop", results(kernel__default_b=kernel("default-b", state="stopped")))
    ended = px("kernel", "stop", "default", "--cwd", "/")
    assert (ended.code, ended.text) == (0, "kernel:default-b stopped\n")
    assert daemon.seen[0].arguments == {"cwd": "/"}
    assert daemon.seen[-1].query == [("unit", "kernel:default-b")]
    assert px("kernel", "stop", "default", "-q").text == "default-b\n"
    assert px("kernel", "stop", "def*", "--cwd", "/").code == 2


# -- attach -----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_joined_says_why(px: Px, daemon: FakeDaemon) -> None:
    on_kernel(daemon, language="bash", state="stopped", connection_file=None)
    ended = px("kernel", "attach", "default")
    assert (ended.code, "there is no kernel to join: bash, direct, stopped\nhint: " in ended.err) == (3, True)


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

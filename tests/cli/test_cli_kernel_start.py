"""`pxctl kernel start` against a stand-in: what it asks, what it tells of the wait. Real kernels: tests/e2e."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from cli.fake_daemon import document, ndjson, pausing, problem
from cli.px import without_spinner
from cli.test_cli_kernel import ID, kernel

if TYPE_CHECKING:
    from cli.fake_daemon import FakeDaemon
    from cli.px import Px

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


def test_start_tells_what_is_built_on_stderr_and_each_sentence_once(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(
        "POST /api/kernels", ndjson(BUILDING, STARTING, {"event": "notice", "text": "look"}, done(notices=["look"]))
    )
    ended = px("kernel", "start")
    assert daemon.seen[0].headers["accept"] == "application/x-ndjson"
    assert ended.text == f"kernel:{ID} idle (pid 17)\n"
    assert ended.err == "pxctl: building an overlay\N{REPLACEMENT CHARACTER}\npxctl: look\n"
    ended = px("kernel", "start", "--json")
    assert (ended.json()["schema"], ended.json()["id"]) == ("px.kernel/1", ID)
    assert ended.err.startswith("pxctl: building")
    assert px("kernel", "start", "-q").err == ""


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


def test_a_daemon_of_an_earlier_version_answers_with_the_session_alone(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("POST /api/kernels", document({"schema": "px.kernel/1", **kernel()}, status="201 Created"))
    assert px("kernel", "start").text == f"kernel:{ID} idle (pid 17)\n"


def test_a_build_that_fails_while_it_is_told_is_a_failure(px: Px, daemon: FakeDaemon) -> None:
    failed = {"type": "urn:px:problem:start_failed", "status": 503, "kind": "start_failed", "detail": "no network"}
    daemon.on("POST /api/kernels", ndjson(BUILDING, failed, whole=False))
    ended = px("kernel", "start", "work")
    assert (ended.code, ended.err.splitlines()[-1]) == (1, "pxctl: cannot start kernel:work: no network")
    daemon.on("POST /api/kernels", ndjson(BUILDING))
    ended = px("kernel", "start", "work")
    assert (ended.code, "ended before the kernel was ready" in ended.err) == (1, True)


def test_a_start_that_fails_shows_the_last_words(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("POST /api/kernels", problem(503, "start_failed", 1, stderr_tail="boom\n", hint="pip install ipykernel"))
    ended = px("kernel", "start", "work")
    assert ended.code == 1
    assert ended.err.splitlines() == [
        "pxctl: cannot start kernel:work: it is start_failed",
        "  stderr: boom",
        "hint: pip install ipykernel",
    ]


def test_explain_shows_why_and_the_names_of_variables(px: Px, daemon: FakeDaemon) -> None:
    explanation = {
        "schema": "px.kernel-explanation/1",
        "cwd": "/w",
        "kernelspec": None,
        "overlay": "/data/overlay",
        "candidates": [
            {"source": ".venv", "path": "/w/.venv/bin/python", "taken": False, "detail": "has no ipykernel",
             "version": "3.12.1", "remedy": "pip install ipykernel"},
            {"source": "PATH", "path": "/usr/bin/python3", "taken": True, "detail": "runs", "version": "3.11.2"},
        ],
        "environment": {"passed": ["HOME", "PATH"], "dropped": [{"name": "TOKEN", "why": "denied"},
                                                              {"name": "KEY", "why": "denied"}]},
        "modules": ["/w/.pxd/modules/x.py"],
        "failure": None,
    }  # fmt: skip
    daemon.on("POST /api/kernels", document(explanation))
    ended = px("kernel", "start", "--explain")
    assert daemon.seen[0].json()["explain"] is True
    assert ended.lines == [
        "in /w",
        "  not taken  .venv: /w/.venv/bin/python (3.12.1) has no ipykernel",
        "      remedy: pip install ipykernel",
        "✓ taken  PATH: /usr/bin/python3 (3.11.2) runs",
        "with ipykernel from /data/overlay",
        "environment passed: HOME, PATH",
        "environment dropped, denied: TOKEN, KEY",
        "modules: /w/.pxd/modules/x.py",
    ]
    assert px("kernel", "start", "--explain", "--json").json() == explanation
    daemon.on("POST /api/kernels", document({"cwd": "/w", "failure": "no Python"}))
    assert "none can be taken: no Python" in px("kernel", "start", "--explain").text

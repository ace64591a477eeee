"""Starting, stopping, pinning, waiting, asking why: one unit and many; and sessions of kernels."""

from __future__ import annotations

import re
import threading
from typing import Any

from cli.fake_daemon import FakeDaemon, document, ndjson, pausing, problem, problem_of, results
from cli.px import Px, without_spinner

STOP, WAIT, ID = "POST /api/units/stop", "GET /api/units/a/wait", "default-3fa9c1"


# -- several units ---------------------------------------------------------------------------------


def test_one_failure_of_several_does_not_hide_the_others(px: Px, daemon: FakeDaemon) -> None:
    left = problem_of(409, "survivors", 8, survivors=[{"pid": 9, "name": "sh"}], detail="1 left")
    stopped = {"units": [{"unit": "tool:b", "state": "cold", "pid": None}], "survivors": []}
    daemon.on(STOP, results({"tool:a": left, "tool:b": stopped}))
    ended = px("stop", "a", "b")
    assert (ended.code, ended.text) == (8, "tool:b stopped\n")
    assert "pxctl: cannot stop tool:a: 1 left\n  survived: pid 9 (sh)\n" in ended.err
    told = px("stop", "a", "b", "--json").json()
    assert [one["unit"] for one in told["results"]] == ["tool:b", "tool:a"]
    assert told["results"][1]["problem"]["kind"] == "survivors"


# -- wait and why ----------------------------------------------------------------------------------


def test_waiting_survives_a_new_control_plane_and_starts_nothing(
    px: Px, daemon: FakeDaemon
) -> None:
    daemon.on("GET /api/status", document({"units": [{"unit": "tool:a", "state": "cold"}]}))
    ready = document({"unit": "tool:a", "state": "ready", "ok": True})
    daemon.on(WAIT, problem(504, "timed_out", 7), b"", b"", problem(503, "shutdown", 1), ready)
    ended = px("wait", "a", "--timeout", "600")
    assert (ended.code, ended.text) == (0, "tool:a ready\n")
    assert "waiting does not start it: pxctl start tool:a" in ended.err
    daemon.on(WAIT, problem(404, "unknown_unit", 4))
    assert px("wait", "a", "--timeout", "0", "--json").code == 4, (
        "what is wrong is told also where the time is over"
    )


def test_why_tells_the_chain_and_the_next_step(px: Px, daemon: FakeDaemon) -> None:
    began = {
        "id": 1,
        "time": "2026-11-21T10:00:00Z",
        "unit": "tool:a",
        "event": "started",
        "reason": None,
        "pid": 5,
    }
    began["digest"] = "ab12"
    ended = began | {
        "id": 2,
        "event": "exited",
        "reason": "memory_limit",
        "cause": 1,
        "pid": None,
        "warnings": [],
    }
    value = {
        "unit": "tool:a", "state": "failed", "reason": "memory_limit",
        "summary": "tool:a is failed: it was too big.",
        "chain": [began, ended], "stderr_tail": "MemoryError\n\x1b[2Jx\n",
        "next_step": "raise max_memory_mb",
    }  # fmt: skip
    daemon.on("GET /api/units/a/why", document(value))
    text = px("why", "a").text
    assert text.startswith("tool:a is failed (memory_limit)\nit was too big.\n")
    for words in ("started  pid=5", "exited  (memory_limit)", "MemoryError", "next: raise"):
        assert words in text
    assert not re.search("\x1b|digest|warnings", text), "what says nothing to a person"
    with px.terminal("why", "a", TZ="Asia/Tokyo", NO_COLOR="1") as screen:
        assert screen.end() == 0
        assert "Sat 2026-11-21 19:00:00 JST  tool:a  started" in screen.text
    daemon.on("GET /api/units/12/why", problem(404, "unknown_unit", 4))
    daemon.on("GET /api/executions/12", document({"id": 12}))
    assert px("why", "12").err.endswith("is the id of an execution: pxctl pipe show 12\n")


# -- sessions --------------------------------------------------------------------------------------


def kernel(name: str = ID, **members: Any) -> dict[str, Any]:
    return {
        "id": name,
        "unit": f"kernel:{name}",
        "state": "idle",
        "pid": 17,
        "rss_bytes": 1024,
    } | members


def test_living_sessions_come_first(px: Px, daemon: FakeDaemon) -> None:
    off = [
        kernel(f"old{at}-a", state="stopped", pid=None, last_used=f"2026-01-0{at}T00:00:00Z")
        for at in (1, 2)
    ]
    broken = kernel("broken-b", state="failed", failure={"status": 503, "detail": "it died twice"})
    daemon.on(
        "GET /api/kernels",
        document({"schema": "px.kernels/1", "kernels": [*off, kernel(), broken]}),
    )
    ended = px("kernel", "list")
    assert [line.split()[0] for line in ended.lines] == ["ID", ID, "broken-b", "old2-a", "old1-a"]
    assert ended.lines[1].split()[1:4] == ["idle", "17", "1.0K"]
    assert ended.lines[2].endswith("it died twice"), "a sentence, not the whole problem"


def test_the_wait_for_a_kernel_is_told_and_erased_and_a_build_that_fails_is_a_failure(
    px: Px, daemon: FakeDaemon
) -> None:
    building, go_on = {"event": "notice", "text": "installing ipykernel\x07"}, threading.Event()
    done = {"event": "done", "result": kernel()}
    daemon.on(
        "POST /api/kernels", pausing(go_on, [building, {"event": "starting", "kernel": ID}], [done])
    )
    with px.terminal("kernel", "start") as screen:
        screen.see("starting the kernel…")
        go_on.set()
        assert screen.end() == 0
        told, kernel_line = without_spinner(screen.text).splitlines()
    assert (told.startswith("pxctl: installing ipykernel"), kernel_line) == (
        True,
        f"kernel:{ID} idle (pid 17)",
    )
    failed = problem_of(503, "start_failed", detail="no network")
    daemon.on("POST /api/kernels", ndjson(building, failed, whole=False), ndjson(building))
    for words in ("cannot start kernel:work: no network", "ended before the kernel was ready"):
        ended = px("kernel", "start", "work")
        assert (ended.code, words in ended.err) == (1, True)

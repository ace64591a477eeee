"""Starting, stopping, pinning, waiting, asking why: one unit and many."""

from __future__ import annotations

import re
from typing import Any

from cli.fake_daemon import FakeDaemon, document, problem, problem_of, results
from cli.px import Px


def units(*names: str) -> bytes:
    listed = [{"unit": f"tool:{name}", "kind": "tool", "name": name, "state": "cold"} for name in names]
    return document({"schema": "px.units/1", "units": listed})


def outcome(name: str, state: str, pid: int | None = None) -> dict[str, Any]:
    return {"units": [{"unit": f"tool:{name}", "state": state, "pid": pid}], "survivors": []}


START, STOP, RESTART = (f"POST /api/units/{verb}" for verb in ("start", "stop", "restart"))


def test_several_units_are_one_request_whose_globs_the_daemon_expands(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(STOP, results(a=outcome("a", "cold"), b=outcome("b", "cold")))
    assert px("stop", "tool:*", "b").lines == ["tool:a stopped", "tool:b stopped"]
    assert [request.query for request in daemon.seen] == [[("unit", "tool:*"), ("unit", "b")]]


def test_one_failure_of_several_does_not_hide_the_others(px: Px, daemon: FakeDaemon) -> None:
    left = problem_of(409, "survivors", 8, survivors=[{"pid": 9, "name": "sh"}], detail="1 left")
    daemon.on(STOP, results(a=left, b=outcome("b", "cold")))
    ended = px("stop", "a", "b")
    assert (ended.code, ended.text) == (8, "tool:b stopped\n")
    assert "pxctl: cannot stop tool:a: 1 left\n  survived: pid 9 (sh)\n" in ended.err
    told = px("stop", "a", "b", "--json").json()
    assert [one["unit"] for one in told["results"]] == ["tool:b", "tool:a"]
    assert told["results"][1]["problem"]["kind"] == "survivors"


def test_a_stop_that_takes_too_long_exits_7(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(STOP, results(a=problem_of(504, "timed_out", 7)))
    ended = px("stop", "a", "--timeout", "0.1")
    assert (ended.code, daemon.seen[0].arguments["timeout"]) == (7, "0.1")
    assert ended.err.endswith(
        "something of it is left after 0.1 s; the stop goes on\nhint: pxctl wait tool:a --for stopped\n"
    )


def test_names_that_mean_nothing_or_too_much(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(STOP, problem(400, "ambiguous_name", 2, candidates=["tool:x", "pipe:x"]))
    ended = px("stop", "x")
    assert ended.code == 2
    assert "candidate: pipe:x" in ended.err
    daemon.on(STOP, problem(404, "unknown_unit", 4))
    assert px("stop", "x").code == 4
    daemon.on("GET /api/units", problem(404, "unknown_unit", 4))
    assert px("pin", "x").code == 4


def test_pins(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/units", units("a"), units("a", "b"), units("a", "b"), units("a"))
    for name in "ab":
        pin = {"schema": "px.pin/1", "unit": f"tool:{name}", "pinned": True, "forever": name == "b"}
        daemon.on(f"PUT /api/tools/{name}/pin", document(pin))
        daemon.on(f"DELETE /api/tools/{name}/pin", document(pin | {"pinned": False}))
    assert px("pin", "a", "--json").json()["unit"] == "tool:a"
    assert px("pin", "--forever", "a", "b").lines == ["tool:a pinned", "tool:b pinned for ever"]
    assert len(px("pin", "a", "b", "--json").json()["results"]) == 2
    assert px("unpin", "a").text == "tool:a not pinned\n"
    assert [request.arguments["forever"] for request in daemon.asked("PUT /api/tools/a/pin")] == ["0", "1", "0"]


WAIT = "GET /api/units/a/wait"


def waited(state: str, *, ok: bool, reason: str | None = None) -> bytes:
    return document({"schema": "px.wait/1", "unit": "tool:a", "state": state, "reason": reason, "ok": ok})


def test_waiting_times_out_with_7(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(WAIT, problem(504, "timed_out", 7))
    for seconds in ("0.2", "2", "20"):
        asked = len(daemon.seen)
        ended = px("wait", "a", "--timeout", seconds)
        assert ended.code == 7
        assert f"not ready after {seconds} s" in ended.err
        if len(daemon.seen) - asked > 1:  # else a single answer took longer than that
            break
    assert len(daemon.seen) - asked > 1, "it asks again until its own time is over"
    told = px("wait", "a", "--timeout", "0.1", "--json").json()
    assert (told["status"], told["unit"], told["kind"], told["exit_code"]) == (504, "tool:a", "timed_out", 7)
    daemon.on(WAIT, problem(504, "timed_out", 7, unit="pipe:a"))
    assert px("wait", "a", "--timeout", "0.1", "--json").json()["unit"] == "pipe:a"


def test_waiting_survives_a_new_control_plane(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(WAIT, problem(504, "timed_out", 7), b"", b"", problem(503, "shutdown", 1), waited("ready", ok=True))
    assert px("wait", "a").code == 0


def test_why_tells_the_chain_and_the_next_step(px: Px, daemon: FakeDaemon) -> None:
    began = {"id": 1, "time": "2026-11-21T10:00:00Z", "unit": "tool:a", "event": "started", "pid": 5, "digest": "ab12"}
    ended = began | {"id": 2, "event": "exited", "reason": "memory_limit", "cause": 1, "pid": None, "warnings": []}
    value = {
        "schema": "px.why/1", "unit": "tool:a", "state": "failed", "reason": "memory_limit", "summary": "Too big.",
        "chain": [began, ended], "stderr_tail": "MemoryError\n\x1b[2Jx\n", "next_step": "raise max_memory_mb",
    }  # fmt: skip
    daemon.on("GET /api/units/a/why", document(value))
    text = px("why", "a").text
    for words in (
        "tool:a is failed (memory_limit)", "Too big.", "started  pid=5", "exited  (memory_limit)", "MemoryError",
        "next: raise",
    ):  # fmt: skip
        assert words in text
    assert not re.search("\x1b|digest|warnings", text), "what says nothing to a person"
    with px.terminal("why", "a", TZ="Asia/Tokyo", NO_COLOR="1") as screen:
        assert screen.end() == 0
        assert "Sat 2026-11-21 19:00:00 JST  tool:a  started" in screen.text
    assert px("why", "a", "--json").json() == value
    assert px("why", "12").err.endswith("hint: pxctl pipe show 12\n")


def test_waiting_for_what_is_cold_says_that_nothing_starts_it(px: Px, daemon: FakeDaemon) -> None:
    daemon.on("GET /api/status", document({"units": [{"unit": "tool:a", "state": "cold"}]}))
    daemon.on("GET /api/units/a/wait", document({"unit": "tool:a", "state": "ready", "ok": True}))
    ended = px("wait", "a")
    assert (ended.code, ended.text) == (0, "tool:a ready\n")
    assert "waiting does not start it: pxctl start tool:a" in ended.err
    assert px("wait", "a", "--for", "stopped").err == ""

"""`pipe:x` where units are meant: start, stop, restart, wait, why, status; and executions by their ids."""

from __future__ import annotations

from typing import Any

import pytest

from cli.fake_daemon import FakeDaemon, document, problem, results
from cli.pipe_documents import LONG_AGO, execution, listed
from cli.px import Px

START = "POST /api/units/start"
ONE, LIST = "GET /api/executions/12", "GET /api/pipes/digest/executions"


def test_start_runs_a_pipe_in_the_background(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(START, results(pipe__digest=execution(12, "queued")))
    assert px("start", "pipe:digest").text == "pipe:digest queued (execution 12)\n"
    assert px("start", "digest", "-q").text == "pipe:digest\n"
    assert px("start", "digest", "--json").json()["id"] == 12
    failed = execution(12, "failed", error_type="preset_not_found", error_message="no fast")
    daemon.on(START, results(pipe__digest=failed))
    ended = px("start", "pipe:digest")
    assert ended.code == 1
    assert "cannot start pipe:digest: execution 12 failed after 3.2s (preset_not_found): no fast" in ended.err


# -- wait -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("status", "code"), [("completed", 0), ("failed", 1), ("cancelled", 1), ("timed_out", 7)])
def test_waiting_for_an_execution_exits_by_its_outcome(px: Px, daemon: FakeDaemon, status: str, code: int) -> None:
    daemon.on(ONE, document(execution(12, "running")), problem(503, "shutdown"), document(execution(12, status)))
    ended = px("wait", "12")
    assert (ended.code, ended.text.startswith(f"pipe:digest execution 12 {status.replace('_', ' ')}")) == (code, True)
    assert [request.arguments for request in daemon.seen] == [{}, {"wait": "1"}, {"wait": "1"}]
    daemon.on(ONE, document(execution(12, status)))
    assert px("wait", "12", "--json").json()["status"] == status
    assert px("wait", "12", "-q").text == "12\n"


def waited(state: str, *, ok: bool) -> bytes:
    return document({"schema": "px.wait/1", "unit": "pipe:digest", "state": state, "reason": None, "ok": ok})


@pytest.mark.parametrize("name", ["pipe:digest", "digest"])
def test_waiting_for_a_pipe_is_for_its_end_and_exits_by_its_newest_execution(
    px: Px, daemon: FakeDaemon, name: str
) -> None:
    daemon.on("GET /api/status", document({"units": [{"unit": "pipe:digest", "kind": "pipe", "state": "queued"}]}))
    daemon.on(f"GET /api/units/{name}/wait", waited("idle", ok=False))
    daemon.on(LIST, listed(execution(12, "timed_out")))
    ended = px("wait", name)
    assert (ended.code, ended.text) == (7, "pipe:digest idle; execution 12 timed out after 3.2s\n")
    assert daemon.asked(f"GET /api/units/{name}/wait")[0].arguments["for"] == "done"
    assert px("wait", name, "--json").json()["execution"]["id"] == 12


# -- status    ---------------------------------------------------------------------------------------------------


def unit(**members: Any) -> dict[str, Any]:
    known = {
        "unit": "pipe:digest", "kind": "pipe", "name": "digest", "state": "idle", "reason": None, "pid": None,
        "next_run": "2100-01-01T00:00:00Z", "last_used": LONG_AGO, "config_error": None, "running": None,
        "last_status": "completed", "consecutive_failures": 0,
    }  # fmt: skip
    return known | members


@pytest.mark.parametrize(
    ("members", "seen", "code"),
    [
        ({}, "in ", 0),
        ({"state": "running", "running": 12}, "execution 12", 0),
        ({"state": "queued"}, "queued", 0),
        ({"state": "disabled", "next_run": None}, "ago", 3),
        ({"last_status": "timed_out", "consecutive_failures": 2}, "last run timed out, 2 in a row", 0),
        ({"state": "failed", "config_error": "pipe.md:3: no"}, "pipe.md:3: no", 3),
    ],
)
def test_status_tells_a_pipe(px: Px, daemon: FakeDaemon, members: dict[str, Any], seen: str, code: int) -> None:
    daemon.on("GET /api/status", document({"schema": "px.status/1", "daemon": {}, "units": [unit(**members)]}))
    ended = px("status", "pipe:digest")
    assert (ended.code, seen in ended.text) == (code, True)

"""`pipe:x` where units are meant: start, stop, restart, wait, why, status; and executions by their ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cli.fake_daemon import FakeDaemon, document, ndjson, problem, results
from cli.pipe_documents import LONG_AGO, execution, listed, on_execution

if TYPE_CHECKING:
    from cli.px import Px

START = "POST /api/units/start"
EVENTS = "GET /api/events"
ONE, LIST = "GET /api/executions/12", "GET /api/pipes/digest/executions"


def test_start_runs_a_pipe_in_the_background(px: Px, daemon: FakeDaemon) -> None:
    daemon.on(START, results(pipe__digest=execution(12, "queued")))
    assert px("start", "pipe:digest").text == "pipe:digest queued (execution 12)\n"
    assert px("start", "digest", "-q").text == "pipe:digest\n"
    assert px("start", "digest", "--json").json()["units"][0]["execution"] == 12
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
    daemon.on("GET /api/units/digest/wait", waited("queued", ok=True))
    daemon.on("GET /api/units/pipe:digest/wait", waited("idle", ok=False))
    daemon.on(LIST, listed(execution(12, "timed_out")))
    ended = px("wait", name)
    assert (ended.code, ended.text) == (7, "pipe:digest idle; execution 12 timed out after 3.2s\n")
    assert daemon.asked("GET /api/units/pipe:digest/wait")[0].arguments["for"] == "done"
    assert px("wait", name, "--json").json()["execution"]["id"] == 12


# -- why and status ---------------------------------------------------------------------------------------------------


def happened_at(number: int, what: str, of: int, cause: int | None = None) -> dict[str, Any]:
    return {
        "id": number,
        "time": "2026-11-21T10:00:00Z",
        "unit": "pipe:digest",
        "event": what,
        "execution": of,
        "cause": cause,
    }


def test_why_explains_an_execution(px: Px, daemon: FakeDaemon) -> None:
    on_execution(
        daemon,
        execution(
            12, "failed", error_type="auth_failed", error_message="401", retry_of=11, retry_count=1,
            trigger_event="file_changed:/x", stderr="\n".join(f"line {at}" for at in range(40)),
        ),
    )  # fmt: skip
    happened = [
        happened_at(1, "execution_queued", 11),
        happened_at(2, "execution_failed", 11, 1),
        happened_at(3, "execution_queued", 10),
        happened_at(4, "execution_queued", 12, 2),
        happened_at(5, "execution_failed", 12, 4),
        happened_at(6, "execution_started", 10, 3),
        happened_at(7, "execution_queued", 13, 5),
    ]
    daemon.on(EVENTS, ndjson(*happened))
    lines = px("why", "12").lines
    assert lines[0] == "pipe:digest execution 12 is failed (auth_failed)"
    assert lines[1] == (
        "execution 12 failed after 3.2s (auth_failed): 401. It was started by the event file_changed:/x. "
        "It is try 2, after execution 11."
    )
    assert lines[3] == "What happened, oldest first:"
    assert [line.split()[2:] for line in lines[4:8]] == [
        ["execution_queued", "execution=11"],
        ["execution_failed", "execution=11"],
        ["execution_queued", "execution=12"],
        ["execution_failed", "execution=12"],
    ]
    assert lines[10:12] == ["  line 25", "  line 26"]
    assert lines[-1].startswith("next: check presets.toml")
    told = px("why", "12", "--json").json()
    assert (told["schema"], told["execution"]) == ("px.why/1", 12)
    assert [each["id"] for each in told["chain"]] == [1, 2, 4, 5]
    assert daemon.asked(EVENTS)[0].arguments == {"unit": "pipe:digest", "limit": "1000"}
    daemon.on(EVENTS, ndjson())
    assert px("why", "12", "--json").json()["chain"] == [], "events are kept for a while, rows for longer"
    on_execution(daemon, execution(12, "running"))
    assert px("why", "12").lines[-1] == "next: pxctl pipe tail -f 12"


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
        ({"state": "failed", "config_error": "pipe.md:3: no"}, "broken: pipe.md:3: no", 3),
    ],
)
def test_status_tells_a_pipe(px: Px, daemon: FakeDaemon, members: dict[str, Any], seen: str, code: int) -> None:
    daemon.on("GET /api/status", document({"schema": "px.status/1", "daemon": {}, "units": [unit(**members)]}))
    ended = px("status", "pipe:digest")
    assert (ended.code, seen in ended.text) == (code, True)

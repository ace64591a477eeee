"""`/api/pipes…` and `…/executions…` over a room that does as it is told: shapes, bodies, status codes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from api.pipe_fakes import execution
from supervisord_py.ledger.pipe_executions import ErrorType, Plan, Status
from supervisord_py.ledger.pipe_history import ExecutionFilter
from supervisord_py.pipes.models import PublishedEvent
from supervisord_py.process.model import TreeStat

if TYPE_CHECKING:
    from api.api_rig import Rig

ROW = set(
    """
    id pipe_name status trigger position queued_at started_at finished_at duration_ms exit_code error_type
    error_message pid agent model provider preset_id retry_of retry_count tokens cost
    """.split()  # noqa: SIM905  # a page of names reads better so
)
PIPE = set(
    "name enabled schedule next_run last_run last_status running queued consecutive_failures config_error".split()  # noqa: SIM905
)


async def test_a_run_is_queued_with_what_was_said(rig: Rig) -> None:
    rig.pipes.put()
    body = {"context": {"why": "me"}, "queue": True, "timeout": 5}
    status, document, _ = await rig.ask("POST", "/api/pipes/digest/run", body)
    assert (status, document["schema"], document["id"], document["position"]) == (202, "px.execution/1", 8, 1)
    assert rig.pipes.asked[-1] == ("run", "digest", {"context": {"why": "me"}, "queue": True, "timeout_seconds": 5.0})
    assert set(document) >= ROW
    status, done, _ = await rig.ask("POST", "/api/pipes/digest/run?wait=1")
    assert (status, done["status"], done["stdout"]) == (200, "completed", "out")


async def test_a_run_that_gets_less_time_than_was_asked_for_is_told(rig: Rig) -> None:
    row = execution(plan=Plan("pi", timeout_seconds=3.0, wanted_seconds=600.0))
    rig.pipes.rows[7] = row
    document = (await rig.get("/api/executions/7"))[1]
    assert document["timeout_wanted_seconds"] == 600.0
    assert document["warnings"] == ["timeout: 600 s is cut to 3 s (pipes.timeout_max_seconds)"]


async def test_a_glob_names_the_one_pipe_that_it_fits(rig: Rig) -> None:
    rig.pipes.put()
    rig.pipes.put("other")
    rig.pipes.rows[7] = execution()
    assert (await rig.get("/api/pipes/dig*"))[1]["name"] == "digest"
    assert (await rig.get("/api/pipes/pipe:dig*/executions?limit=1"))[1]["executions"][0]["id"] == 7
    assert (await rig.get("/api/pipes/d*/executions/7/output"))[0] == 200
    status, problem, _ = await rig.get("/api/pipes/*")
    assert (status, problem["exit_code"], problem["candidates"]) == (400, 2, ["pipe:digest", "pipe:other"])
    status, problem, _ = await rig.ask("DELETE", "/api/pipes/x*")
    assert (status, problem["exit_code"]) == (404, 4)


async def test_a_body_counts_also_where_the_request_has_a_key(rig: Rig) -> None:
    rig.pipes.put()
    body, key = {"queue": True, "timeout": 5}, {"Idempotency-Key": "once"}
    first, again = [await rig.ask("POST", "/api/pipes/digest/run", body, key) for _ in range(2)]
    assert (first[0], first[1]) == (202, again[1])
    assert [each for each in rig.pipes.asked if each[0] == "run"] == [
        ("run", "digest", {"context": None, "queue": True, "timeout_seconds": 5.0})
    ]


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("/api/pipes/digest/run", {"timeout": 0}, "/timeout"),
        ("/api/pipes/digest/run", {"context": [1]}, "/context"),
        ("/api/pipes/digest/run", {"contxt": {}}, "/contxt"),
        ("/api/pipes/digest/enable", {"x": 1}, "/x"),
        ("/api/pipes/digest/enable", {"enabled": "no"}, "/enabled"),
        ("/api/pipes/digest/enable", {"enabled": None}, "/enabled"),
        *((f"/api/pipes/digest/{verb}", {"x": 1}, "/x") for verb in ("disable", "cancel")),
        ("/api/pipes", {}, "/source"),
        ("/api/pipes/new", {"name": " "}, "/name"),
        ("/api/pipes/new", {}, "/name"),
        ("/api/pipes/digest/config", {}, ""),
        ("/api/pipes/schedule/preview", {}, "/schedule"),
        ("/api/pipes/schedule/preview", {"schedule": "every 1m", "count": 0}, "/count"),
        ("/api/pipes/schedule/preview", {"schedule": "every 1m", "count": 51}, "/count"),
        ("/api/pipes/schedule/preview", {"schedule": "every 1m", "count": True}, "/count"),
    ],
)
async def test_a_body_that_does_not_fit_is_told_with_its_place(
    rig: Rig, path: str, body: dict[str, Any], pointer: str
) -> None:
    rig.pipes.put()
    status, problem, _ = await rig.ask("POST", path, body)
    assert (status, problem["errors"][0]["pointer"]) == (422, pointer)
    assert rig.pipes.asked == []


@pytest.mark.parametrize(
    ("body", "done"), [({"enabled": False}, "disable"), ({"enabled": True}, "enable"), ({}, "enable")]
)
async def test_enabled_is_what_the_body_says(rig: Rig, body: dict[str, bool], done: str) -> None:
    rig.pipes.put()
    status, document, _ = await rig.ask("POST", "/api/pipes/digest/enable", body)
    assert (status, document["enabled"], rig.pipes.asked) == (200, done == "enable", [(done, "digest")])


async def test_keys_are_changed_flat_or_in_an_envelope(rig: Rig) -> None:
    rig.pipes.put()
    for body in ({"schedule": "every 2h", "preset": ["a"], "x": None}, {"config": {"schedule": "every 2h"}}):
        status, _, _ = await rig.ask("POST", "/api/pipes/digest/config", body)
        assert status == 200
    assert rig.pipes.asked[-2] == ("configure", "digest", {"schedule": "every 2h", "preset": ["a"], "x": None})
    assert rig.pipes.asked[-1] == ("configure", "digest", {"schedule": "every 2h"})


async def test_pipes_are_added_made_checked_and_removed(rig: Rig) -> None:
    status, document, _ = await rig.ask("POST", "/api/pipes", {"source": "example:x", "name": "mine"})
    assert (status, document["name"], document["enabled"]) == (201, "mine", False)
    assert (await rig.ask("POST", "/api/pipes/new", {"name": "fresh"}))[0] == 201
    status, report, _ = await rig.ask("POST", "/api/pipes/fresh/validate")
    assert (status, report["ok"]) == (200, False)
    expected = {"name": "schedule", "verdict": "fail", "detail": "it is odd", "hint": "write `every 2h`", "line": 3}
    assert report["checks"] == [expected]
    status, gone, _ = await rig.ask("DELETE", "/api/pipes/fresh")
    assert (status, gone["unit"], gone["removed"]) == (200, "pipe:fresh", True)


async def test_the_coming_times_the_lines_and_a_preview(rig: Rig) -> None:
    rig.pipes.put()
    _, document, _ = await rig.get("/api/pipes/digest/next?count=2")
    assert (document["next_run"], len(document["upcoming"])) == ("2027-01-15T08:00:00.000Z", 2)
    assert document["last_decision"] == {"at": "2027-01-15T08:00:00.000Z", "text": "waits"}
    assert len((await rig.get("/api/pipes/digest/next"))[1]["upcoming"]) == 5
    assert (await rig.get("/api/pipes/digest/next?count=0"))[1]["next_run"] is None
    _, queue, _ = await rig.get("/api/pipes/queue")
    (group,) = queue["groups"]
    assert (group["group"], group["slots"], group["waiting"][0]["position"]) == ("manual", 4, 1)
    _, preview, _ = await rig.ask("POST", "/api/pipes/schedule/preview", {"schedule": "every 1m", "count": 3})
    assert preview["valid"]
    assert rig.pipes.asked[-1] == ("preview", "every 1m", None, 3)
    await rig.ask("POST", "/api/pipes/schedule/preview", {"schedule": "every 1m", "timezone": "UTC"})
    assert rig.pipes.asked[-1] == ("preview", "every 1m", "UTC", 5)


async def test_an_event_from_outside_says_what_it_starts(rig: Rig) -> None:
    status, document, _ = await rig.ask("POST", "/api/events/deploy", {"key": "k", "data": {"a": 1}})
    assert (status, document["claimed"]) == (202, [{"pipe": "digest", "execution": 8}])
    assert document["suppressed"] == [{"pipe": "other", "why": "it caused this"}]
    assert rig.pipes.asked[-1] == ("publish_event", PublishedEvent("deploy", key="k", facts={"a": 1}))
    assert (await rig.ask("POST", "/api/events/deploy"))[0] == 202


async def test_executions_are_filtered_and_paged_without_their_output(rig: Rig) -> None:
    rig.pipes.put()
    rig.pipes.rows[7] = execution(error_type=ErrorType.CRASH)
    path = "/api/pipes/digest/executions?status=failed&status=queued&since=2027-01-01T00:00:00Z&limit=5&cursor=9"
    status, page, _ = await rig.get(path)
    assert (status, page["schema"], page["next_cursor"]) == (200, "px.executions/1", 5)
    assert "stdout" not in page["executions"][0]
    assert page["executions"][0]["error_type"] == "crash"
    wanted = ExecutionFilter("digest", (Status.FAILED, Status.QUEUED), 1798761600.0, None, 9, 5)
    assert rig.pipes.asked[-1] == ("executions", wanted)
    await rig.get("/api/executions?pipe=pipe:digest")
    assert rig.pipes.asked[-1] == ("executions", ExecutionFilter("digest"))
    await rig.get("/api/executions")
    assert rig.pipes.asked[-1] == ("executions", ExecutionFilter())
    assert (await rig.get("/api/pipes/nobody/executions"))[0] == 404
    del rig.pipes.views["digest"]
    status, page, _ = await rig.get("/api/pipes/digest/executions")
    assert (status, len(page["executions"])) == (200, 1), "the rows of a pipe that is gone stay"
    assert (await rig.get("/api/executions?since=yesterday"))[0] == 400


async def test_pipes_are_units_of_status_wait_and_health(rig: Rig) -> None:
    rig.pipes.put(running=3, pid=1, instance="k", started_at=1.0)
    rig.pipes.put("idle", last_status=Status.FAILED)
    rig.pipes.put("off", enabled=False, last_status=Status.COMPLETED)
    rig.pipes.put("broken", config_error="no")
    rig.pipes.put("waiting", queued=2)
    rig.placement.stats["k"] = TreeStat(1000, 1.0, 2)
    _, document, _ = await rig.get("/api/status")
    units = {unit["unit"]: unit for unit in document["units"]}
    states = {name: units[f"pipe:{name}"]["state"] for name in ("digest", "idle", "off", "broken", "waiting")}
    assert states == {"digest": "running", "idle": "idle", "off": "disabled", "broken": "failed", "waiting": "queued"}
    assert (units["pipe:digest"]["rss_bytes"], units["pipe:digest"]["processes"]) == (1000, 2)
    waits = {"idle?for=done": False, "off?for=done": True, "off?for=ready": False, "idle?for=stopped": True}
    for asked, ok in waits.items():
        name, _, query = asked.partition("?")
        assert (await rig.get(f"/api/units/pipe:{name}/wait?{query}"))[1]["ok"] is ok
    status, problem, _ = await rig.get("/api/units/digest/wait?for=done&timeout=0")
    assert (status, problem["kind"]) == (504, "timed_out")
    rig.pipes.scheduler_error = "it fell"
    health = (await rig.get("/api/health"))[1]
    assert health["pipes"]["pipes"] == 5
    assert {"part": "scheduler", "detail": "was restarted: it fell"} in health["degraded"]


async def test_output_that_the_disk_refuses_is_told_wherever_somebody_asks_how_things_are(rig: Rig) -> None:
    rig.pipes.refused = {"pipe:digest": "No space left on device"}
    part, detail = "output of pipe:digest", "the disk refuses it, and its agent waits: No space left on device"
    assert {"part": part, "detail": detail} in (await rig.get("/api/health"))[1]["degraded"]
    repair = "df -h, then free some space"
    known = {"part": part, "detail": detail, "repair": repair}
    assert known in (await rig.get("/api/status"))[1]["daemon"]["degraded"]
    check = {"name": part, "status": "fail", "detail": detail, "repair": repair}
    assert check in (await rig.get("/api/doctor"))[1]["checks"]


async def test_why_a_pipe_cannot_run(rig: Rig) -> None:
    rig.pipes.put("broken", config_error="pipe.md:3: quote it")
    _, document, _ = await rig.get("/api/units/pipe:broken/why")
    assert "pipe.md:3: quote it" in document["summary"]
    assert document["next_step"] == "pxctl pipe validate broken"

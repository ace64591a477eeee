"""`/api/pipes…` and `…/executions…` over a room that does as it is told; pipes in metrics and doctor."""

from __future__ import annotations

from typing import Any

import pytest

from api.api_rig import Rig
from api.pipe_fakes import execution
from supervisord_py.ledger.pipe_executions import Status
from supervisord_py.process.model import TreeStat


async def test_a_glob_names_the_one_pipe_that_it_fits(rig: Rig) -> None:
    rig.pipes.put()
    rig.pipes.put("other")
    rig.pipes.rows[7] = execution()
    assert (await rig.get("/api/pipes/dig*"))[1]["name"] == "digest"
    assert (await rig.get("/api/pipes/pipe:dig*/executions/7"))[1]["id"] == 7
    status, problem, _ = await rig.get("/api/pipes/*")
    assert (status, problem["exit_code"], problem["candidates"]) == (400, 2, ["pipe:digest", "pipe:other"])
    status, problem, _ = await rig.ask("DELETE", "/api/pipes/x*")
    assert (status, problem["exit_code"]) == (404, 4)


@pytest.mark.parametrize(
    ("path", "body", "pointer"),
    [
        ("/api/pipes/digest/run", {"timeout": 0}, "/timeout"),
        ("/api/pipes/digest/run", {"context": [1]}, "/context/0"),
        ("/api/pipes/digest/run", {"contxt": {}}, "/contxt"),
        ("/api/pipes/digest/enable", {"x": 1}, "/x"),
        ("/api/pipes/digest/enable", {"enabled": "no"}, "/enabled"),
        ("/api/pipes/digest/enable", {"enabled": None}, "/enabled"),
        *((f"/api/pipes/digest/{verb}", {"x": 1}, "/x") for verb in ("disable", "cancel")),
        ("/api/pipes", {}, "/source"),
        ("/api/pipes/new", {"name": " "}, "/name"),
        ("/api/pipes/new", {}, "/name"),
        ("/api/pipes/digest/config", {}, ""),
    ],
)
async def test_a_body_that_does_not_fit_is_told_with_its_place(
    rig: Rig, path: str, body: dict[str, Any], pointer: str
) -> None:
    rig.pipes.put()
    status, problem, _ = await rig.ask("POST", path, body)
    assert (status, problem["errors"][0]["pointer"]) == (422, pointer)
    assert rig.pipes.asked == []


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


async def _found(rig: Rig) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in (await rig.get("/api/doctor"))[1]["checks"]}


async def test_doctor_names_each_pipe_that_cannot_run(rig: Rig) -> None:
    rig.pipes.put()
    rig.pipes.put("off", enabled=False)
    rig.pipes.put("broken", config_error="pipe.md:3: no")
    found = await _found(rig)
    assert found["pipe:broken"] == {
        "name": "pipe:broken",
        "status": "fail",
        "detail": "pipe.md:3: no",
        "repair": "pxctl pipe validate broken",
    }
    assert (found["pipe:digest"]["status"], found["pipe:digest"]["detail"]) == ("fail", "it is odd")
    assert found["pipe:off"]["status"] == "warn"
    assert found["scheduler"]["status"] == "ok"
    assert "pipes" not in found

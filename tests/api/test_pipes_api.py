"""Pipes among the units of status and wait, in health and in doctor."""

from __future__ import annotations

from api.api_rig import Rig
from supervisord_py.ledger.pipes import Status
from supervisord_py.process.model import TreeStat


async def test_pipes_are_units_of_status_wait_and_health(rig: Rig) -> None:
    rig.pipes.put(running=3, pid=1, instance="k", started_at=1.0)
    rig.pipes.put("idle", last_status=Status.FAILED)
    rig.pipes.put("off", enabled=False, last_status=Status.COMPLETED)
    rig.pipes.put("broken", config_error="no")
    rig.pipes.put("waiting", queued=2)
    rig.placement.stats["k"] = TreeStat(1000, 1.0, 2)
    units = {unit["unit"]: unit for unit in (await rig.get("/api/status"))[1]["units"]}
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


async def test_refused_output_and_what_cannot_run_is_told_wherever_somebody_asks_how_things_are(rig: Rig) -> None:
    rig.pipes.refused = {"pipe:digest": "No space left on device"}
    for name, more in (("digest", {}), ("off", {"enabled": False}), ("broken", {"config_error": "pipe.md:3: no"})):
        rig.pipes.put(name, **more)
    part, detail = "output of pipe:digest", "the disk refuses it, and its agent waits: No space left on device"
    known = {"part": part, "detail": detail, "repair": "df -h, then free some space"}
    assert known in (await rig.get("/api/status"))[1]["daemon"]["degraded"]
    assert {"part": part, "detail": detail} in (await rig.get("/api/health"))[1]["degraded"]
    found = {each["name"]: each for each in (await rig.get("/api/doctor"))[1]["checks"]}
    assert (found[part]["status"], found[part]["detail"], found[part]["repair"]) == ("fail", detail, known["repair"])
    told = {"name": "pipe:broken", "status": "fail", "detail": "pipe.md:3: no", "repair": "pxctl pipe validate broken"}
    assert found["pipe:broken"] == told
    verdicts = [found[name]["status"] for name in ("pipe:digest", "pipe:off", "scheduler")]
    assert (verdicts, found["pipe:digest"]["detail"], "pipes" in found) == (["fail", "warn", "ok"], "it is odd", False)

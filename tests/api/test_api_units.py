"""Units and the daemon: status, starts and stops, why, metrics, and the description of it all."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from jsonschema_rs import meta

from api.api_rig import STDERR, Output, Rig, until
from supervisord_py.kernels.session import SessionState
from supervisord_py.ledger import instances
from supervisord_py.ledger.instances import INSTANCES, InstanceRow
from supervisord_py.process.model import Reason, TreeStat

GONE = {"state": SessionState.STOPPED, "pid": None, "instance": None, "started_at": None}


async def test_status_has_kernels_and_remembered_ones_only_by_name(rig: Rig) -> None:
    rig.add_tool("echo")
    living = rig.kernels.put("work", state=SessionState.BUSY, running="c1", queued=2, notices=("recycled",))
    failed = rig.kernels.put("bad", "/b", **{**GONE, "state": SessionState.FAILED})
    old = rig.kernels.put("old", "/o", **GONE, reason=Reason.EVICTED_TTL)
    rig.placement.stats["00000000.K"] = TreeStat(1000, 1.0, 3)
    units = {unit["unit"]: unit for unit in (await rig.get("/api/status"))[1]["units"]}
    assert list(units) == sorted([living.unit, failed.unit, "tool:echo"])
    busy = units[living.unit]
    assert (busy["kind"], busy["name"], busy["session"], busy["state"]) == ("kernel", living.id, "work", "busy")
    assert (busy["in_flight"], busy["waiting"], busy["rss_bytes"], busy["processes"]) == (1, 2, 1000, 3)
    assert (busy["warnings"], busy["cwd"], busy["pid"]) == (["recycled"], "/work", 4242)
    (asked,) = (await rig.get("/api/status?unit=old"))[1]["units"]
    assert (asked["unit"], asked["state"], asked["reason"]) == (old.unit, "stopped", "evicted_ttl")


async def test_a_remembered_session_gives_its_name_up_to_a_living_one(rig: Rig) -> None:
    rig.kernels.put("work", "/old", **GONE)
    living = rig.kernels.put("work", "/new")
    assert (await rig.get("/api/units?name=work"))[1]["units"][0]["unit"] == living.unit
    another = rig.kernels.put("work", "/other")
    status, problem, _ = await rig.get("/api/units?name=kernel:work")
    assert (status, problem["candidates"]) == (400, sorted([living.unit, another.unit]))


async def test_why_tells_the_chain_from_its_beginning(rig: Rig) -> None:
    rig.add_tool("x")
    ledger, publish = rig.context.ledger, rig.context.events.publish
    output = Output(Path(rig.placement.log_dir), "tool:x")
    output.write(b"of an earlier life\n", STDERR)
    began = output.position
    output.write(b"fine\n")
    output.write(b"boom \xff\n", STDERR)
    await ledger.write(INSTANCES.insert(InstanceRow("i.1", "tool:x", 1.0, pid=7, log_position=began)))
    await ledger.write(instances.ended("i.1", 2.0, "exit", code=3, log_end=output.position))
    first = publish("starting", "tool:x", instance="i.1")
    second = publish("spawned", "tool:x", instance="i.1", cause=first)
    third = publish("died", "tool:x", Reason.EXIT, instance="i.1", cause=second, code=3)
    publish("pinned", "tool:x")
    rig.launcher.put("x", reason="exit")
    status, document, _ = await rig.get("/api/units/x/why")
    assert (status, document["schema"], document["unit"], document["reason"]) == (200, "px.why/1", "tool:x", "exit")
    assert [event["id"] for event in document["chain"]] == [first, second, third]
    assert (document["stderr_tail"], document["instance"]["code"]) == ("boom \ufffd\n", 3)
    assert ("exit code 3" in document["summary"], document["next_step"]) == (True, "pxctl logs tool:x --stderr")


async def test_without_waiting_or_over_its_time_the_work_goes_on_by_itself(rig: Rig) -> None:
    rig.add_tool("x")
    rig.launcher.gate = asyncio.Event()
    status, document, _ = await rig.ask("POST", "/api/tools/x/start?wait=0")
    assert (status, document["units"][0]["state"]) == (202, "cold")
    status, problem, _ = await rig.ask("POST", "/api/tools/x/stop?timeout=0.05")
    assert (status, problem["kind"], "goes on" in problem["detail"]) == (504, "timed_out", True)
    rig.launcher.gate.set()
    await until(lambda: rig.launcher.states["x"].reason == "stopped")


async def test_a_tool_that_runs_is_removed_only_by_force(rig: Rig) -> None:
    folder = rig.add_tool("x")
    rig.launcher.put("x", pid=7)
    status, problem, _ = await rig.ask("DELETE", "/api/tools/x")
    assert (status, problem["kind"], folder.exists()) == (409, "conflict", True)
    status, document, _ = await rig.ask("DELETE", "/api/tools/x?force=1")
    assert (status, document["folder"], folder.exists()) == (200, str(folder), False)
    assert rig.launcher.calls[0][0] == "stop"


async def test_metrics_count_units_events_and_requests(rig: Rig) -> None:
    view = rig.kernels.put("work", queued=3)
    rig.context.events.publish("died", view.unit, Reason.SIGNAL)
    rig.context.events.publish("execution_failed", "pipe:digest", execution=2, error_type="crash")
    await rig.get("/api/health")
    page = (await rig.get("/api/metrics"))[1].decode()
    assert set(page.splitlines()) >= {
        "pxd_up 1.0",
        'pxd_units{kind="kernel",state="idle"} 1.0',
        'pxd_waiting{kind="kernel"} 3.0',
        'pxd_events_total{event="died",kind="kernel",reason="signal"} 1.0',
        'pxd_events_total{event="execution_failed",kind="pipe",reason="crash"} 1.0',
        'pxd_http_requests_total{route="GET /api/health",status="200"} 1.0',
    }


async def test_the_description_is_sound(rig: Rig) -> None:
    paths = (await rig.get("/api/openapi.json"))[1]["paths"]
    operations = [(path, operation) for path, item in paths.items() for operation in item.values()]
    assert len({operation["operationId"] for _, operation in operations}) == len(operations)
    for path, operation in operations:
        assert operation["summary"].endswith((".", "?")), path
        for code, answer in operation["responses"].items():
            assert re.fullmatch(r"2\d\d|101|default", code)
            for content in answer.get("content", {}).values():
                meta.validate(content["schema"])
        names = [(parameter["in"], parameter["name"]) for parameter in operation["parameters"]]
        assert len(set(names)) == len(names)
        assert {name for place, name in names if place == "path"} == set(re.findall(r"{(\w+)}", path))
        for parameter in operation["parameters"]:
            meta.validate(parameter["schema"])

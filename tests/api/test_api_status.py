"""Status, units, metrics: what is told of tools and kernels."""

from __future__ import annotations

from api.api_rig import Rig
from supervisord_py.kernels.session import SessionState
from supervisord_py.process.model import Reason, TreeStat

GONE = {"state": SessionState.STOPPED, "pid": None, "instance": None, "started_at": None}


async def test_status_has_kernels_and_remembered_ones_only_by_name(rig: Rig) -> None:
    rig.add_tool("echo")
    living = rig.kernels.put("work", state=SessionState.BUSY, running="c1", queued=2, notices=("recycled",))
    failed = rig.kernels.put("bad", "/b", **{**GONE, "state": SessionState.FAILED})
    old = rig.kernels.put("old", "/o", **GONE, reason=Reason.EVICTED_TTL)
    rig.placement.stats["00000000.K"] = TreeStat(1000, 1.0, 3)
    units = (await rig.get("/api/status"))[1]["units"]
    assert [unit["unit"] for unit in units] == sorted([living.unit, failed.unit, "tool:echo"])
    busy = next(unit for unit in units if unit["unit"] == living.unit)
    assert (busy["kind"], busy["name"], busy["session"], busy["state"]) == ("kernel", living.id, "work", "busy")
    assert (busy["in_flight"], busy["waiting"], busy["rss_bytes"], busy["processes"]) == (1, 2, 1000, 3)
    assert (busy["warnings"], busy["cwd"], busy["pid"]) == (["recycled"], "/work", 4242)
    tool = next(unit for unit in units if unit["unit"] == "tool:echo")
    assert set(tool) < set(busy)
    (asked,) = (await rig.get("/api/status?unit=old"))[1]["units"]
    assert (asked["unit"], asked["state"], asked["reason"]) == (old.unit, "stopped", "evicted_ttl")


async def test_a_remembered_session_gives_its_name_up_to_a_living_one(rig: Rig) -> None:
    rig.kernels.put("work", "/old", **GONE)
    living = rig.kernels.put("work", "/new")
    assert (await rig.get("/api/units?name=work"))[1]["units"][0]["unit"] == living.unit
    another = rig.kernels.put("work", "/other")
    status, problem, _ = await rig.get("/api/units?name=kernel:work")
    assert (status, problem["candidates"]) == (400, sorted([living.unit, another.unit]))


async def test_metrics_count_units_events_and_requests(rig: Rig) -> None:
    view = rig.kernels.put("work", queued=3)
    rig.pipes.put("broken", config_error="pipe.md:3: no")
    publish = rig.context.events.publish
    publish("ready", view.unit, cold_start_ms=200)
    publish("died", view.unit, Reason.SIGNAL)
    publish("execution_failed", "pipe:digest", execution=2, error_type="crash")
    await rig.get("/api/health")
    page = (await rig.get("/api/metrics"))[1].decode()
    for line in (
        "pxd_up 1.0",
        'pxd_units{kind="kernel",state="idle"} 1.0',
        'pxd_units{kind="pipe",state="failed"} 1.0',
        'pxd_waiting{kind="kernel"} 3.0',
        'pxd_events_total{event="died",kind="kernel",reason="signal"} 1.0',
        'pxd_events_total{event="execution_failed",kind="pipe",reason="crash"} 1.0',
        'pxd_cold_start_seconds_count{kind="kernel"} 1.0',
        'pxd_cold_start_seconds_sum{kind="kernel"} 0.2',
        'pxd_http_requests_total{route="GET /api/health",status="200"} 1.0',
    ):
        assert f"\n{line}\n" in page, line

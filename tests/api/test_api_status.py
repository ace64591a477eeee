"""Status, units, health, metrics: what is told of what is."""

from __future__ import annotations

import asyncio
import os
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from api.api_rig import Rig
from supervisord_py.api.metrics import Counts
from supervisord_py.api.units import resident_bytes
from supervisord_py.errors import KeeperLostError
from supervisord_py.ledger.events import Event
from supervisord_py.process.model import Reason, TreeStat


def unit_of(document: dict[str, Any], unit: str) -> dict[str, Any]:
    return next(one for one in document["units"] if one["unit"] == unit)


async def test_cold_and_broken_tools_are_listed_too(rig: Rig) -> None:
    rig.add_tool("cold")
    (rig.add_tool("broken") / "tool.json").write_text("{")
    document = (await rig.get("/api/status"))[1]
    assert unit_of(document, "tool:cold")["config_error"] is None
    broken = unit_of(document, "tool:broken")
    assert broken["state"] == "cold"
    assert "tool.json" in broken["config_error"]
    assert broken["config_problem"]["kind"] == "config_error"


async def test_a_warm_tool_with_its_measures(rig: Rig) -> None:
    rig.add_tool("x")
    rig.launcher.put("x", pid=7, instance="i.1", started_at=1_000_000_000.0, last_used=1_000_000_001.5, in_flight=2)
    rig.placement.stats["i.1"] = TreeStat(1234, 5.0, 3)
    unit = unit_of((await rig.get("/api/status"))[1], "tool:x")
    assert (unit["pid"], unit["rss_bytes"], unit["processes"], unit["in_flight"]) == (7, 1234, 3, 2)
    assert unit["started_at"] == "2001-09-09T01:46:40.000Z"
    assert unit["last_used"] == "2001-09-09T01:46:41.500Z"
    assert unit["uptime_seconds"] > 0
    assert unit["cpu_percent"] is None


async def test_cpu_is_known_from_the_second_look_on(rig: Rig) -> None:
    rig.add_tool("x")
    rig.launcher.put("x", pid=7, instance="i.1")
    rig.placement.stats["i.1"] = TreeStat(1, 0.0, 1)
    seen: list[float] = []

    async def looked() -> bool:
        rig.placement.stats["i.1"] = TreeStat(1, rig.placement.stats["i.1"].cpu_seconds + 0.1, 1)
        percent = unit_of((await rig.get("/api/status"))[1], "tool:x")["cpu_percent"]
        seen.extend([] if percent is None else [percent])
        return bool(seen)

    async with asyncio.timeout(30):
        while not await looked():
            await asyncio.sleep(0.1)
    assert seen[0] > 0


async def test_without_the_keeper_status_still_answers(rig: Rig) -> None:
    rig.add_tool("x")
    rig.launcher.put("x", pid=7, instance="i.1")
    rig.placement.failure = KeeperLostError("gone")
    status, document, _ = await rig.get("/api/status")
    assert (status, unit_of(document, "tool:x")["rss_bytes"]) == (200, None)


async def test_only_the_units_asked_for(rig: Rig) -> None:
    for name in ("text-plot", "text-stats", "other"):
        rig.add_tool(name)
    document = (await rig.get("/api/status?unit=text-*"))[1]
    assert [unit["name"] for unit in document["units"]] == ["text-plot", "text-stats"]
    status, problem, _ = await rig.get("/api/status?unit=nope")
    assert (status, problem["kind"]) == (404, "unknown_unit")


async def test_names_and_globs_are_resolved(rig: Rig) -> None:
    rig.add_tool("a1")
    rig.add_tool("a2")
    document = (await rig.get("/api/units?name=a*&name=tool:a1"))[1]
    assert document == {
        "schema": "px.units/1",
        "units": [
            {"unit": "tool:a1", "kind": "tool", "name": "a1", "state": "cold"},
            {"unit": "tool:a2", "kind": "tool", "name": "a2", "state": "cold"},
        ],
    }
    assert len((await rig.get("/api/units"))[1]["units"]) == 2


async def test_a_tool_whose_folder_is_gone_is_shown_while_it_is_held(rig: Rig) -> None:
    rig.launcher.put("gone", pid=7)
    assert unit_of((await rig.get("/api/status"))[1], "tool:gone")["state"] == "ready"


async def test_health(rig: Rig) -> None:
    status, document, _ = await rig.get("/api/health")
    assert (status, document["schema"], document["ok"], document["version"]) == (200, "px.health/1", True, "1.2.3")


def test_a_process_that_is_not_there_has_no_memory() -> None:
    assert resident_bytes(2**22 + 1) is None
    assert (resident_bytes(os.getpid()) or 0) > 0


# -- metrics

LINE = re.compile(
    r"# (HELP|TYPE) [a-z_]+ .+|"
    r'[a-z_]+(\{([a-z_]+="(\\.|[^"\\\n])*",?)*\})? -?[0-9.e+-]+'
)


async def test_metrics_are_well_formed_and_complete(rig: Rig) -> None:
    rig.add_tool("x")
    rig.launcher.put("x", pid=7, in_flight=3, waiting=2)
    await rig.get("/api/tools/nope")
    status, content, headers = await rig.get("/api/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    text = content.decode()
    assert all(LINE.fullmatch(line) for line in text.splitlines()), text
    for expected in (
        "pxd_up 1.0\n",
        'pxd_tools{state="ready"} 1.0\n',
        "pxd_in_flight 3.0\n",
        "pxd_waiting 2.0\n",
        "pxd_control_restarts_total 2.0\n",
        "pxd_starts_total 0.0\n",
        'pxd_cold_start_seconds_bucket{le="+Inf"} 0.0\n',
        'pxd_evictions_total{reason="evicted_lru"} 0.0\n',
        'pxd_http_requests_total{route="GET /api/tools/{t}",status="404"} 1.0\n',
        'pxd_resident_bytes{process="keeper"} ',
    ):
        assert expected in text
    names = re.findall(r"# TYPE (\S+)", text)
    assert len(set(names)) == len(names)
    assert all(f"# HELP {name} " in text for name in names)


async def test_starts_and_endings_are_counted_from_the_events(rig: Rig) -> None:
    rig.context.events.publish("ready", "tool:x", cold_start_ms=120)
    rig.context.events.publish("stopped", "tool:x", Reason.EVICTED_LRU)
    pages: list[str] = []

    async def counted() -> bool:
        pages.append((await rig.get("/api/metrics"))[1].decode())
        return 'pxd_evictions_total{reason="evicted_lru"} 1.0' in pages[-1]

    async with asyncio.timeout(30):
        while not await counted():
            await asyncio.sleep(0.01)
    assert "pxd_starts_total 1.0" in pages[-1]
    assert 'pxd_cold_start_seconds_bucket{le="0.25"} 1.0' in pages[-1]
    assert 'pxd_cold_start_seconds_bucket{le="0.1"} 0.0' in pages[-1]


def test_only_what_begins_and_ends_lives_is_counted() -> None:
    counts = Counts()
    for number, (word, reason) in enumerate([("pinned", None), ("ready", None), ("start_failed", "early_exit")]):
        counts.count(Event(number, 0.0, "tool:x", word, reason))
    tools = counts.lives["tool"]
    assert (tools.starts, dict(tools.endings), dict(tools.start_failures)) == (1, {}, {"early_exit": 1})

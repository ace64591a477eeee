"""Status, units, health, metrics: what is told of what is."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from api.api_rig import Rig
from supervisord_py.errors import KeeperLostError
from supervisord_py.process.model import Reason, TreeStat


def unit_of(document: dict[str, Any], unit: str) -> dict[str, Any]:
    return next(one for one in document["units"] if one["unit"] == unit)


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

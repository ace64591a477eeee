"""`/api/tools…`: catalog, warm set, and files that come and go."""

from __future__ import annotations

import asyncio

from api.api_rig import Rig, until
from supervisord_py.errors import SurvivorsError


async def test_without_waiting_the_work_goes_on_by_itself(rig: Rig) -> None:
    rig.add_tool("x")
    rig.launcher.gate = asyncio.Event()
    status, document, _ = await rig.ask("POST", "/api/tools/x/start?wait=0")
    assert (status, document["units"][0]["state"]) == (202, "cold")
    rig.launcher.gate.set()
    await until(lambda: "x" in rig.launcher.states)


async def test_what_survives_a_stop_is_named(rig: Rig) -> None:
    rig.add_tool("x")
    rig.launcher.failure = SurvivorsError("left", survivors=[{"pid": 7, "name": "stuck", "start_time": 1}])
    status, problem, _ = await rig.ask("POST", "/api/tools/x/stop")
    assert (status, problem["kind"], problem["exit_code"]) == (409, "survivors", 8)
    assert problem["survivors"][0]["pid"] == 7


async def test_a_stop_that_takes_too_long_goes_on(rig: Rig) -> None:
    rig.add_tool("x")
    rig.launcher.gate = asyncio.Event()
    status, problem, _ = await rig.ask("POST", "/api/tools/x/stop?timeout=0.05")
    assert (status, problem["kind"]) == (504, "timed_out")
    assert "goes on" in problem["detail"]


async def test_a_tool_that_runs_is_removed_only_by_force(rig: Rig) -> None:
    folder = rig.add_tool("x")
    rig.launcher.put("x", pid=7)
    status, problem, _ = await rig.ask("DELETE", "/api/tools/x")
    assert (status, problem["kind"]) == (409, "conflict")
    assert folder.exists()
    status, document, _ = await rig.ask("DELETE", "/api/tools/x?force=1")
    assert (status, document["schema"], document["folder"]) == (200, "px.removed/1", str(folder))
    assert not folder.exists()
    assert [call[0] for call in rig.launcher.calls] == ["stop", "refresh"]

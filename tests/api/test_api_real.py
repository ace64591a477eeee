"""The API over a real keeper, launcher and tool: one request all the way and back."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import supervisord_py
from api.api_rig import DEADLINE, FakeControl, serving
from api.kernel_fakes import FakeKernels
from api.pipe_fakes import FakePipes
from supervisord_py.api.context import ApiConfig, ApiContext
from tools.tool_house import ToolHouse

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import aiohttp

EXAMPLES = Path(supervisord_py.__file__).parent / "examples" / "tools"
REQUEST = {"principal": 1000, "annual_rate": 0.05, "years": 10}
BASE = "/api/tools/compound-interest"


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """A client of an API with the compound-interest example in its catalog."""
    house = ToolHouse()
    shutil.copytree(EXAMPLES / "compound-interest", house.tools / "compound-interest")
    await house.open()
    root = house.rig.dir
    path = root / "run" / "api.sock"
    context = ApiContext(
        launcher=house.launcher,
        kernels=FakeKernels(root / "state" / "cells"),  # type: ignore[arg-type] # no kernel is asked for here
        pipes=FakePipes(),  # type: ignore[arg-type] # nor a pipe
        catalog=house.catalog,
        tools=house.config,
        ledger=house.ledger,
        events=house.events,
        placement=house.placement,
        control=FakeControl(str(path)),
        config=ApiConfig(
            log_dir=Path(house.placement.log_dir),
            state_dir=root / "state",
            run_dir=root / "run",
            cells_dir=root / "state" / "cells",
            tools_dir=house.tools,
            examples_dir=EXAMPLES,
        ),
    )
    try:
        async with serving(context, path) as (_, session):
            yield session
    finally:
        await house.close()


async def ask(
    client: aiohttp.ClientSession, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, Any]:
    async with asyncio.timeout(DEADLINE * 2), client.request(method, path, json=body, headers=headers) as answer:
        return answer.status, await answer.json(content_type=None)


async def unit(client: aiohttp.ClientSession) -> dict[str, Any]:
    found: dict[str, Any] = (await ask(client, "GET", "/api/status?unit=compound-interest"))[1]["units"][0]
    return found


async def test_a_tool_runs_stays_warm_and_is_stopped(client: aiohttp.ClientSession) -> None:
    async with client.post(f"{BASE}/run", json=REQUEST) as answer:
        assert answer.status == 200, await answer.text()
        assert int(answer.headers["X-Px-Cold-Start"]) >= 0
    warm = await unit(client)
    assert warm["state"] == "ready"
    assert warm["rss_bytes"] > 0
    os.kill(warm["pid"], 0)
    async with client.post(f"{BASE}/run", json=REQUEST) as answer:
        assert "X-Px-Cold-Start" not in answer.headers
    assert (await ask(client, "GET", "/api/launcher/state"))[1]["compound-interest"]["pid"] == warm["pid"]
    assert (await ask(client, "POST", f"{BASE}/stop"))[1]["survivors"] == []
    assert (await unit(client))["reason"] == "stopped"
    with pytest.raises(ProcessLookupError):
        os.kill(warm["pid"], 0)


async def test_input_that_does_not_fit_is_refused_before_anything_starts(client: aiohttp.ClientSession) -> None:
    status, problem = await ask(client, "POST", f"{BASE}/run", {"principal": "much"})
    assert (status, problem["kind"]) == (422, "invalid_input")
    assert problem["errors"][0]["pointer"]
    assert (await unit(client))["pid"] is None


async def test_a_run_is_replayed_under_its_key(client: aiohttp.ClientSession) -> None:
    key = {"Idempotency-Key": "once"}
    async with client.post(f"{BASE}/run", json=REQUEST, headers=key) as answer:
        first = await answer.read()
    async with client.post(f"{BASE}/run", json=REQUEST, headers=key) as answer:
        assert answer.headers["Idempotent-Replayed"] == "true"
        assert await answer.read() == first


async def test_a_lease_ends_when_the_tool_is_stopped(client: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(DEADLINE * 2), client.get(f"{BASE}/lease") as answer:
        line = json.loads(await answer.content.readline())
        assert line["pid"] == (await unit(client))["pid"]
        assert (await unit(client))["in_flight"] == 1
        assert (await ask(client, "POST", f"{BASE}/stop"))[0] == 200
        assert await answer.content.read() == b""


async def test_wait_why_and_metrics_see_the_same_life(client: aiohttp.ClientSession) -> None:
    waiting = asyncio.create_task(ask(client, "GET", "/api/units/compound-interest/wait?for=ready&timeout=60"))
    assert (await ask(client, "POST", f"{BASE}/start"))[0] == 200
    assert (await waiting)[1]["ok"]
    await ask(client, "POST", f"{BASE}/stop")
    explained = (await ask(client, "GET", "/api/units/compound-interest/why"))[1]
    assert explained["reason"] == "stopped"
    words = [event["event"] for event in explained["chain"]]
    assert words[0] == "starting"
    assert words[-1] == "stopped"
    async with client.get("/api/metrics") as answer:
        page = await answer.text()
    assert "pxd_starts_total 1" in page
    assert 'pxd_endings_total{reason="stopped"} 1' in page


async def test_validation_and_debug_say_that_all_is_well(client: aiohttp.ClientSession) -> None:
    status, report = await ask(client, "POST", f"{BASE}/validate")
    assert (status, report["schema"]) == (200, "px.validation/1")
    assert report["overall"] in {"pass", "warn"}, report
    assert len(report["checks"]) == 12
    status, found = await ask(client, "POST", f"{BASE}/debug")
    assert (status, found["schema"]) == (200, "px.debug/1")
    assert not any(case["found"] for case in found["cases"])


async def test_sync_of_a_tool_without_requirements_has_nothing_to_do(client: aiohttp.ClientSession) -> None:
    async with client.post(f"{BASE}/sync") as answer:
        lines = [json.loads(line) for line in (await answer.text()).splitlines()]
    assert lines[-1]["done"]
    assert "nothing to build" in lines[0]["progress"]


async def test_a_tool_that_runs_is_removed_by_force_with_all_that_it_held(client: aiohttp.ClientSession) -> None:
    await ask(client, "POST", f"{BASE}/start")
    pid = (await unit(client))["pid"]
    assert (await ask(client, "DELETE", BASE))[0] == 409
    assert (await ask(client, "DELETE", f"{BASE}?force=1"))[0] == 200
    assert (await ask(client, "GET", BASE))[0] == 404
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)

"""An instance apart from the warm set: started, asked and stopped without touching the pool."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from supervisord_py.errors import StartFailedError, TimedOutError, ToolFailedError
from supervisord_py.ledger import instances
from supervisord_py.tools.checking.probe import InstanceProbe, probe_for
from supervisord_py.tools.checking.validator import validate_tool
from tools.tool_house import alive, eventually

if TYPE_CHECKING:
    from tools.tool_house import ToolHouse


def probe(house: ToolHouse) -> InstanceProbe:
    return probe_for(house.launcher)(house.catalog.get("shapes"))


async def test_a_probe_lives_beside_the_warm_instance(house: ToolHouse) -> None:
    house.add("shapes", stop_timeout_seconds=600)
    warm = (await house.ask("shapes"))["pid"]
    trial = probe(house)
    assert await trial.start({"MARK": "probe"}, timeout_seconds=30) > 0
    answer = await trial.post("/run", b'{"do": "env"}', {"Content-Type": "application/json"}, timeout_seconds=30)
    assert b'"MARK": "probe"' in answer.body
    assert (await trial.get("/healthz", timeout_seconds=30)).status == 200
    first = await trial.first_chunk("POST", "/stream", b'{"do": "events", "number": 3}', {}, timeout_seconds=30)
    assert first.body.startswith(b"data: 0")
    assert first.headers["content-type"] == "text/event-stream"
    stopped = await trial.stop()
    assert (stopped.survivors, stopped.killed) == ((), False)
    assert alive(warm)
    assert (await house.ask("shapes"))["pid"] == warm
    (row, _) = await instances.latest(house.ledger, "tool:shapes", limit=2)
    assert (row.start_method, row.reason) == ("probe", "stopped")
    assert (await trial.stop()).seconds == 0
    assert await house.placement.take_fd("listen:probe:shapes") is None


async def test_a_probe_tells_why_it_did_not_come_up(house: ToolHouse) -> None:
    house.add("shapes", env={"FAULT": "exits_seven"})
    trial = probe(house)
    with pytest.raises(StartFailedError):
        await trial.start({}, timeout_seconds=30)
    assert "seven it is" in trial.spawn_log()
    await trial.stop()


async def test_answers_that_do_not_come_or_break_are_errors(house: ToolHouse) -> None:
    house.add("shapes")
    trial = probe(house)
    with pytest.raises(ToolFailedError, match="not running"):
        await trial.get("/", timeout_seconds=1)
    await trial.start({}, timeout_seconds=30)
    with pytest.raises(TimedOutError):
        await trial.post("/run", b'{"do": "sleep", "number": 600}', {}, timeout_seconds=0.2)
    assert (await trial.post("/run", b'{"do": "status", "number": 500}', {}, timeout_seconds=30)).status == 500
    with pytest.raises(ToolFailedError, match="broke off"):
        await trial.post("/run", b'{"do": "half"}', {}, timeout_seconds=30)
    await trial.stop()
    assert "trouble at the mill" in trial.spawn_log()


async def test_a_probe_that_is_left_behind_is_stopped_by_the_next_control_plane(house: ToolHouse) -> None:
    house.add("shapes")
    trial = probe(house)
    await trial.start({}, timeout_seconds=30)
    answer = await trial.post("/run", b"{}", {}, timeout_seconds=30)
    import json

    pid = json.loads(answer.body)["pid"]
    assert trial._upstream is not None
    await trial._upstream.close()
    assert trial._instance is not None
    assert trial._instance.notify is not None
    trial._instance.notify.close()
    trial._around.listeners.close()
    await house.new_control_plane()
    await eventually(lambda: not alive(pid))
    assert house.state("shapes").state == "cold"


async def test_the_validator_is_served_by_it(house: ToolHouse) -> None:
    house.add("shapes")
    report = await validate_tool(house.tools / "shapes", house.config, probe_for(house.launcher), datetime.now(UTC))
    document = report.document()
    assert {check["name"]: check["status"] for check in document["checks"]}["tool_spawns"] == "pass"
    assert document["overall"] in {"pass", "warn"}, document

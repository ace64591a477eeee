"""What becomes of starts: good ones once for everybody, bad ones told to everybody with evidence, none sticky."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import TYPE_CHECKING

import pytest

from supervisord_py.errors import ReadinessTimeoutError, StartFailedError, TimedOutError
from supervisord_py.ledger import instances
from supervisord_py.process.backoff import BackoffPolicy
from tools.tool_house import eventually

if TYPE_CHECKING:
    from tools.tool_house import ToolHouse


async def test_every_waiter_hears_of_a_failed_start_at_once_with_stderr(house: ToolHouse) -> None:
    house.add("shapes", env={"FAULT": "exits_seven"}, start_timeout_seconds=3000)
    results = await asyncio.gather(*(house.ask("shapes") for _ in range(5)), return_exceptions=True)
    assert len({id(result) for result in results}) == 5
    for error in results:
        assert isinstance(error, StartFailedError)
        assert (error.extra["code"], error.extra["reason"]) == (7, "early_exit")
        assert "seven it is" in error.extra["stderr_tail"]
        assert "seven it is" in error.detail
    state = house.state("shapes")
    assert state.state in {"failed", "stopping"}
    await eventually(lambda: house.state("shapes").state == "failed")
    (row,) = await instances.latest(house.ledger, "tool:shapes")
    assert (row.reason, row.code) == ("early_exit", 7)


async def test_a_tool_that_keeps_failing_is_tried_for_each_request_but_not_faster_than_the_backoff(
    house: ToolHouse,
) -> None:
    house.add("shapes", env={"FAULT": "exits_seven"})
    for _ in range(4):
        with pytest.raises(StartFailedError, match="exited with code 7"):
            await house.ask("shapes")
    starts = await house.said("starting", "tool:shapes")
    assert len(starts) == 4
    assert all(later.time - earlier.time > 0.2 for earlier, later in itertools.pairwise(starts))


async def test_a_request_without_time_for_the_backoff_hears_of_the_last_failure(house: ToolHouse) -> None:
    house.add("shapes", env={"FAULT": "exits_seven"})
    pool = house.launcher.pool
    pool.bounds = pool.bounds._replace(backoff=BackoffPolicy(initial_seconds=3000, max_seconds=3000))
    with pytest.raises(StartFailedError, match="exited with code 7"):
        await house.ask("shapes")
    with pytest.raises(StartFailedError, match="later than the request can wait") as caught:
        await house.launcher.warm("shapes", timeout_seconds=1000)
    assert caught.value.extra["retry_after_seconds"] > 1000
    assert "seven it is" in caught.value.extra["stderr_tail"]
    assert len(await house.said("starting", "tool:shapes")) == 1
    declared = house.tools / "shapes" / "tool.json"
    declared.write_text(json.dumps({**json.loads(declared.read_text()), "env": {}}))
    house.catalog.refresh()
    assert (await house.ask("shapes", {"number": 1}))["echo"] == {"number": 1}, "it was mended: no wait"


async def test_a_tool_that_never_serves_is_stopped_with_evidence(house: ToolHouse) -> None:
    house.add("shapes", env={"FAULT": "never"}, start_timeout_seconds=1)
    with pytest.raises(ReadinessTimeoutError, match="was not ready within 1 s"):
        await house.ask("shapes")


async def test_an_impatient_request_leaves_the_start_going(house: ToolHouse) -> None:
    house.add("shapes", env={"FAULT": "gated"}, start_timeout_seconds=600)
    with pytest.raises(TimedOutError, match="still starting"):
        await house.ask("shapes", timeout_seconds=0.2)
    (house.tools / "shapes" / "gate").touch()
    await eventually(lambda: house.state("shapes").state == "ready")
    assert len(await house.said("starting", "tool:shapes")) == 1

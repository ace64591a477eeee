"""What becomes of starts: good ones once for everybody, bad ones told to everybody with evidence, none sticky."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from supervisord_py.errors import ReadinessTimeoutError, ResourceLimitError, StartFailedError, TimedOutError
from supervisord_py.ledger import instances
from supervisord_py.process.backoff import BackoffPolicy
from tools.tool_house import eventually, listens_elsewhere, watched_until

if TYPE_CHECKING:
    from tools.tool_house import ToolHouse


async def test_many_requests_to_a_cold_tool_start_it_once(house: ToolHouse) -> None:
    house.add("shapes", concurrency=50)
    answers = await asyncio.gather(*(house.ask("shapes", {"number": n}) for n in range(50)))
    assert len({answer["pid"] for answer in answers}) == 1
    assert sorted(answer["echo"]["number"] for answer in answers) == list(range(50))
    assert len(await house.said("starting", "tool:shapes")) == 1


async def test_a_cold_start_is_told_and_a_warm_one_is_not(house: ToolHouse) -> None:
    house.add("shapes")
    cold, _ = await house.answer("shapes")
    warm, _ = await house.answer("shapes")
    assert cold.cold_start_ms > 0
    assert warm.cold_start_ms is None


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


async def test_a_failed_start_is_tried_again_by_the_next_request(house: ToolHouse) -> None:
    house.add("shapes", env={"FAULT": "once"})
    with pytest.raises(StartFailedError, match="only the first time"):
        await house.ask("shapes")
    assert (await house.ask("shapes", {"number": 1}))["echo"] == {"number": 1}
    assert house.state("shapes").failure is None


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
    pool = house.launcher.warm_set
    pool.bounds = replace(pool.bounds, backoff=BackoffPolicy(initial_seconds=3000, max_seconds=3000))
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


async def test_a_tool_that_exits_zero_is_asked_about_its_main(house: ToolHouse) -> None:
    house.add("shapes", env={"FAULT": "exits_zero"})
    with pytest.raises(StartFailedError, match="under __main__") as caught:
        await house.ask("shapes")
    assert caught.value.extra["code"] == 0


async def test_a_missing_module_points_to_sync(house: ToolHouse) -> None:
    house.add("shapes", env={"FAULT": "missing_module"})
    with pytest.raises(StartFailedError) as caught:
        await house.ask("shapes")
    assert caught.value.hint is not None
    assert "pxctl tools sync shapes" in caught.value.hint


async def test_a_tool_that_listens_elsewhere_is_told_where(house: ToolHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    watched_until(monkeypatch, listens_elsewhere)
    house.add("shapes", env={"FAULT": "other_port"}, start_timeout_seconds=600)
    with pytest.raises(ReadinessTimeoutError, match=r"it listens on 127\.0\.0\.1:\d+ instead of") as caught:
        await house.ask("shapes")
    assert caught.value.extra["reason"] == "readiness_timeout"
    assert caught.value.extra["listening"]
    await eventually(lambda: house.state("shapes").state == "failed")
    (row,) = await instances.latest(house.ledger, "tool:shapes")
    assert row.reason == "readiness_timeout"


async def test_a_tool_that_never_serves_is_stopped_with_evidence(house: ToolHouse) -> None:
    house.add("shapes", env={"FAULT": "never"}, start_timeout_seconds=1)
    with pytest.raises(ReadinessTimeoutError, match="was not ready within 1 s"):
        await house.ask("shapes")


async def test_running_out_of_memory_at_the_start_names_the_limit(house: ToolHouse) -> None:
    house.add("shapes", env={"FAULT": "eats"}, max_memory_mb=64)
    with pytest.raises(ResourceLimitError, match="ResourceLimitExceeded: memory") as caught:
        await house.ask("shapes")
    assert caught.value.extra["limit_bytes"] == 64 << 20


async def test_an_impatient_request_leaves_the_start_going(house: ToolHouse) -> None:
    house.add("shapes", env={"FAULT": "gated"}, start_timeout_seconds=600)
    with pytest.raises(TimedOutError, match="still starting"):
        await house.ask("shapes", timeout_seconds=0.2)
    (house.tools / "shapes" / "gate").touch()
    await eventually(lambda: house.state("shapes").state == "ready")
    assert len(await house.said("starting", "tool:shapes")) == 1


async def test_a_missing_interpreter_is_named_before_anything_is_spawned(house: ToolHouse) -> None:
    house.add("shapes", python="/nowhere/python")
    with pytest.raises(StartFailedError, match="/nowhere/python") as caught:
        await house.ask("shapes")
    assert caught.value.extra["stage"] == "interpreter"
    assert await house.said("spawned") == []


async def test_the_environment_is_the_tools_own(house: ToolHouse) -> None:
    name = house.add("shapes", env={"MINE": "yes"})
    seen = await house.ask(name, {"do": "env"})
    assert seen["env"]["MINE"] == "yes"
    assert seen["argv"][0] == "main.py"
    assert seen["path"][0] == str(house.tools / name)
    assert seen["cwd"] == str(house.tools / name)
    assert not [key for key in seen["env"] if key.startswith("PX_") and key not in {"PX_INSTANCE", "PX_UNIT"}]

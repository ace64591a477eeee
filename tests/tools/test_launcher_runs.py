"""What becomes of runs: answers as they came, and for every way to fail an error that says why."""

from __future__ import annotations

import asyncio
import json
import signal
from typing import TYPE_CHECKING

import pytest

from keeper.keeper_rig import until
from supervisord_py.errors import (
    CancelledRunError,
    InterruptedRunError,
    ResourceLimitError,
    TimedOutError,
    ToolFailedError,
)
from supervisord_py.ledger import instances
from supervisord_py.process.host import liveness
from supervisord_py.tools import proxy, service, upstream
from supervisord_py.tools.proxy import Run, RunRequest, start_run
from tools.tool_house import PATIENCE, alive, eventually

if TYPE_CHECKING:
    from supervisord_py.process.model import ExitRecord, Identity, Liveness
    from tools.tool_house import ToolHouse


async def said(house: ToolHouse, words: str, times: int = 1) -> None:
    """Wait until the tool `shapes` has written something to stderr so many times."""
    instance = house.launcher.instance_of("shapes")
    assert instance is not None
    async with asyncio.timeout(PATIENCE):
        while (await house.launcher.supervisor.tail(instance)).count(words) < times:
            await asyncio.sleep(0.02)


async def test_a_tools_own_422_is_a_usage_error(house: ToolHouse) -> None:
    house.add("shapes")
    with pytest.raises(ToolFailedError) as caught:
        await house.ask("shapes", {"do": "status", "number": 422})
    assert (caught.value.status, caught.value.exit_code) == (422, 2)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ({"do": "half"}, "in the middle of its answer"),
        ({"do": "hangup"}, "without an answer"),
        ({"do": "nonsense"}, "not HTTP"),
        ({"do": "notjson"}, "not with JSON"),
    ],
)
async def test_a_broken_answer_is_an_error_and_the_tool_lives_on(
    house: ToolHouse, shape: dict[str, str], words: str
) -> None:
    house.add("shapes")
    pid = (await house.ask("shapes"))["pid"]
    with pytest.raises(ToolFailedError, match=words) as caught:
        await house.ask("shapes", shape)
    assert caught.value.status == 502
    assert (await house.ask("shapes"))["pid"] == pid


async def test_death_in_a_run_is_told_with_code_and_last_words(house: ToolHouse) -> None:
    house.add("shapes")
    with pytest.raises(ToolFailedError, match="exited with code 3 during the run") as caught:
        await house.ask("shapes", {"do": "die", "number": 3})
    assert caught.value.extra["code"] == 3
    assert "dying words" in caught.value.extra["stderr_tail"]
    assert (await house.ask("shapes", {"number": 1}))["echo"] == {"number": 1}
    assert house.state("shapes").restarts == 1
    rows = await instances.latest(house.ledger, "tool:shapes", limit=2)
    assert [(row.reason, row.code) for row in rows] == [(None, None), ("exit", 3)]


async def test_a_death_is_told_although_the_keeper_is_late_with_it(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    come, wait = asyncio.Event(), house.placement.wait

    async def late(key: str) -> ExitRecord:
        record = await wait(key)
        await come.wait()
        return record

    def look(who: Identity) -> Liveness:
        """The keeper gets to it only when the run has waited in vain, and looks whether the leader lives."""
        until(lambda: not alive(who.pid), "the end of the leader")
        come.set()
        return liveness(who)

    monkeypatch.setattr(house.placement, "wait", late)
    monkeypatch.setattr(proxy, "EXIT_RECORD_SECONDS", 0.01)
    monkeypatch.setattr(proxy, "LATE_RECORD_SECONDS", PATIENCE)
    monkeypatch.setattr(proxy, "liveness", look)
    house.add("shapes")
    try:
        with pytest.raises(ToolFailedError, match="exited with code 3 during the run") as caught:
            await house.ask("shapes", {"do": "die", "number": 3})
    finally:
        come.set()
    assert caught.value.extra["code"] == 3


async def test_death_by_a_signal_names_the_signal(house: ToolHouse) -> None:
    house.add("shapes")
    with pytest.raises(ToolFailedError, match="SIGSEGV") as caught:
        await house.ask("shapes", {"do": "signal", "number": int(signal.SIGSEGV)})
    assert (caught.value.extra["signal"], caught.value.extra["code"]) == (int(signal.SIGSEGV), None)


async def test_too_long_a_run_is_cancelled_then_stopped_and_others_are_collateral(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    over: list[Run] = []
    exceed = Run._exceed_runtime
    monkeypatch.setattr(Run, "_exceed_runtime", lambda run: over.append(run) or None)
    house.add("shapes", max_runtime_seconds=1, env={"FAULT": "no_cancel"})
    pid = (await house.ask("shapes"))["pid"]
    late = asyncio.create_task(house.ask("shapes", {"do": "sleep", "number": 600}))
    await eventually(lambda: over)
    other = asyncio.create_task(house.ask("shapes", {"do": "sleep", "number": 600}))
    await said(house, "sleeping", 2)
    exceed(over[0])  # the other's time would be over a moment later, or earlier
    results = await asyncio.gather(late, other, return_exceptions=True)
    assert isinstance(results[0], ResourceLimitError)
    assert results[0].detail.startswith("ResourceLimitExceeded: runtime")
    assert "sleeping" in results[0].extra["stderr_tail"]
    assert isinstance(results[1], InterruptedRunError)
    assert results[1].extra["collateral"] is True
    await eventually(lambda: not alive(pid), "the end of the tree")
    await eventually(lambda: house.state("shapes").state == "cold")
    (row,) = await instances.latest(house.ledger, "tool:shapes")
    assert row.reason == "runtime_limit"


async def test_a_run_that_obeys_the_cancel_is_over_its_time_all_the_same(house: ToolHouse) -> None:
    house.add("shapes", max_runtime_seconds=1)
    with pytest.raises(ResourceLimitError, match="ResourceLimitExceeded: runtime"):
        await house.ask("shapes", {"do": "sleep", "number": 600, "obeys": True})
    (row,) = await house.runs("shapes")
    assert (row.outcome, row.error_kind) == ("runtime_limit", "limit_exceeded")
    await eventually(lambda: house.state("shapes").state == "cold")
    (life,) = await instances.latest(house.ledger, "tool:shapes")
    assert life.reason == "runtime_limit"


async def test_the_callers_own_time_is_kept_and_the_tool_is_asked_to_cancel(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstream, "_CANCEL_SECONDS", PATIENCE)
    house.add("shapes")
    await house.ask("shapes")
    with pytest.raises(TimedOutError):
        await house.ask("shapes", {"do": "sleep", "number": 600}, timeout_seconds=0.3)
    await said(house, "cancel /cancel?run_id=")
    assert house.state("shapes").in_flight == 0


async def test_a_stop_ends_runs_in_flight(house: ToolHouse) -> None:
    house.add("shapes")
    running = asyncio.create_task(house.ask("shapes", {"do": "sleep", "number": 600}))
    await eventually(lambda: house.state("shapes").in_flight == 1)
    await house.launcher.stop("shapes")
    with pytest.raises(CancelledRunError, match="stopped during the run"):
        await running


async def test_large_answers_stream(house: ToolHouse) -> None:
    house.add("shapes")
    size = house.config.answer_buffer_bytes * 4
    _, body = await house.answer("shapes", {"do": "big", "number": size})
    assert body == b"x" * size


async def test_a_stream_that_breaks_off_is_never_ended_cleanly(house: ToolHouse) -> None:
    house.add("shapes")
    value = {"do": "events", "number": 3, "breaks": True}
    got = bytearray()

    async def read() -> None:
        request = RunRequest(json.dumps(value).encode(), value)
        async with start_run(house.launcher, house.launcher.catalog.get("shapes"), request) as run:
            assert run.answer.chunks is not None
            async for chunk in run.answer.chunks:
                got.extend(chunk)

    with pytest.raises(ToolFailedError, match="middle of its answer"):
        await read()
    assert got.startswith(b"data: 0")
    (row,) = await house.runs("shapes")
    assert (row.outcome, row.error_kind) == ("failed", "tool_failed")


async def test_runs_are_rows_with_their_figures(house: ToolHouse) -> None:
    house.add("shapes")
    await house.ask("shapes", request_id="abc")
    (row,) = await house.runs("shapes")
    assert (row.outcome, row.status, row.request_id) == ("completed", 200, "abc")
    assert row.cold_start_ms is not None
    assert row.duration_seconds is not None
    assert row.instance == house.state("shapes").instance


async def test_runs_that_fail_through_their_tool_are_events_but_no_flood(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.add("shapes")

    async def fail(status: int) -> list[tuple[object, object]]:
        with pytest.raises(ToolFailedError):
            await house.ask("shapes", {"do": "status", "number": status})
        return [(it.facts["status"], it.facts["instance_ended"]) for it in await house.said("run_failed")]

    monkeypatch.setattr(service, "FAILED_SECONDS", 1e9)
    assert await fail(418) == []
    assert await fail(500) == [(500, False)]
    assert await fail(503) == [(500, False)]
    monkeypatch.setattr(service, "FAILED_SECONDS", 0.0)
    with pytest.raises(ToolFailedError):
        await house.ask("shapes", {"do": "die", "number": 3})
    assert await fail(503) == [(500, False), (502, True), (503, False)]

"""Pipes on the page for Prometheus, and among the checks of `doctor`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from api.api_rig import Rig
from api.pipe_fakes import execution
from supervisord_py.errors import UnknownUnitError
from supervisord_py.pipes.checks import Check


async def test_metrics_count_pipes_executions_and_lines(rig: Rig) -> None:
    rig.pipes.put()
    rig.pipes.put("broken", config_error="pipe.md:3: no")
    rig.pipes.rows[1] = execution(1)
    publish = rig.context.events.publish
    publish("execution_queued", "pipe:digest", execution=1, trigger="manual")
    publish("execution_started", "pipe:digest", execution=1, queue_wait_ms=30)
    publish("execution_started", "pipe:digest", execution=1, queue_wait_ms=None)
    publish("execution_completed", "pipe:digest", execution=1, error_type=None)
    publish("execution_failed", "pipe:digest", execution=2, error_type="crash")
    publish("pipe_muted", "pipe:digest")
    await asyncio.sleep(0)
    page = (await rig.get("/api/metrics"))[1].decode()
    for line in (
        'pxd_pipes{state="idle"} 1.0',
        'pxd_pipes{state="failed"} 1.0',
        'pxd_pipe_running{group="manual"} 1.0',
        'pxd_pipe_queue_length{group="manual"} 1.0',
        'pxd_pipe_slots{group="manual"} 4.0',
        "pxd_pipe_scheduler_up 1.0",
        "pxd_pipe_scheduler_restarts_total 0.0",
        'pxd_pipe_executions_queued_total{trigger="manual"} 1.0',
        'pxd_pipe_executions_total{error_type="",status="completed"} 1.0',
        'pxd_pipe_executions_total{error_type="crash",status="failed"} 1.0',
        'pxd_pipe_executions_total{error_type="",status="timed_out"} 0.0',
        'pxd_pipe_queue_wait_seconds_bucket{le="0.05"} 1.0',
        "pxd_pipe_queue_wait_seconds_count 1.0",
        "pxd_starts_total 0.0",
    ):
        assert f"\n{line}\n" in page, line


async def _found(rig: Rig) -> dict[str, dict[str, Any]]:
    return {check["name"]: check for check in (await rig.get("/api/doctor"))[1]["checks"]}


async def test_doctor_names_each_pipe_that_cannot_run(rig: Rig) -> None:
    rig.pipes.put()
    rig.pipes.put("off", enabled=False)
    rig.pipes.put("broken", config_error="pipe.md:3: no")
    found = await _found(rig)
    assert found["pipe:broken"] == {
        "name": "pipe:broken",
        "status": "fail",
        "detail": "pipe.md:3: no",
        "repair": "pxctl pipe validate broken",
    }
    assert (found["pipe:digest"]["status"], found["pipe:digest"]["detail"]) == ("fail", "it is odd")
    assert found["pipe:off"]["status"] == "warn"
    assert found["scheduler"]["status"] == "ok"
    assert "pipes" not in found


async def test_doctor_is_content_with_pipes_that_run_and_tells_of_those_that_fail(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def well(name: str) -> tuple[Check, ...]:
        if name == "gone":
            raise UnknownUnitError("it went")
        return ()

    monkeypatch.setattr(rig.pipes, "validate", well)
    rig.pipes.put()
    rig.pipes.put("gone")
    rig.pipes.scheduler_error = "ValueError: x"
    found = await _found(rig)
    assert (found["pipes"]["status"], found["pipes"]["detail"]) == ("ok", "2 pipes, none broken")
    assert (found["scheduler"]["status"], "ValueError: x" in found["scheduler"]["detail"]) == ("warn", True)
    rig.pipes.put(consecutive_failures=3)
    stalled = (await _found(rig))["pipe:digest"]
    assert (stalled["status"], stalled["repair"]) == ("warn", "pxctl pipe output digest --stderr")

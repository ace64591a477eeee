"""Each row of the failure table is found in a tool that has that fault, and in no sound one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from supervisord_py.errors import PxError
from supervisord_py.tools.debug import diagnose
from tools.tool_house import eventually, listens_elsewhere, watched_until

if TYPE_CHECKING:
    from tools.tool_house import ToolHouse

SPOILT: dict[str, tuple[dict[str, Any], str]] = {
    "never_ready (raises)": ({"env": {"FAULT": "raises"}}, "cannot go on like this"),
    "never_ready (another port)": ({"env": {"FAULT": "other_port"}, "start_timeout_seconds": 600}, "instead of"),
    "schema_drift": ({"env": {"FAULT": "drift"}}, "/version"),
    "invalid_input": ({"env": {"FAULT": "refuses_422"}}, "422"),
    "bad_answer": ({"env": {"FAULT": "silent_500"}}, "500"),
    "exits_zero": ({"env": {"FAULT": "exits_zero"}}, "exited 0"),
    "memory_limit": ({"env": {"FAULT": "eats"}, "max_memory_mb": 64}, "64 MiB"),
    "missing_interpreter_or_module (module)": ({"env": {"FAULT": "missing_module"}}, "no_such_module_at_all"),
    "missing_interpreter_or_module (interpreter)": ({"python": "/nowhere/python"}, "/nowhere/python"),
}


def found(diagnosis: dict[str, Any]) -> dict[str, str | None]:
    return {case["case"]: case["evidence"] for case in diagnosis["cases"] if case["found"]}


@pytest.mark.parametrize("fault", SPOILT)
async def test_a_fault_is_found_with_evidence_and_next_step(
    house: ToolHouse, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    keys, evidence = SPOILT[fault]
    if "another port" in fault:
        watched_until(monkeypatch, listens_elsewhere)
    house.add("shapes", **keys)
    diagnosis = await diagnose(house.launcher, house.ledger, "shapes")
    case = fault.partition(" ")[0]
    assert case in found(diagnosis), diagnosis
    assert evidence in str(found(diagnosis)[case])
    assert "tools debug" not in str(diagnosis)
    assert all(each["next_step"] for each in diagnosis["cases"] if each["found"])
    assert case in diagnosis["verdict"]


async def test_a_run_that_lost_its_instance_is_found_in_the_ledger(house: ToolHouse) -> None:
    house.add("shapes")
    running = asyncio.create_task(house.ask("shapes", {"do": "sleep", "number": 600}))
    await eventually(lambda: house.state("shapes").in_flight == 1)
    await house.launcher.stop("shapes")
    with suppress(PxError):
        await running
    await house.launcher.warm("shapes")
    diagnosis = await diagnose(house.launcher, house.ledger, "shapes")
    assert "stopped" in str(found(diagnosis)["evicted_during_run"])


async def test_what_is_stopped_for_its_runtime_or_ignores_sigterm_is_found_in_the_past(house: ToolHouse) -> None:
    house.add("shapes", env={"FAULT": "ignores_term"}, max_runtime_seconds=0.3, stop_timeout_seconds=0.2)
    with suppress(PxError):
        await house.ask("shapes", {"do": "sleep", "number": 600})
    await eventually(lambda: house.state("shapes").pid is None)
    diagnosis = await diagnose(house.launcher, house.ledger, "shapes")
    assert "longer than 0.3 s" in str(found(diagnosis)["runtime_limit"])
    assert "SIGTERM" in str(found(diagnosis)["ignores_sigterm"])
    assert "tools debug" not in str(diagnosis)


async def test_a_sound_tool_has_no_fault(house: ToolHouse) -> None:
    house.add("shapes")
    diagnosis = await diagnose(house.launcher, house.ledger, "shapes")
    assert found(diagnosis) == {}
    assert diagnosis["verdict"] == "no fault found by a fresh start and sample run"
    assert diagnosis["schema"] == "px.debug/1"
    assert [case["case"] for case in diagnosis["cases"]] == [
        "never_ready",
        "schema_drift",
        "invalid_input",
        "bad_answer",
        "exits_zero",
        "evicted_during_run",
        "memory_limit",
        "missing_interpreter_or_module",
    ]
    again = await diagnose(house.launcher, house.ledger, "shapes")
    assert again["verdict"] == "no fault found by what was recorded"

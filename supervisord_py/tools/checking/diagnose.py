"""`pxctl tools debug TOOL`: walks the failure table and says of each case whether it was found, with evidence.

Law: reading the past starts nothing. One fresh start with a sample run is made, and only when the tool is not running
already; like every run it waits its turn, so it disturbs nobody.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import PxError
from supervisord_py.ledger import instances, runs
from supervisord_py.tools.checking.debug_cases import CASES, Case, Findings
from supervisord_py.tools.checking.sample_input import sample_input
from supervisord_py.tools.serving.drift import schema_drift
from supervisord_py.tools.serving.runs import JsonInput, RunRequest, run

if TYPE_CHECKING:
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.tools.serving.launcher import Launcher
    from supervisord_py.tools.spec import ToolSpec

INSTANCES = 10
RUNS = 50


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All cases, and the verdict in one sentence."""

    unit: str
    cases: tuple[Case, ...]
    verdict: str

    def document(self) -> dict[str, Any]:
        """Return the JSON document px.debug/1."""
        cases = [
            {"case": each.case, "found": each.found, "evidence": each.evidence, "next_step": each.next_step}
            for each in self.cases
        ]
        return {"schema": "px.debug/1", "unit": self.unit, "cases": cases, "verdict": self.verdict}


async def diagnose(launcher: Launcher, ledger: Ledger, name: str) -> Diagnosis:
    """Walk the failure table for a tool.

    Raises:
        UnknownUnitError, ConfigError: there is no such tool, or its manifest is broken; that is the diagnosis then.
    """
    spec = launcher.catalog.get(name)
    await ledger.flush()  # the row of a run is posted: it may come after the answer
    is_cold = launcher.instance_of(name) is None
    past = await runs.latest(ledger, spec.unit, RUNS)
    error = await _try_it(launcher, spec) if is_cold else None
    drift = await _drift(launcher, spec)
    standing = launcher.chronicle.standing(name)
    instance = launcher.instance_of(name)
    lives = await instances.latest(ledger, spec.unit, INSTANCES)
    findings = Findings(
        spec=spec,
        drift=drift,
        failure=standing.failure,
        instances=[row for row in lives if row.spec_digest == spec.digest],
        runs=past,
        error=error,
        stderr_tail=await launcher.tails.of(instance) if instance is not None else "",
    )
    cases = tuple(look(findings) for look in CASES)
    how = "a fresh start and sample run" if is_cold else "what was recorded"
    return Diagnosis(spec.unit, cases, _verdict(cases, error, how))


async def _drift(launcher: Launcher, spec: ToolSpec) -> tuple[str, ...]:
    """Compare `/schema` now where the tool runs, else take what was seen of this declaration last."""
    instance = launcher.instance_of(spec.name)
    if instance is not None and instance.upstream is not None and instance.wanted is None:
        return await schema_drift(instance.upstream, dict(spec.manifest))
    standing = launcher.chronicle.standing(spec.name)
    return standing.drift if standing.drift_digest == spec.digest else ()


async def _try_it(launcher: Launcher, spec: ToolSpec) -> PxError | None:
    """Start the tool and give it a sample input; return what went wrong."""
    sample = sample_input(spec, datetime.now(UTC))
    try:
        if sample.trouble:
            await launcher.warm(spec.name)
        else:
            request = RunRequest(JsonInput(sample.value, json.dumps(sample.value).encode()))
            async with run(launcher, spec.name, request):
                pass
    except PxError as error:
        return error
    return None


def _verdict(cases: tuple[Case, ...], error: PxError | None, how: str) -> str:
    found = [each for each in cases if each.found]
    if found:
        return f"{', '.join(each.case for each in found)}: {found[0].next_step}"
    if error is not None:
        return f"none of the known cases, but it failed: {error.detail}"
    return f"no fault found by {how}"

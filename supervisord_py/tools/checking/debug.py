"""`pxctl tools debug TOOL`: walks the failure table (CONTRACT §8), one look a case, with evidence and the next step.

Law: a case is found only on evidence of the tool as it is declared now: rows of instances with another digest are the
past of another tool, and a fault that a later good life has disproved is no fault. Reading the past starts nothing. One
fresh start with a sample run is made, and only when the tool is not running already; like every run it waits its turn.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import PxError
from supervisord_py.ledger import instances
from supervisord_py.tools.checking.sample import sample_input
from supervisord_py.tools.failures import hint_for
from supervisord_py.tools.proxy import RunRequest, start_run
from supervisord_py.tools.upstream import schema_drift

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from supervisord_py.ledger.instances import InstanceRow, RunRow
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.tools.service import Tools
    from supervisord_py.tools.spec import ToolSpec

INSTANCES = 10
RUNS = 50
_SERVER_ERROR = 500
_UNPROCESSABLE = 422
_CUT_SHORT = frozenset({"evicted_lru", "evicted_ttl", "replaced", "stopped"})
_MODULE = re.compile(r"(?:ModuleNotFoundError|ImportError)[^\n]*|Cannot find module '[^']+'")
_MEMORY = re.compile(r"MemoryError|bad_alloc|Cannot allocate memory|can't start new thread|heap out of memory")


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the failure table. `evidence` is quoted, `next_step` is one sentence or command."""

    case: str
    found: bool
    evidence: str | None = None
    next_step: str | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that the cases look at.

    Attributes:
        spec: The tool.
        drift: Where `/schema` differs from `tool.json`.
        failure: Problem document of the last start, if that failed.
        instances: Its last lives, newest first, under the present declaration.
        runs: Its last runs, newest first.
        error: What a fresh start and sample run gave; None when it went well or was not made.
        stderr_tail: The end of what the running instance wrote to stderr.
    """

    spec: ToolSpec
    drift: Sequence[str]
    failure: Mapping[str, Any] | None
    instances: Sequence[InstanceRow]
    runs: Sequence[RunRow]
    error: PxError | None
    stderr_tail: str = ""

    def problems(self) -> Iterator[Mapping[str, Any]]:
        """Yield the problem documents at hand: of the fresh attempt, and of the last failed start."""
        if self.error is not None:
            yield self.error.problem()
        if self.failure is not None:
            yield self.failure

    def ended(self, *reasons: str) -> InstanceRow | None:
        """Return the newest life if it ended for one of these reasons."""
        over = [row for row in self.instances if row.reason is not None]
        return over[0] if over and over[0].reason in reasons else None

    def said(self) -> str:
        """Return all that is at hand of stderr."""
        return "\n".join([self.stderr_tail, *(str(each.get("stderr_tail", "")) for each in self.problems())])


def _tail(problem: Mapping[str, Any]) -> str:
    lines = [line for line in str(problem.get("stderr_tail", "")).splitlines() if line.strip()]
    return f" Its stderr ends: {lines[-1].strip()[:200]}" if lines else ""


def never_ready(findings: Findings) -> Case:
    """It raises on import, or binds another port."""
    for problem in findings.problems():
        reason = problem.get("reason")
        if reason == "readiness_timeout" or (reason == "early_exit" and problem.get("code") != 0):
            return Case(
                "never_ready", found=True, evidence=f"{problem['detail']}{_tail(problem)}", next_step=problem["hint"]
            )
    return Case("never_ready", found=False)


def drifted(findings: Findings) -> Case:
    """What the running tool declares is not what its `tool.json` declares."""
    if not findings.drift:
        return Case("schema_drift", found=False)
    step = f"Serve tool.json as it is on GET /schema, or correct {findings.spec.manifest_path}."
    return Case("schema_drift", found=True, evidence="; ".join(findings.drift[:5]), next_step=step)


def invalid_input(findings: Findings) -> Case:
    """The input does not fit: by the schema, or by the tool's own judgement."""
    step = f"Compare the input with `pxctl tools show {findings.spec.name}`."
    error = findings.error
    if error is not None and (error.kind == "invalid_input" or error.status == _UNPROCESSABLE):
        return Case(
            "invalid_input", found=True, evidence=f"The sample input was refused: {error.detail}", next_step=step
        )
    refused = [row for row in findings.runs if row.error_kind == "invalid_input" or row.status == _UNPROCESSABLE]
    if not refused:
        return Case("invalid_input", found=False)
    who = "the schema" if refused[0].error_kind == "invalid_input" else "the tool"
    evidence = (
        f"{len(refused)} of the last {len(findings.runs)} runs were refused by {who} with 422 (run {refused[0].id})"
    )
    return Case("invalid_input", found=True, evidence=evidence, next_step=step)


def bad_answer(findings: Findings) -> Case:
    """It answers with an error, or with something that is no answer, and says nothing on stderr."""
    step = f"Return one JSON object from POST /run in {findings.spec.entrypoint}, and log exceptions to stderr."
    error = findings.error
    if error is not None and error.kind == "tool_failed" and error.status >= _SERVER_ERROR and _is_silent(error):
        return Case("bad_answer", found=True, evidence=f"{error.detail} Its stderr is empty.", next_step=step)
    failed = [row for row in findings.runs if row.error_kind == "tool_failed" and (row.status or 0) >= _SERVER_ERROR]
    if failed and not findings.said().strip():
        evidence = f"Run {failed[0].id} ended with {failed[0].status}, and stderr is empty."
        return Case("bad_answer", found=True, evidence=evidence, next_step=step)
    return Case("bad_answer", found=False)


def _is_silent(error: PxError) -> bool:
    return not str(error.extra.get("stderr_tail", "")).strip() and "signal" not in error.extra


def exits_zero(findings: Findings) -> Case:
    """It ends well at once: the server is never started."""
    for problem in findings.problems():
        if problem.get("reason") == "early_exit" and problem.get("code") == 0:
            return Case("exits_zero", found=True, evidence=problem["detail"], next_step=problem["hint"])
    return Case("exits_zero", found=False)


def evicted_during_run(findings: Findings) -> Case:
    """An instance was stopped under a run. The pool never does that by itself; a stop, a removal does."""
    lives = {row.key: row for row in findings.instances if row.reason in _CUT_SHORT}
    for row in findings.runs:
        life = lives.get(row.instance or "")
        if life is not None and row.error_kind in {"cancelled", "interrupted"} and _overlaps(row, life):
            evidence = f"Run {row.id} was cut short when its instance {life.key} ended: {life.reason}."
            step = (
                f"Keep it from being stopped while it works: `pxctl pin {findings.spec.name}`, and see `pxctl events`."
            )
            return Case("evicted_during_run", found=True, evidence=evidence, next_step=step)
    return Case("evicted_during_run", found=False)


def _overlaps(run: RunRow, life: InstanceRow) -> bool:
    return life.ended_at is not None and run.started_at <= life.ended_at


def memory_limit(findings: Findings) -> Case:
    """It was killed over its memory limit, or says that it had no memory."""
    step = f"Raise max_memory_mb ({findings.spec.max_memory_mb}) in {findings.spec.manifest_path.name}, or use less."
    for problem in findings.problems():
        if problem.get("limit") == "memory":
            return Case("memory_limit", found=True, evidence=problem["detail"], next_step=step)
    row = findings.ended("memory_limit", "oom_kill")
    if row is not None:
        return Case("memory_limit", found=True, evidence=_memory_evidence(row), next_step=step)
    sign = _MEMORY.search(findings.said())
    if sign is not None:
        return Case("memory_limit", found=True, evidence=f"suspected: stderr says {sign[0]}", next_step=step)
    return Case("memory_limit", found=False)


def _memory_evidence(row: InstanceRow) -> str:
    verdict = row.verdict or {}
    return f"{row.key} ended: {row.reason} (rss {verdict.get('rss_bytes')}, limit {verdict.get('limit_bytes')} bytes)"


def missing_interpreter_or_module(findings: Findings) -> Case:
    """What should run it, or what it imports, is not there."""
    name = findings.spec.name
    for problem in findings.problems():
        if problem.get("stage") in {"interpreter", "exec"}:
            step = problem["hint"] or f"pxctl tools sync {name}"
            return Case("missing_interpreter_or_module", found=True, evidence=problem["detail"], next_step=step)
    sign = _MODULE.search(findings.said())
    if sign is not None:
        step = hint_for(findings.spec, sign[0]) or f"pxctl tools sync {name}"
        return Case("missing_interpreter_or_module", found=True, evidence=sign[0], next_step=step)
    return Case("missing_interpreter_or_module", found=False)


CASES: tuple[Callable[[Findings], Case], ...] = (
    never_ready,
    drifted,
    invalid_input,
    bad_answer,
    exits_zero,
    evicted_during_run,
    memory_limit,
    missing_interpreter_or_module,
)


async def diagnose(launcher: Tools, ledger: Ledger, name: str) -> dict[str, Any]:
    """Walk the failure table for a tool and return the JSON document px.debug/1.

    Raises:
        UnknownUnitError, ConfigError: there is no such tool, or its manifest is broken; that is the diagnosis then.
    """
    spec = launcher.catalog.get(name)
    await ledger.flush()  # the row of a run is posted: it may come after the answer
    is_cold = launcher.instance_of(name) is None
    past = await instances.latest_runs(ledger, spec.unit, RUNS)
    error = await _try_it(launcher, spec) if is_cold else None
    drift = await _drift(launcher, spec)
    standing = launcher.last_state(name)
    instance = launcher.instance_of(name)
    lives = await instances.latest(ledger, spec.unit, INSTANCES)
    findings = Findings(
        spec=spec,
        drift=drift,
        failure=standing.failure,
        instances=[row for row in lives if row.spec_digest == spec.digest],
        runs=past,
        error=error,
        stderr_tail=await launcher.supervisor.tail(instance) if instance is not None else "",
    )
    cases = tuple(look(findings) for look in CASES)
    how = "a fresh start and sample run" if is_cold else "what was recorded"
    shown = [
        {"case": each.case, "found": each.found, "evidence": each.evidence, "next_step": each.next_step}
        for each in cases
    ]
    return {"schema": "px.debug/1", "unit": spec.unit, "cases": shown, "verdict": _verdict(cases, error, how)}


async def _drift(launcher: Tools, spec: ToolSpec) -> tuple[str, ...]:
    """Compare `/schema` now where the tool runs, else take what was seen of this declaration last."""
    instance = launcher.instance_of(spec.name)
    if instance is not None and instance.upstream is not None and instance.wanted is None:
        return await schema_drift(instance.upstream, dict(spec.manifest))
    standing = launcher.last_state(spec.name)
    return standing.drift if standing.drift_digest == spec.digest else ()


async def _try_it(launcher: Tools, spec: ToolSpec) -> PxError | None:
    """Start the tool and give it a sample input; return what went wrong."""
    sample = sample_input(spec, datetime.now(UTC))
    try:
        if sample.trouble:
            await launcher.warm(spec.name)
        else:
            request = RunRequest(json.dumps(sample.value).encode(), sample.value)
            async with start_run(launcher, spec.name, request):
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

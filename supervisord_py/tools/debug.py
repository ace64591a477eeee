"""`pxctl tools debug TOOL`: walks the failure table (CONTRACT §8), one look a case, with evidence and the next step.

Law: a case is found only on evidence of the tool as it is declared now: rows of instances with another digest are the
past of another tool, and a fault that a later good life has disproved is no fault. Reading the past starts nothing. One
fresh start with a sample run is made, and only when the tool is not running already; like every run it waits its turn.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisord_py.errors import PxError
from supervisord_py.ledger import instances
from supervisord_py.tools.failures import hint_for
from supervisord_py.tools.proxy import RunRequest, start_run
from supervisord_py.tools.sample import sample_input
from supervisord_py.tools.upstream import schema_drift

if TYPE_CHECKING:
    from supervisord_py.ledger.instances import InstanceRow, RunRow
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.tools.manifest import ToolSpec
    from supervisord_py.tools.service import Tools

INSTANCES = 10
RUNS = 50
_SERVER_ERROR = 500
_UNPROCESSABLE = 422
_ON_PURPOSE = frozenset({"evicted_lru", "evicted_ttl", "replaced", "stopped"})
_MODULE = re.compile(r"(?:ModuleNotFoundError|ImportError)[^\n]*|Cannot find module '[^']+'")
_MEMORY = re.compile(r"MemoryError|bad_alloc|Cannot allocate memory|can't start new thread|heap out of memory")

Found = tuple[str, str | None] | None
"""Evidence, which is quoted, and the next step: one sentence or command. None where a case is not found."""


class Findings(NamedTuple):
    """Everything that the cases look at, of the tool as it is declared now; lives and runs are newest first."""

    spec: ToolSpec
    drift: Sequence[str]  # where /schema differs from tool.json
    failure: Mapping[str, Any] | None  # problem document of the last start, if that failed
    instances: Sequence[InstanceRow]
    runs: Sequence[RunRow]
    error: PxError | None  # what a fresh start and sample run gave
    stderr_tail: str = ""  # of the running instance

    def problems(self) -> Iterator[Mapping[str, Any]]:
        """Yield the problem documents at hand: of the fresh attempt, and of the last failed start."""
        if self.error is not None:
            yield self.error.problem()
        if self.failure is not None:
            yield self.failure

    def last_end(self) -> InstanceRow | None:
        """Return the newest life that is over."""
        return next((row for row in self.instances if row.reason is not None), None)

    def said(self) -> str:
        """Return all that is at hand of stderr."""
        return "\n".join([self.stderr_tail, *(str(each.get("stderr_tail", "")) for each in self.problems())])


def never_ready(findings: Findings) -> Found:
    """It raises on import, or binds another port."""
    for problem in findings.problems():
        reason = problem.get("reason")
        if reason == "readiness_timeout" or (reason == "early_exit" and problem.get("code") != 0):
            lines = [line for line in str(problem.get("stderr_tail", "")).splitlines() if line.strip()]
            tail = f" Its stderr ends: {lines[-1].strip()[:200]}" if lines else ""
            return f"{problem['detail']}{tail}", problem["hint"]
    return None


def schema_drifts(findings: Findings) -> Found:
    """What the running tool declares is not what its `tool.json` declares."""
    step = f"Serve tool.json as it is on GET /schema, or correct {findings.spec.manifest_path}."
    return ("; ".join(findings.drift[:5]), step) if findings.drift else None


def invalid_input(findings: Findings) -> Found:
    """The input does not fit: by the schema, or by the tool's own judgement."""
    step = f"Compare the input with `pxctl tools show {findings.spec.name}`."
    error = findings.error
    if error is not None and (error.kind == "invalid_input" or error.status == _UNPROCESSABLE):
        return f"The sample input was refused: {error.detail}", step
    refused = [row for row in findings.runs if row.error_kind == "invalid_input" or row.status == _UNPROCESSABLE]
    if not refused:
        return None
    who = "the schema" if refused[0].error_kind == "invalid_input" else "the tool"
    count = f"{len(refused)} of the last {len(findings.runs)} runs"
    return f"{count} were refused by {who} with 422 (run {refused[0].id})", step


def bad_answer(findings: Findings) -> Found:
    """It answers with an error, or with something that is no answer, and says nothing on stderr."""
    step = f"Return one JSON object from POST /run in {findings.spec.entrypoint}, and log exceptions to stderr."
    error = findings.error
    if error is not None and error.kind == "tool_failed" and error.status >= _SERVER_ERROR:
        tail = str(error.extra.get("stderr_tail", "")).strip()
        if not tail and "signal" not in error.extra:
            return f"{error.detail} Its stderr is empty.", step
    failed = [row for row in findings.runs if row.error_kind == "tool_failed" and (row.status or 0) >= _SERVER_ERROR]
    if failed and not findings.said().strip():
        return f"Run {failed[0].id} ended with {failed[0].status}, and stderr is empty.", step
    return None


def exits_zero(findings: Findings) -> Found:
    """It ends well at once: the server is never started."""
    for problem in findings.problems():
        if problem.get("reason") == "early_exit" and problem.get("code") == 0:
            return problem["detail"], problem["hint"]
    return None


def evicted_during_run(findings: Findings) -> Found:
    """An instance was stopped under a run. The pool never does that by itself; a stop, a removal does."""
    lives = {row.key: row for row in findings.instances if row.reason in _ON_PURPOSE}
    for row in findings.runs:
        life = lives.get(row.instance or "")
        if life is None or life.ended_at is None or row.started_at > life.ended_at:
            continue
        if row.error_kind in {"cancelled", "interrupted"}:
            keep = (
                f"Keep it from being stopped while it works: `pxctl pin {findings.spec.name}`, and see `pxctl events`."
            )
            return f"Run {row.id} was cut short when its instance {life.key} ended: {life.reason}.", keep
    return None


def memory_limit(findings: Findings) -> Found:
    """It was killed over its memory limit, or says that it had no memory."""
    step = f"Raise max_memory_mb ({findings.spec.max_memory_mb}) in {findings.spec.manifest_path.name}, or use less."
    for problem in findings.problems():
        if problem.get("limit") == "memory":
            return problem["detail"], step
    row = findings.last_end()
    if row is not None and row.reason in {"memory_limit", "oom_kill"}:
        verdict = row.verdict or {}
        sizes = f"rss {verdict.get('rss_bytes')}, limit {verdict.get('limit_bytes')} bytes"
        return f"{row.key} ended: {row.reason} ({sizes})", step
    sign = _MEMORY.search(findings.said())
    return (f"suspected: stderr says {sign[0]}", step) if sign is not None else None


def missing_interpreter_or_module(findings: Findings) -> Found:
    """What should run it, or what it imports, is not there."""
    sync = f"pxctl tools sync {findings.spec.name}"
    for problem in findings.problems():
        if problem.get("stage") in {"interpreter", "exec"}:
            return problem["detail"], problem["hint"] or sync
    sign = _MODULE.search(findings.said())
    return (sign[0], hint_for(findings.spec, sign[0]) or sync) if sign is not None else None


def runtime_limit(findings: Findings) -> Found:
    """A run took longer than it may, and the tool was stopped for that."""
    step = f"Raise max_runtime_seconds ({findings.spec.max_runtime_seconds:g}) in tool.json, or ask for less at a time."
    for problem in findings.problems():
        if problem.get("limit") == "runtime":
            return problem["detail"], step
    row = findings.last_end()
    if row is not None and row.reason == "runtime_limit":
        return f"{row.key} was stopped: a run took longer than {findings.spec.max_runtime_seconds:g} s", step
    return None


def ignores_sigterm(findings: Findings) -> Found:
    """It had to be killed although it was asked to end."""
    row = findings.last_end()
    if row is None or row.signal != signal.SIGKILL or row.reason not in {*_ON_PURPOSE, "runtime_limit"}:
        return None
    evidence = f"{row.key} ({row.reason}) was killed {findings.spec.stop_timeout_seconds:g} s after SIGTERM"
    return evidence, f"End on SIGTERM in {findings.spec.entrypoint}, or raise stop_timeout_seconds."


CASES: Mapping[str, Callable[[Findings], Found]] = {
    "never_ready": never_ready,
    "schema_drift": schema_drifts,
    "invalid_input": invalid_input,
    "bad_answer": bad_answer,
    "exits_zero": exits_zero,
    "evicted_during_run": evicted_during_run,
    "memory_limit": memory_limit,
    "missing_interpreter_or_module": missing_interpreter_or_module,
    "runtime_limit": runtime_limit,
    "ignores_sigterm": ignores_sigterm,
}
"""The failure table of the contract, and what else is looked for."""
FURTHER = frozenset({"runtime_limit", "ignores_sigterm"})
"""These are in the answer only where they are found."""


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
    instance = launcher.instance_of(name)
    lives = await instances.latest(ledger, spec.unit, INSTANCES)
    findings = Findings(
        spec=spec,
        drift=drift,
        failure=launcher.last_state(name).failure,
        instances=[row for row in lives if row.spec_digest == spec.digest],
        runs=past,
        error=error,
        stderr_tail=await launcher.supervisor.tail(instance) if instance is not None else "",
    )
    cases: list[dict[str, Any]] = []
    for case, look in CASES.items():
        evidence, step = look(findings) or (None, None)
        if evidence is not None and (not step or "tools debug" in step):  # who asks debug is not sent to debug
            step = f"See `pxctl logs {spec.unit}`."
        if evidence is not None or case not in FURTHER:
            cases.append({"case": case, "found": evidence is not None, "evidence": evidence, "next_step": step})
    found = [each for each in cases if each["found"]]
    verdict = f"no fault found by {'a fresh start and sample run' if is_cold else 'what was recorded'}"
    if found:
        verdict = f"{', '.join(each['case'] for each in found)}: {found[0]['next_step']}"
    elif error is not None:
        verdict = f"none of the known cases, but it failed: {error.detail}"
    return {"schema": "px.debug/1", "unit": spec.unit, "cases": cases, "verdict": verdict}


async def _drift(launcher: Tools, spec: ToolSpec) -> Sequence[str]:
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
            async with start_run(launcher, spec, request):
                pass
    except PxError as error:
        return error
    return None

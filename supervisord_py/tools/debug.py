"""`pxctl tools debug TOOL`: walks the failure table (CONTRACT §8); of what is found, the evidence
and the next step.

Law: a case is found only on evidence of the tool as it is declared now: rows of instances with
another digest are the past of another tool, and a fault that a later good life has disproved is no
fault. Reading the past starts nothing. One fresh start with a sample run is made, and only when the
tool is not running already; like every run it waits its turn.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from supervisord_py.errors import PxError
from supervisord_py.ledger import instances
from supervisord_py.ledger.instances import InstanceRow
from supervisord_py.ledger.store import Ledger
from supervisord_py.process.events import Event
from supervisord_py.tools import failures
from supervisord_py.tools.causes import MEMORY_SIGNS, Cause, CauseKind, find_cause, hint_of
from supervisord_py.tools.driver import ToolInstance
from supervisord_py.tools.manifest import ToolSpec
from supervisord_py.tools.proxy import ToolRun
from supervisord_py.tools.service import Tools
from supervisord_py.tools.upstream import schema_drift
from supervisord_py.tools.validate import sample_input

INSTANCES = 10
_HEALTHZ_SECONDS = 3.0
EVENTS = 200  # among which the last runs are looked for
_LATE_SECONDS = 0.1  # what a tool writes of a run may arrive so much later than its answer
STEPS = {
    "never_ready": "See `pxctl logs {spec.unit}`.",
    "unresponsive": "pxctl restart {spec.name}",
    "schema_drift": "Serve tool.json as it is on GET /schema, or correct it.",
    "invalid_input": "Compare the input with `pxctl tools show {spec.name}`.",
    "exception": "See `pxctl logs {spec.unit} --stderr`.",
    "bad_answer": "Return one JSON object from POST /run, and log exceptions to stderr.",
    "exits_zero": "See `pxctl logs {spec.unit}`.",
    "evicted_during_run": "Keep it from being stopped while it works: `pxctl pin {spec.name}`; see "
    "`pxctl events`.",
    "memory_limit": "Raise max_memory_mb ({spec.max_memory_mb}) in tool.json, or use less.",
    "missing_interpreter_or_module": "pxctl tools sync {spec.name}",
    "runtime_limit": "Raise max_runtime_seconds in tool.json, or ask for less at a time.",
    "ignores_sigterm": "End on SIGTERM, or raise stop_timeout_seconds.",
}
"""The cases in their order, and the next step where the evidence says nothing better."""
_ON_PURPOSE = frozenset({"evicted_lru", "evicted_ttl", "replaced", "stopped"})

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # werkzeug writes it into a pipe, too
_ACCESS_LINE = re.compile(
    # a quoted request with the status of its answer
    r'"[A-Z]+ \S+(?: HTTP/[\d.]+| [\d.]+)?" \d{3}\b'
    r"|\[\d\d/\w{3}/\d{4} [\d:]+\] code \d{3}, message "  # http.server, for an answer by send_error
)
_OWN_CODE = frozenset({CauseKind.EXCEPTION, CauseKind.SYNTAX_ERROR, CauseKind.MISSING_VARIABLE})
"""Causes that the tool's author finds at a line of the code."""

_REFUSAL_STEP = "Serve POST /run without credentials; for an input that does not fit answer 422."

Found = dict[str, tuple[str, str | None]]
"""Evidence, which is quoted, of each case that is found, and a better next step where there is
one.
"""


def _in_cause(spec: ToolSpec, cause: Cause, what: str) -> Found:
    """Return the case that stderr tells; `what` begins the evidence: whose stderr that is."""
    if cause.kind in _OWN_CODE:
        return {"exception": (f"{what}{cause}", hint_of(cause, spec))}
    if cause.kind in {CauseKind.PYTHON_MODULE, CauseKind.NODE_MODULE, CauseKind.MISSING_PROGRAM}:
        return {"missing_interpreter_or_module": (f"{what}{cause}", hint_of(cause, spec))}
    return {}


def _in_problem(spec: ToolSpec, problem: Mapping[str, Any]) -> Found:
    reason, code, said = (
        problem.get("reason"),
        problem.get("code"),
        str(problem.get("stderr_tail") or ""),
    )
    is_answer = (
        problem["kind"] == "tool_failed" and problem["status"] >= 500 and "signal" not in problem
    )
    cause = find_cause(said, str(spec.folder))
    is_refusal = problem["kind"] == "tool_failed" and failures.is_refusal(problem["status"])
    fits = {
        "never_ready": reason in {"early_exit", "readiness_timeout"} and code != 0,
        "invalid_input": problem["status"] == 422,
        "bad_answer": is_answer and cause is None and not has_words(said),
        "exits_zero": reason == "early_exit" and code == 0,
        "memory_limit": problem.get("limit") == "memory",
        "runtime_limit": problem.get("limit") == "runtime",
        "missing_interpreter_or_module": problem.get("stage") in {"interpreter", "exec"},
    }
    found: Found = {
        case: (problem["detail"], problem["hint"]) for case, is_found in fits.items() if is_found
    }
    if is_refusal:
        found["bad_answer"] = (problem["detail"], _REFUSAL_STEP)
    if cause is not None and (is_answer or fits["never_ready"]):
        found |= _in_cause(spec, cause, "")
    return found


def _in_failed_run(spec: ToolSpec, run: Event, stderr: str) -> Found:
    """Return the case that a run shows which the tool answered by an error.

    `stderr`: what the tool wrote during the run.
    """
    what = f"Run {run.facts['run']} ended with {run.facts['status']}"
    if failures.is_refusal(run.facts["status"]):
        detail = run.facts.get("detail", "the tool refused it")
        return {"bad_answer": (f"{what}: {detail}", _REFUSAL_STEP)}
    cause = find_cause(stderr, str(spec.folder))
    if cause is not None:
        return _in_cause(spec, cause, f"{what}: ")
    if has_words(stderr):
        return {}
    return {"bad_answer": (f"{what}, and stderr says nothing of it.", None)}


def has_words(stderr: str) -> bool:
    """Say whether there is a line that is more than the server's record of a request."""
    lines = _COLOUR.sub("", stderr).splitlines()
    return any(line.strip() and not _ACCESS_LINE.search(line) for line in lines)


def _in_records(
    spec: ToolSpec,
    drift: Sequence[str],
    ended: Sequence[InstanceRow],
    runs: Sequence[Event],
    stderr: str,
) -> Found:
    """Look for cases in the past of this declaration: its lives and runs, the newest first, and
    its stderr.
    """
    found = Found()
    if drift:
        found["schema_drift"] = ("; ".join(drift[:5]), None)
    if refused := [run.facts for run in runs if run.facts.get("status") == 422]:
        said = (
            f"{len(refused)} of the last {len(runs)} runs were refused with 422 (run "
            f"{refused[0]['run']})"
        )
        pointers = refused[0].get("pointers")
        said += f": {', '.join(map(str, pointers))}" if pointers else ""
        found["invalid_input"] = (said, None)
    lives = {row.key: row for row in ended if row.reason in _ON_PURPOSE}
    for run in runs:  # the pool never does that by itself; a stop, a removal does
        life = lives.get(run.instance or "")
        if life and run.facts["error_kind"] in {"cancelled", "interrupted"}:
            said = (
                f"Run {run.facts['run']} was cut short when its instance {life.key} ended: "
                f"{life.reason}."
            )
            found.setdefault("evicted_during_run", (said, None))
    if sign := MEMORY_SIGNS.search(stderr):
        found["memory_limit"] = (f"suspected: stderr says {sign[0]}", None)
    if (last := next((row for row in ended if row.reason is not None), None)) is None:
        return found
    if last.reason in {"memory_limit", "oom_kill"}:
        verdict = last.verdict or {}
        sizes = f"rss {verdict.get('rss_bytes')}, limit {verdict.get('limit_bytes')} bytes"
        found["memory_limit"] = (f"{last.key} ended: {last.reason} ({sizes})", None)
    if last.reason == "runtime_limit":
        said = f"{last.key} was stopped: a run took longer than {spec.max_runtime_seconds:g} s"
        found["runtime_limit"] = (said, None)
    if last.signal == signal.SIGKILL and last.reason in {*_ON_PURPOSE, "runtime_limit"}:
        said = (
            f"{last.key} ({last.reason}) was killed {spec.stop_timeout_seconds:g} s after SIGTERM"
        )
        found["ignores_sigterm"] = (said, None)
    return found


async def _in_silence(instance: ToolInstance) -> Found:
    """Ask a ready tool whether it answers, unless that is asked already because a call was given
    up.
    """
    assert instance.upstream is not None
    silent_since = instance.silent_since(asyncio.get_running_loop().time())
    if silent_since is not None:
        return {"unresponsive": (f"It {failures.how_silent(silent_since)}", None)}
    if await instance.upstream.healthz(_HEALTHZ_SECONDS) or instance.upstream.is_closed:
        return {}
    evidence = f"GET /healthz got no answer within {_HEALTHZ_SECONDS:g} s"
    step = None
    if instance.runs:
        # A server that works on one request at a time answers the next one when it is through.
        evidence += (
            f", while it works on {len(instance.runs)} run{'s' if len(instance.runs) > 1 else ''}"
        )
        step = (
            f"If it works on several requests at a time: pxctl restart {instance.name}. Else wait "
            "for its run."
        )
    return {"unresponsive": (evidence, step)}


async def diagnose(tools: Tools, ledger: Ledger, name: str) -> dict[str, Any]:
    """Walk the table for one tool and return the document px.debug/1.

    Raises UnknownUnitError, ConfigError.
    """
    spec = tools.catalog.get(name)
    is_cold = tools.instance_of(name) is None
    latest = await tools.events.latest(unit=spec.unit, limit=EVENTS)
    runs = [each for each in reversed(latest) if each.event == "run"]
    error = await _try_it(tools, spec) if is_cold else None
    instance, drift, stderr = tools.instance_of(name), tuple[str, ...](), ""
    silence = Found()
    if instance is not None:
        stderr = await tools.supervisor.tail(instance)
        if instance.upstream and instance.ready_at and instance.wanted is None:
            silence = await _in_silence(instance)
            if not silence:
                drift = await schema_drift(instance.upstream, dict(spec.manifest))
    problems = [each for each in (tools.states.of(name).failure, error and error.problem()) if each]
    stderr = "\n".join([stderr, *(str(each.get("stderr_tail", "")) for each in problems)])
    lives = await instances.latest(ledger, spec.unit, INSTANCES)
    found = _in_records(
        spec, drift, [row for row in lives if row.spec_digest == spec.digest], runs, stderr
    )
    failed = _last_failed_run(spec, runs, lives)
    if failed is not None:
        given_at = (
            failed.time - failed.facts["duration_seconds"] + failed.facts.get("waited_seconds", 0.0)
        )
        said = await tools.supervisor.tail_between(spec.unit, given_at, failed.time + _LATE_SECONDS)
        found |= _in_failed_run(spec, failed, said)
    found |= silence
    for problem in problems:
        found |= _in_problem(spec, problem)
    cases: list[dict[str, Any]] = []
    for case, usual in STEPS.items():
        evidence, step = found.get(case, (None, None))
        if evidence is not None:
            # it is being debugged
            step = usual.format(spec=spec) if not step or "tools debug" in step else step
            evidence += "" if evidence.endswith((".", "?")) else "."
        cases.append(
            {"case": case, "found": evidence is not None, "evidence": evidence, "next_step": step}
        )
    verdict = (
        f"no fault found by {'a fresh start and sample run' if is_cold else 'what was recorded'}"
    )
    if named := [each["case"] for each in cases if each["found"]]:
        verdict = f"found: {', '.join(named)}"
    elif error is not None:
        verdict = f"none of the known cases, but it failed: {error.detail}"
    elif runs and "detail" in runs[0].facts:
        verdict = f"none of the known cases, but its last run failed: {runs[0].facts['detail']}"
    return {"schema": "px.debug/1", "unit": spec.unit, "cases": cases, "verdict": verdict}


def _last_failed_run(
    spec: ToolSpec, runs: Sequence[Event], lives: Sequence[InstanceRow]
) -> Event | None:
    """Return the newest run that an instance of this declaration answered with an error (not 422),
    or broke off.

    `runs`: the newest first. What the end of an instance says is no answer.
    """
    other = {
        row.key
        for row in lives
        if row.spec_digest != spec.digest or row.reason in {"signal", "exit"}
    }
    for run in runs:
        status = run.facts.get("status") or 0
        is_error = status >= 500 or failures.is_refusal(status)
        if run.facts["error_kind"] == "tool_failed" and is_error and run.instance not in other:
            return run
    return None


async def _try_it(tools: Tools, spec: ToolSpec) -> PxError | None:
    sample = sample_input(spec)
    try:
        if sample.trouble:
            await tools.warm(spec.name)
            return None
        async with ToolRun(tools, spec, json.dumps(sample.value).encode(), sample.value).going():
            return None
    except PxError as error:
        return error

"""`GET /api/units/{u}/why`: from the last thing that mattered back to its cause, in words a person can act on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from supervisord_py.api.context import ApiCall
from supervisord_py.api.streams import pick
from supervisord_py.api.units import PipeUnit, UnitView, unit_named
from supervisord_py.ledger import events, instances
from supervisord_py.ledger.events import Event
from supervisord_py.ledger.instances import InstanceRow
from supervisord_py.process.logs import LogReader, Stream
from supervisord_py.process.model import Reason

_UP = frozenset({"starting", "ready", "idle", "busy", "running", "queued"})
_LOOK_BACK = 200
_TAIL_BYTES = 16 * 1024

_LOGS = "pxctl logs {unit} --stderr"
_START = "pxctl start {unit}"
_DEBUG = "pxctl tools debug {name}"
_MEMORY = "kernels.hard_memory_mb, or more than kernels.soft_memory_mb at the end of a cell"

MEANINGS = {
    Reason.EXIT: ("it exited by itself", _LOGS),
    Reason.SIGNAL: ("a signal that this daemon did not send ended it", _LOGS),
    Reason.STOPPED: ("someone asked to stop it", _START),
    Reason.EVICTED_LRU: ("others were used more recently and the warm set was full", "pxctl pin {name}"),
    Reason.EVICTED_TTL: ("nobody used it for its warm_keep_seconds", "pxctl pin --forever {name}"),
    Reason.MEMORY_LIMIT: ("it used more memory than max_memory_mb", "raise max_memory_mb in tool.json"),
    Reason.OOM_KILL: ("the kernel killed it because memory ran out", "lower the limits of what runs beside it"),
    Reason.RUNTIME_LIMIT: ("a run took longer than max_runtime_seconds", "raise max_runtime_seconds in tool.json"),
    Reason.CPU_LIMIT: ("it used more CPU time than limits.cpu_seconds", "raise limits.cpu_seconds"),
    Reason.WATCHDOG: ("it stopped giving signs of life", _LOGS),
    Reason.READINESS_TIMEOUT: ("it never became ready within start_timeout_seconds", _DEBUG),
    Reason.EARLY_EXIT: ("it ended before it was ready", _DEBUG),
    Reason.SPAWN_FAILED: ("it could not be started at all", _DEBUG),
    Reason.SHUTDOWN: ("the daemon stopped", _START),
    Reason.INTERRUPTED: ("the keeper or the machine went down under it", _START),
    Reason.CANCELLED: ("who had asked for it went away", _START),
    Reason.TIMEOUT: ("the caller's own deadline passed", "give it longer: --timeout"),
    Reason.REPLACED: ("its files changed, and a new instance took its place", "nothing to do"),
    Reason.SCHEMA_DRIFT: ("its /schema differs from tool.json (a warning only)", "pxctl tools validate {name}"),
}
"""What each reason of the closed list (CONTRACT §7) means to a person, and the next step."""

KERNEL_MEANINGS = {
    Reason.EXIT: ("its process ended by itself, or a cell called exit()", _LOGS),
    Reason.EVICTED_LRU: ("others were used more recently, kernels.max_sessions of them", "raise kernels.max_sessions"),
    Reason.EVICTED_TTL: ("nobody used it for kernels.idle_seconds", "raise kernels.idle_seconds"),
    Reason.MEMORY_LIMIT: (f"it used more memory than {_MEMORY}", "raise kernels.soft_memory_mb or hard_memory_mb"),
    Reason.CPU_LIMIT: ("it used more CPU time than its limit", "look for setrlimit in its cells"),
    Reason.READINESS_TIMEOUT: ("it did not answer in time after its start", _LOGS),
    Reason.EARLY_EXIT: ("it ended before it answered", _LOGS),
    Reason.SPAWN_FAILED: ("it could not be started at all", "pxctl kernel start --explain {name}"),
    Reason.CANCELLED: ("a cancelled cell would not end otherwise", _START),
    Reason.TIMEOUT: ("a cell that was over its time would not end otherwise", "give it longer: --timeout"),
    Reason.REPLACED: ("it was reset or restarted, and a new instance took its place", "nothing to do"),
}
"""Where a kernel's end means something else than a tool's."""


def meaning_of(reason: str, unit: str) -> tuple[str, str]:
    """Return what a reason means for a unit, and the next step."""
    kind, _, name = unit.partition(":")
    known = Reason(reason)
    sentence, step = (KERNEL_MEANINGS.get(known) if kind == "kernel" else None) or MEANINGS[known]
    return sentence, step.format(unit=unit, name=name)


async def why(call: ApiCall) -> dict[str, Any]:
    """Answer with the causal chain that led to the unit's state, the end of its stderr, and the next step."""
    view, ledger = unit_named(call), call.context.ledger
    await ledger.flush()
    pivot = _pivot(view, await events.EventJournal(ledger).latest(view.unit, _LOOK_BACK))
    chain = await events.chain(ledger, pivot.id) if pivot is not None else []
    instance = next(iter(await instances.latest(ledger, view.unit)), None)
    reason = view.reason
    if reason is None and view.state not in _UP:
        if instance is not None and instance.reason is not None and not isinstance(view, PipeUnit):
            reason = str(instance.reason)
        elif pivot is not None:
            reason = pivot.reason
    if isinstance(view, PipeUnit):
        summary, step = _of_pipe(call, view)
    else:
        summary, step = _of_process(view, reason, instance, pivot)
    lived = ("pid", "started_at", "ready_at", "ended_at", "reason", "code", "signal", "verdict", "max_rss_bytes",
             "memory_peak_bytes", "cpu_seconds", "start_method", "port")  # fmt: skip
    return {
        **pick(view, "unit", "state"),
        "reason": reason,
        "summary": summary,
        "chain": [row.document() for row in chain],
        "instance": None if instance is None else {"instance": instance.key, **pick(instance, *lived)},
        "stderr_tail": await _stderr_tail(call, view.unit, instance),
        "next_step": step,
    }


def _pivot(view: UnitView, rows: Sequence[Event]) -> Event | None:
    """Choose the newest event of the life that goes on; of a unit that is not up, the newest that carries a reason.

    A pipe's life is its last execution, however much was said of the pipe since (enabled, changed, told of).
    """
    if isinstance(view, PipeUnit):
        told = [row for row in rows if "execution" in row.facts and view.running in {None, row.facts["execution"]}]
    elif view.state in _UP:
        own = [row for row in rows if row.instance == view.instance and row.event != "run"]  # which led to nothing
        return own[-1] if own else None
    else:
        told = [row for row in rows if row.reason is not None and row.reason != Reason.SCHEMA_DRIFT]
    return next(reversed(told or list(rows)), None)


def _of_pipe(call: ApiCall, unit: PipeUnit) -> tuple[str, str]:
    view, name = call.context.pipes.get(unit.name), unit.name
    if view.config_error is not None:
        return f"{unit.unit} cannot run: {view.config_error}", f"pxctl pipe validate {name}"
    if view.running is not None:
        return f"{unit.unit} is running: execution {view.running}.", f"pxctl pipe tail -f {view.running}"
    decided = "" if view.last_decision is None else f" Last decision: {view.last_decision['text']}."
    often = f", {view.consecutive_failures} failures in a row" if view.consecutive_failures > 1 else ""
    ended = "it never ran" if unit.last_status is None else f"its last execution {unit.last_status}{often}"
    if view.queued:
        step = "pxctl pipe queue"
    elif unit.last_status in {"failed", "timed_out"}:
        step = f"pxctl pipe output {name} --stderr"
    else:
        step = f"pxctl pipe next {name}" if view.enabled else f"pxctl pipe enable {name}"
    return f"{unit.unit} is {unit.state}: {ended.replace('_', ' ')}.{decided}", step


def _of_process(
    view: UnitView, reason: str | None, instance: InstanceRow | None, pivot: Event | None
) -> tuple[str, str]:
    if view.config_error is not None:
        return f"{view.unit} cannot be started: {view.config_error}", f"pxctl tools validate {view.name}"
    if reason is not None and reason in set(Reason):
        told, step = meaning_of(reason, view.unit)
        if instance is not None and instance.signal is not None:
            told += f" (signal {instance.signal})"
        elif instance is not None and instance.code is not None:
            told += f" (exit code {instance.code})"
    else:
        told = "it was never started" if instance is None else "nothing is wrong with it"
        step = f"pxctl logs {view.unit} -f" if view.state in _UP else f"pxctl start {view.unit}"
    hint, told = None if pivot is None else pivot.facts.get("hint"), f"{told}."
    if view.failure is not None:
        told, hint = view.failure["detail"], view.failure.get("hint")
    beside = "".join(f" Beside that: {warning}." for warning in view.warnings)
    return f"{view.unit} is {view.state}: {told}{beside}", hint if isinstance(hint, str) and hint else step


async def _stderr_tail(call: ApiCall, unit: str, instance: InstanceRow | None) -> str:
    if instance is None or instance.log_position is None:
        return ""
    reader, begin, end = LogReader.of(call.context.placement.log_dir, unit), instance.log_position, instance.log_end
    end = await asyncio.to_thread(reader.end) if end is None else end
    tail = await asyncio.to_thread(reader.tail_bytes, begin, end, Stream.STDERR, _TAIL_BYTES)
    return tail.decode("utf-8", errors="replace")

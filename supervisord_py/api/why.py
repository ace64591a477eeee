"""`GET /api/units/{u}/why`: from the last thing that mattered back to its cause, in words a person can act on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from supervisord_py.api.pipe_units import PipeState
from supervisord_py.api.reasons import meaning_of
from supervisord_py.api.status import config_error
from supervisord_py.api.times import rfc3339
from supervisord_py.ledger import events, instances
from supervisord_py.process.logs import LogReader, Stream
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisord_py.api.call import Call, UnitState
    from supervisord_py.ledger.events import Event
    from supervisord_py.ledger.instances import InstanceRow

_UP = frozenset({"starting", "ready", "idle", "busy", "running", "queued"})
_ENDS = frozenset({"died", "stopped"})
_LOOK_BACK = 200
_TAIL_BYTES = 16 * 1024


async def explain(call: Call, unit: str) -> dict[str, Any]:
    """Return the px.why/1 document of a unit."""
    ledger = call.context.ledger
    state = call.unit_states().get(unit)
    await ledger.flush()
    rows = await events.EventJournal(ledger).latest(unit, _LOOK_BACK)
    pivot = _pivot(state, rows)
    chain = await events.chain(ledger, pivot.id) if pivot is not None else []
    latest = await instances.latest(ledger, unit, limit=1)
    instance = latest[0] if latest else None
    reason = _reason(state, pivot, instance)
    broken = config_error(call.entries().get(unit))
    if isinstance(state, PipeState):
        summary, step = state.summary, state.next_step
    else:
        summary = _summary(unit, state, reason, broken, instance) + _life_before(unit, state, chain)
        step = _next_step(unit, state, reason, broken, pivot)
    return {
        "schema": "px.why/1",
        "unit": unit,
        "state": "cold" if state is None else str(state.state),
        "reason": reason,
        "summary": summary,
        "chain": [event_document(row) for row in chain],
        "instance": None if instance is None else instance_document(instance),
        "stderr_tail": await _stderr_tail(call, unit, instance),
        "next_step": step,
    }


def _pivot(state: UnitState | None, rows: Sequence[Event]) -> Event | None:
    """Choose the newest event of the life that goes on; of a unit that is not up, the newest that carries a reason.

    A pipe's life is its last execution, however much was said of the pipe since (enabled, changed, told of).
    """
    if isinstance(state, PipeState):
        return _of_last_execution(state.view.running, rows)
    if _is_up(state) and state is not None:
        return next((row for row in reversed(rows) if row.instance == state.instance), None)
    told = [row for row in rows if row.reason is not None and row.reason != Reason.SCHEMA_DRIFT]
    return next(reversed(told or list(rows)), None)


def _of_last_execution(running: int | None, rows: Sequence[Event]) -> Event | None:
    """Choose the newest event of the execution that runs, else of the last one; without any the newest of the pipe."""
    told = [row for row in rows if "execution" in row.facts and running in {None, row.facts["execution"]}]
    return next(reversed(told or list(rows)), None)


def _reason(state: UnitState | None, pivot: Event | None, instance: InstanceRow | None) -> str | None:
    if state is not None and state.reason is not None:
        return str(state.reason)
    if _is_up(state):
        return None
    if instance is not None and instance.reason is not None and not isinstance(state, PipeState):
        return str(instance.reason)
    return None if pivot is None else pivot.reason


def _summary(
    unit: str, state: UnitState | None, reason: str | None, broken: str | None, instance: InstanceRow | None
) -> str:
    word = "cold" if state is None else str(state.state)
    if broken is not None:
        return f"{unit} cannot be started: {broken}"
    if state is not None and state.failure is not None:
        return f"{unit} is {word}: {state.failure['detail']}"
    if reason is None or reason not in set(Reason):
        fate = "it was never started" if instance is None else "nothing is wrong with it"
        return f"{unit} is {word}: {fate}."
    return f"{unit} is {word}: {meaning_of(Reason(reason), unit).sentence}{_evidence(instance)}."


def _life_before(unit: str, state: UnitState | None, chain: Sequence[Event]) -> str:
    """Say how the life before the present one ended, where the present one began because of it."""
    if not _is_up(state) or state is None:
        return ""
    ends = [row for row in chain if row.unit == unit and row.event in _ENDS and row.instance != state.instance]
    if not ends or ends[-1].reason not in set(Reason):
        return ""
    number = ends[-1].facts.get("signal")
    told = "" if number is None else f" (signal {number})"
    return f" The life before this one ended: {meaning_of(Reason(ends[-1].reason), unit).sentence}{told}."


def _evidence(instance: InstanceRow | None) -> str:
    if instance is None or instance.ended_at is None:
        return ""
    if instance.signal is not None:
        return f" (signal {instance.signal})"
    return "" if instance.code is None else f" (exit code {instance.code})"


def _next_step(unit: str, state: UnitState | None, reason: str | None, broken: str | None, pivot: Event | None) -> str:
    if broken is not None:
        return f"pxctl tools validate {unit.partition(':')[2]}"
    failure = None if state is None else state.failure
    hint = failure.get("hint") if failure is not None else None if pivot is None else pivot.facts.get("hint")
    if isinstance(hint, str) and hint:
        return hint
    if reason is not None and reason in set(Reason):
        return meaning_of(Reason(reason), unit).step_for(unit)
    return f"pxctl logs {unit} -f" if _is_up(state) else f"pxctl start {unit}"


def _is_up(state: UnitState | None) -> bool:
    return state is not None and str(state.state) in _UP


async def _stderr_tail(call: Call, unit: str, instance: InstanceRow | None) -> str:
    if instance is None or instance.log_position is None:
        return ""
    reader = LogReader.of(call.context.placement.log_dir, unit)

    def tail(begin: int, log_end: int | None) -> bytes:
        end = reader.end() if log_end is None else log_end
        return reader.tail_bytes(begin, end, Stream.STDERR, limit=_TAIL_BYTES)

    raw = await asyncio.to_thread(tail, instance.log_position, instance.log_end)
    return raw.decode("utf-8", errors="replace")


def event_document(row: Event) -> dict[str, Any]:
    """Return an event of the ledger as JSON."""
    return {
        "id": row.id,
        "time": rfc3339(row.time),
        "unit": row.unit,
        "event": row.event,
        "reason": row.reason,
        "instance": row.instance,
        "cause": row.cause,
        **row.facts,
    }


def instance_document(row: InstanceRow) -> dict[str, Any]:
    """Return one process life as JSON."""
    return {
        "instance": row.key,
        "pid": row.pid,
        "started_at": rfc3339(row.started_at),
        "ready_at": rfc3339(row.ready_at),
        "ended_at": rfc3339(row.ended_at),
        "reason": row.reason,
        "code": row.code,
        "signal": row.signal,
        "verdict": row.verdict,
        "max_rss_bytes": row.max_rss_bytes,
        "cpu_seconds": row.cpu_seconds,
        "start_method": row.start_method,
        "port": row.port,
    }

"""`/api/health`, `/api/status` and `/api/units…`: how all is, and several units started, stopped or waited for."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, closing
from typing import TYPE_CHECKING, Any

import msgspec

from supervisord_py.api import kernels, pipes, tools
from supervisord_py.api.streams import json_answer, pick, rfc3339, until_closing
from supervisord_py.api.units import PipeUnit, all_units, cold, measured, resident_bytes, unit_named, units_named
from supervisord_py.errors import BadRequestError, PxError, ShuttingDownError, TimedOutError

if TYPE_CHECKING:
    from aiohttp import web

    from supervisord_py.api.context import ApiContext, Call
    from supervisord_py.api.schemas import BatchQuery, NamesQuery, UnitsQuery, UntilQuery
    from supervisord_py.api.units import UnitView

_DEFAULT_WAIT_SECONDS = 60.0
_READY = frozenset({"ready", "idle", "busy"})
_UNDER_WAY = frozenset({"starting", "stopping"}) | _READY
_OFF = frozenset({"cold", "stopped"})


def daemon_document(call: Call) -> dict[str, Any]:
    """Return the `daemon` object: keeper, control plane, and the rungs of the ladders in use."""
    facts, caps = call.context.control.facts(), call.context.placement.caps
    return {
        **pick(facts, "version", "daemon_id", "socket", "system"),
        "stopping": call.context.control.stopping,
        "keeper": {
            "pid": caps.keeper_pid,
            "started_at": rfc3339(caps.keeper_started_at),
            "rss_bytes": resident_bytes(caps.keeper_pid),
        },
        "control": {
            "pid": facts.control_pid,
            "started_at": rfc3339(facts.control_started_at),
            "restarts": caps.control_restarts,
            "rss_bytes": resident_bytes(facts.control_pid),
        },
        **pick(caps, "kill_rung", "memory_rung"),
        "interrupted": call.context.interrupted,
        "degraded": degraded_parts(call.context),
    }


def degraded_parts(context: ApiContext) -> list[dict[str, str]]:
    """Return what works only in part: `{part, detail, repair}` each."""
    found = [pick(one, "part", "detail", "repair") for one in context.control.degradations()]
    for unit, why in context.pipes.refused_output().items():
        detail = f"the disk refuses it, and its agent waits: {why}"
        found.append({"part": f"output of {unit}", "detail": detail, "repair": "df -h, then free some space"})
    return found


async def health(call: Call) -> web.StreamResponse:
    """Answer that the API serves, and what works only in part."""
    facts, pipes_health = call.context.control.facts(), call.context.pipes.health()
    degraded = [{"part": one["part"], "detail": one["detail"]} for one in degraded_parts(call.context)]
    if pipes_health.scheduler_error is not None:
        degraded.append({"part": "scheduler", "detail": f"was restarted: {pipes_health.scheduler_error}"})
    known = pick(facts, "version", "daemon_id")
    return json_answer({"schema": "px.health/1", "ok": True, **known, "degraded": degraded, "pipes": pipes_health})


async def status(call: Call, query: UnitsQuery) -> web.StreamResponse:
    """Answer with the daemon and the units asked for; when none was named, all but kernels that are only remembered."""
    units = await measured(call, units_named(call, query.unit))
    return json_answer({"schema": "px.status/1", "daemon": daemon_document(call), "units": units})


async def list_units(call: Call, query: NamesQuery) -> web.StreamResponse:
    """Answer with the units that names and globs mean."""
    units = [pick(view, "unit", "kind", "name", "state") for view in units_named(call, query.name)]
    return json_answer({"schema": "px.units/1", "units": units})


async def start(call: Call, query: BatchQuery) -> web.StreamResponse:
    """Start every unit that the names mean; `results` has one member a unit."""
    return await _each(call, query, "start")


async def stop(call: Call, query: BatchQuery) -> web.StreamResponse:
    """Stop every unit that the names mean; `results` has one member a unit."""
    return await _each(call, query, "stop")


async def restart(call: Call, query: BatchQuery) -> web.StreamResponse:
    """Restart every unit that the names mean; `results` has one member a unit."""
    return await _each(call, query, "restart")


async def _each(call: Call, query: BatchQuery, verb: str) -> web.StreamResponse:
    """Do it to all of them at the same time; one that fails has its problem where the others have their answer."""
    if not query.unit:
        raise BadRequestError("No unit is named.", hint="give ?unit=NAME, again for each unit")
    units = units_named(call, query.unit)
    answers = await asyncio.gather(*(_act(call, query, verb, unit) for unit in units), return_exceptions=True)
    results: list[dict[str, Any]] = []
    for unit, answer in zip(units, answers, strict=True):
        if isinstance(answer, BaseException) and not isinstance(answer, PxError):
            raise answer
        problem = answer.problem() if isinstance(answer, PxError) else None
        results.append({"unit": unit.unit, "answer": None if problem else answer, "problem": problem})
    return json_answer({"schema": f"px.{verb}-units/1", "results": results})


async def _act(call: Call, query: BatchQuery, verb: str, view: UnitView) -> dict[str, Any]:
    """Start, stop or restart one unit. A stop within a restart is always waited for."""
    if view.kind == "pipe":
        if verb == "start":
            return await pipes.run_document(call, view.name, wait=query.wait is True)
        if verb == "stop":
            return await within(call, query.timeout, view.unit, pipes.cancel_document(call, view.name))
        raise BadRequestError(
            "a pipe is not restarted: each execution is a run of its own, from its beginning to its end",
            hint=f"pxctl stop {view.unit} && pxctl start {view.unit}; the last one again: pxctl pipe retry ID",
            unit=view.unit,
        )
    if verb == "restart":
        if view.kind == "kernel" and query.wait is not False:  # calls in line are kept
            return await within(call, query.timeout, view.unit, kernels.restart_document(call, view.name))
        waiting = msgspec.structs.replace(query, wait=True)
        await _act(call, waiting, "stop", view)
        return await _act(call, query, "start", view)
    room: Any = kernels if view.kind == "kernel" else tools
    act = room.start_document if verb == "start" else room.stop_document
    document: dict[str, Any] = (await act(call, [view.name], query))[0]
    return document


async def within(call: Call, seconds: float | None, unit: str, work: Any) -> dict[str, Any]:
    """Wait for work that goes on when the time is over.

    Raises:
        TimedOutError: It is.
    """
    task: asyncio.Task[dict[str, Any]] = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=seconds)
    if not done:
        call.live.leave(task)
        raise TimedOutError(f"{unit} is not done in time; it goes on.", hint=f"pxctl why {unit}", unit=unit)
    return task.result()


async def wait(call: Call, query: UntilQuery) -> web.StreamResponse:
    """Answer once the unit is as wanted, or once it cannot become so any more.

    `ok` is false when the wait ended otherwise: a start that failed while `ready` was waited for. A lost bet, not an
    error of the request. 504 when the time is over.
    """
    unit, timeout = unit_named(call).unit, query.timeout
    try:
        async with asyncio.timeout(_DEFAULT_WAIT_SECONDS if timeout is None else timeout):
            view, ok = await _until(call, unit, query.goal)
    except TimeoutError as error:
        state = (all_units(call.context).get(unit) or cold(unit)).state
        raise TimedOutError(
            f"{unit} is {state}, not {query.goal}, when the time was over.", hint=f"pxctl why {unit}", unit=unit
        ) from error
    return json_answer({"schema": "px.wait/1", **pick(view, "unit", "state", "reason"), "ok": ok})


async def _until(call: Call, unit: str, goal: str) -> tuple[UnitView, bool]:
    """Subscribe first, then read the state, then wait: nothing can happen unseen in between."""
    beat_seconds = call.context.config.stream_heartbeat_seconds
    with closing(call.context.events.subscribe(unit=unit)) as subscription:
        began = False
        async with aclosing(until_closing(aiter(subscription), call.live.closing, beat_seconds)) as news:
            while True:
                view = all_units(call.context).get(unit) or cold(unit)
                verdict = reached(goal, view, began=began)
                if verdict is not None:
                    return view, verdict
                began = began or view.state in _UNDER_WAY
                if await anext(news, None) is None:
                    raise ShuttingDownError("The daemon is stopping; the wait ends.", unit=unit)


def reached(goal: str, view: UnitView, *, began: bool) -> bool | None:
    """Say whether a goal is reached, or out of reach (False), or may still come (None).

    A cold unit, or a kernel that is stopped, may still be started by someone else, unless it was seen starting before:
    then its start has failed. A pipe is done with the good end of its last execution.
    """
    word = view.state
    if isinstance(view, PipeUnit):
        if goal == "ready":
            return word in {"running", "queued", "idle"}
        if word in {"running", "queued"}:
            return None
        return goal == "stopped" or view.last_status in {None, "completed"}
    if goal == "stopped":
        return True if word in _OFF | {"failed"} else None
    if word in (_READY if goal == "ready" else {"ready", "idle"} | _OFF):
        return True
    return False if word == "failed" or (goal == "ready" and began and word in _OFF) else None

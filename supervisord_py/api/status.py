"""`/api/status` and `/api/units…`: how all is, and several units started, stopped or waited for."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, Literal

from supervisord_py.api import kernels, pipes
from supervisord_py.api import schemas as s
from supervisord_py.api.context import ApiCall
from supervisord_py.api.daemon import daemon_document
from supervisord_py.api.streams import pick, until_closing
from supervisord_py.api.units import PipeUnit, UnitView, change_unit, measured, unit_named, units_named, view_of, within
from supervisord_py.errors import BadRequestError, PxError, ShuttingDownError, TimedOutError, UnknownUnitError

_DEFAULT_WAIT_SECONDS = 60.0
_READY = frozenset({"ready", "idle", "busy"})
_UNDER_WAY = frozenset({"starting", "stopping"}) | _READY
_OFF = frozenset({"cold", "stopped"})


async def status(call: ApiCall, *, unit: tuple[str, ...] = ()) -> dict[str, Any]:
    """Answer with the daemon and the units asked for; when none was named, all but kernels that are only remembered."""
    units = await measured(call, units_named(call, unit))
    return {"daemon": daemon_document(call), "units": units}


async def list_units(call: ApiCall, *, name: tuple[str, ...] = ()) -> dict[str, Any]:
    """Answer with the units that names and globs mean."""
    try:
        views = units_named(call, name)
    except UnknownUnitError:
        await call.context.pipes.files.refresh()  # it may be a pipe that was written a moment ago
        views = units_named(call, name)
    return {"units": [pick(view, "unit", "kind", "name", "state") for view in views]}


async def change(
    call: ApiCall, *, unit: tuple[str, ...] = (), timeout: s.Seconds | None = None, wait: bool | None = None
) -> dict[str, Any]:
    """Start, stop or restart every unit that the names mean; `results` has one member a unit.

    It is done to all of them at the same time; one that fails has its problem where the others have their answer.
    """
    verb = call.request.path.rpartition("/")[2]
    if not unit:
        raise BadRequestError("No unit is named.", hint="give ?unit=NAME, again for each unit")
    views = units_named(call, unit)

    async def result(view: UnitView) -> dict[str, Any]:
        try:
            return {"unit": view.unit, "answer": await _act(call, verb, view, timeout, wait), "problem": None}
        except PxError as error:
            return {"unit": view.unit, "answer": None, "problem": error.problem()}

    return {"results": await asyncio.gather(*map(result, views))}


async def _act(call: ApiCall, verb: str, view: UnitView, timeout: float | None, wait: bool | None) -> dict[str, Any]:
    """Do it to one unit. A stop within a restart is always waited for."""
    if view.kind == "pipe":
        if verb == "start":
            [queued] = await call.context.pipes.run(view.name)
            if wait is True:
                return pipes.whole_document(await call.context.pipes.wait(queued.id))
            return {"schema": "px.execution/1", **pipes.execution_document(queued)}
        if verb == "stop":
            work = pipes.cancel_document(call, view.name)
            return await within(call, timeout, f"The stop of {view.unit}", work, view.unit)
        raise BadRequestError(
            "a pipe is not restarted: each execution is a run of its own, from its beginning to its end",
            hint=f"pxctl stop {view.unit} && pxctl start {view.unit}; the last one again: pxctl pipe retry ID",
            unit=view.unit,
        )
    if verb != "restart":
        return await change_unit(call, verb, view.unit, timeout, wait is not False)
    if view.kind == "kernel" and wait is not False:  # calls in line are kept
        again = call.context.kernels.restart(view.name)
        restarted = await within(call, timeout, f"The restart of {view.unit}", again, view.unit)
        return kernels.session_document(call, restarted)
    await change_unit(call, "stop", view.unit, timeout)
    return await change_unit(call, "start", view.unit, timeout, wait is not False)


async def wait(
    call: ApiCall, *, for_: Literal["ready", "stopped", "done"] = "ready", timeout: s.Seconds | None = None
) -> dict[str, Any]:
    """Answer once the unit is as wanted, or once it cannot become so any more.

    `ok` is false when the wait ended otherwise: a start that failed while `ready` was waited for. A lost bet, not an
    error of the request. 504 when the time is over.
    """
    unit, began = unit_named(call).unit, False
    # Subscribe first, then read the state, then wait: nothing can happen unseen in between.
    events = call.context.events.subscribe(unit=unit)
    beat_seconds = call.context.config.stream_heartbeat_seconds
    try:
        async with (
            asyncio.timeout(_DEFAULT_WAIT_SECONDS if timeout is None else timeout),
            aclosing(until_closing(events, call.live.closing, beat_seconds)) as news,
        ):
            while True:
                view = view_of(call.context, unit)
                if (ok := _reached(for_, view, began=began)) is not None:
                    return {**pick(view, "unit", "state", "reason"), "ok": ok}
                began = began or view.state in _UNDER_WAY
                if await anext(news, False) is False:
                    raise ShuttingDownError("The daemon is stopping; the wait ends.", unit=unit)
    except TimeoutError as error:
        detail = f"{unit} is {view_of(call.context, unit).state}, not {for_}, when the time was over."
        raise TimedOutError(detail, hint=f"pxctl why {unit}", unit=unit) from error


def _reached(goal: str, view: UnitView, *, began: bool) -> bool | None:
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

"""`/api/units/…`: starting, stopping and restarting several units, waiting for a state, why a unit is as it is."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, closing
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, assert_never

from aiohttp import web

from supervisord_py.api import kernels, pipes, tools
from supervisord_py.api.call import Call, json_answer
from supervisord_py.api.names import kind_of, name_of
from supervisord_py.api.parameters import Arguments
from supervisord_py.api.pipe_units import PipeState
from supervisord_py.api.streams import until_closing
from supervisord_py.api.why import explain
from supervisord_py.errors import BadRequestError, PxError, ShuttingDownError, TimedOutError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from supervisord_py.api.call import UnitState

_DEFAULT_WAIT_SECONDS = 60.0
_READY = frozenset({"ready", "idle", "busy"})
_UNDER_WAY = frozenset({"starting", "stopping"}) | _READY
_OFF = frozenset({"cold", "stopped"})
_ENDED = frozenset({"failed"}) | _OFF


@dataclass(frozen=True, slots=True)
class _OneUnit(Call):
    """One unit's part of a request for several: the routes of its kind find its name in the path."""

    name: str = ""

    def path(self, name: str) -> str:
        """Return the unit's name, whatever its kind calls it."""
        del name
        return self.name


async def start(call: Call) -> web.StreamResponse:
    """Start every unit that the names mean; `results` has one member a unit."""
    return await _each(call, "px.start-units/1", _start)


async def stop(call: Call) -> web.StreamResponse:
    """Stop every unit that the names mean; `results` has one member a unit."""
    return await _each(call, "px.stop-units/1", _stop)


async def restart(call: Call) -> web.StreamResponse:
    """Restart every unit that the names mean; `results` has one member a unit."""
    return await _each(call, "px.restart-units/1", _restart)


async def _each(call: Call, schema: str, act: Callable[[_OneUnit, str], Awaitable[Any]]) -> web.StreamResponse:
    """Do it to all of them at the same time; one that fails has its problem where the others have their answer."""
    if not call.arguments.texts("unit"):
        raise BadRequestError("No unit is named.", hint="give ?unit=NAME, again for each unit")
    units = call.named_units("unit")
    parts = [_OneUnit(call.request, call.context, call.live, call.arguments, name=name_of(unit)) for unit in units]
    answers = await asyncio.gather(*map(act, parts, map(kind_of, units)), return_exceptions=True)
    return json_answer({"schema": schema, "results": list(map(_result, units, answers))})


def _result(unit: str, answer: web.StreamResponse | BaseException) -> dict[str, Any]:
    if isinstance(answer, web.Response):
        return {"unit": unit, "answer": json.loads(answer.text or "null"), "problem": None}
    if isinstance(answer, PxError):
        return {"unit": unit, "answer": None, "problem": answer.problem()}
    assert isinstance(answer, BaseException)
    raise answer


async def _start(call: _OneUnit, kind: str) -> web.StreamResponse:
    match kind:
        case "tool":
            return await tools.start(call)
        case "kernel":
            return await kernels.start(call)
        case _:
            return await pipes.run_pipe(call)


async def _stop(call: _OneUnit, kind: str) -> web.StreamResponse:
    match kind:
        case "tool":
            return await tools.stop(call)
        case "kernel":
            return await kernels.stop(call)
        case _:
            return await _within(call, f"pipe:{call.name}", pipes.cancel_pipe(call))


async def _restart(call: _OneUnit, kind: str) -> web.StreamResponse:
    """Replace what runs. The stop is always waited for; a kernel's calls in line are kept where the start is, too."""
    if kind == "pipe":
        unit = f"pipe:{call.name}"
        raise BadRequestError(
            "a pipe is not restarted: each execution is a run of its own, from its beginning to its end",
            hint=f"pxctl stop {unit} && pxctl start {unit}; the last one again: pxctl pipe retry ID",
            unit=unit,
        )
    if kind == "kernel" and call.arguments.flag("wait", absent=True):
        return await _within(call, f"kernel:{call.name}", kernels.restart(call))
    values = {name: given for name, given in call.arguments.values.items() if name != "wait"}
    await _stop(replace(call, arguments=Arguments(values)), kind)
    return await _start(call, kind)


async def _within(call: Call, unit: str, work: Awaitable[web.StreamResponse]) -> web.StreamResponse:
    """Wait for work that goes on when the time is over."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=call.arguments.number("timeout"))
    if not done:
        call.live.leave(task)
        raise TimedOutError(f"{unit} is not done in time; it goes on.", hint=f"pxctl why {unit}", unit=unit)
    return task.result()


class Goal(StrEnum):
    """What may be waited for."""

    READY = "ready"
    STOPPED = "stopped"
    DONE = "done"


async def wait(call: Call) -> web.StreamResponse:
    """Answer once the unit is as wanted, or once it cannot become so any more.

    `ok` is false when the wait ended otherwise: a start that failed while `ready` was waited for. A lost bet, not an
    error of the request. 504 when the time is over.
    """
    unit = call.unit()
    goal = Goal(call.arguments.text("for") or Goal.READY)
    timeout = call.arguments.number("timeout")
    try:
        async with asyncio.timeout(_DEFAULT_WAIT_SECONDS if timeout is None else timeout):
            state, ok = await _until(call, unit, goal)
    except TimeoutError as error:
        state = call.unit_states().get(unit)
        raise TimedOutError(
            f"{unit} is {word_of(state)}, not {goal}, when the time was over.", hint=f"pxctl why {unit}", unit=unit
        ) from error
    reason = None if state is None or state.reason is None else str(state.reason)
    return json_answer({"schema": "px.wait/1", "unit": unit, "state": word_of(state), "reason": reason, "ok": ok})


async def why(call: Call) -> web.StreamResponse:
    """Answer with the causal chain that led to the unit's state, the end of its stderr, and the next step."""
    return json_answer(await explain(call, call.unit()))


async def _until(call: Call, unit: str, goal: Goal) -> tuple[UnitState | None, bool]:
    """Subscribe first, then read the state, then wait: nothing can happen unseen in between."""
    beat_seconds = call.context.config.stream_heartbeat_seconds
    with closing(call.context.events.subscribe(unit=unit)) as subscription:
        began = False
        async with aclosing(until_closing(aiter(subscription), call.live.closing, beat_seconds)) as news:
            while True:
                state = call.unit_states().get(unit)
                if isinstance(state, PipeState):
                    verdict = state.reached(goal.value)
                else:
                    verdict = reached(goal, word_of(state), began=began)
                if verdict is not None:
                    return state, verdict
                began = began or word_of(state) in _UNDER_WAY
                if await anext(news, None) is None:
                    raise ShuttingDownError("The daemon is stopping; the wait ends.", unit=unit)


def reached(goal: Goal, word: str, *, began: bool) -> bool | None:
    """Say whether a goal is reached, or out of reach (False), or may still come (None).

    A cold unit, or a kernel that is stopped, may still be started by someone else, unless it was seen starting before:
    then its start has failed.
    """
    match goal:
        case Goal.READY:
            if word in _READY:
                return True
            return False if word == "failed" or (began and word in _OFF) else None
        case Goal.STOPPED:
            return True if word in _ENDED else None
        case Goal.DONE:
            if word in {"ready", "idle"} | _OFF:
                return True
            return False if word == "failed" else None
    assert_never(goal)


def word_of(state: UnitState | None) -> str:
    """Return a state's word; what the launcher never saw is cold."""
    return "cold" if state is None else str(state.state)

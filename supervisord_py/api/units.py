"""`/api/units/{u}/…`: waiting for a state, and why a unit is as it is."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, closing
from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

from supervisord_py.api.call import json_answer
from supervisord_py.api.pipe_units import PipeState
from supervisord_py.api.streams import until_closing
from supervisord_py.api.why import explain
from supervisord_py.errors import ShuttingDownError, TimedOutError

if TYPE_CHECKING:
    from aiohttp import web

    from supervisord_py.api.call import Call, UnitState

_DEFAULT_WAIT_SECONDS = 60.0
_READY = frozenset({"ready", "idle", "busy"})
_UNDER_WAY = frozenset({"starting", "stopping"}) | _READY
_OFF = frozenset({"cold", "stopped"})
_ENDED = frozenset({"failed"}) | _OFF


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

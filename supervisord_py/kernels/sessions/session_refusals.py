"""A refusal of the set of sessions, in words. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, assert_never

from supervisord_py.errors import (
    CancelledRunError,
    ConflictError,
    OverloadedError,
    PxError,
    ShuttingDownError,
    StartFailedError,
    TimedOutError,
)
from supervisord_py.kernels.sessions.session_events import FailureKind, Refusal, WaitsFor

if TYPE_CHECKING:
    from supervisord_py.kernels.config import SessionLimits
    from supervisord_py.kernels.sessions.session_events import Failure, Refuse

_EVIDENCE = frozenset({"reason", "code", "signal", "stage", "errno", "verdict", "stderr_tail", "limit", "log_tail"})


def refusal_error(refuse: Refuse, limits: SessionLimits, unit: str) -> PxError:
    """Return the error of a call that gets no kernel; `retry_after_seconds` is a whole number."""
    after = max(1, math.ceil(refuse.retry_after))
    match refuse.refusal:
        case Refusal.QUEUE_FULL:
            return OverloadedError(
                f"{unit} has {limits.queue_max} calls in line already.",
                hint="Ask again later, use another session (`--kernel NAME`), or raise kernels.queue_max.",
                unit=unit,
                retry_after_seconds=after,
            )
        case Refusal.OWN_SESSION:
            return ConflictError(
                f"The call comes from a cell that occupies {unit} itself: neither would ever end.",
                hint="Name another session for calls from inside a cell (`pxctl exec --kernel NAME`, or --per-call).",
                unit=unit,
            )
        case Refusal.HARD_FAILURE:
            return _hard_failure(refuse.failure, unit)
        case Refusal.DEADLINE:
            return _deadline(refuse.waits_for, limits, unit, after)
        case Refusal.STOPPED:
            return CancelledRunError(f"{unit} was stopped while the call waited.", hint="Ask again.", unit=unit)
        case Refusal.CLOSING:
            return ShuttingDownError("The daemon is stopping.", hint="Ask again once it runs.", unit=unit)
        case _:  # pragma: no cover - the enum is closed
            assert_never(refuse.refusal)


def _deadline(waits_for: WaitsFor | None, limits: SessionLimits, unit: str, after: int) -> PxError:
    match waits_for:
        case WaitsFor.START:
            why, hint = (
                f"The kernel of {unit} was still starting",
                "Give more time (`--timeout`), or start it first (`pxctl kernel start`).",
            )
        case WaitsFor.STOP:
            why, hint = f"The last kernel of {unit} was still on its way out", "Ask again: it may be gone by then."
        case WaitsFor.PLACE:
            why = f"All {limits.max_sessions} places for kernels were taken by busy ones, and {unit} had none"
            hint = "Stop one (`pxctl kernel stop ID`), or raise kernels.max_sessions."
        case WaitsFor.TURN:
            why = f"Other calls of {unit} came first, and were not over"
            hint = "Give more time (`--timeout`), or use another session (`--kernel NAME`)."
        case None:
            why, hint = f"The call to {unit} waited", "Give more time (`--timeout`)."
        case _:  # pragma: no cover - the enum is closed
            assert_never(waits_for)
    return TimedOutError(
        f"{why} when the call's time was over; nothing was run.",
        hint=hint,
        unit=unit,
        reason="timeout",
        waited_for=waits_for,
        retry_after_seconds=after,
    )


def _hard_failure(failure: Failure | None, unit: str) -> PxError:
    name = unit.partition(":")[2]
    if failure is None:  # a refusal that was made by hand; the set always tells which failure stands
        return StartFailedError(f"{unit} failed.", hint=f"Try again: `pxctl kernel restart {name}`.", unit=unit)
    last = failure.problem or {}
    extra: dict[str, Any] = {key: value for key, value in last.items() if key in _EVIDENCE}
    if failure.kind is FailureKind.DEATHS:
        what = f"The kernel of {unit} died {failure.count} times with no cell that succeeded in between"
    else:
        what = f"The kernel of {unit} failed to start {failure.count} times in a row"
    return StartFailedError(
        f"{what}; it is not started again by itself." + (f" Last: {last['detail']}" if last.get("detail") else ""),
        hint=f"See `pxctl logs {unit}`; then `pxctl kernel restart {name}`, or `pxctl exec --reset`.",
        unit=unit,
        failures=failure.count,
        **extra,
    )

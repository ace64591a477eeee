"""A refusal of the warm set, in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, assert_never

from supervisord_py.errors import (
    CancelledRunError,
    OverloadedError,
    PxError,
    ShuttingDownError,
    StartFailedError,
    TimedOutError,
    UnknownUnitError,
)
from supervisord_py.tools.serving.warm_events import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.tools.config import PoolLimits
    from supervisord_py.tools.serving.warm_events import Refuse

_EVIDENCE = frozenset({"reason", "code", "signal", "stage", "errno", "verdict", "stderr_tail", "limit"})


def refusal_error(refuse: Refuse, pool: PoolLimits, last_failure: Mapping[str, Any] | None) -> PxError:
    """Return the error of a request that gets no instance; `retry_after_seconds` is a whole number."""
    unit, after = f"tool:{refuse.tool}", max(1, math.ceil(refuse.retry_after))
    match refuse.refusal:
        case Refusal.QUEUE_FULL:
            return OverloadedError(
                f"{unit} is busy and {pool.queue_max} requests wait for it already.",
                hint="Ask again later, or raise tools.queue_max or the tool's concurrency.",
                unit=unit,
                retry_after_seconds=after,
            )
        case Refusal.DEADLINE:
            return OverloadedError(
                f"No place for {unit} came free within the request's time.",
                hint="Ask again later, or raise tools.warm_keep_max or the tool's concurrency.",
                unit=unit,
                retry_after_seconds=after,
            )
        case Refusal.DEADLINE_STARTING:
            return TimedOutError(
                f"{unit} was still starting when the request's time was over; the start goes on.",
                hint="Ask again: it may be ready by then.",
                unit=unit,
                retry_after_seconds=after,
            )
        case Refusal.ALL_PINNED:
            return OverloadedError(
                f"No place for {unit}: all {pool.warm_keep_max} are held by pinned tools.",
                hint="Unpin one (`pxctl unpin TOOL`), or raise tools.warm_keep_max.",
                unit=unit,
                retry_after_seconds=after,
            )
        case Refusal.FAILING:
            return _failing(unit, after, last_failure)
        case Refusal.STOPPED:
            return CancelledRunError(f"{unit} was stopped while the request waited.", hint="Ask again.", unit=unit)
        case Refusal.REMOVED:
            return UnknownUnitError(f"{unit} was removed while the request waited.", unit=unit)
        case Refusal.CLOSING:
            return ShuttingDownError("The daemon is stopping.", hint="Ask again once it runs.", unit=unit)
        case _:  # pragma: no cover - the enum is closed
            assert_never(refuse.refusal)


def _failing(unit: str, after: int, last: Mapping[str, Any] | None) -> PxError:
    extra = {key: value for key, value in (last or {}).items() if key in _EVIDENCE}
    return StartFailedError(
        f"{unit} failed to start; the next try is due in {after} s, later than the request can wait."
        + (f" Last: {last.get('detail')}" if last else ""),
        hint=(last or {}).get("hint") or f"See `pxctl why {unit}`.",
        unit=unit,
        retry_after_seconds=after,
        **extra,
    )

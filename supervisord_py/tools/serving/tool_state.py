"""What `status` and `launcher/state` show of a tool: derived when asked, never stored as truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisord_py.tools.serving.warm_events import Phase, Pin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.errors import ConfigError
    from supervisord_py.tools.serving.chronicle import Standing
    from supervisord_py.tools.serving.instance import Instance
    from supervisord_py.tools.serving.warm_set import Slot


@dataclass(frozen=True, slots=True)
class ToolState:
    """One tool as it is now. Times are Unix seconds; `waiting` counts requests in line."""

    unit: str
    name: str
    state: str
    reason: str | None
    pid: int | None
    port: int | None
    started_at: float | None
    last_used: float | None
    in_flight: int
    waiting: int
    pinned: bool
    pin: Pin
    start_method: str | None
    restarts: int
    instance: str | None
    cold_start_ms: int | None
    config_error: ConfigError | None
    failure: Mapping[str, Any] | None
    warnings: tuple[str, ...]
    survivors: tuple[int, ...]
    rss_bytes: int | None


def state_word(slot: Slot | None, standing: Standing) -> str:
    """Return one of `cold starting ready busy stopping failed`."""
    if slot is None or slot.phase is Phase.COLD:
        return "failed" if standing.failure else "cold"
    if slot.phase is Phase.READY and slot.in_flight:
        return "busy"
    return slot.phase.value


def tool_state(
    name: str,
    slot: Slot | None,
    standing: Standing,
    instance: Instance | None,
    *,
    port: int | None,
    pin: Pin,
    config_error: ConfigError | None,
    warnings: tuple[str, ...],
) -> ToolState:
    """Put together what is known of a tool."""
    drift = tuple(f"schema_drift: /schema differs from tool.json at {place}" for place in standing.drift)
    live = instance if slot is not None and slot.phase is not Phase.COLD else None
    return ToolState(
        unit=f"tool:{name}",
        name=name,
        state=state_word(slot, standing),
        reason=None if live and not live.wanted else (live.wanted.value if live and live.wanted else standing.reason),
        pid=live.pid if live else None,
        port=live.port or port if live else port,
        started_at=live.started_at if live else None,
        last_used=standing.last_used,
        in_flight=len(slot.in_flight) if slot else 0,
        waiting=len(slot.line) if slot else 0,
        pinned=pin is not Pin.NONE,
        pin=pin,
        start_method=live.start_method if live else None,
        restarts=standing.restarts,
        instance=live.key if live else None,
        cold_start_ms=live.cold_start_ms if live and live.ready_at else None,
        config_error=config_error,
        failure=standing.failure,
        warnings=warnings + drift,
        survivors=tuple(each.pid for each in live.report.survivors) if live and live.report else (),
        rss_bytes=slot.rss_bytes or None if slot else None,
    )

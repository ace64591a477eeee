"""What is known of each tool: what is remembered over restarts of everything, and what `status` shows."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from supervisord_py.errors import ConfigError
from supervisord_py.ledger.instances import UNIT_STATES, UnitStateRow
from supervisord_py.ledger.store import Ledger


class LastState(msgspec.Struct):
    """What is known of a tool beyond its present instance."""

    state: str = "cold"  # as last seen
    reason: str | None = None  # why its last instance ended
    last_used: float | None = None  # Unix seconds of the end of the last request
    restarts: int = 0  # how often a ready instance ended unasked
    failure: dict[str, Any] | None = None  # the problem document of the last start, if that failed
    drift: tuple[str, ...] = ()  # where `/schema` differed from `tool.json`, for the declaration `drift_digest`
    drift_digest: str = ""
    unpinned: bool = False  # somebody took back the pin that the tool declares for itself
    imports: tuple[str, ...] = ()  # of installed packages, in order: for a zygote before its first start


class LastStates:
    """The last state of each tool, by name, and in the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._states: dict[str, LastState] = {}
        self._written: dict[str, float | None] = {}  # the `last_used` of each row

    async def read(self) -> None:
        """Read what an earlier control plane remembered; what is not understood counts for nothing."""
        for row in await UNIT_STATES.find(self._ledger):
            kind, _, tool = row.unit.partition(":")
            known = {**row.facts, "state": row.state, "last_used": row.last_used, "restarts": row.restarts}
            with suppress(msgspec.ValidationError):
                if kind == "tool":
                    self._states[tool] = msgspec.convert(known, LastState)
                    self._written[tool] = row.last_used

    def of(self, tool: str) -> LastState:
        """Return what is known of a tool; a request that ends changes its `last_used` there."""
        return self._states.setdefault(tool, LastState())

    def tools(self) -> tuple[str, ...]:
        return tuple(self._states)

    def remember(self, tool: str, **changes: Any) -> None:
        """Change what is known of a tool, and write it down."""
        state = self.of(tool)
        for name, value in changes.items():
            setattr(state, name, value)
        self._written[tool] = state.last_used
        known = (state.state, time.time(), state.last_used, state.restarts, msgspec.to_builtins(state))
        self._ledger.post(UNIT_STATES.put(UnitStateRow(f"tool:{tool}", *known)))

    def write_used(self) -> None:
        """Write down what was used since."""
        for tool, state in self._states.items():
            if state.last_used != self._written.get(tool):
                self.remember(tool)


class ToolState(NamedTuple):
    """One tool as it is now, for `status` and `launcher/state`. Times are Unix seconds; `waiting` counts requests."""

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
    start_method: str | None
    restarts: int
    instance: str | None
    cold_start_ms: int | None
    config_error: ConfigError | None
    failure: Mapping[str, Any] | None
    warnings: tuple[str, ...]
    survivors: tuple[int, ...]
    rss_bytes: int | None

"""What is known of each tool: what is remembered over restarts of everything, and what `status`
shows.
"""

from __future__ import annotations

import time
from contextlib import suppress
from enum import StrEnum
from typing import Any

import msgspec

from supervisord_py.ledger.instances import UNIT_STATES, UnitStateRow
from supervisord_py.ledger.store import Ledger
from supervisord_py.process.instance import Phase
from supervisord_py.process.model import Reason
from supervisord_py.process.pool import Slot
from supervisord_py.tools.catalog import Entry
from supervisord_py.tools.driver import ToolInstance
from supervisord_py.tools.learnt import Learnt
from supervisord_py.tools.manifest import MANIFEST

UNRESPONSIVE = "unresponsive"
"""The state of a ready tool that has not answered since a call was given up."""


class PlainPort(StrEnum):
    """Whether a tool's starts get a plain port, because one with the handed-over socket failed.

    NO to TRYING: such a start failed. TRYING to PROVEN: the next one, with a plain port, came up,
    so that all that follow are like it. TRYING to FAILED: that one failed as well, so the fault is
    not the socket's; starts have a plain port until one comes up, which costs one process each, not
    two. FAILED to NO: one came up, and the next one gets the socket again. Another declaration
    begins with NO.
    """

    NO = "no"
    TRYING = "trying"
    PROVEN = "proven"
    FAILED = "failed"


AFTER_READY = {PlainPort.TRYING: PlainPort.PROVEN, PlainPort.FAILED: PlainPort.NO}
AFTER_FAILURE = {PlainPort.TRYING: PlainPort.FAILED}


class LastState(msgspec.Struct):
    """What is known of a tool beyond its present instance."""

    state: str = "cold"  # as last seen
    reason: str | None = None  # why its last instance ended
    last_used: float | None = None  # Unix seconds of the end of the last request
    restarts: int = 0  # how often a ready instance ended unasked
    failure: dict[str, Any] | None = None  # the problem document of the last start, if that failed
    # where `/schema` differed from `tool.json`, for the declaration `drift_digest`
    drift: tuple[str, ...] = ()
    drift_digest: str = ""
    unpinned: bool = False  # somebody took back the pin that the tool declares for itself
    plain_port: PlainPort = PlainPort.NO  # of the declaration `plain_digest`
    plain_digest: str = ""
    plain_why: str = ""  # how its start with the handed-over socket failed
    imports: tuple[str, ...] = ()  # all modules of installed packages, in order
    learnt: Learnt | None = None  # which of them may be imported ahead of it
    # Which keeper has a listening socket of it (`Tools.keeper_life`); "" for none, None where that
    # was not noted.
    listener: str | None = None

    def plain_port_of(self, digest: str) -> PlainPort:
        """Return what was found out about a declaration."""
        return self.plain_port if self.plain_digest == digest else PlainPort.NO


class LastStates:
    """The last state of each tool, by name, and in the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.by_tool: dict[str, LastState] = {}
        self.used: set[str] = set()  # since each was written down

    async def read(self) -> None:
        """Read what an earlier control plane remembered; what is not understood counts for
        nothing.
        """
        for row in await UNIT_STATES.find(self._ledger):
            kind, _, tool = row.unit.partition(":")
            known = {
                **row.facts,
                "state": row.state,
                "last_used": row.last_used,
                "restarts": row.restarts,
            }
            with suppress(msgspec.ValidationError):
                if kind == "tool":
                    self.by_tool[tool] = msgspec.convert(known, LastState)

    def of(self, tool: str) -> LastState:
        return self.by_tool.setdefault(tool, LastState())

    def remember(self, tool: str, **changes: Any) -> None:
        state = self.of(tool)
        for name, value in changes.items():
            setattr(state, name, value)
        self.used.discard(tool)
        known = (
            state.state,
            time.time(),
            state.last_used,
            state.restarts,
            msgspec.to_builtins(state),
        )
        self._ledger.post(UNIT_STATES.put(UnitStateRow(f"tool:{tool}", *known)))

    def forget(self, tool: str) -> None:
        """Drop what is known of a tool that was removed.

        What is in the ledger is the caller's to drop.
        """
        self.by_tool.pop(tool, None)
        self.used.discard(tool)

    def use(self, tool: str) -> None:
        """Note a use, and write the first after a while at once: to whoever adopts the tool it
        may not look old.
        """
        state, now = self.of(tool), time.time()
        before, state.last_used = state.last_used or 0.0, now
        if now - before > 1.0:
            self.remember(tool)
        else:
            self.used.add(tool)

    def write_used(self) -> None:
        for tool in tuple(self.used):
            self.remember(tool)


class ToolState:
    """One tool as it is now, for `status` and `launcher/state`. Times are Unix seconds; `waiting`
    counts requests.

    Without an `entry` the tool is gone, but something of it lives.
    """

    def __init__(
        self,
        name: str,
        entry: Entry | None,
        last: LastState,
        slot: Slot | None,
        live: ToolInstance | None,
    ) -> None:
        spec = entry.spec if entry is not None else None
        self.unit = f"tool:{name}"
        self.name = name
        self.state = (
            ("failed" if last.failure else "cold")
            if slot is None or live is None
            else slot.phase.value
        )
        if slot is not None and slot.phase is Phase.READY and slot.in_flight:
            self.state = "busy"
        self.reason = last.reason if live is None else live.wanted and live.wanted.value
        doubted_at = live.doubted_at if live is not None else None
        if doubted_at is not None and self.state == "ready":
            self.state = UNRESPONSIVE
            self.reason = Reason.WATCHDOG.value
        self.pid = live.pid if live else None
        self.port = (live.port or None) if live else None
        self.started_at = live.started_at if live else None
        self.last_used = last.last_used
        self.in_flight = len(slot.in_flight) if slot else 0
        self.waiting = len(slot.line) if slot else 0
        self.pinned = spec is not None and spec.pinned and not last.unpinned
        self.start_method = live.start_method if live else None
        self.restarts = last.restarts
        self.instance = live.key if live else None
        self.cold_start_ms = live.cold_start_ms if live and live.ready_at else None
        self.config_error = entry.error if entry is not None else None
        self.failure = last.failure
        self.warnings = [*(spec.warnings if spec is not None else ())]
        if doubted_at is not None:
            self.warnings.append(
                "a call was given up, and GET /healthz has had no good answer since"
            )
        self.plain_port = False
        if spec is not None and spec.listen == "handover":
            self.plain_port = last.plain_port_of(spec.digest) is PlainPort.PROVEN
        if self.plain_port:
            why = last.plain_why.rstrip(".")
            place = spec.settings_file if spec is not None else MANIFEST
            self.warnings.append(
                f'starts with a plain port: {why}. "listen": "port" in {place} makes that permanent'
            )
        self.warnings += [
            f"schema_drift: /schema differs from tool.json at {place}" for place in last.drift
        ]
        self.survivors = [each.pid for each in live.report.survivors] if live else []
        self.rss_bytes = (slot.rss_bytes or None) if slot else None

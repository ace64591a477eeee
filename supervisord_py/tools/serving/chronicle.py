"""What the launcher writes down: rows of instances and runs, the last state of each tool, events with their causes.

Law: the row of an instance exists before its process does. Everything else is posted, in order, off the request path.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from supervisord_py.ledger import instances, runs, unit_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.ledger.store import Ledger
    from supervisord_py.process.events import EventStream
    from supervisord_py.process.spec import Reason
    from supervisord_py.tools.serving.failure import Ended
    from supervisord_py.tools.serving.instance import Instance

FAILED_SECONDS = 1.0
"""Failed runs of a tool are an event at most that often: a tool that fails every request must not flood the stream."""
REMEMBER_SECONDS = 1.0
"""The time of last use is written at most that often; a lost second only makes an instance a second older."""


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a tool beyond its present instance; survives restarts of everything.

    Attributes:
        state: Its state as last seen.
        reason: Why its last instance ended.
        last_used: Unix seconds of the end of the last request.
        restarts: How often a ready instance ended unasked.
        failure: The problem document of the last start, if that failed.
        drift: Where `/schema` differed from `tool.json`, for the digest `drift_digest`.
        drift_digest: The declaration that was compared last.
        unpinned: Somebody took back the pin that the tool declares for itself.
    """

    state: str = "cold"
    reason: str | None = None
    last_used: float | None = None
    restarts: int = 0
    failure: Mapping[str, Any] | None = None
    drift: tuple[str, ...] = ()
    drift_digest: str = ""
    unpinned: bool = False


class Chronicle:
    """The one place where the launcher remembers."""

    def __init__(self, ledger: Ledger, events: EventStream) -> None:
        self._ledger = ledger
        self._events = events
        self._standings: dict[str, Standing] = {}
        self._written: dict[str, float] = {}
        self._failed: dict[str, float] = {}

    async def open(self) -> None:
        """Read what an earlier control plane remembered of tools."""
        for row in await unit_state.everything(self._ledger):
            if row.unit.startswith("tool:"):
                self._standings[row.unit.removeprefix("tool:")] = _standing(row)

    def standing(self, tool: str) -> Standing:
        """Return what is known of a tool."""
        return self._standings.get(tool, Standing())

    def update(self, tool: str, **changes: Any) -> None:
        """Change what is known of a tool, and write it down."""
        standing = replace(self.standing(tool), **changes)
        self._standings[tool] = standing
        self._written[tool] = time.monotonic()
        facts = {
            "reason": standing.reason,
            "failure": standing.failure,
            "drift": list(standing.drift),
            "drift_digest": standing.drift_digest,
            "unpinned": standing.unpinned,
        }
        unit_state.remember(
            self._ledger,
            unit_state.UnitStateRow(
                unit=f"tool:{tool}",
                state=standing.state,
                facts=facts,
                last_used=standing.last_used,
                restarts=standing.restarts,
                updated_at=time.time(),
            ),
        )

    def used(self, tool: str, at: float) -> None:
        """Note the end of a request; written now and then only."""
        if time.monotonic() - self._written.get(tool, 0.0) >= REMEMBER_SECONDS:
            self.update(tool, last_used=at)
        else:
            self._standings[tool] = replace(self.standing(tool), last_used=at)

    def flush(self) -> None:
        """Write the time of last use of every tool."""
        for tool in tuple(self._standings):
            self.update(tool)

    # -- events ----------------------------------------------------------------------------------------------

    def say(self, event: str, instance: Instance, reason: Reason | None = None, **facts: Any) -> int:
        """Publish an event about an instance; its cause is the one before it, unless `cause` is given."""
        cause = facts.pop("cause", instance.event)
        unit = instance.spec.unit
        instance.event = self._events.publish(event, unit, reason, instance=instance.key, cause=cause, **facts)
        return instance.event

    def say_of_tool(self, event: str, tool: str, reason: Reason | None = None, **facts: Any) -> int:
        """Publish an event about a tool that is not about one of its instances."""
        return self._events.publish(event, f"tool:{tool}", reason, **facts)

    def run_failed(self, tool: str, **facts: Any) -> None:
        """Publish that a run failed through its tool's fault, unless that was said a moment ago."""
        now = time.monotonic()
        if now - self._failed.get(tool, -math.inf) >= FAILED_SECONDS:
            self._failed[tool] = now
            self.say_of_tool("run_failed", tool, **facts)

    # -- instances -------------------------------------------------------------------------------------------

    async def starting(self, instance: Instance) -> None:
        """Write the row of an instance; returns once it is written, or the ledger is known to be degraded."""
        row = instances.Starting(
            key=instance.key,
            unit=instance.spec.unit,
            started_at=instance.started_at,
            start_method=instance.start_method,
            port=instance.port,
            spec_digest=instance.digest,
        )
        await instances.insert_starting(self._ledger, row)

    async def spawned(self, instance: Instance) -> None:
        """Write down which process it is."""
        child = instance.child
        if child is not None:
            who = child.identity
            row = instances.Spawned(who.pid, who.start_time, who.boot_id, child.started_at, child.log_position)
            await instances.spawned(self._ledger, instance.key, row)

    async def ready(self, instance: Instance) -> None:
        """Write down when it became ready."""
        if instance.ready_at is not None:
            await instances.ready(self._ledger, instance.key, instance.ready_at)

    async def ended(self, key: str, ended: Ended) -> None:
        """Write down how it ended; only the first end of a key counts."""
        record = ended.record
        verdict = ended.facts().get("verdict")
        row = instances.Ending(
            ended_at=record.ended_at if record else time.time(),
            reason=ended.reason.value,
            code=ended.code,
            signal=ended.signal,
            verdict=verdict,
            max_rss_bytes=record.max_rss_bytes if record else None,
            cpu_seconds=record.user_seconds + record.system_seconds if record else None,
            log_end=record.log_end if record else None,
        )
        await instances.ended(self._ledger, key, row)

    async def was_ready(self, key: str) -> bool:
        """Say whether an instance is written down as one that became ready."""
        row = await instances.get(self._ledger, key)
        return row is not None and row.ready_at is not None

    async def newest_key(self, tool: str) -> str | None:
        """Return the key of a tool's newest instance, also of one that has ended."""
        rows = await instances.latest(self._ledger, f"tool:{tool}")
        return rows[0].key if rows else None

    # -- runs ------------------------------------------------------------------------------------------------

    def run_begun(self, unit: str, request_id: str | None) -> int:
        """Open the row of a run and return its id."""
        return runs.begin(self._ledger, runs.Begun(unit=unit, started_at=time.time(), request_id=request_id))

    def run_finished(self, run: int, finished: runs.Finished) -> None:
        """Close the row of a run."""
        runs.finish(self._ledger, run, finished)


def _standing(row: unit_state.UnitStateRow) -> Standing:
    facts = row.facts
    return Standing(
        state=row.state,
        reason=facts.get("reason"),
        last_used=row.last_used,
        restarts=row.restarts,
        failure=facts.get("failure"),
        drift=tuple(facts.get("drift") or ()),
        drift_digest=facts.get("drift_digest") or "",
        unpinned=bool(facts.get("unpinned")),
    )

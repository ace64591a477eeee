"""What the room writes down beside the rows of executions: lives of processes, and events with their causes.

Law: the row of a life exists before its process does (DESIGN law 1). The events of one execution are a chain, each
naming the one before it; what an execution leads to names its last one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from supervisord_py.ledger import instances

if TYPE_CHECKING:
    from supervisord_py.ledger.instances import Operation
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.pipes.running.live_run import LiveRun
    from supervisord_py.process.events import EventStream
    from supervisord_py.process.spec import Child, ExitRecord, Reason


class PipeChronicle:
    """Rows of instances, and events."""

    def __init__(self, ledger: Ledger, events: EventStream) -> None:
        self._ledger = ledger
        self._events = events

    def say(self, event: str, live: LiveRun, reason: Reason | None = None, **facts: Any) -> int:
        """Publish an event about an execution."""
        instance = live.key or None
        unit = live.execution.unit
        live.event = self._events.publish(
            event, unit, reason, instance=instance, cause=live.event, execution=live.id, **facts
        )
        return live.event

    def say_of_pipe(self, event: str, pipe: str, *, cause: int | None = None, **facts: Any) -> int:
        """Publish an event about a pipe."""
        return self._events.publish(event, f"pipe:{pipe}", cause=cause, **facts)

    async def starting(self, key: str, unit: str) -> None:
        """Write the row of a life that is about to begin."""
        await self._ledger.write(life_begins(key, unit))

    async def spawned(self, child: Child) -> None:
        """Write down which process it is."""
        await self._ledger.write(life_of(child))

    async def ended(self, key: str, reason: Reason, record: ExitRecord | None) -> None:
        """Write down how it ended; only the first end of a key counts."""
        await self._ledger.write(life_ends(key, reason, record))


# -- the same, to be written in the transaction of an execution's row --------------------------------------------------


def life_begins(key: str, unit: str) -> Operation:
    """Return what writes the row of a life that is about to begin."""
    return instances.starting_of(instances.Starting(key, unit, time.time(), "spawn"))


def life_of(child: Child) -> Operation:
    """Return what writes down which process it is."""
    who = child.identity
    facts = instances.Spawned(who.pid, who.start_time, who.boot_id, child.started_at, child.log_position)
    return instances.spawned_of(child.key, facts)


def life_ends(key: str, reason: Reason, record: ExitRecord | None) -> Operation:
    """Return what writes down how it ended; only the first end of a key counts."""
    row = instances.Ending(ended_at=time.time(), reason=reason.value)
    if record is not None:
        row = instances.Ending(
            ended_at=record.ended_at,
            reason=reason.value,
            code=record.code,
            signal=record.signal,
            verdict=_verdict(record),
            max_rss_bytes=record.max_rss_bytes,
            cpu_seconds=record.user_seconds + record.system_seconds,
            log_end=record.log_end,
        )
    return instances.ended_of(key, row)


def _verdict(record: ExitRecord) -> dict[str, Any] | None:
    found = record.verdict
    if found is None:
        return None
    return {
        "reason": found.reason.value,
        "by": found.by,
        "time": found.time,
        "signal": found.signal,
        "rss_bytes": found.rss_bytes,
        "limit_bytes": found.limit_bytes,
    }

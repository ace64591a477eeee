"""What the room writes down beside the rows of executions: lives of processes, and events with their causes.

Law: the row of a life exists before its process does (DESIGN law 1). The events of one execution are a chain, each
naming the one before it; what an execution leads to names its last one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from supervisord_py.process.instance import ended_row, spawned_row, starting_row

if TYPE_CHECKING:
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.pipes.running.live_run import LiveRun
    from supervisord_py.process.events import EventStream
    from supervisord_py.process.model import Child, ExitRecord, Reason


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
        await self._ledger.write(starting_row(key, unit, time.time(), start_method="spawn"))

    async def spawned(self, child: Child) -> None:
        """Write down which process it is."""
        await self._ledger.write(spawned_row(child))

    async def ended(self, key: str, reason: Reason, record: ExitRecord | None) -> None:
        """Write down how it ended; only the first end of a key counts."""
        await self._ledger.write(ended_row(key, reason, record))

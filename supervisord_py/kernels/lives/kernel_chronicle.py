"""What the room writes down of kernels: their lives, and events with their causes."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from supervisord_py.ledger.instances import became_ready
from supervisord_py.process.instance import ended_row, spawned_row, starting_row
from supervisord_py.process.model import Reason

if TYPE_CHECKING:
    from supervisord_py.kernels.lives.kernel_life import KernelLife
    from supervisord_py.kernels.messages import KernelEnd
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.process.events import EventStream


ENDS_KEPT = 1_000
_ENDS = frozenset({"died", "stopped"})
_ASKED_FOR = frozenset({Reason.STOPPED, Reason.SHUTDOWN})


class KernelChronicle:
    """Rows of instances, and events."""

    def __init__(self, ledger: Ledger, events: EventStream) -> None:
        self._ledger = ledger
        self._events = events
        self._ends: OrderedDict[str, int] = OrderedDict()
        """The last unwanted end of each unit that was not started since."""

    def say(self, event: str, life: KernelLife, reason: Reason | None = None, **facts: Any) -> int:
        """Publish an event about a life; its cause is the one before it, a start's the end of the life before."""
        cause = self._ends.pop(life.unit, None) if event == "starting" else life.event
        life.event = self._events.publish(event, life.unit, reason, instance=life.key, cause=cause, **facts)
        self._note_end(event, life.unit, reason, life.event)
        return life.event

    def say_of_session(self, event: str, unit: str, reason: Reason | None = None, **facts: Any) -> int:
        """Publish an event about a session that is not about one of its living kernels."""
        number = self._events.publish(event, unit, reason, **facts)
        self._note_end(event, unit, reason, number)
        return number

    def _note_end(self, event: str, unit: str, reason: Reason | None, number: int) -> None:
        if event in _ENDS and reason not in _ASKED_FOR:
            self._ends[unit] = number
            while len(self._ends) > ENDS_KEPT:
                self._ends.popitem(last=False)

    async def starting(self, life: KernelLife) -> None:
        """Write the row of a life; returns once it is written, or the ledger is known to be degraded."""
        backend = life.session.backend.value
        await self._ledger.write(starting_row(life.key, life.unit, life.started_at, start_method=backend))

    async def spawned(self, life: KernelLife) -> None:
        """Write down which process it is."""
        if life.child is not None:
            await self._ledger.write(spawned_row(life.child))

    async def ready(self, life: KernelLife) -> None:
        """Write down when it became ready."""
        if life.ready_at is not None:
            await self._ledger.write(became_ready(life.key, life.ready_at))

    async def ended(self, key: str, end: KernelEnd) -> None:
        """Write down how it ended; only the first end of a key counts."""
        await self._ledger.write(ended_row(key, end.reason, end.record))

    async def flush(self) -> None:
        """Return once what was said is on the disk, or the ledger is known to be degraded."""
        await self._ledger.flush()

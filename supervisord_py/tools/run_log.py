"""What is written down of runs: a row of each in the ledger, and an event at its end.

Rows and events of runs lag a moment (DESIGN D4) and are written together: a warm call leaves the ledger alone. A run
that takes longer than that has a row while it goes on, so that one that is cut off is known by it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from supervisord_py.errors import PxError, TimedOutError
from supervisord_py.ledger.instances import RUNS, RunRow
from supervisord_py.process.model import Reason
from supervisord_py.tools.failures import is_the_tools

if TYPE_CHECKING:
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.process.events import EventStream
    from supervisord_py.process.instance import Instance

WRITE_SECONDS = 0.05
FAILED_SECONDS = 1.0
"""Failed runs of a tool are an event at most that often: a tool that fails every request must not flood the stream."""


class RunLog:
    """Numbers runs, and writes down how they went. Use it on the loop's thread."""

    def __init__(self, ledger: Ledger, events: EventStream) -> None:
        self._ledger = ledger
        self._events = events
        self._begun: dict[int, RunRow] = {}  # of those that go on and are not written yet, by id
        self._ended: list[RunRow] = []
        self._failed: dict[str, float] = {}  # by unit: when a failed run was last an event
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, unit: str, request_id: str | None) -> RunRow:
        """Return the row of a run that begins now; it is written a moment later."""
        row = RunRow(self._ledger.next_number(RUNS.name), unit, time.time(), request_id=request_id)
        self._begun[row.id] = row
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WRITE_SECONDS, self.flush)
        return row

    def end(
        self,
        row: RunRow,
        error: BaseException | None,
        *,
        status: int | None,
        seconds: float,
        cold_start_ms: int | None,
        instance: Instance | None,
    ) -> None:
        """Note the end of a run and publish it; that it failed by its tool's fault is an event of its own."""
        outcome, kind = "completed", None
        if isinstance(error, PxError):
            outcome, kind, status = str(error.extra.get("reason") or "failed"), error.kind, error.status
            outcome = Reason.TIMEOUT.value if isinstance(error, TimedOutError) else outcome
        elif error is not None:
            outcome, kind = Reason.CANCELLED.value, "cancelled"
        ended_at, key, unit = time.time(), instance.key if instance else None, row.unit
        facts: dict[str, Any] = {"outcome": outcome, "error_kind": kind, "cold_start_ms": cold_start_ms}
        self._begun.pop(row.id, None)
        self._ended.append(
            replace(row, ended_at=ended_at, status=status, duration_seconds=seconds, instance=key, **facts)
        )
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WRITE_SECONDS, self.flush)
        told = {**facts, "run": row.id, "duration_seconds": round(seconds, 6)}
        self._events.publish("run", unit, instance=key, late=True, **told)
        if error is not None and is_the_tools(error) and ended_at - self._failed.get(unit, 0.0) >= FAILED_SECONDS:
            self._failed[unit] = ended_at
            ended = instance is not None and instance.over.is_set()
            about: dict[str, Any] = {"status": status, "kind": kind, "instance_ended": ended}
            self._events.publish("run_failed", unit, instance=key, run=row.id, **about)

    def flush(self) -> None:
        """Hand what there is to write to the ledger."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for row in self._begun.values():
            self._ledger.post(RUNS.insert(row))
        for row in self._ended:
            self._ledger.post(RUNS.put(row))
        self._begun.clear()
        self._ended.clear()
        self._events.write_late()

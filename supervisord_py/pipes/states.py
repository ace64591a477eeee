"""What is remembered of each pipe between its runs.

Laws: decided from memory, written behind: a full disk never makes a pipe run twice. Of each instant that was noted in
this life it is known when that was on the clock that nobody sets, however the wall clock is turned afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import structs

from supervisord_py.ledger.pipe_executions import ErrorType, Status
from supervisord_py.ledger.pipe_history import last_of_each
from supervisord_py.ledger.pipe_state import PIPE_STATES, PipeStateRow, forget
from supervisord_py.pipes.due import Progress

if TYPE_CHECKING:
    from supervisord_py.ledger.pipe_executions import Execution, Outcome
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.pipes.models import PipeDefinition
    from supervisord_py.pipes.scheduler import Clocks

_INSTANTS = ("last_run_at", "last_due", "anchor_at")
_NOT_ITS_OWN = frozenset((ErrorType.CANCELLED, ErrorType.SHUTDOWN, ErrorType.INTERRUPTED))
_AVERAGED = 20  # durations are averaged over about so many runs


class PipeStates:
    """One row for each pipe that was ever seen.

    Attributes:
        last_status: How the newest execution of a pipe ended.
        average_seconds: How long its runs take; of those before this life only the last one counts.
    """

    def __init__(self, ledger: Ledger, clocks: Clocks) -> None:
        self.last_status: dict[str, Status] = {}
        self.average_seconds: dict[str, float] = {}
        self._ledger = ledger
        self._clocks = clocks
        self._rows: dict[str, PipeStateRow] = {}
        self._boots: dict[tuple[str, str], float] = {}
        """Of a pipe's instant: when it was, on the clock that counts suspend."""

    async def open(self) -> None:
        """Read what is remembered."""
        self._rows = {row.pipe_name: row for row in await PIPE_STATES.find(self._ledger, "ORDER BY pipe_name")}
        wall, ahead = self._clocks.wall(), self._clocks.wall() - self._clocks.boot()
        for pipe, row in self._rows.items():
            known = {name: getattr(row, name) for name in _INSTANTS}
            # What lies ahead of the clock was noted when that was wrong: it counts as now (B4).
            self._boots |= {(pipe, name): min(at, wall) - ahead for name, at in known.items() if at is not None}
        for execution in (await last_of_each(self._ledger)).values():
            self.ended(execution)

    def get(self, pipe: str) -> PipeStateRow:
        """Return the row of a pipe; an empty one where nothing is remembered."""
        return self._rows.get(pipe) or PipeStateRow(pipe)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._rows)

    def take(self, pipe: str, **fields: Any) -> None:
        """Take over a change that the transaction of somebody's row writes."""
        before = self.get(pipe)
        after = self._rows[pipe] = structs.replace(before, **fields)
        for name in _INSTANTS:
            instant = getattr(after, name)
            if instant is not None and instant != getattr(before, name):
                self._boots[pipe, name] = instant - (self._clocks.wall() - self._clocks.boot())

    def change(self, pipe: str, **fields: Any) -> None:
        """Change a row and write it behind."""
        before = self.get(pipe)
        wanted = {name: value for name, value in fields.items() if getattr(before, name) != value}
        if wanted or pipe not in self._rows:
            self.take(pipe, **wanted)
            self._ledger.post(PIPE_STATES.merge(pipe, **wanted))

    def decided(self, pipe: str, words: str) -> None:
        """Remember what was last done about a pipe, in a sentence."""
        self.change(pipe, last_decision=words, last_decision_at=self._clocks.moment())

    async def forget(self, pipe: str) -> None:
        """Drop what is remembered of a pipe that is gone."""
        self._rows.pop(pipe, None)
        for name in _INSTANTS:
            self._boots.pop((pipe, name), None)
        await self._ledger.write(forget(pipe))

    def progress(self, pipe: str) -> Progress:
        """Return what the scheduler is to know of a pipe."""
        row = self.get(pipe)
        touched = "last_run_at" if (row.last_run_at or 0.0) >= (row.last_due or 0.0) else "last_due"
        return Progress(
            anchor_at=row.anchor_at if row.anchor_at is not None else self._clocks.wall(),
            last_run_at=row.last_run_at,
            last_due=row.last_due,
            occurrences=row.occurrences,
            touched_boot=self._boots.get((pipe, touched)),
            anchor_boot=self._boots.get((pipe, "anchor_at")),
        )

    def is_enabled(self, definition: PipeDefinition) -> bool:
        """Say whether a pipe may run by itself: the wish of this machine, until its file says something new."""
        row = self.get(definition.name)
        if row.enabled is not None and row.enabled_file == definition.enabled:
            return row.enabled
        return definition.enabled

    def change_by(self, execution: Execution, outcome: Outcome, now: float, *, goes_on: bool) -> dict[str, Any]:
        """Return what an end means for its pipe; `goes_on`: another try follows by itself."""
        if outcome.status is Status.COMPLETED:
            end = execution.context_end
            return {"last_success_at": now, "consecutive_failures": 0, "last_context_end": end}
        if outcome.error_type in _NOT_ITS_OWN or goes_on:
            return {}
        return {"consecutive_failures": self.get(execution.pipe_name).consecutive_failures + 1}

    def ended(self, it: Execution) -> None:
        """Take in how an execution ended."""
        self.last_status[it.pipe_name] = it.status
        if it.duration_ms is not None and it.status in {Status.COMPLETED, Status.TIMED_OUT}:
            before = self.average_seconds.get(it.pipe_name, it.duration_ms / 1000)
            self.average_seconds[it.pipe_name] = before + (it.duration_ms / 1000 - before) / _AVERAGED

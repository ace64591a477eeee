"""What is remembered of each pipe between its runs: decided from memory, written behind.

Law: a full disk never makes a pipe run twice: memory is the truth while we live, the ledger after us. A change that
belongs to a row rides in that row's transaction; then it is only taken over here. Of each instant that was noted in
this life it is known when that was on the clock that nobody sets, however the wall clock is turned afterwards (B4).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisord_py.ledger import pipe_state
from supervisord_py.ledger.pipe_state import PipeStateRow, StateChange

if TYPE_CHECKING:
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.pipes.models import PipeDefinition
    from supervisord_py.pipes.scheduler import Clocks

_INSTANTS = ("last_run_at", "last_due", "anchor_at")


class PipeStates:
    """One row for each pipe that was ever seen."""

    def __init__(self, ledger: Ledger, clocks: Clocks) -> None:
        self._ledger = ledger
        self._clocks = clocks
        self._rows: dict[str, PipeStateRow] = {}
        self._boots: dict[tuple[str, str], float] = {}
        """Of a pipe's instant: when it was, on the clock that counts suspend."""

    async def open(self) -> None:
        """Read what is remembered."""
        self._rows = await pipe_state.everything(self._ledger)
        wall, ahead = self._clocks.wall(), self._clocks.wall() - self._clocks.boot()
        for pipe, row in self._rows.items():
            known = {name: getattr(row, name) for name in _INSTANTS}
            # What lies ahead of the clock was noted when that was wrong: it counts as now (B4).
            self._boots |= {(pipe, name): min(at, wall) - ahead for name, at in known.items() if at is not None}

    def get(self, pipe: str) -> PipeStateRow:
        """Return the row of a pipe; an empty one where nothing is remembered."""
        return self._rows.get(pipe) or PipeStateRow(pipe)

    def knows(self, pipe: str) -> bool:
        """Say whether anything is remembered of it."""
        return pipe in self._rows

    @property
    def names(self) -> tuple[str, ...]:
        """All pipes that something is remembered of."""
        return tuple(self._rows)

    def take(self, change: StateChange) -> StateChange:
        """Take over a change that somebody else writes, in the transaction of a row; return it."""
        pipe, before = change.pipe_name, self.get(change.pipe_name)
        after = self._rows[pipe] = change.applied(before)
        ahead = self._clocks.wall() - self._clocks.boot()
        for name in _INSTANTS:
            instant = getattr(after, name)
            if instant is not None and instant != getattr(before, name):
                self._boots[pipe, name] = instant - ahead
        return change

    def touched_boot(self, pipe: str) -> float | None:
        """Return when it last ran or was skipped, on the clock that counts suspend; None where only the wall knows."""
        row = self.get(pipe)
        name = "last_run_at" if (row.last_run_at or 0.0) >= (row.last_due or 0.0) else "last_due"
        return self._boots.get((pipe, name))

    def anchor_boot(self, pipe: str) -> float | None:
        """Return its anchor, on the same clock; None where only the wall knows."""
        return self._boots.get((pipe, "anchor_at"))

    def change(self, pipe: str, **fields: Any) -> PipeStateRow:
        """Change a row and write it behind; return what it has become."""
        before = self.get(pipe)
        wanted = {name: value for name, value in fields.items() if getattr(before, name) != value}
        if wanted or pipe not in self._rows:
            pipe_state.remember(self._ledger, self.take(StateChange(pipe_name=pipe, **wanted)))
        return self.get(pipe)

    async def forget(self, pipe: str) -> None:
        """Drop what is remembered of a pipe that is gone."""
        self._rows.pop(pipe, None)
        for name in _INSTANTS:
            self._boots.pop((pipe, name), None)
        await pipe_state.forget(self._ledger, pipe)

    # -- what it means -----------------------------------------------------------------------------------------------

    def is_enabled(self, definition: PipeDefinition) -> bool:
        """Say whether a pipe may run by itself: the wish of this machine, until its file says something new."""
        row = self.get(definition.name)
        if row.enabled is not None and row.enabled_file == definition.enabled:
            return row.enabled
        return definition.enabled

"""What a change of a pipe's file, or of a wish about it, means for what is remembered of it and for its runs.

Laws: what waits because of an old schedule does not run after a new one; what runs in a folder that is gone is ended
first and forgotten then. A broken file harms nobody.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.ledger.pipe_executions import Trigger
from supervisord_py.pipes.catalog import SETTLE_SECONDS
from supervisord_py.pipes.models import BrokenPipe, PipeDefinition, problem_text
from supervisord_py.pipes.schedule import At

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.ledger.pipe_state import PipeStateRow
    from supervisord_py.pipes.catalog import Change
    from supervisord_py.pipes.executions import Executions

LOOK_SECONDS = 1.0  # between two looks at the folders
FEW = 32  # so many pipes are looked at without a thread
_MEANS = " | "  # between a schedule's text and what it was read as, in what is remembered of a pipe
_log = structlog.get_logger(__name__)


class Upkeep:
    """Keeps what is remembered of pipes, and what waits of them, in step with their files."""

    def __init__(self, room: Executions, look_again: Callable[[], None]) -> None:
        self._room = room
        self._look_again = look_again
        self._was_enabled: dict[str, bool] = {}
        self._looking = asyncio.Lock()

    async def begin(self) -> set[str]:
        """Look for the first time; return the pipes whose schedule has changed while we were away."""
        await asyncio.to_thread(self._room.catalog.refresh)
        return {it.name for it in self._room.usable() if self._note(it)}

    async def settle_all(self, changed: set[str]) -> None:
        """Bring the line in step with what became of the pipes while we were away, once the line is known."""
        room = self._room
        for definition in tuple(room.usable()):
            await self._dequeue(definition, "its schedule has changed" if definition.name in changed else None)
        if room.catalog.trouble is None:
            waiting = {run.name for run in room.runs.values()}
            for name in {*room.states.names, *waiting} - set(room.catalog.pipes):
                await self.gone(name, "its folder is gone")

    async def look_for_ever(self) -> None:
        """Look at the files until cancelled: each second, and soon again where one was being written."""
        while True:
            await self.refresh()
            await asyncio.sleep(SETTLE_SECONDS if self._room.catalog.unsettled else LOOK_SECONDS)

    async def refresh(self) -> None:
        """Look now, and take in what has changed; what another look finds meanwhile is taken in before this one."""
        async with self._looking:
            catalog = self._room.catalog
            is_few = len(catalog.pipes) <= FEW  # one stat each: a thread would cost more, and wake the loop once more
            changes = catalog.refresh() if is_few else await asyncio.to_thread(catalog.refresh)
            for change in changes:
                await self._take(change)
            if changes:
                self._look_again()

    async def _take(self, change: Change) -> None:
        declared = self._room.catalog.pipes.get(change.name)
        problem = problem_text(declared.problem) if isinstance(declared, BrokenPipe) else None
        self._room.say_of_pipe(f"pipe_{change.kind}", change.name, config_error=problem)
        if isinstance(declared, PipeDefinition):
            await self.settle(declared)
        elif isinstance(declared, BrokenPipe):
            _log.warning("pipe_broken", pipe=change.name, detail=problem)
        else:
            self._room.task(self.gone(change.name, "its folder was deleted"))

    async def gone(self, pipe: str, why: str) -> None:
        """End everything of a pipe that is not there any more, and forget it; its executions stay."""
        self._was_enabled.pop(pipe, None)
        await self._room.cancel_all(pipe, why)
        if pipe not in self._room.catalog.pipes:  # it may have come back meanwhile
            await self._room.states.forget(pipe)

    async def settle(self, definition: PipeDefinition) -> None:
        """Bring what waits in step with a definition and with what is wished of it."""
        room, name = self._room, definition.name
        why = "its schedule has changed" if self._note(definition) else None
        enabled = room.states.is_enabled(definition)
        if enabled and not self._was_enabled.get(name, enabled):
            # What was due before and did not run is no reason to wait.
            room.states.change(name, anchor_at=room.clocks.moment(), last_due=room.states.get(name).last_run_at)
        self._was_enabled[name] = enabled
        await self._dequeue(definition, why)

    async def _dequeue(self, definition: PipeDefinition, why: str | None) -> None:
        """Take out of the line what must not run any more."""
        is_off = not self._room.states.is_enabled(definition)
        is_spent = isinstance(definition.schedule, At)  # its own start has disabled it: that is no wish of anybody
        for run in self._room.queued(definition.name):
            trigger, reason = run.execution.trigger, None
            if is_off and not is_spent and trigger is not Trigger.MANUAL:
                reason = "it was disabled"
            elif trigger in {Trigger.SCHEDULED, Trigger.RETRY}:
                reason = why
            if reason is not None:
                await self._room.end(run, f"cancelled before it ran: {reason}")

    def _note(self, definition: PipeDefinition) -> bool:
        """Note a pipe that is new, or whose schedule is another one; say whether it is another one."""
        states, now = self._room.states, self._room.clocks.moment()
        name, text = definition.name, f"{definition.schedule_text}{_MEANS}{definition.schedule!r}"
        if _is_wish_over(states.get(name), definition, text):
            states.change(name, enabled=None, enabled_file=None)
        self._was_enabled.setdefault(name, states.is_enabled(definition))
        row = states.get(name)
        if row.schedule == text and row.anchor_at is not None:
            return False
        # The last decision was about the other schedule.
        fresh: dict[str, Any] = {"occurrences": 0, "last_decision": None, "last_decision_at": None}
        fresh["last_due"] = row.last_run_at
        states.change(name, schedule=text, anchor_at=now, **fresh)
        return row.schedule is not None and row.schedule != text


def _is_wish_over(row: PipeStateRow, definition: PipeDefinition, schedule: str) -> bool:
    """Say whether what was wished of a pipe counts no more: its file says another word, or names another time.

    Where the file has said something new since, the wish is over for good: it does not come back with the old word.
    A one-time schedule that has run was disabled by nobody but itself: with another schedule it may run again.
    """
    if row.enabled is None:
        return False
    is_spent = (row.schedule or "").rpartition(_MEANS)[2].startswith(f"{At.__name__}(") and row.occurrences > 0
    return definition.enabled != row.enabled_file or (is_spent and not row.enabled and row.schedule != schedule)

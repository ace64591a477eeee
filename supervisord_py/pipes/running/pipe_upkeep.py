"""What a change of a pipe's file, or of a wish about it, means for what waits and runs.

Law: what waits because of an old schedule does not run after a new one (E1), and what was due and is taken out of the
line unrun is owed still; what runs in a folder that is gone is ended first and forgotten then (F3). A broken file harms
nobody: it is shown, its own due times stand still.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from supervisord_py.pipes.catalog import SETTLE_SECONDS, ChangeKind
from supervisord_py.pipes.execution import Trigger
from supervisord_py.pipes.models import BrokenPipe, PipeDefinition, problem_text
from supervisord_py.pipes.schedule import At

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisord_py.ledger.pipe_state import PipeStateRow
    from supervisord_py.pipes.catalog import Change, PipeCatalog
    from supervisord_py.pipes.running.by_hand import Cancelling
    from supervisord_py.pipes.running.live_run import LiveRun
    from supervisord_py.pipes.running.running_house import RunningHouse

_WORDS = {
    ChangeKind.ADDED: "pipe_added",
    ChangeKind.CHANGED: "pipe_changed",
    ChangeKind.REMOVED: "pipe_removed",
    ChangeKind.BROKEN: "pipe_broken",
    ChangeKind.MENDED: "pipe_mended",
}
_BY_ITSELF = frozenset((Trigger.SCHEDULED, Trigger.RETRY))
_MEANS = " | "
"""Between a schedule's text and what it was read as, in what is remembered of a pipe."""
_log = structlog.get_logger(__name__)


class PipeUpkeep:
    """Keeps what is remembered of pipes in step with their files.

    Args:
        house: Whose pipes.
        catalog: The files.
        cancelling: Ends what must not go on.
        on_change: Told when something changed: scheduler and watches look again.
    """

    def __init__(
        self,
        house: RunningHouse,
        catalog: PipeCatalog,
        cancelling: Cancelling,
        on_change: Callable[[], None],
    ) -> None:
        self._house = house
        self._catalog = catalog
        self._cancelling = cancelling
        self._on_change = on_change
        self._was_enabled: dict[str, bool] = {}
        self._changed_meanwhile: set[str] = set()
        self._looking = asyncio.Lock()

    async def begin(self) -> None:
        """Look for the first time: nothing is an event, everything may have changed while we were away."""
        await asyncio.to_thread(self._catalog.refresh)
        for declared in self._catalog.all().values():
            if isinstance(declared, PipeDefinition) and self._note(declared):
                self._changed_meanwhile.add(declared.name)

    async def settle_all(self) -> None:
        """Bring the line in step with what became of the pipes while we were away, once the line is known."""
        known = self._catalog.all()
        for declared in known.values():
            if isinstance(declared, PipeDefinition):
                why = "its schedule has changed" if declared.name in self._changed_meanwhile else None
                await self._dequeue(declared, why)
        self._changed_meanwhile.clear()
        if self._catalog.trouble is None:
            waiting = {live.pipe for live in self._house.roster.all()}
            for name in {*self._house.states.names, *waiting} - set(known):
                await self.gone(name, "its folder is gone")

    async def look_for_ever(self) -> None:
        """Look at the files until cancelled: each second, and soon again where one was being written."""
        while True:
            await self.refresh()
            seconds = self._house.config.scheduler.look_seconds
            await asyncio.sleep(min(seconds, SETTLE_SECONDS) if self._catalog.unsettled else seconds)

    async def refresh(self) -> None:
        """Look now, and take in what has changed; what another look finds meanwhile is taken in before this one."""
        async with self._looking:
            changes = await asyncio.to_thread(self._catalog.refresh)
            for change in changes:
                await self._take(change)
            if changes:
                self._on_change()

    async def _take(self, change: Change) -> None:
        declared = self._catalog.get(change.name)
        problem = problem_text(declared.problem) if isinstance(declared, BrokenPipe) else None
        self._house.chronicle.say_of_pipe(_WORDS[change.kind], change.name, config_error=problem)
        if isinstance(declared, PipeDefinition):
            await self.settle(declared)
        elif isinstance(declared, BrokenPipe):
            _log.warning("pipe_broken", pipe=change.name, detail=problem_text(declared.problem))
        else:
            self._house.run_task(self.gone(change.name, "its folder was deleted"), f"pipe-gone:{change.name}")

    async def gone(self, pipe: str, why: str) -> None:
        """End everything of a pipe that is not there any more, and forget it; its executions stay."""
        self._was_enabled.pop(pipe, None)
        await self._cancelling.cancel_pipe(pipe, why)
        if self._catalog.get(pipe) is None:  # it may have come back meanwhile
            await self._house.states.forget(pipe)

    async def settle(self, definition: PipeDefinition) -> None:
        """Bring what waits in step with a definition and with what is wished of it."""
        name = definition.name
        why = "its schedule has changed" if self._note(definition) else None
        enabled = self._house.states.is_enabled(definition)
        if enabled and not self._was_enabled.get(name, enabled):
            self._house.states.change(name, anchor_at=self._house.clocks.moment())
        self._was_enabled[name] = enabled
        await self._dequeue(definition, why)

    async def _dequeue(self, definition: PipeDefinition, why: str | None) -> None:
        """Take out of the line what must not run any more."""
        is_off = not self._house.states.is_enabled(definition)
        is_spent = isinstance(definition.schedule, At)  # its own start has disabled it: that is no wish of anybody
        # What was due comes first: the scheduler must not find it in line once it is owed again.
        for live in sorted(self._house.roster.queued(definition.name), key=_was_not_due):
            trigger, reason = live.execution.trigger, None
            if is_off and not is_spent and trigger is not Trigger.MANUAL:
                reason = "it was disabled"
            elif trigger in _BY_ITSELF:
                reason = why
            if reason is not None:
                self._owe_again(live)
                await self._cancelling.cancel(live, f"cancelled before it ran: {reason}")

    def _owe_again(self, live: LiveRun) -> None:
        """Have what was due and is about to leave the line count as not served.

        It is told before the row is final: after a crash in between, what waits still is taken out once more. Whoever
        cancelled it by hand did not want it; it stays served.
        """
        if live.execution.trigger is Trigger.SCHEDULED and live.is_wanted:
            row = self._house.states.get(live.pipe)
            occurrences = max(0, row.occurrences - 1)
            self._house.states.change(live.pipe, last_due=row.last_run_at, occurrences=occurrences)

    def _note(self, definition: PipeDefinition) -> bool:
        """Note a pipe that is new, or whose schedule is another one; say whether it is another one."""
        states, now = self._house.states, self._house.clocks.moment()
        name, text = definition.name, f"{definition.schedule_text}{_MEANS}{definition.schedule!r}"
        if _is_wish_over(states.get(name), definition, text):
            states.change(name, enabled=None, enabled_file=None)
        self._was_enabled.setdefault(name, states.is_enabled(definition))
        row = states.get(name)
        if row.schedule == text and row.anchor_at is not None:
            return False
        states.change(
            name,
            schedule=text,
            anchor_at=now,
            occurrences=0,
            last_decision=None,  # it was about the other schedule
            last_decision_at=None,
        )
        return row.schedule is not None and row.schedule != text


def _was_not_due(live: LiveRun) -> bool:
    return live.execution.trigger is not Trigger.SCHEDULED


def _is_wish_over(row: PipeStateRow, definition: PipeDefinition, schedule: str) -> bool:
    """Say whether what was wished of a pipe counts no more: its file says another word, or names another time.

    Where the file has said something new since, the wish is over for good: it does not come back with the old word.
    A one-time schedule that has run was disabled by nobody but itself: with another schedule it may run again.
    """
    if row.enabled is None:
        return False
    is_spent = (row.schedule or "").rpartition(_MEANS)[2].startswith(f"{At.__name__}(") and row.occurrences > 0
    return definition.enabled != row.enabled_file or (is_spent and not row.enabled and row.schedule != schedule)

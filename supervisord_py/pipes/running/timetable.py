"""Joins the scheduler's loop to the room: which pipes have times, what is remembered of them, what it said."""

from __future__ import annotations

from datetime import UTC, tzinfo
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from supervisord_py.pipes.scheduling.clock_watch import ClockWatch
from supervisord_py.pipes.scheduling.due import Never, Wait
from supervisord_py.pipes.scheduling.schedule import Manual
from supervisord_py.pipes.scheduling.scheduler import Candidate, Scheduler

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator

    from supervisord_py.ledger.pipe_state import PipeStateRow
    from supervisord_py.pipes.definition import PipeDefinition
    from supervisord_py.pipes.execution import Outcome
    from supervisord_py.pipes.running.live_run import LiveRun
    from supervisord_py.pipes.running.running_house import RunningHouse
    from supervisord_py.pipes.scheduling.due import Decision, Due, Now, Progress
    from supervisord_py.pipes.scheduling.scheduler import Note, SchedulerHealth


class Timetable:
    """The scheduler and what it asks.

    Args:
        house: Whose pipes.
        pipes: All that can be used at present.
    """

    def __init__(self, house: RunningHouse, pipes: Callable[[], Iterable[PipeDefinition]]) -> None:
        self._house = house
        self._pipes = pipes
        clocks = house.clocks
        self._watch = ClockWatch(clocks.wall, clocks.boot, clocks.awake, self._zone)
        self._scheduler: Scheduler | None = None
        self._progress: Callable[[PipeStateRow], Progress] | None = None
        self._trigger: Callable[[str, Due], Awaitable[str | None]] | None = None

    def join(
        self, trigger: Callable[[str, Due], Awaitable[str | None]], progress: Callable[[PipeStateRow], Progress]
    ) -> None:
        """Say what it starts pipes with, and what it knows of them."""
        self._trigger, self._progress = trigger, progress

    def _zone(self) -> tzinfo:
        try:
            return ZoneInfo(self._house.config.default_timezone or self._house.shelf.zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return UTC

    def now(self) -> Now:
        """Return what the clocks show."""
        return self._watch.now()

    def start(self) -> None:
        """Begin to ask which pipes are due."""
        if self._scheduler is not None or self._trigger is None:
            return
        seed = self._house.placement.new_key().partition(".")[0]
        limits = self._house.config.scheduler
        self._scheduler = Scheduler(self._candidates, self._trigger, self._note, limits, watch=self._watch, seed=seed)
        self._house.run_task(self._scheduler.run(), "pipe-scheduler")

    def wake(self) -> None:
        """Look now."""
        if self._scheduler is not None:
            self._scheduler.wake()

    def reconfigure(self) -> None:
        """Take new settings; the look that follows starts nothing where pipes are off."""
        if self._scheduler is not None:
            self._scheduler.reconfigure(self._house.config.scheduler)

    def decision_on(self, definition: PipeDefinition) -> Decision | None:
        """Return what was last decided about the schedule that a pipe has now, which may be a moment old."""
        scheduler = self._scheduler
        return None if scheduler is None else scheduler.decision_on(definition.name, definition.schedule)

    def health(self) -> SchedulerHealth | None:
        """Return how the loop does; None before its start."""
        return None if self._scheduler is None else self._scheduler.health()

    async def ended(self, live: LiveRun, _outcome: Outcome, _goes_on: bool) -> None:
        """Look again, where it has times: a pipe is free."""
        if live.definition is None or not isinstance(live.definition.schedule, Manual):
            self.wake()

    def _candidates(self) -> Iterator[Candidate]:
        states = self._house.states
        for definition in self._pipes() if self._house.config.enabled else ():
            row = states.get(definition.name)
            # Who was not taken in yet (no anchor) would be decided about, and then be taken for new.
            if self._progress is None or row.anchor_at is None or not states.is_enabled(definition):
                continue
            # What is on its way out of the line would be taken for a run that keeps the next one waiting.
            if not any(live.is_leaving_line for live in self._house.roster.of_pipe(definition.name)):
                progress = self._progress(row)
                yield Candidate(definition.name, definition.schedule, progress, definition.run_on_enable)

    def _note(self, pipe: str, note: Note) -> None:
        """Remember what was decided. That it merely waits would hide what was decided before: that is shown live."""
        words = note.decided if isinstance(note, Wait) else note.why
        is_told = isinstance(note, Wait | Never) and words == self._house.states.get(pipe).last_decision
        if not words or is_told or (isinstance(note, Never) and not note.over):
            return
        self._house.states.change(pipe, last_decision=words, last_decision_at=self._house.clocks.moment())

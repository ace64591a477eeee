"""What the scheduler knows of each pipe between two looks: its settled progress, its decision, when to ask again. Pure.

Law: a pipe is asked again only when what is known of it changed or its time has come; and what was served is
remembered here, too, so that a room whose memory lags cannot make one due instant start two executions. Where the room
begins anew with a pipe (another anchor, another schedule) its word counts: it may have taken back what never ran.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from supervisord_py.pipes.scheduling.due import Due, Now, Progress, Wait, carried, decide, served, settle, stagger
from supervisord_py.process.backoff import Backoff, BackoffPolicy

if TYPE_CHECKING:
    from supervisord_py.pipes.config import SchedulerLimits
    from supervisord_py.pipes.scheduling.due import Decision
    from supervisord_py.pipes.scheduling.schedule import Schedule

_RETRIES = BackoffPolicy(initial_seconds=5.0, max_seconds=300.0, reset_seconds=3600.0)
_SLACK_SECONDS = 0.001
"""The wall clock and the one that counts suspend are read one after the other."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An enabled pipe, as the room knows it."""

    name: str
    schedule: Schedule
    progress: Progress
    run_on_enable: bool = True


@dataclass(slots=True)
class Entry:
    """One pipe.

    Attributes:
        candidate: As the room gave it.
        progress: Settled, with what was served since.
        deadline: When to ask again, on the clock that counts suspend.
        told: The decision that was last told to the room.
    """

    candidate: Candidate
    progress: Progress
    deadline: float = -math.inf
    decision: Decision | None = None
    told: object = None
    backoff: Backoff = field(default_factory=lambda: Backoff(_RETRIES))


class Agenda:
    """All of them. `now` is passed in."""

    def __init__(self, limits: SchedulerLimits, seed: str) -> None:
        self.limits = limits
        self._seed = seed
        self._entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: str) -> Entry | None:
        """Return what is known of a pipe."""
        return self._entries.get(name)

    def update(self, candidate: Candidate, now: Now) -> Entry | None:
        """Take in what the room says; return the entry when it has to be decided anew."""
        entry = self._entries.get(candidate.name)
        if entry is None:
            entry = self._entries[candidate.name] = Entry(candidate, settle(candidate.progress, now, self.limits))
        elif entry.candidate is not candidate and entry.candidate != candidate:
            self._renew(entry, candidate, now)
        return entry if entry.deadline <= now.boottime else None

    def _renew(self, entry: Entry, candidate: Candidate, now: Now) -> None:
        fresh = candidate.progress
        is_anew = fresh.anchor_at != entry.candidate.progress.anchor_at
        if is_anew:
            entry.told = None  # the room has forgotten what it was told
        if candidate.schedule != entry.candidate.schedule:
            entry.backoff = Backoff(_RETRIES)
        elif entry.progress.last_due is not None and not is_anew:
            fresh = replace(fresh, last_due=max(entry.progress.last_due, fresh.last_due or -math.inf))
        entry.progress = settle(carried(entry.progress, fresh), now, self.limits)
        entry.candidate = candidate
        entry.deadline = entry.backoff.settled(now.boottime).blocked_until or -math.inf

    def keep_only(self, names: set[str]) -> None:
        """Forget pipes that are gone or disabled."""
        if len(names) != len(self._entries):
            self._entries = {name: entry for name, entry in self._entries.items() if name in names}

    def clocks_changed(self, now: Now) -> None:
        """Decide everything anew: the wall clock was set, or the machine slept."""
        for entry in self._entries.values():
            entry.progress = settle(replace(entry.progress, watermark=None), now, self.limits)
            entry.deadline = entry.backoff.settled(now.boottime).blocked_until or -math.inf

    def decide(self, entry: Entry, now: Now) -> Decision:
        """Decide about one, and note when to ask again."""
        pipe = entry.candidate
        decision = decide(
            pipe.schedule,
            entry.progress,
            now,
            self.limits,
            run_on_enable=pipe.run_on_enable,
            delay=stagger(pipe.name, self._seed, self.limits),
        )
        entry.decision = decision
        if not isinstance(decision, Due):
            entry.deadline = now.boottime_of(decision.until) if isinstance(decision, Wait) else math.inf
        return decision

    def served(self, entry: Entry, due: Due, now: Now, *, ran: bool) -> None:
        """Note that a due instant was dealt with; decide about the next one."""
        entry.backoff = Backoff(_RETRIES)
        entry.progress = served(entry.progress, due, now, self.limits, ran=ran)
        self.decide(entry, now)

    def failed(self, entry: Entry, now: Now) -> float:
        """Note that it could not be started or decided; return the seconds until it is tried again."""
        entry.backoff = entry.backoff.failed(now.boottime, 0.0)
        entry.deadline = entry.backoff.blocked_until or now.boottime
        return entry.deadline - now.boottime

    def deadline(self) -> float:
        """Return when the next one has to be asked, on the clock that counts suspend; infinity for none."""
        return min((entry.deadline for entry in self._entries.values()), default=math.inf) + _SLACK_SECONDS

"""The loop that asks which pipes are due, and starts them. It polls nothing: it sleeps until something is due.

Laws. Started only when the API listens (G1). A pipe is asked again only when what is known of it changed or its time
has come; what was served is remembered here, too, so that one due instant never starts two executions. One pipe that
cannot be started or decided is told, tried again with backoff, and holds nobody up. A crash of the loop's body is
logged, counted, shown in `health()`, and the body starts again (E4). A step of the wall clock is noticed within
`sleep_seconds`, a change of the room's at once (`wake`).
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog

from supervisord_py.pipes.scheduling.clock_watch import ClockWatch
from supervisord_py.pipes.scheduling.due import (
    Decision,
    Due,
    Now,
    Progress,
    Wait,
    carried,
    decide,
    served,
    settle,
    stagger,
)
from supervisord_py.process.backoff import Backoff, BackoffPolicy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from supervisord_py.pipes.config import SchedulerLimits
    from supervisord_py.pipes.scheduling.schedule import Schedule

_log = structlog.get_logger(__name__)
_RESTARTS = BackoffPolicy(initial_seconds=1.0, max_seconds=60.0, reset_seconds=300.0)
_BREATH = 50
"""So many decisions, and others of the control plane get their turn."""
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


@dataclass(frozen=True, slots=True)
class Skipped:
    """A due instant passed without a run (the room said why), or could not be decided or started: it is tried again."""

    at: float
    why: str


Note = Decision | Skipped


@dataclass(frozen=True, slots=True)
class SchedulerHealth:
    """How the loop does.

    Attributes:
        alive: Its body runs now; False before the start, after the end, and between a crash and the next start.
        restarts: Crashes of the body so far.
        last_error: Of the last crash, or None.
    """

    alive: bool
    restarts: int
    last_error: str | None


class Scheduler:
    """Asks and starts.

    Args:
        look: The enabled pipes, cheap: it is called at each turn.
        trigger: Queues an execution and stores `last_due = due.at`, in one transaction. Returns None, or a sentence
            why there is none (busy): then `last_due` is stored all the same. Raises when it could not: tried again.
        note: Told when what is known of a pipe changes.
        limits: The settings.
        watch: The clocks.
        seed: Of the stagger: the instance's, so that machines with the same pipes differ.
        restart_policy: How patiently a crashed body is started again.
    """

    def __init__(
        self,
        look: Callable[[], Iterable[Candidate]],
        trigger: Callable[[str, Due], Awaitable[str | None]],
        note: Callable[[str, Note], None],
        limits: SchedulerLimits,
        *,
        watch: ClockWatch | None = None,
        seed: str = "",
        restart_policy: BackoffPolicy = _RESTARTS,
    ) -> None:
        self._look = look
        self._trigger = trigger
        self._note = note
        self._watch = watch or ClockWatch()
        self._agenda = Agenda(limits, seed)
        self._bell = asyncio.Event()
        self._restart_policy = restart_policy
        self._alive = False
        self._restarts = 0
        self._last_error: str | None = None

    def wake(self) -> None:
        """Look now: a pipe was added, enabled, edited, removed, or a run of one began or ended."""
        self._bell.set()

    def reconfigure(self, limits: SchedulerLimits) -> None:
        """Go on with other settings."""
        self._agenda.limits = limits
        self._agenda.clocks_changed(self._watch.now())
        self.wake()

    def decision_on(self, name: str, schedule: Schedule) -> Decision | None:
        """Return the last decision about a pipe's schedule; None where none, or another schedule, was looked at."""
        entry = self._agenda.get(name)
        return entry.decision if entry and entry.candidate.schedule == schedule else None

    def health(self) -> SchedulerHealth:
        """Return how the loop does."""
        return SchedulerHealth(self._alive, self._restarts, self._last_error)

    async def run(self) -> None:
        """Ask and start until cancelled."""
        backoff = Backoff(self._restart_policy)
        while True:
            try:
                self._alive = True
                await self._turns()
            except Exception as err:
                self._restarts += 1
                self._last_error = f"{type(err).__name__}: {err}"
                _log.exception("scheduler_crashed", restarts=self._restarts)
                backoff = backoff.failed(self._watch.now().boottime, 0.0)
            finally:
                self._alive = False
            await asyncio.sleep(backoff.wait_seconds(self._watch.now().boottime))  # no bell: a crash may be its echo

    async def _turns(self) -> None:
        while True:
            self._bell.clear()
            seconds = await self.turn()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._bell.wait()

    async def turn(self) -> float:
        """Look once, start what is due; return the seconds to sleep, at most `sleep_seconds`."""
        look = self._watch.look()
        if look.stepped or look.slept or look.moved:
            facts = {"stepped": look.stepped, "slept": look.slept, "zone": str(look.now.zone) if look.moved else None}
            _log.info("clocks_changed", **{name: fact for name, fact in facts.items() if fact})
            self._agenda.clocks_changed(look.now)
        names: set[str] = set()
        decided = 0
        for candidate in tuple(self._look()):  # what it looks at changes while the loop awaits
            names.add(candidate.name)
            entry = self._agenda.update(candidate, look.now)
            if entry is not None:
                await self._attend(entry, look.now)
                decided += 1
                if not decided % _BREATH:
                    await asyncio.sleep(0)
        self._agenda.keep_only(names)
        left = self._agenda.deadline() - self._watch.now().boottime
        return min(max(left, 0.0), self._agenda.limits.sleep_seconds)

    async def _attend(self, entry: Entry, now: Now) -> None:
        try:
            decision = self._agenda.decide(entry, now)
            if not isinstance(decision, Due):
                self._tell(entry, decision)
                return
            why = await self._trigger(entry.candidate.name, decision)
        except Exception as err:
            self._failed(entry, now, err)
            return
        self._agenda.served(entry, decision, now, ran=why is None)
        self._tell(entry, decision if why is None else Skipped(decision.at, why))

    def _failed(self, entry: Entry, now: Now, error: Exception) -> None:
        name = entry.candidate.name
        seconds = self._agenda.failed(entry, now)
        _log.warning("schedule_failed", unit=f"pipe:{name}", retry_seconds=seconds, exc_info=error)
        what = f"could not be decided or started: {type(error).__name__}: {error}"
        self._tell(entry, Skipped(now.wall, f"{what}; tried again in {seconds:.0f} s"))

    def _tell(self, entry: Entry, note: Note) -> None:
        if note != entry.told:
            entry.told = note
            self._note(entry.candidate.name, note)

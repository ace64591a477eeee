"""The loop that asks which pipes are due, and starts them. It polls nothing: it sleeps until something is due.

Laws. Started only when the API listens (G1). One pipe that cannot be started or decided is told, tried again with
backoff, and holds nobody up. A crash of the loop's body is logged, counted, shown in `health()`, and the body starts
again (E4). A step of the wall clock is noticed within `sleep_seconds`, a change of the room's at once (`wake`).
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from supervisord_py.pipes.scheduling.agenda import Agenda, Candidate, Entry
from supervisord_py.pipes.scheduling.clock_watch import ClockWatch
from supervisord_py.pipes.scheduling.due import Decision, Due, Now
from supervisord_py.process.backoff import Backoff, BackoffPolicy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from supervisord_py.pipes.config import SchedulerLimits
    from supervisord_py.pipes.scheduling.schedule import Schedule

_log = structlog.get_logger(__name__)
_RESTARTS = BackoffPolicy(initial_seconds=1.0, max_seconds=60.0, reset_seconds=300.0)
_BREATH = 50
"""So many decisions, and others of the control plane get their turn."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A due instant passed without a run: the room said why."""

    at: float
    why: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """A pipe could not be decided or started; it is tried again."""

    at: float
    why: str


Note = Decision | Skipped | Trouble


@dataclass(frozen=True, slots=True)
class SchedulerHealth:
    """How the loop does.

    Attributes:
        alive: Its body runs now; False before the start, after the end, and between a crash and the next start.
        restarts: Crashes of the body so far.
        last_error, last_error_at: Of the last crash (Unix seconds), or None.
        pipes: So many are looked after.
        next_deadline: Unix seconds of the next look that is due; None for none.
        resumed_at: Of the last resume or the start, on the clock that counts suspend.
    """

    alive: bool
    restarts: int
    last_error: str | None
    last_error_at: float | None
    pipes: int
    next_deadline: float | None
    resumed_at: float


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
        self._last_error: tuple[str, float] | None = None

    def wake(self) -> None:
        """Look now: a pipe was added, enabled, edited, removed, or a run of one began or ended."""
        self._bell.set()

    def reconfigure(self, limits: SchedulerLimits) -> None:
        """Go on with other settings."""
        self._agenda.limits = limits
        self._agenda.clocks_changed(self._watch.now())
        self.wake()

    def decision(self, name: str) -> Decision | None:
        """Return the last decision about a pipe; None for one that was not looked at."""
        entry = self._agenda.get(name)
        return entry.decision if entry else None

    def decision_on(self, name: str, schedule: Schedule) -> Decision | None:
        """Return the last decision about a pipe's schedule; None where none, or another schedule, was looked at."""
        entry = self._agenda.get(name)
        return entry.decision if entry and entry.candidate.schedule == schedule else None

    def health(self) -> SchedulerHealth:
        """Return how the loop does."""
        now = self._watch.now()
        error, at = self._last_error or (None, None)
        deadline = self._agenda.deadline()
        next_deadline = now.wall_of(deadline) if math.isfinite(deadline) else None
        return SchedulerHealth(
            self._alive, self._restarts, error, at, len(self._agenda), next_deadline, self._watch.resumed_at
        )

    async def run(self) -> None:
        """Ask and start until cancelled."""
        backoff = Backoff(self._restart_policy)
        while True:
            try:
                self._alive = True
                await self._turns()
            except Exception as err:
                backoff = backoff.failed(self._crashed(err).boottime, 0.0)
            finally:
                self._alive = False
            await asyncio.sleep(backoff.wait_seconds(self._watch.now().boottime))  # no bell: a crash may be its echo

    def _crashed(self, error: Exception) -> Now:
        now = self._watch.now()
        self._restarts += 1
        self._last_error = (f"{type(error).__name__}: {error}", now.wall)
        _log.error("scheduler_crashed", restarts=self._restarts, exc_info=error)
        return now

    async def _turns(self) -> None:
        while True:
            self._bell.clear()
            await self._sleep(await self.turn())

    async def _sleep(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._bell.wait()
        except TimeoutError:
            return

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
        self._tell(entry, Trouble(now.wall, f"{what}; tried again in {seconds:.0f} s"))

    def _tell(self, entry: Entry, note: Note) -> None:
        if note != entry.told:
            entry.told = note
            self._note(entry.candidate.name, note)

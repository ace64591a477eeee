"""The loop that asks which pipes are due, and starts them.

Laws. Started only when the API listens (G1). It sleeps until something is due; a pipe is asked again only when what is
known of it changed or its time has come. One that cannot be started or decided is told, tried again with backoff, and
holds nobody up. A crash of the loop's body is logged, counted, shown in `health()`, and the body starts again (E4). A
change of the room's and a jump of a clock wake it (`wake`); where nobody tells of a jump, it looks in `SLEEP_SECONDS`.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

from supervisord_py.pipes.due import Due, Now, Wait, decide, stagger
from supervisord_py.process.backoff import Backoff, BackoffPolicy

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from supervisord_py.pipes.due import Decision, Progress
    from supervisord_py.pipes.means import Means
    from supervisord_py.pipes.models import PipeDefinition

SLEEP_SECONDS = 60.0  # longest sleep: not everywhere a jump of a clock is told
_SLACK_SECONDS = 0.001  # the wall clock and the one that counts suspend are read one after the other
_RESTARTS = BackoffPolicy(initial_seconds=1.0, max_seconds=60.0, reset_seconds=300.0)
_RETRIES = BackoffPolicy(initial_seconds=5.0, max_seconds=300.0, reset_seconds=3600.0)
_BREATH = 50  # so many decisions, and others of the control plane get their turn
_log = structlog.get_logger(__name__)


class _Entry:
    """One pipe: what is known of it, what was decided, when to ask again (boottime)."""

    def __init__(self, definition: PipeDefinition, progress: Progress) -> None:
        self.definition = definition
        self.progress = progress
        self.deadline = -math.inf
        self.decision: Decision | None = None
        self.backoff = Backoff(_RETRIES)

    def ask_again(self, now: Now) -> None:
        """Have it asked at the next turn, or when its backoff is over."""
        self.deadline = self.backoff.settled(now.boottime).blocked_until or -math.inf


class Timetable:
    """Asks which of the room's pipes are due, and has them started."""

    restart_policy = _RESTARTS  # how patiently a crashed body is started again

    def __init__(self, room: Means, is_leaving_line: Callable[[str], bool]) -> None:
        self._room = room
        self._is_leaving_line = is_leaving_line
        self.now = room.now
        self._begin: Callable[[str, Due], Awaitable[str | None]]
        self._seed = ""  # of the stagger: the instance's, so that machines with the same pipes differ
        self._entries: dict[str, _Entry] = {}
        self._bell = asyncio.Event()
        self.alive = False  # also between a crash of the body and its next start
        self.restarts = 0  # how often it crashed, and why the last time
        self.last_error: str | None = None

    def start(self, begin: Callable[[str, Due], Awaitable[str | None]]) -> None:
        """Look from now on; `begin` queues a pipe that is due, or says why not."""
        if not self._seed:
            self._begin = begin
            self._seed = self._room.placement.new_key().partition(".")[0]
            self._room.task(self.run())

    def wake(self) -> None:
        """Look now: a pipe was added, enabled, edited, removed, or a run of one began or ended."""
        self._bell.set()

    def reconfigure(self) -> None:
        self._ask_all_again(self.now())
        self.wake()

    def decision_on(self, pipe: PipeDefinition) -> Decision | None:
        """Return the last decision about a pipe's schedule; None where none, or another schedule, was looked at."""
        entry = self._entries.get(pipe.name)
        return entry.decision if entry and entry.definition.schedule == pipe.schedule else None

    async def run(self) -> None:
        backoff = Backoff(self.restart_policy)
        while True:
            try:
                self.alive = True
                while True:
                    self._bell.clear()
                    seconds = await self.turn()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(seconds):
                            await self._bell.wait()
            except Exception as err:
                self.restarts += 1
                self.last_error = f"{type(err).__name__}: {err}"
                _log.exception("scheduler_crashed", restarts=self.restarts)
                backoff = backoff.failed(self.now().boottime)
            finally:
                self.alive = False
            await asyncio.sleep(backoff.wait_seconds(self.now().boottime))  # no bell: a crash may be its echo

    async def turn(self) -> float:
        """Look once, start what is due; return the seconds to sleep, at most `SLEEP_SECONDS`."""
        changes, now = self._room.watch.look(), self.now()
        if changes:
            _log.info("clocks_changed", **changes)
            self._ask_all_again(now)
        names: set[str] = set()
        decided = 0
        for definition in tuple(self._candidates()):  # what it looks at changes while the loop awaits
            names.add(definition.name)
            entry = self._taken(definition, now)
            if entry.deadline <= now.boottime:
                await self._attend(entry, now)
                decided += 1
                if not decided % _BREATH:
                    await asyncio.sleep(0)
        self._entries = {name: entry for name, entry in self._entries.items() if name in names}
        deadline = min((entry.deadline for entry in self._entries.values()), default=math.inf) + _SLACK_SECONDS
        return min(max(deadline - self.now().boottime, 0.0), SLEEP_SECONDS)

    def _candidates(self) -> Iterator[PipeDefinition]:
        """Yield the pipes that may be started by time now."""
        states = self._room.states
        for definition in self._room.usable() if self._room.config.enabled else ():
            # Who was not taken in yet (no anchor) would be decided about, and then be taken for new.
            if states.get(definition.name).anchor_at is None or not states.is_enabled(definition):
                continue
            # What is on its way out of the line would be taken for a run that keeps the next one waiting.
            if not self._is_leaving_line(definition.name):
                yield definition

    def _taken(self, definition: PipeDefinition, now: Now) -> _Entry:
        progress, entry = self._room.states.progress(definition.name), self._entries.get(definition.name)
        if entry is None:
            entry = self._entries[definition.name] = _Entry(definition, progress)
        elif entry.definition is not definition or entry.progress != progress:
            if definition.schedule != entry.definition.schedule:
                entry.backoff = Backoff(_RETRIES)
            if progress.anchor_at != entry.progress.anchor_at:
                entry.decision = None  # the room has begun anew
            entry.definition, entry.progress = definition, progress
            entry.ask_again(now)
        return entry

    def _ask_all_again(self, now: Now) -> None:
        for entry in self._entries.values():
            entry.ask_again(now)

    async def _attend(self, entry: _Entry, now: Now) -> None:
        pipe, before = entry.definition, entry.decision
        delay = stagger(pipe.name, self._seed, self._room.config.stagger_seconds)
        try:
            found = decide(pipe.schedule, entry.progress, now, run_on_enable=pipe.run_on_enable, delay=delay)
            entry.decision = found
            if isinstance(found, Due):
                why = await self._begin(pipe.name, found)
                entry.backoff = Backoff(_RETRIES)
                self._remember(pipe.name, found.why if why is None else why)
                # At once about its next one; what nobody took in (the pipe is just going) would be due again and again.
                is_served = self._room.states.get(pipe.name).last_due == found.at
                entry.deadline = -math.inf if is_served else now.boottime + SLEEP_SECONDS
                return
            entry.deadline = now.boottime_of(found.until) if isinstance(found, Wait) else math.inf
            # That it merely waits would hide what was decided before: that is shown live.
            words = found.decided if isinstance(found, Wait) else found.why if found.over else ""
            if words and found != before and words != self._room.states.get(pipe.name).last_decision:
                self._remember(pipe.name, words)
        except Exception as err:
            entry.backoff, entry.decision = entry.backoff.failed(now.boottime), None
            seconds = entry.backoff.wait_seconds(now.boottime)
            entry.deadline = now.boottime + seconds
            _log.warning("schedule_failed", unit=f"pipe:{pipe.name}", retry_seconds=seconds, exc_info=err)
            what = f"could not be decided or started: {type(err).__name__}: {err}"
            self._remember(pipe.name, f"{what}; tried again in {seconds:.0f} s")

    def _remember(self, pipe: str, words: str) -> None:
        self._room.states.change(pipe, last_decision=words, last_decision_at=self._room.clocks.moment())

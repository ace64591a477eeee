"""The loop that asks which pipes are due, and starts them.

Laws. Started only when the API listens (G1). It sleeps until something is due; a pipe is asked again only when what is
known of it changed or its time has come. One that cannot be started or decided is told, tried again later, and holds
nobody up. A crash of the loop's body is logged, counted, shown in `health()`, and the body starts again (E4). A change
of the room's and a jump of a clock wake it (`due_bell`); where nobody tells of a jump, it looks in `SLEEP_SECONDS`.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.ledger.pipe_executions import Group, Status, Trigger
from supervisord_py.pipes.due import Due, Never, Now, Wait, decide, stagger
from supervisord_py.pipes.intake import choose
from supervisord_py.pipes.schedule import At
from supervisord_py.process.backoff import Backoff, BackoffPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from supervisord_py.pipes.due import Decision, Progress
    from supervisord_py.pipes.executions import Executions
    from supervisord_py.pipes.models import PipeDefinition

SLEEP_SECONDS = 60.0  # longest sleep: not everywhere a jump of a clock is told
RETRY_SECONDS = 30.0  # until a pipe that could not be decided or started is asked again
_SLACK_SECONDS = 0.001  # the wall clock and the one that counts suspend are read one after the other
_BREATH = 50  # so many decisions, and others of the control plane get their turn
_log = structlog.get_logger(__name__)


class _Entry:
    """One pipe: what is known of it, what was decided, when to ask again (boottime)."""

    def __init__(self, definition: PipeDefinition, progress: Progress) -> None:
        self.definition = definition
        self.progress = progress
        self.deadline = -math.inf
        self.decision: Decision | None = None


class Timetable:
    """Asks which of the room's pipes are due, and has them started."""

    restart_policy = BackoffPolicy(initial_seconds=1.0, max_seconds=60.0, reset_seconds=300.0)

    def __init__(self, room: Executions) -> None:
        self._room = room
        self._seed = room.placement.new_key().partition(".")[0]
        """Of the stagger: the instance's, so that machines with the same pipes differ."""
        self._entries: dict[str, _Entry] = {}
        self._jumps = 0
        self.alive = False  # also between a crash of the body and its next start
        self.restarts = 0  # how often it crashed, and why the last time
        self.last_error: str | None = None

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
                    self._room.due_bell.clear()
                    seconds = await self.turn()
                    with suppress(TimeoutError):
                        async with asyncio.timeout(seconds):
                            await self._room.due_bell.wait()
            except Exception as err:
                self.restarts += 1
                self.last_error = f"{type(err).__name__}: {err}"
                _log.exception("scheduler_crashed", restarts=self.restarts)
                backoff = backoff.failed(self._room.now().boottime)
            finally:
                self.alive = False
            await asyncio.sleep(backoff.wait_seconds(self._room.now().boottime))  # no bell: a crash may be its echo

    async def turn(self) -> float:
        """Look once, start what is due; return the seconds to sleep, at most `SLEEP_SECONDS`."""
        watch = self._room.watch
        watch.look()
        now = self._room.now()
        has_jumped, self._jumps = watch.jumps != self._jumps, watch.jumps
        if has_jumped:
            _log.info("clocks_changed", wall=now.wall, boottime=now.boottime, zone=str(now.zone))
        before, self._entries, decided = {} if has_jumped else self._entries, {}, 0
        for definition in tuple(self._candidates()):  # what it looks at changes while the loop awaits
            entry = self._entries[definition.name] = self._taken(definition, before.get(definition.name))
            if entry.deadline <= now.boottime:
                await self._attend(entry, now)
                decided += 1
                if not decided % _BREATH:
                    await asyncio.sleep(0)
        deadline = min((entry.deadline for entry in self._entries.values()), default=math.inf) + _SLACK_SECONDS
        return min(max(deadline - self._room.now().boottime, 0.0), SLEEP_SECONDS)

    def _candidates(self) -> Iterator[PipeDefinition]:
        """Yield the pipes that may be started by time now."""
        states = self._room.states
        for definition in self._room.usable() if self._room.config.enabled else ():
            # Who was not taken in yet (no anchor) would be decided about, and then be taken for new.
            if states.get(definition.name).anchor_at is None or not states.is_enabled(definition):
                continue
            # What is on its way out of the line would be taken for a run that keeps the next one waiting.
            if not self._room.is_leaving_line(definition.name):
                yield definition

    def _taken(self, definition: PipeDefinition, entry: _Entry | None) -> _Entry:
        progress = self._room.states.progress(definition.name)
        if entry is None:
            return _Entry(definition, progress)
        if entry.definition is not definition or entry.progress != progress:
            if progress.anchor_at != entry.progress.anchor_at:
                entry.decision = None  # the room has begun anew
            entry.definition, entry.progress, entry.deadline = definition, progress, -math.inf
        return entry

    async def _attend(self, entry: _Entry, now: Now) -> None:
        pipe, states = entry.definition, self._room.states
        delay = stagger(pipe.name, self._seed, self._room.config.stagger_seconds)
        try:
            found = decide(pipe.schedule, entry.progress, now, run_on_enable=pipe.run_on_enable, delay=delay)
            entry.decision = found
            if isinstance(found, Due):
                why = await self.start(pipe.name, found)
                states.decided(pipe.name, found.why if why is None else why)
                # At once about its next one; what nobody took in (the pipe is just going) would be due again and again.
                is_served = states.get(pipe.name).last_due == found.at
                entry.deadline = -math.inf if is_served else now.boottime + SLEEP_SECONDS
                return
            entry.deadline = now.boottime_of(found.until) if isinstance(found, Wait) else math.inf
            # That it merely waits would hide what was decided before: that is shown live.
            if isinstance(found, Never) and found.over and found.why != states.get(pipe.name).last_decision:
                states.decided(pipe.name, found.why)
        except Exception as err:
            entry.decision, entry.deadline = None, now.boottime + RETRY_SECONDS
            _log.warning("schedule_failed", unit=f"pipe:{pipe.name}", exc_info=err)
            what = f"could not be decided or started: {type(err).__name__}: {err}"
            states.decided(pipe.name, f"{what}; tried again in {RETRY_SECONDS:.0f} s")

    async def start(self, pipe: str, due: Due) -> str | None:
        """Queue a pipe that is due; return why it is skipped, None when it is not.

        One due time starts it once, whatever crashes in between: the watermark is of the row's transaction.
        """
        definition, trigger = self._room.definition_of(pipe), {"trigger": Trigger.SCHEDULED, "group": Group.SCHEDULED}
        if definition is None or self._room.is_ending:
            return "it is not there any more" if definition is None else "the daemon is stopping"
        chosen, warnings = await choose(self._room, definition)
        at_work = self._room.of_pipe(pipe)
        if any(run.is_leaving_line for run in at_work):  # whoever ends it says whether its time counts as served
            return "the execution that waited is just being cancelled"
        if at_work:
            self._room.states.change(pipe, last_due=due.at)
            word = "running" if at_work[0].execution.status is Status.RUNNING else "waiting"
            return f"still {word}: execution {at_work[0].id}; skipped"
        change: dict[str, Any] = {"last_due": due.at, "occurrences": self._room.states.get(pipe).occurrences + 1}
        if isinstance(definition.schedule, At):
            change |= {"enabled": False, "enabled_file": definition.enabled}
        await self._room.enqueue(definition, chosen, [trigger], warnings=warnings, **change)
        return None

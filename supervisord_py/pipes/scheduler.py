"""The loop that asks which pipes are due, and starts them.

Laws. Started only when the API listens (G1). It sleeps until something is due; a pipe is asked again only when what is
known of it changed or its time has come. One that cannot be started or decided is told, tried again later, and holds
nobody up. A crash of the loop's body is logged, counted, shown in `health()`, and the body starts again (E4). A change
of the room's and a jump of a clock wake it (`due_bell`); where nobody tells of a jump, it looks in `SLEEP_SECONDS`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import structlog

from supervisord_py.ledger.pipe_executions import Group, Status, Trigger
from supervisord_py.pipes.due import Due, Never, Now, Progress, Wait
from supervisord_py.pipes.executions import Executions
from supervisord_py.pipes.intake import choose
from supervisord_py.pipes.models import PipeDefinition
from supervisord_py.pipes.schedule import At
from supervisord_py.process.backoff import Backoff, BackoffPolicy

SLEEP_SECONDS = 60.0  # longest sleep: not everywhere a jump of a clock is told
RETRY_SECONDS = 30.0  # until a pipe that could not be decided or started is asked again
_SLACK_SECONDS = 0.001  # the wall clock and the one that counts suspend are read one after the other
_BREATH = 50  # so many decisions, and others of the control plane get their turn
_log = structlog.get_logger(__name__)


class Timetable:
    """Asks which of the room's pipes are due, and has them started."""

    restart_policy = BackoffPolicy(initial_seconds=1.0, max_seconds=60.0, reset_seconds=300.0)

    def __init__(self, room: Executions) -> None:
        self._room = room
        self._asked: dict[str, tuple[PipeDefinition, Progress, float]] = {}
        """Of each pipe, what was known when it was asked, and when to ask it again (boottime)."""
        self._jumps = 0
        self.alive = False  # also between a crash of the body and its next start
        self.restarts = 0  # how often it crashed, and why the last time
        self.last_error: str | None = None

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
        before, self._asked, decided = {} if has_jumped else self._asked, {}, 0
        for pipe in tuple(self._candidates()):  # what it looks at changes while the loop awaits
            progress, known = self._room.states.progress(pipe.name), before.get(pipe.name)
            deadline = known[2] if known and known[0] is pipe and known[1] == progress else -math.inf
            if deadline <= now.boottime:
                deadline = await self._attend(pipe, now)
                decided += 1
                if not decided % _BREATH:
                    await asyncio.sleep(0)
            self._asked[pipe.name] = pipe, progress, deadline
        deadline = min((deadline for *_, deadline in self._asked.values()), default=math.inf) + _SLACK_SECONDS
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

    async def _attend(self, pipe: PipeDefinition, now: Now) -> float:
        """Start a pipe if it is due; return when to ask again."""
        states = self._room.states
        try:
            found = self._room.decision(pipe)
            if isinstance(found, Due):
                why = await self.start(pipe.name, found)
                states.decided(pipe.name, found.why if why is None else why)
                # At once about its next one; what nobody took in (the pipe is just going) would be due again and again.
                return -math.inf if states.get(pipe.name).last_due == found.at else now.boottime + SLEEP_SECONDS
            # That it merely waits would hide what was decided before: that is shown live.
            if isinstance(found, Never) and found.over and found.why != states.get(pipe.name).last_decision:
                states.decided(pipe.name, found.why)
            return now.boottime_of(found.until) if isinstance(found, Wait) else math.inf
        except Exception as err:
            _log.warning("schedule_failed", unit=f"pipe:{pipe.name}", exc_info=err)
            what = f"could not be decided or started: {type(err).__name__}: {err}"
            states.decided(pipe.name, f"{what}; tried again in {RETRY_SECONDS:.0f} s")
            return now.boottime + RETRY_SECONDS

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

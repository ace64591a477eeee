"""The clocks of the room of pipes, and the loop that asks which pipes are due, and starts them.

Laws. Started only when the API listens (G1). It sleeps until something is due; a pipe is asked again only when what is
known of it changed or its time has come. One that cannot be started or decided is told, tried again later, and holds
nobody up. A crash of the loop's body is logged, counted, shown in `health()`, and the body starts again (E4). A
change of the room's and a jump of a clock wake it (`wake`); where nobody tells of a jump, it looks in `SLEEP_SECONDS`.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo

import structlog

from supervisord_py.pipes.due import Due, Never, Now, Wait, decide, stagger
from supervisord_py.process import clock
from supervisord_py.process.backoff import Backoff, BackoffPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import tzinfo

    from supervisord_py.pipes.due import Decision, Progress
    from supervisord_py.pipes.executions import Executions
    from supervisord_py.pipes.models import PipeDefinition

STEP_SECONDS = 1.0
"""A slewed wall clock differs by less between two looks; what is left over adds up until it is a step."""
SLEPT_SECONDS = 2.0  # clocks that were read together differ by less
SLEEP_SECONDS = 60.0  # longest sleep: not everywhere a jump of a clock is told
RETRY_SECONDS = 30.0  # until a pipe that could not be decided or started is asked again
_SLACK_SECONDS = 0.001  # the wall clock and the one that counts suspend are read one after the other
_BREATH = 50  # so many decisions, and others of the control plane get their turn
_log = structlog.get_logger(__name__)


class Clocks(NamedTuple):
    """Where time comes from, in one place so that tests can turn it (DESIGN law 10)."""

    wall: Callable[[], float] = time.time  # Unix seconds
    boot: Callable[[], float] = clock.now  # seconds since boot, suspended ones included
    awake: Callable[[], float] = time.monotonic  # seconds since boot in which the machine was awake

    def moment(self) -> float:
        """Return Unix seconds as a row keeps them: what was told at first is what is read again later."""
        return whole_ms(self.wall())


def whole_ms(seconds: float) -> float:
    """Return a time without what is finer than a millisecond; never later than it was."""
    return math.floor(seconds * 1000) / 1000


class ClockWatch:
    """Looks at the clocks, and notices what people and machines do to them: set the time, change the zone, sleep.

    What is found due at the first look counts as missed while the machine was off. `zone` is the machine's, now.
    """

    def __init__(self, clocks: Clocks, zone: Callable[[], tzinfo]) -> None:
        self._clocks = clocks
        self._machine_zone = zone
        self._asleep = clock.ahead(clocks.boot, of=clocks.awake)
        self._offset = clock.ahead(clocks.wall, of=clocks.boot)
        self.resumed_at = self._set_boot = clocks.boot()
        self._zone: tzinfo | None = None  # of the last look: who makes the watch may not know the machine's zone yet

    def now(self) -> Now:
        """Return the time; what happened to it waits for the next look."""
        offset, boot = clock.ahead(self._clocks.wall, of=self._clocks.boot), self._clocks.boot()
        return Now(boot + offset, boot, self.resumed_at, self._zone or self._machine_zone(), self._set_boot + offset)

    def look(self) -> bool:
        """Say whether anything happened since the last look."""
        asleep = clock.ahead(self._clocks.boot, of=self._clocks.awake)
        offset, zone = clock.ahead(self._clocks.wall, of=self._clocks.boot), self._machine_zone()
        has_jumped, self._zone = self._zone not in {None, zone}, zone
        if asleep - self._asleep >= SLEPT_SECONDS:
            self._asleep, self.resumed_at, has_jumped = asleep, self._clocks.boot(), True
        if abs(offset - self._offset) >= STEP_SECONDS:
            self._offset, self._set_boot, has_jumped = offset, self._clocks.boot(), True
        return has_jumped


def machine_zone(
    environ: Mapping[str, str], *, localtime: str = "/etc/localtime", timezone: str = "/etc/timezone"
) -> str:
    """Return `TZ` where it names a zone, else what /etc/localtime points to, else what /etc/timezone says, else UTC."""
    wanted, linked, written = environ.get("TZ", "").lstrip(":"), os.path.realpath(localtime), ""
    with suppress(OSError):
        written = Path(timezone).read_text("utf-8", "replace")[:256].strip()
    for name in (wanted, linked.rpartition("zoneinfo/")[2], written):
        with suppress(KeyError, ValueError, OSError):  # ZoneInfoNotFoundError is a KeyError
            return ZoneInfo(name).key
        if name and name == wanted:
            _log.warning("time_zone_unknown", wanted=wanted, hint="write TZ=Area/City, or pipes.timezone")
    return "UTC"


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
        self._bell = asyncio.Event()
        self.alive = False  # also between a crash of the body and its next start
        self.restarts = 0  # how often it crashed, and why the last time
        self.last_error: str | None = None

    def wake(self) -> None:
        """Look now: a pipe was added, enabled, edited, removed, or a run of one began or ended."""
        self._bell.set()

    def reconfigure(self) -> None:
        self._entries.clear()
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
                backoff = backoff.failed(self._room.now().boottime)
            finally:
                self.alive = False
            await asyncio.sleep(backoff.wait_seconds(self._room.now().boottime))  # no bell: a crash may be its echo

    async def turn(self) -> float:
        """Look once, start what is due; return the seconds to sleep, at most `SLEEP_SECONDS`."""
        has_jumped, now = self._room.watch.look(), self._room.now()
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
                why = await self._room.start_due(pipe.name, found)
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

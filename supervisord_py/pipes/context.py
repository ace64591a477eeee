"""What all parts of the room of pipes work with: clocks, settings, the catalog, what is remembered of each pipe.

Laws: decided from memory, written behind: a full disk never makes a pipe run twice. Of each instant that was noted in
this life it is known when that was on the clock that nobody sets, however the wall clock is turned afterwards.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import structlog
from msgspec import structs

from supervisord_py.ledger.pipe_executions import ErrorType, Execution, Outcome, Status
from supervisord_py.ledger.pipe_history import PIPE_STATES, PipeStateRow, forget, last_of_each
from supervisord_py.ledger.store import Ledger
from supervisord_py.pipes.catalog import PipeCatalog
from supervisord_py.pipes.due import Decision, Now, Progress, decide, stagger
from supervisord_py.pipes.models import PipeDefinition, PipesConfig
from supervisord_py.pipes.preflight import AgentShelf
from supervisord_py.process import clock
from supervisord_py.process.events import EventStream
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.process.supervisor import Driver, Supervisor

STEP_SECONDS = 1.0
"""A slewed wall clock differs by less between two looks; what is left over adds up until it is a step."""
SLEPT_SECONDS = 2.0  # clocks that were read together differ by less
_INSTANTS = ("last_run_at", "last_due", "anchor_at")
_NOT_ITS_OWN = frozenset((ErrorType.CANCELLED, ErrorType.SHUTDOWN, ErrorType.INTERRUPTED))
_AVERAGED = 20  # durations are averaged over about so many runs
FEW = 500  # so many pipes, or runs, are looked at on the loop, 5 us each: a thread costs more, and wakes it once more
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
        self._zone = zone()
        self.jumps = 0  # how often something happened

    def now(self) -> Now:
        """Return the time; what happened to it waits for the next look."""
        offset, boot = clock.ahead(self._clocks.wall, of=self._clocks.boot), self._clocks.boot()
        return Now(boot + offset, boot, self.resumed_at, self._zone, self._set_boot + offset)

    def look(self) -> bool:
        """Say whether anything happened since the last look."""
        asleep = clock.ahead(self._clocks.boot, of=self._clocks.awake)
        offset, zone = clock.ahead(self._clocks.wall, of=self._clocks.boot), self._machine_zone()
        has_jumped, self._zone = self._zone != zone, zone
        if asleep - self._asleep >= SLEPT_SECONDS:
            self._asleep, self.resumed_at, has_jumped = asleep, self._clocks.boot(), True
        if abs(offset - self._offset) >= STEP_SECONDS:
            self._offset, self._set_boot, has_jumped = offset, self._clocks.boot(), True
        self.jumps += has_jumped
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


class PipeStates:
    """One row for each pipe that was ever seen.

    Attributes:
        last_status: How the newest execution of a pipe ended.
        average_seconds: How long its runs take; of those before this life only the last one counts.
    """

    def __init__(self, ledger: Ledger, clocks: Clocks) -> None:
        self.last_status: dict[str, Status] = {}
        self.average_seconds: dict[str, float] = {}
        self._ledger = ledger
        self._clocks = clocks
        self._rows: dict[str, PipeStateRow] = {}
        self._boots: dict[tuple[str, str], float] = {}
        """Of a pipe's instant: when it was, on the clock that counts suspend."""

    async def open(self) -> None:
        """Read what is remembered."""
        self._rows = {row.pipe_name: row for row in await PIPE_STATES.find(self._ledger, "ORDER BY pipe_name")}
        wall, ahead = self._clocks.wall(), self._clocks.wall() - self._clocks.boot()
        for pipe, row in self._rows.items():
            known = {name: getattr(row, name) for name in _INSTANTS}
            # What lies ahead of the clock was noted when that was wrong: it counts as now (B4).
            self._boots |= {(pipe, name): min(at, wall) - ahead for name, at in known.items() if at is not None}
        for execution in (await last_of_each(self._ledger)).values():
            self.ended(execution)

    def get(self, pipe: str) -> PipeStateRow:
        """Return the row of a pipe; an empty one where nothing is remembered."""
        return self._rows.get(pipe) or PipeStateRow(pipe)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._rows)

    def take(self, pipe: str, **fields: Any) -> None:
        """Take over a change that the transaction of somebody's row writes."""
        before = self.get(pipe)
        after = self._rows[pipe] = structs.replace(before, **fields)
        for name in _INSTANTS:
            instant = getattr(after, name)
            if instant is not None and instant != getattr(before, name):
                self._boots[pipe, name] = instant - (self._clocks.wall() - self._clocks.boot())

    def change(self, pipe: str, **fields: Any) -> None:
        """Change a row and write it behind."""
        before = self.get(pipe)
        wanted = {name: value for name, value in fields.items() if getattr(before, name) != value}
        if wanted or pipe not in self._rows:
            self.take(pipe, **wanted)
            self._ledger.post(PIPE_STATES.merge(pipe, **wanted))

    def decided(self, pipe: str, words: str) -> None:
        """Remember what was last done about a pipe, in a sentence."""
        self.change(pipe, last_decision=words, last_decision_at=self._clocks.moment())

    async def forget(self, pipe: str) -> None:
        """Drop what is remembered of a pipe that is gone."""
        self._rows.pop(pipe, None)
        for name in _INSTANTS:
            self._boots.pop((pipe, name), None)
        await self._ledger.write(forget(pipe))

    def progress(self, pipe: str) -> Progress:
        """Return what the scheduler is to know of a pipe."""
        row = self.get(pipe)
        touched = "last_run_at" if (row.last_run_at or 0.0) >= (row.last_due or 0.0) else "last_due"
        return Progress(
            anchor_at=row.anchor_at if row.anchor_at is not None else self._clocks.wall(),
            anchor_boot=self._boots.get((pipe, "anchor_at"), self._clocks.boot()),
            last_due=row.last_due,
            occurrences=row.occurrences,
            touched_boot=self._boots.get((pipe, touched)),
        )

    def is_enabled(self, definition: PipeDefinition) -> bool:
        """Say whether a pipe may run by itself: the wish of this machine, until its file says something new."""
        row = self.get(definition.name)
        if row.enabled is not None and row.enabled_file == definition.enabled:
            return row.enabled
        return definition.enabled

    def change_by(self, execution: Execution, outcome: Outcome, now: float, *, goes_on: bool) -> dict[str, Any]:
        """Return what an end means for its pipe; `goes_on`: another try follows by itself."""
        if outcome.status is Status.COMPLETED:
            end = execution.context_end
            return {"last_success_at": now, "consecutive_failures": 0, "last_context_end": end}
        if outcome.error_type in _NOT_ITS_OWN or goes_on:
            return {}
        return {"consecutive_failures": self.get(execution.pipe_name).consecutive_failures + 1}

    def ended(self, it: Execution) -> None:
        """Take in how an execution ended."""
        self.last_status[it.pipe_name] = it.status
        if it.duration_ms is not None and it.status in {Status.COMPLETED, Status.TIMED_OUT}:
            before = self.average_seconds.get(it.pipe_name, it.duration_ms / 1000)
            self.average_seconds[it.pipe_name] = before + (it.duration_ms / 1000 - before) / _AVERAGED


class PipesContext:
    """What a run, the line, times and events need of the room: the room is one, with more.

    Args:
        environ: The daemon's environment, to pick from.
        own: Harmless variables of ours that every agent gets.
        clocks: Tests turn them.

    Attributes:
        driver: What the supervisor needs to run executions; the room sets it.
        after: Does what follows from the end of a run whose row is final, and frees its slot.
        task: Does something in the background until the room ends; what it raises is logged.
        definition: Returns what a pipe's file says; UnknownUnitError where there is none of that name.
    """

    driver: Driver[Any]
    after: Callable[[Any], Awaitable[None]]

    def __init__(
        self,
        placement: KeeperClient,
        ledger: Ledger,
        events: EventStream,
        config: PipesConfig,
        *,
        environ: Mapping[str, str] = os.environ,
        own: Mapping[str, str] | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        self.placement, self.ledger, self.events, self.config = placement, ledger, events, config
        self.own, self.clocks = own or {}, clocks or Clocks()
        self.machine_zone = machine_zone(environ)
        self.supervisor = Supervisor(placement, ledger, events)
        self.states = PipeStates(ledger, self.clocks)
        self.catalog = PipeCatalog(config.pipes_dir, default_agent=config.default_agent)
        self.shelf = AgentShelf(config, placement, environ)
        self.watch = ClockWatch(self.clocks, self._zone)
        self._seed = placement.new_key().partition(".")[0]  # so that machines with the same pipes differ
        self.now, self.task, self.definition = self.watch.now, self.supervisor.task, self.catalog.declared

    def folder(self, execution: int) -> Path:
        return self.config.executions_dir / str(execution)

    def definition_of(self, pipe: str) -> PipeDefinition | None:
        found = self.catalog.pipes.get(pipe)
        return found if isinstance(found, PipeDefinition) else None

    def usable(self) -> Iterator[PipeDefinition]:
        return (each for each in self.catalog.pipes.values() if isinstance(each, PipeDefinition))

    def decision(self, pipe: PipeDefinition) -> Decision:
        """Say whether a pipe is due by its schedule, and why."""
        delay = stagger(pipe.name, self._seed, self.config.stagger_seconds)
        progress = self.states.progress(pipe.name)
        return decide(pipe.schedule, progress, self.now(), run_on_enable=pipe.run_on_enable, delay=delay)

    def zone_name(self, definition: PipeDefinition | None = None) -> str:
        """Return the time zone of a pipe, else the one of those that name none."""
        return (definition and definition.timezone) or self.config.timezone or self.machine_zone

    def _zone(self) -> tzinfo:
        try:
            return ZoneInfo(self.zone_name())
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return UTC

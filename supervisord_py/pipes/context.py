"""What all parts of the room of pipes work with: clocks, settings, the catalog, what is remembered
of each pipe.

From a trigger to a row: what is accepted is recorded, with everything that it will be run with;
later edits of pipe, presets or settings change later executions. What cannot run (a preset that is
not there, an agent that nobody knows) is a row all the same, failed at once, that names what is
missing; it is never in line.

Laws: decided from memory, written behind: a full disk never makes a pipe run twice. Of each instant
that was noted in this life it is known when that was on the clock that nobody sets, however the
wall clock is turned afterwards.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import structlog
from msgspec import structs

from supervisord_py.ledger import pipes as ledger_pipes
from supervisord_py.ledger.pipes import (
    PIPE_STATES,
    ErrorType,
    Execution,
    Outcome,
    PipeStateRow,
    Preset,
    Status,
)
from supervisord_py.ledger.store import Ledger
from supervisord_py.ledger.table import to_text
from supervisord_py.pipes import outcome as outcomes
from supervisord_py.pipes.adapters import CannotRunError
from supervisord_py.pipes.catalog import PipeCatalog
from supervisord_py.pipes.due import Decision, Now, Progress, decide, period, stagger
from supervisord_py.pipes.machine_zone import MachineZone
from supervisord_py.pipes.models import PipeDefinition, PipesConfig
from supervisord_py.pipes.preflight import AgentShelf
from supervisord_py.pipes.presets import resolve
from supervisord_py.pipes.schedule import Manual
from supervisord_py.pipes.time_range import counts, end_after, next_range, range_to_repeat
from supervisord_py.process import clock
from supervisord_py.process.events import EventStream
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.process.supervisor import Driver, Supervisor

TIMEOUT_SECONDS = 300.0  # of a pipe that names none
MAX_TURNS = 200
STEP_SECONDS = 1.0
"""A slewed wall clock differs by less between two looks; what is left over adds up until it is a
step.
"""
SLEPT_SECONDS = 2.0  # clocks that were read together differ by less
_INSTANTS = ("last_run_at", "last_due", "anchor_at")
_NOT_ITS_OWN = frozenset((ErrorType.CANCELLED, ErrorType.SHUTDOWN, ErrorType.INTERRUPTED))
_AVERAGED = 20  # durations are averaged over about so many runs
# so many pipes, or runs, are looked at on the loop, 5 us each: a thread costs more, and wakes it
# once more
FEW = 500
_log = structlog.get_logger(__name__)


class Clocks(NamedTuple):
    """Where time comes from, in one place so that tests can turn it (DESIGN law 10)."""

    wall: Callable[[], float] = time.time  # Unix seconds
    boot: Callable[[], float] = clock.now  # seconds since boot, suspended ones included
    awake: Callable[[], float] = time.monotonic  # seconds since boot in which the machine was awake

    def moment(self) -> float:
        """Return Unix seconds as a row keeps them: what was told at first is what is read again
        later.
        """
        return whole_ms(self.wall())


def whole_ms(seconds: float) -> float:
    """Return a time without what is finer than a millisecond; never later than it was."""
    return math.floor(seconds * 1000) / 1000


class ClockWatch:
    """Looks at the clocks, and notices what people and machines do to them: set the time, change
    the zone, sleep.

    What is found due at the first look counts as missed while the machine was off. `zone` is the
    machine's, now.
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

    @property
    def zone(self) -> tzinfo:
        """The machine's zone, as of the last look."""
        return self._zone

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


class PipeStates:
    def __init__(self, ledger: Ledger, clocks: Clocks) -> None:
        self.last_status: dict[str, Status] = {}  # how the newest execution of a pipe ended
        # of its runs; of those before this life only the last one counts
        self.average_seconds: dict[str, float] = {}
        self._ledger = ledger
        self._clocks = clocks
        self.rows: dict[str, PipeStateRow] = {}  # of every pipe that was ever seen, by name
        # of a pipe's instant, on the clock that counts suspend
        self._boots: dict[tuple[str, str], float] = {}

    async def open(self) -> None:
        self.rows = {
            row.pipe_name: row for row in await PIPE_STATES.find(self._ledger, "ORDER BY pipe_name")
        }
        wall, ahead = self._clocks.wall(), self._clocks.wall() - self._clocks.boot()
        for pipe, row in self.rows.items():
            known = {name: getattr(row, name) for name in _INSTANTS}
            # What lies ahead of the clock was noted when that was wrong: it counts as now (B4).
            self._boots |= {
                (pipe, name): min(at, wall) - ahead for name, at in known.items() if at is not None
            }
        for execution in (await ledger_pipes.last_of_each(self._ledger)).values():
            if not self._is_of_removed(execution):
                self.ended(execution)

    def _is_of_removed(self, execution: Execution) -> bool:
        """Say whether an execution is of an earlier pipe of that name, which was removed: this
        one never ran.
        """
        row = self.get(execution.pipe_name)
        if row.last_run_at is not None or row.last_success_at is not None:
            return False
        return row.anchor_at is None or execution.queued_at < row.anchor_at

    def get(self, pipe: str) -> PipeStateRow:
        return self.rows.get(pipe) or PipeStateRow(pipe)

    def take(self, pipe: str, **fields: Any) -> None:
        before = self.get(pipe)
        after = self.rows[pipe] = structs.replace(before, **fields)
        for name in _INSTANTS:
            instant = getattr(after, name)
            if instant is not None and instant != getattr(before, name):
                self._boots[pipe, name] = instant - (self._clocks.wall() - self._clocks.boot())

    def change(self, pipe: str, **fields: Any) -> None:
        """Change a row and write it behind."""
        before = self.get(pipe)
        wanted = {name: value for name, value in fields.items() if getattr(before, name) != value}
        if wanted or pipe not in self.rows:
            self.take(pipe, **wanted)
            self._ledger.post(PIPE_STATES.merge(pipe, **wanted))

    def decided(self, pipe: str, words: str) -> None:
        self.change(pipe, last_decision=words, last_decision_at=self._clocks.moment())

    async def forget(self, pipe: str) -> None:
        self.rows.pop(pipe, None)
        self.last_status.pop(pipe, None)
        self.average_seconds.pop(pipe, None)
        for name in _INSTANTS:
            self._boots.pop((pipe, name), None)
        await self._ledger.write(ledger_pipes.forget(pipe))

    def progress(self, pipe: str) -> Progress:
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
        """Say whether a pipe may run by itself: the wish of this machine, until its file says
        something new.
        """
        row = self.get(definition.name)
        if row.enabled is not None and row.enabled_file == definition.enabled:
            return row.enabled
        return definition.enabled

    def change_by(
        self, execution: Execution, outcome: Outcome, now: float, *, goes_on: bool
    ) -> dict[str, Any]:
        """Return what an end means for its pipe; `goes_on`: another try follows by itself."""
        if outcome.status is Status.COMPLETED:
            change: dict[str, Any] = {"last_success_at": now, "consecutive_failures": 0}
            if execution.plan.range_counts:
                last_end = self.get(execution.pipe_name).last_context_end
                change["last_context_end"] = end_after(last_end, execution.context_end, now)
            return change
        if outcome.error_type in _NOT_ITS_OWN or goes_on:
            return {}
        return {"consecutive_failures": self.get(execution.pipe_name).consecutive_failures + 1}

    def ended(self, it: Execution) -> None:
        self.last_status[it.pipe_name] = it.status
        if it.duration_ms is not None and it.status in {Status.COMPLETED, Status.TIMED_OUT}:
            before = self.average_seconds.get(it.pipe_name, it.duration_ms / 1000)
            self.average_seconds[it.pipe_name] = (
                before + (it.duration_ms / 1000 - before) / _AVERAGED
            )


class PipesContext:
    """What a run, the line, times and events need of the room: the room is one, with more."""

    driver: Driver[Any]  # what the supervisor needs to run executions; the room sets it
    # what follows from the end of a run whose row is final; frees its slot
    after: Callable[[Any], Awaitable[None]]

    def __init__(
        self,
        placement: KeeperClient,
        ledger: Ledger,
        events: EventStream,
        config: PipesConfig,
        *,
        environ: Mapping[str, str] = os.environ,  # the daemon's, to pick from
        own: Mapping[str, str] | None = None,  # harmless variables of ours that every agent gets
        clocks: Clocks | None = None,
    ) -> None:
        self.placement, self.ledger, self.events, self.config = placement, ledger, events, config
        self.own, self.clocks = own or {}, clocks or Clocks()
        self._machine_zone = MachineZone(environ)
        self.supervisor = Supervisor(placement, ledger, events)
        self.states = PipeStates(ledger, self.clocks)
        self.catalog = PipeCatalog(config.pipes_dir, default_agent=config.default_agent)
        self.shelf = AgentShelf(config, placement, environ)
        self.watch = ClockWatch(self.clocks, self._zone)
        # so that machines with the same pipes differ
        self._seed = placement.new_key().partition(".")[0]
        self.now, self.task, self.definition = (
            self.watch.now,
            self.supervisor.task,
            self.catalog.declared,
        )

    def folder(self, execution: int) -> Path:
        return self.config.executions_dir / str(execution)

    def definition_of(self, pipe: str) -> PipeDefinition | None:
        found = self.catalog.pipes.get(pipe)
        return found if isinstance(found, PipeDefinition) else None

    def usable(self) -> Iterator[PipeDefinition]:
        return (each for each in self.catalog.pipes.values() if isinstance(each, PipeDefinition))

    def decision(self, pipe: PipeDefinition) -> Decision:
        delay = stagger(pipe.name, self._seed, self.config.stagger_seconds)
        progress = self.states.progress(pipe.name)
        return decide(
            pipe.schedule, progress, self.now(), run_on_enable=pipe.run_on_enable, delay=delay
        )

    async def choose(
        self, pipe: PipeDefinition, seconds: float | None = None
    ) -> tuple[Execution, tuple[str, ...]]:
        """Return an execution with all that it would be run with, as the files stand now, and
        warnings about presets.

        One that cannot run has failed already, and names what is missing. `seconds` is the timeout
        of this run alone.
        """
        adapters, presets = await self.shelf.look()
        chain: tuple[Preset, ...] = (Preset(id=next(iter(pipe.presets), None)),)
        warnings: tuple[str, ...] = ()
        failure: dict[str, Any] = {"status": Status.QUEUED}
        try:
            adapters.get(pipe.plan.agent)
            chain, warnings = resolve(pipe, presets)
        except CannotRunError as error:
            failure = {
                "status": Status.FAILED,
                "error_type": error.error_type,
                "error_message": error.message,
            }
        plan = structs.replace(
            pipe.plan,
            timeout_seconds=min(
                seconds or pipe.timeout_seconds or TIMEOUT_SECONDS, self.config.timeout_max_seconds
            ),
            max_turns=pipe.plan.max_turns or MAX_TURNS,
            retries=self.config.retries
            if pipe.retries.max_retries is None
            else pipe.retries.max_retries,
            fallbacks=chain[1:],
        )
        return Execution(id=0, pipe_name=pipe.name, plan=plan, preset=chain[0], **failure), warnings

    def build(
        self,
        pipe: PipeDefinition,
        chosen: Execution,
        number: int | None = None,
        *,
        context: Mapping[str, Any] | None = None,
        retried: Execution | None = None,
        advance: bool = False,
        **trigger: Any,
    ) -> Execution:
        """Return a chosen execution as one that is queued now, by hand unless a `trigger` says so;
        nothing is recorded.

        Without a number it takes the next one for good. `retried` is the execution that it tries
        again; with `advance` its time range counts also where it is run by hand.
        """
        number = self.ledger.next_number() if number is None else number
        now = self.clocks.moment()
        last_end = self.states.get(pipe.name).last_context_end
        time_range = None if retried is None else range_to_repeat(retried, last_end)
        if time_range is None:
            # The period is of use for a first run alone, and takes a look at the next due times.
            is_first = last_end is None
            seconds = (
                period(pipe.schedule, self.states.progress(pipe.name), self.now())
                if is_first
                else None
            )
            time_range = next_range(now, last_end, seconds)
        runs_by_itself = not isinstance(pipe.schedule, Manual) or bool(pipe.events)
        group = trigger.get("group", chosen.group)
        plan = structs.replace(
            chosen.plan,
            context=chosen.plan.context if context is None else context,
            range_counts=counts(group, runs_by_itself=runs_by_itself, advance=advance),
        )
        row = structs.replace(
            chosen,
            id=number,
            queued_at=now,
            agent=plan.agent,
            model=chosen.preset.model,
            provider=chosen.preset.provider,
            preset_id=chosen.preset.id,
            timeout_seconds=plan.timeout_seconds,
            plan=plan,
            context_start=whole_ms(time_range.start),
            context_end=time_range.end,
            api_port=self.config.api_port,
            output_dir=f"{pipe.folder}/output/{number}",
            finished_at=now if chosen.status.is_final else None,
            **trigger,
        )
        prompt = render_prompt(row, pipe.body, zone=self.zone_name(pipe), api=self.config.api)
        return structs.replace(row, rendered_prompt=prompt)

    def next_try(self, it: Execution, pipe: PipeDefinition, outcome: Outcome) -> Execution | None:
        """Return the execution that follows a failed one, or None: another preset at once, or
        the same again later.
        """
        chance = random.random()  # noqa: S311 - spreads tries, hides nothing
        first, rules = self.config.retry_initial_seconds, pipe.retries
        found = outcomes.next_try(
            outcome, it.plan, it.preset, it.retry_count, first=first, rules=rules, chance=chance
        )
        if found is None:
            return None
        plan, preset, delay = found
        at = None if delay is None else whole_ms(self.clocks.moment() + delay)
        chosen = Execution(
            id=0,
            pipe_name=it.pipe_name,
            status=Status.QUEUED,
            plan=plan,
            preset=preset,
            not_before=at,
        )
        return self.build(pipe, chosen, **again(it))

    def zone_name(self, definition: PipeDefinition | None = None) -> str:
        return (
            (definition and definition.timezone)
            or self.config.timezone
            or self._machine_zone.name()
        )

    def _zone(self) -> tzinfo:
        try:
            return ZoneInfo(self.zone_name())
        except (ZoneInfoNotFoundError, ValueError, OSError):
            return UTC


def again(before: Execution) -> dict[str, Any]:
    return {
        "trigger": ledger_pipes.Trigger.RETRY,
        "group": before.group,
        "context": before.plan.context,
        "retried": before,
        "advance": before.plan.range_counts,
        "trigger_event": before.trigger_event,
        "trigger_key": before.trigger_key,
        "retry_of": before.id,
        "retry_count": before.retry_count + 1,
    }


def render_prompt(it: Execution, body: str, *, zone: str, api: str) -> str:
    """Return the whole prompt: five facts, the preset's words where it has some, and the body as it
    was written.

    Published pipes were written for these facts. The date is that of the window's end in the
    `zone`; the output directory is relative to the working directory. `{{…}}` in a body passes
    through untouched.
    """
    start, end, context = (
        it.context_start or it.queued_at,
        it.context_end or it.queued_at,
        it.plan.context,
    )
    local = datetime.fromtimestamp(end, UTC).astimezone(ZoneInfo(zone))
    lines = [
        f"Time range: {to_text(start)} to {to_text(end)}",
        f"Date: {local.date().isoformat()}",
        f"Timezone: {zone} (UTC{local.isoformat()[-6:]})",
        f"Output directory: ./output/{it.id}/",
        f"API: {api}",
    ]
    if context is not None:
        lines.append(f"Trigger: {json.dumps(context, ensure_ascii=False, sort_keys=True)}")
    words = (it.preset.prompt or "").strip("\n")
    return "\n\n".join(["\n".join(lines), *([words] if words.strip() else []), body])

"""From a trigger to a row: what is accepted is recorded, with everything that it will be run with.

Laws: the row is there before anything else happens. What runs is what was decided at the trigger; later edits of pipe,
presets or settings change later executions. What cannot run (a preset that is not there, an agent that nobody knows)
is a row all the same, failed at once, that names what is missing; nothing of it is ever in line. Who asks twice by
hand is told of the first instead of starting a second; who wants to wait in line says so.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

from msgspec import structs

from supervisord_py.errors import ConfigError, ConflictError, InvalidInputError, OverloadedError
from supervisord_py.ledger import pipe_history
from supervisord_py.ledger.pipe_executions import (
    EXECUTIONS,
    ErrorType,
    Execution,
    Group,
    Outcome,
    Plan,
    Preset,
    Status,
    Trigger,
    add,
)
from supervisord_py.ledger.pipe_history import ExecutionFilter
from supervisord_py.ledger.pipe_state import PIPE_STATES
from supervisord_py.ledger.table import together
from supervisord_py.pipes import outcome as outcomes
from supervisord_py.pipes.adapters import AgentLimits, CannotRunError
from supervisord_py.pipes.presets import PresetProblem, resolve
from supervisord_py.pipes.prompt import api_address, render_prompt
from supervisord_py.pipes.run import Run
from supervisord_py.pipes.scheduler import whole_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from supervisord_py.ledger.pipe_state import Claim
    from supervisord_py.pipes.config import PipesConfig
    from supervisord_py.pipes.models import PipeDefinition
    from supervisord_py.pipes.outcome import NextTry
    from supervisord_py.pipes.room import Pipes

WAITING_MAX = 10_000  # executions of one pipe in line: somebody asks in a loop


class Order(NamedTuple):
    """Why an execution is to be, before it has an id.

    Attributes:
        event, key: The event that led to it.
        retry_of, retry_count: The execution before it.
    """

    trigger: Trigger
    group: Group
    context: Mapping[str, Any] | None = None  # JSON values for the prompt, or None
    event: str | None = None
    key: str | None = None
    retry_of: int | None = None
    retry_count: int = 0
    not_before: float | None = None  # Unix seconds; None = at once
    timeout_seconds: float | None = None  # of this run alone
    cause: int | None = None  # id of the event that led to it


BY_HAND = Order(Trigger.MANUAL, Group.MANUAL)


class Chosen(NamedTuple):
    """With what it is to be run; `refusal`: why it cannot be; `warnings` are about presets that it does without."""

    plan: Plan
    preset: Preset
    refusal: Outcome | None = None
    warnings: tuple[str, ...] = ()


class Intake:
    def __init__(self, room: Pipes) -> None:
        self._room = room
        self._one_at_a_time: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Of two that ask at the same moment, the second is to see the first."""

    # -- by hand -------------------------------------------------------------------------------------------------

    async def run(self, definition: PipeDefinition, order: Order, *, queue: bool) -> Execution:
        """Queue a run that somebody asks for by hand.

        Raises ConflictError: the pipe runs, or waits for a run by hand, already (unless `queue`).
        """
        room, name = self._room, definition.name
        self._check(name, order.timeout_seconds, 1)
        async with self._one_at_a_time[name]:
            for run in () if queue else room.of_pipe(name):  # refuse one beside what is at work, or was asked for
                waits = room.line.position(run.id) is not None
                if not waits or run.execution.trigger is Trigger.MANUAL:
                    raise ConflictError(
                        f"pipe {name} {'is in line already' if waits else 'runs already'}: execution {run.id}",
                        hint=f"follow it: `pxctl pipe tail {run.id}`; or wait in line with --queue",
                        unit=f"pipe:{name}",
                        execution=run.id,
                        pid=run.execution.pid,
                    )
            taken = await self.take(definition, order)
        assert taken is not None
        return room.view(taken)

    async def run_each(self, definition: PipeDefinition, orders: Sequence[Order]) -> tuple[Execution, ...]:
        """Queue runs that somebody asks for by hand, all or none, in their order: one transaction."""
        self._check(definition.name, orders[0].timeout_seconds, len(orders))
        first = await self.choose(definition, orders[0])
        chosen = [first._replace(plan=structs.replace(first.plan, context=order.context)) for order in orders]
        if first.refusal is None:
            taken = await self._room.finish(self._taken_each(definition, orders, chosen))
        else:  # each means something for its pipe, after the one before
            pairs = zip(orders, chosen, strict=True)
            taken = [run for each in pairs if (run := await self.take(definition, *each)) is not None]
        return tuple(map(self._room.view, taken))

    def _check(self, name: str, seconds: float | None, count: int) -> None:
        """Refuse a timeout that is none, and more in line than can be meant."""
        if seconds is not None and not seconds > 0:
            message = f"a timeout of {seconds:g} s is no time"
            errors = [{"pointer": "/timeout", "message": message}]
            raise InvalidInputError(message, hint="give seconds greater than 0", unit=f"pipe:{name}", errors=errors)
        waiting = len(self._room.queued(name))
        if waiting + count > WAITING_MAX:
            raise OverloadedError(
                f"{waiting} executions of pipe {name} wait already, of {WAITING_MAX} at most",
                hint=f"`pxctl pipe queue` shows them; `pxctl pipe cancel {name}` ends them all",
                unit=f"pipe:{name}",
                retry_after_seconds=60,
            )

    async def rendered(self, definition: PipeDefinition) -> str:
        newest = (await pipe_history.page(self._room.ledger, ExecutionFilter(limit=1))).executions
        number = newest[0].id + 1 if newest else 1
        return self.example(definition, await self.choose(definition, BY_HAND), number).rendered_prompt or ""

    # -- again ---------------------------------------------------------------------------------------------------

    def next_try(self, run: Run, outcome: Outcome) -> NextTry | None:
        if outcome.status in {Status.COMPLETED, Status.CANCELLED} or run.definition is None:
            return None
        it = run.execution
        chance = random.random()  # noqa: S311 - spreads tries, hides nothing
        limits, rules = self._room.config.retries, run.definition.retries
        return outcomes.next_try(outcome, it.plan, it.preset, it.retry_count, limits=limits, rules=rules, chance=chance)

    async def try_again(self, run: Run, found: NextTry) -> None:
        if run.definition is None:
            return
        now, delay = self._room.clocks.moment(), found.delay_seconds
        not_before = None if delay is None else whole_ms(now + delay)
        order = again(run.execution)._replace(not_before=not_before, cause=run.event)
        follower = await self.take(run.definition, order, chosen=Chosen(found.plan, found.preset))
        if follower is not None:
            self._room.supervisor.say("execution_retried", follower, retry_of=run.id)

    async def follow_up(self, run: Run) -> None:
        """Prepare what follows from an end that was recorded by a control plane that ended before it came to that."""
        it = run.execution
        run.outcome = Outcome(it.status, it.error_type, it.error_message)
        tries = "WHERE pipe_name = ? AND retry_of = ?"
        if not await EXECUTIONS.listed(self._room.ledger, tries, it.pipe_name, it.id):
            run.following = self.next_try(run, run.outcome)

    async def check_budget(self, run: Run) -> None:
        """Refuse a run for which the day's budget is used up. Raises CannotRunError: `budget_exceeded`."""
        config, definition = self._room.config, run.definition
        both: list[tuple[Any, str, str | None]] = [(config, "the daily budget of all pipes is", None)]
        if definition is not None:
            both.append((definition.budget, "the pipe's daily budget is", run.name))
        zone = ZoneInfo((definition and definition.timezone) or config.default_timezone or self._room.shelf.zone)
        now = datetime.fromtimestamp(self._room.clocks.wall(), zone)
        today = now.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
        for most, whose, pipe in both:
            if most.daily_tokens is None and most.daily_cost is None:
                continue
            tokens, cost = await pipe_history.usage_since(self._room.ledger, today, pipe)
            why = None
            if most.daily_tokens is not None and tokens >= most.daily_tokens:
                why = f"{tokens} tokens today of {most.daily_tokens}"
            elif most.daily_cost is not None and cost >= most.daily_cost:
                why = f"{cost:.4f} USD today of {most.daily_cost:g}"
            if why is not None:
                raise CannotRunError(ErrorType.BUDGET_EXCEEDED, f"{whose} used up: {why}")

    # -- taking in -----------------------------------------------------------------------------------------------

    async def take(
        self,
        definition: PipeDefinition,
        order: Order,
        chosen: Chosen | None = None,
        *,
        claim: Claim | None = None,
        **change: Any,
    ) -> Run | None:
        """Record an execution, and put it in line; None where the pipe has claimed that event before.

        Args:
            definition, order: Of which pipe, and why.
            chosen: With what, where that is decided already (a retry).
            claim: On the event that leads to it.
            change: Of what is remembered of the pipe, in the same transaction.

        Raises LedgerDegradedError: the disk takes nothing, and there is a claim to be made.
        """
        chosen = chosen or await self.choose(definition, order)
        # Whoever asked may go away in the middle; a row that nobody put in line would wait for the next start.
        return await self._room.finish(self._taken(definition, order, chosen, claim, change))

    async def _taken(
        self, definition: PipeDefinition, order: Order, chosen: Chosen, claim: Claim | None, change: dict[str, Any]
    ) -> Run | None:
        room, name = self._room, definition.name
        draft, refusal, following = self._draft(definition, order, chosen), chosen.refusal, None
        if refusal is not None:  # what it means for its pipe is of one piece with its row
            following = self.next_try(Run(room, draft, definition), refusal)
            goes_on = following is not None
            change |= room.states.change_by(draft, refusal, draft.queued_at, goes_on=goes_on)
        also = PIPE_STATES.merge(name, **change) if change else None
        whole = await add(room.ledger, lambda number: self._whole(definition, draft, number), claim=claim, also=also)
        if whole is None:
            return None
        room.states.take(name, **change)
        run = self._announce(definition, whole, order, chosen)
        run.following = following
        if refusal is None:
            room.push(run)
        else:
            await room.after(run)
        return run

    async def _taken_each(
        self, definition: PipeDefinition, orders: Sequence[Order], chosen: Sequence[Chosen]
    ) -> list[Run]:
        room, pairs = self._room, tuple(zip(orders, chosen, strict=True))
        drafts = [self._draft(definition, *each) for each in pairs]
        rows = [self._whole(definition, draft, room.ledger.next_number("pipe_executions")) for draft in drafts]
        await room.ledger.write(together(*map(EXECUTIONS.insert, rows)))
        runs = [self._announce(definition, row, *each) for row, each in zip(rows, pairs, strict=True)]
        room.push(*runs)
        return runs

    def _announce(self, definition: PipeDefinition, whole: Execution, order: Order, chosen: Chosen) -> Run:
        """Return the run of a row that is written, and tell everybody of it."""
        run = Run(self._room, whole, definition)
        run.event, run.outcome = order.cause, chosen.refusal
        self._room.supervisor.say(
            "execution_queued",
            run,
            trigger=whole.trigger.value,
            group=whole.group.value,
            retry_of=whole.retry_of,
            preset=whole.preset.id,
            warnings=list(chosen.warnings),
        )
        return run

    async def choose(self, definition: PipeDefinition, order: Order) -> Chosen:
        adapters, presets = await self._room.shelf.look()
        found, config = resolve(definition, presets), self._room.config
        refusal: Outcome | None = None
        limits: AgentLimits | None = None
        try:
            limits = adapters.get(definition.agent).limits
        except ConfigError as error:
            refusal = Outcome(Status.FAILED, ErrorType.CONFIG_ERROR, f"{error.detail}; {error.hint}")
        if isinstance(found, PresetProblem):
            refusal = refusal or Outcome(Status.FAILED, found.error_type, f"{found.message}; {found.hint}")
            preset = Preset(id=next(iter(definition.presets), None))
            return Chosen(_plan(definition, (), limits, order, config), preset, refusal)
        plan = _plan(definition, found.fallbacks, limits, order, config)
        return Chosen(plan, found.preset, refusal, found.warnings)

    def example(self, definition: PipeDefinition, chosen: Chosen, number: int = 0) -> Execution:
        """Return an execution as one that is queued now would be; nothing is recorded."""
        return self._whole(definition, self._draft(definition, BY_HAND, chosen), number)

    def _draft(self, definition: PipeDefinition, order: Order, chosen: Chosen) -> Execution:
        """Return the execution but for what its id is in. In the loop: it reads the room's state, see `_whole`."""
        room, refusal, plan, preset = self._room, chosen.refusal, chosen.plan, chosen.preset
        now, limits = room.clocks.moment(), room.config.scheduler
        # Windows are chained: one begins where the last successful one ended, so that queueing loses no time.
        start = room.states.get(definition.name).last_context_end
        if start is None:
            start = now - (room.status.interval(definition) or limits.window_default_seconds)
        return Execution(
            id=0,
            pipe_name=definition.name,
            status=Status.QUEUED if refusal is None else refusal.status,
            trigger=order.trigger,
            group=order.group,
            queued_at=now,
            agent=plan.agent,
            model=preset.model,
            provider=preset.provider,
            preset_id=preset.id,
            timeout_seconds=plan.timeout_seconds,
            plan=plan,
            preset=preset,
            not_before=order.not_before,
            trigger_event=order.event,
            trigger_key=order.key,
            retry_of=order.retry_of,
            retry_count=order.retry_count,
            context_start=whole_ms(min(now, max(start, now - limits.window_max_seconds))),
            context_end=now,
            api_port=room.config.api_port,
            finished_at=None if refusal is None else now,
            error_type=None if refusal is None else refusal.error_type,
            error_message=None if refusal is None else refusal.error_message,
        )

    def _whole(self, definition: PipeDefinition, draft: Execution, number: int) -> Execution:
        """Return the execution with what its id is in. Pure.

        Apart from `_draft`: where there is a claim, `pipe_executions.add` calls this in the writer's thread.
        """
        config = self._room.config
        zone = definition.timezone or config.default_timezone or self._room.shelf.zone
        api = api_address(config.socket, config.api_port, config.api_host)
        whole = structs.replace(draft, id=number, output_dir=str(definition.folder / "output" / str(number)))
        return structs.replace(whole, rendered_prompt=render_prompt(whole, definition.body, zone=zone, api=api))


def again(before: Execution) -> Order:
    """Return the order of an execution that is run again, as a new row that names it."""
    return Order(
        Trigger.RETRY,
        before.group,
        context=before.plan.context,
        event=before.trigger_event,
        key=before.trigger_key,
        retry_of=before.id,
        retry_count=before.retry_count + 1,
    )


def _plan(
    definition: PipeDefinition,
    fallbacks: tuple[Preset, ...],
    agent: AgentLimits | None,
    order: Order,
    config: PipesConfig,
) -> Plan:
    agent = agent or AgentLimits()
    limits, retries, most = definition.limits, definition.retries.max_retries, config.timeout_max_seconds
    wanted = order.timeout_seconds or definition.timeout_seconds or config.timeout_seconds
    return Plan(
        agent=definition.agent,
        command=definition.command,
        timeout_seconds=min(wanted, most),
        wanted_seconds=wanted if wanted > most else None,
        max_turns=_first(limits.turns, agent.turns, config.max_turns),
        max_tokens=_first(limits.tokens, agent.tokens, config.max_tokens),
        max_cost=_first(limits.cost, agent.cost, config.max_cost),
        retries=config.retries.max_retries if retries is None else retries,
        fallbacks=fallbacks,
        allow_empty=definition.allow_empty,
        history=definition.history,
        memory_bytes=limits.memory_bytes if limits.memory_bytes is not None else config.max_memory_bytes,
        context=order.context,
    )


def _first(*values: float | None) -> Any:
    return next((value for value in values if value is not None), None)

"""From a trigger to a row: what is accepted is recorded, with everything that it will be run with.

Laws: the row is on its way to the ledger before anything else happens, and before every row that follows from it;
whoever promises it to somebody flushes the ledger first. What runs is what was decided at the trigger; later edits of
pipe, presets or settings change later executions. What cannot run (a preset that is not there, an agent that nobody
knows) is a row all the same, failed at once, that names what is missing; it is never in line.
"""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from msgspec import structs

from supervisord_py.errors import ConfigError, ConflictError, InvalidInputError, OverloadedError
from supervisord_py.ledger import pipe_history
from supervisord_py.ledger.pipe_executions import (
    EXECUTIONS,
    ErrorType,
    Execution,
    Outcome,
    Plan,
    Preset,
    Status,
    Trigger,
)
from supervisord_py.ledger.pipe_state import PIPE_STATES, claimed
from supervisord_py.ledger.table import to_text, together
from supervisord_py.pipes import due
from supervisord_py.pipes import outcome as outcomes
from supervisord_py.pipes.adapters import CannotRunError
from supervisord_py.pipes.clocks import whole_ms
from supervisord_py.pipes.models import TOKEN_FILE_VARIABLE, Chosen, Order
from supervisord_py.pipes.presets import PresetProblem, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisord_py.ledger.pipe_state import Claim
    from supervisord_py.ledger.table import Operation
    from supervisord_py.pipes.config import PipesConfig
    from supervisord_py.pipes.executions import Executions
    from supervisord_py.pipes.means import Means
    from supervisord_py.pipes.models import PipeDefinition
    from supervisord_py.pipes.run import Run

WAITING_MAX = 10_000  # executions of one pipe in line: somebody asks in a loop


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


async def choose(room: Means, definition: PipeDefinition, order: Order) -> Chosen:
    """Decide with which agent, limits and presets an execution is to be run, as the files stand now."""
    adapters, presets = await room.shelf.look()
    found = resolve(definition, presets)
    refusal = None
    try:
        adapters.get(definition.agent)
    except ConfigError as error:
        refusal = Outcome(Status.FAILED, ErrorType.CONFIG_ERROR, f"{error.detail}; {error.hint}")
    if isinstance(found, PresetProblem):
        refusal = refusal or Outcome(Status.FAILED, found.error_type, f"{found.message}; {found.hint}")
        preset = Preset(id=next(iter(definition.presets), None))
        return Chosen(_plan(definition, (), order, room.config), preset, refusal)
    plan = _plan(definition, found.fallbacks, order, room.config)
    return Chosen(plan, found.preset, refusal, found.warnings)


def _plan(definition: PipeDefinition, fallbacks: tuple[Preset, ...], order: Order, config: PipesConfig) -> Plan:
    limits, retries, most = definition.limits, definition.retries.max_retries, config.timeout_max_seconds
    wanted = order.timeout_seconds or definition.timeout_seconds or config.timeout_seconds
    return Plan(
        agent=definition.agent,
        command=definition.command,
        timeout_seconds=min(wanted, most),
        wanted_seconds=wanted if wanted > most else None,
        max_turns=_first(limits.turns, config.max_turns),
        max_tokens=_first(limits.tokens, config.max_tokens),
        max_cost=_first(limits.cost, config.max_cost),
        retries=config.retries.max_retries if retries is None else retries,
        fallbacks=fallbacks,
        allow_empty=definition.allow_empty,
        history=definition.history,
        memory_bytes=_first(limits.memory_bytes, config.max_memory_bytes),
    )


def _first(*values: float | None) -> Any:
    return next((value for value in values if value is not None), None)


def check_by_hand(room: Executions, name: str, orders: Sequence[Order], *, queue: bool) -> None:
    """Refuse what nobody can mean: a timeout that is none, too many in line, and a run beside another (not `queue`).

    The other one is at work already, or was asked for by hand, too.
    """
    unit, seconds = f"pipe:{name}", orders[0].timeout_seconds
    if seconds is not None and not seconds > 0:
        message = f"a timeout of {seconds:g} s is no time"
        errors = [{"pointer": "/timeout", "message": message}]
        raise InvalidInputError(message, hint="give seconds greater than 0", unit=unit, errors=errors)
    for run in () if queue else room.of_pipe(name):
        waits = room.line.position(run.id) is not None
        if not waits or run.execution.trigger is Trigger.MANUAL:
            raise ConflictError(
                f"pipe {name} {'is in line already' if waits else 'runs already'}: execution {run.id}",
                hint=f"follow it: `pxctl pipe tail {run.id}`; or wait in line with --queue",
                unit=unit,
                execution=run.id,
                pid=run.execution.pid,
            )
    waiting = len(room.queued(name))
    if waiting + len(orders) > WAITING_MAX:
        message = f"{waiting} executions of pipe {name} wait already, of {WAITING_MAX} at most"
        hint = f"`pxctl pipe queue` shows them; `pxctl pipe cancel {name}` ends them all"
        raise OverloadedError(message, hint=hint, unit=unit, retry_after_seconds=60)


# -- recording ---------------------------------------------------------------------------------------------------------


def enqueue(
    room: Executions, definition: PipeDefinition, orders: Sequence[Order], chosen: Chosen, **change: Any
) -> tuple[Run, ...]:
    """Record executions, all or none, with a `change` of what is remembered of their pipe, and put them in line."""
    recorded = [_recorded(room, definition, order, chosen, change) for order in orders]
    room.ledger.post(together(*(operation for _row, operation in recorded)))
    pairs = zip(recorded, orders, strict=True)
    return tuple(take_in(room, definition, row, order, chosen) for (row, _operation), order in pairs)


async def enqueue_once(
    room: Executions, definition: PipeDefinition, order: Order, chosen: Chosen, claim: Claim
) -> Run | None:
    """Do the same where its event is not claimed yet, in the claim's transaction; None where the pipe has had it.

    Raises LedgerDegradedError: the disk takes nothing: nobody can know whether it is claimed.
    """
    row, operation = _recorded(room, definition, order, chosen, {})
    # One that fails at once keeps no claim: told again, the event may start the pipe.
    if chosen.refusal is not None:
        room.ledger.post(operation)
    elif not await room.ledger.call(claimed(claim, operation)):
        return None
    return take_in(room, definition, row, order, chosen)


def _recorded(
    room: Executions, definition: PipeDefinition, order: Order, chosen: Chosen, change: dict[str, Any]
) -> tuple[Execution, Operation]:
    """Return a fresh row, and what writes it; what a refusal means for its pipe is of one piece with it."""
    row = build(room, definition, order, chosen, room.ledger.next_number("pipe_executions"))
    if chosen.refusal is not None:
        change = change | room.states.change_by(row, chosen.refusal, row.queued_at, goes_on=False)
    room.states.take(row.pipe_name, **change)
    state = PIPE_STATES.merge(row.pipe_name, **change) if change else None
    return row, together(EXECUTIONS.insert(row), state)


def take_in(room: Executions, definition: PipeDefinition, row: Execution, order: Order, chosen: Chosen) -> Run:
    """Put an execution whose row is written or on its way into the line, and tell everybody of it."""
    run = room.run_of(row, definition)
    run.event, run.outcome = order.cause, chosen.refusal
    room.supervisor.say(
        "execution_queued",
        run,
        trigger=row.trigger.value,
        group=row.group.value,
        retry_of=row.retry_of,
        preset=row.preset.id,
        warnings=list(chosen.warnings),
    )
    if chosen.refusal is None:
        room.push(run)
    else:
        room.add(run)
        room.task(run.finish())
    return run


def build(room: Means, definition: PipeDefinition, order: Order, chosen: Chosen, number: int) -> Execution:
    """Return an execution as one that is queued now is; nothing is recorded."""
    config, refusal, plan, preset = room.config, chosen.refusal, chosen.plan, chosen.preset
    now, limits = room.clocks.moment(), config.scheduler
    # Windows are chained: one begins where the last successful one ended, so that queueing loses no time.
    start = room.states.get(definition.name).last_context_end
    if start is None:
        period = due.period(definition.schedule, room.states.progress(definition.name), room.now())
        start = now - (period or limits.window_default_seconds)
    row = Execution(
        id=number,
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
        plan=plan if plan.context is order.context else structs.replace(plan, context=order.context),
        preset=preset,
        not_before=order.not_before,
        trigger_event=order.event,
        trigger_key=order.key,
        retry_of=order.retry_of,
        retry_count=order.retry_count,
        context_start=whole_ms(min(now, max(start, now - limits.window_max_seconds))),
        context_end=now,
        api_port=config.api_port,
        output_dir=str(definition.folder / "output" / str(number)),
        finished_at=None if refusal is None else now,
        error_type=None if refusal is None else refusal.error_type,
        error_message=None if refusal is None else refusal.error_message,
    )
    zone = definition.timezone or config.default_timezone or room.shelf.zone
    api = api_address(config.socket, config.api_port, config.api_host)
    return structs.replace(row, rendered_prompt=render_prompt(row, definition.body, zone=zone, api=api))


# -- the prompt --------------------------------------------------------------------------------------------------------


def api_address(socket: str, port: int | None, host: str = "127.0.0.1") -> str:
    """Say where the API is: the TCP port where there is a listener, else the control socket.

    The port asks for a token. The agent is told in which file it lies; the token itself is in no prompt.
    """
    if port is None:
        return f"unix socket {socket}"
    host = f"[{host}]" if ":" in host else host
    return f"http://{host}:{port} (bearer token in the file ${TOKEN_FILE_VARIABLE})"


def render_prompt(it: Execution, body: str, *, zone: str, api: str) -> str:
    """Return the whole prompt: five facts, the preset's words where it has some, and the body as it was written.

    Published pipes were written for these facts. The date is that of the window's end in the `zone`; the output
    directory is relative to the working directory. `{{…}}` in a body passes through untouched.
    """
    start, end, context = it.context_start or it.queued_at, it.context_end or it.queued_at, it.plan.context
    local = datetime.fromtimestamp(end, UTC).astimezone(ZoneInfo(zone))
    minutes = round((local.utcoffset() or timedelta()).total_seconds() / 60)
    offset = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
    lines = [
        f"Time range: {to_text(start)} to {to_text(end)}",
        f"Date: {local.date().isoformat()}",
        f"Timezone: {zone} (UTC{offset})",
        f"Output directory: ./output/{it.id}/",
        f"API: {api}",
    ]
    if context is not None:
        lines.append(f"Trigger: {json.dumps(context, ensure_ascii=False, sort_keys=True)}")
    words = (it.preset.prompt or "").strip("\n")
    return "\n\n".join(["\n".join(lines), *([words] if words.strip() else []), body])


# -- again, and not today ----------------------------------------------------------------------------------------------


def next_try(run: Run, outcome: Outcome) -> tuple[Execution, Order, Chosen] | None:
    """Return the execution that follows a failed one, or None: another preset at once, or the same again later."""
    it, room, definition = run.execution, run.room, run.definition
    if outcome.status in {Status.COMPLETED, Status.CANCELLED} or definition is None:
        return None
    chance = random.random()  # noqa: S311 - spreads tries, hides nothing
    limits, rules = room.config.retries, definition.retries
    found = outcomes.next_try(outcome, it.plan, it.preset, it.retry_count, limits=limits, rules=rules, chance=chance)
    if found is None:
        return None
    delay = found.delay_seconds
    not_before = None if delay is None else whole_ms(room.clocks.moment() + delay)
    order, chosen = again(it)._replace(not_before=not_before), Chosen(found.plan, found.preset)
    return build(room, definition, order, chosen, room.ledger.next_number("pipe_executions")), order, chosen


async def check_budget(room: Executions, run: Run) -> None:
    """Refuse a run for which the day's budget is used up. Raises CannotRunError: `budget_exceeded`."""
    definition = run.definition
    both: list[tuple[Any, str, str | None]] = [(room.config, "the daily budget of all pipes is", None)]
    if definition is not None:
        both.append((definition.budget, "the pipe's daily budget is", run.name))
    for most, whose, pipe in both:
        if most.daily_tokens is None and most.daily_cost is None:
            continue
        zone = ZoneInfo((definition and definition.timezone) or room.config.default_timezone or room.shelf.zone)
        now = datetime.fromtimestamp(room.clocks.wall(), zone)
        today = now.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()
        tokens, cost = await pipe_history.usage_since(room.ledger, today, pipe)
        for other in room.runs.values():  # what runs writes its row at its end
            if other.execution.status is Status.RUNNING and pipe in {None, other.name}:
                tokens, cost = tokens + other.execution.total_tokens, cost + other.execution.cost
        why = None
        if most.daily_tokens is not None and tokens >= most.daily_tokens:
            why = f"{tokens} tokens today of {most.daily_tokens}"
        elif most.daily_cost is not None and cost >= most.daily_cost:
            why = f"{cost:.4f} USD today of {most.daily_cost:g}"
        if why is not None:
            raise CannotRunError(ErrorType.BUDGET_EXCEEDED, f"{whose} used up: {why}")

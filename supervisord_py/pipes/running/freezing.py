"""What is fixed when an execution is queued: plan, time window, context. Pure.

Law (A2, C8): what runs is what was decided at the trigger; later edits of pipe, presets or settings change later
executions. Windows are chained: one begins where the last successful one ended, so that no time is lost by queueing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from supervisord_py.pipes.execution import Execution, Group, Plan, Preset, Status, Trigger, cut_timeout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from supervisord_py.pipes.config import PipesConfig, SchedulerLimits
    from supervisord_py.pipes.execution import ErrorType
    from supervisord_py.pipes.models import PipeDefinition

OUTPUT_FOLDER = "output"


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What an adapter says of turns, tokens and cost; None leaves it to the daemon."""

    turns: int | None = None
    tokens: int | None = None
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """Why an execution is to be, before it has an id.

    Attributes:
        context: JSON values for the prompt, or None.
        event, key: The event that led to it.
        retry_of, retry_count: The execution before it.
        not_before: Unix seconds; None = at once.
        timeout_seconds: Of this run alone.
    """

    trigger: Trigger
    group: Group
    context: Mapping[str, Any] | None = None
    event: str | None = None
    key: str | None = None
    retry_of: int | None = None
    retry_count: int = 0
    not_before: float | None = None
    timeout_seconds: float | None = None
    cause: int | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why it fails before it was ever in line."""

    error_type: ErrorType
    message: str


@dataclass(frozen=True, slots=True)
class Window:
    """The stretch of time that a prompt names, Unix seconds."""

    start: float
    end: float


def window(last_end: float | None, interval: float | None, end: float, limits: SchedulerLimits) -> Window:
    """Return the window of an execution that is queued at `end`.

    Args:
        last_end: Where the last successful execution's window ended.
        interval: Seconds between two runs, where there is such a thing.
        end: Now.
        limits: Longest and default.
    """
    start = last_end if last_end is not None else end - (interval or limits.window_default_seconds)
    return Window(min(end, max(start, end - limits.window_max_seconds)), end)


def plan_of(
    definition: PipeDefinition,
    fallbacks: tuple[Preset, ...],
    ceilings: Ceilings,
    order: Order,
    config: PipesConfig,
) -> Plan:
    """Return how an execution of a pipe is to be run."""
    limits, retries = definition.limits, definition.retries.max_retries
    wanted = order.timeout_seconds or definition.timeout_seconds or config.timeout_seconds
    return Plan(
        agent=definition.agent,
        command=definition.command,
        timeout_seconds=min(wanted, config.timeout_max_seconds),
        wanted_seconds=wanted if wanted > config.timeout_max_seconds else None,
        max_turns=_first(limits.turns, ceilings.turns, config.max_turns),
        max_tokens=_first(limits.tokens, ceilings.tokens, config.max_tokens),
        max_cost=_first(limits.cost, ceilings.cost, config.max_cost),
        retries=config.retries.max_retries if retries is None else retries,
        fallbacks=fallbacks,
        allow_empty=definition.allow_empty,
        history=definition.history,
        memory_bytes=limits.memory_bytes if limits.memory_bytes is not None else config.max_memory_bytes,
        context=order.context,
    )


def timeout_doubts(definition: PipeDefinition, config: PipesConfig) -> tuple[str, ...]:
    """Say that a pipe's own timeout is more than it gets."""
    wanted, most = definition.timeout_seconds, config.timeout_max_seconds
    return (cut_timeout(wanted, most),) if wanted is not None and wanted > most else ()


def too_late(plan: Plan) -> str:
    """Say that a run was not over in time, and whose time that was."""
    cut, wanted = f"did not end within {plan.timeout_seconds:g} s", plan.wanted_seconds
    return f"{cut} (timeout)" if wanted is None else f"{cut} (pipes.timeout_max_seconds; {wanted:g} s were asked for)"


def _first(*values: float | None) -> Any:
    return next((value for value in values if value is not None), None)


def output_folder(execution: int) -> str:
    """Return where the agent is told to write, relative to the pipe's folder."""
    return f"./{OUTPUT_FOLDER}/{execution}/"


def frozen(definition: PipeDefinition, order: Order, now: float, plan: Plan, preset: Preset) -> Execution:
    """Return a queued execution without id and prompt."""
    return Execution(
        id=0,
        pipe_name=definition.name,
        status=Status.QUEUED,
        trigger=order.trigger,
        group=order.group,
        queued_at=now,
        plan=plan,
        preset=preset,
        not_before=order.not_before,
        trigger_event=order.event,
        trigger_key=order.key,
        retry_of=order.retry_of,
        retry_count=order.retry_count,
    )

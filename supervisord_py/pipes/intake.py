"""From a trigger to a row: what is accepted is recorded, with everything that it will be run with.

What runs is what was decided at the trigger; later edits of pipe, presets or settings change later executions. What
cannot run (a preset that is not there, an agent that nobody knows) is a row all the same, failed at once, that names
what is missing; it is never in line.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from msgspec import structs

from supervisord_py.ledger.pipe_executions import Execution, Outcome, Preset, Status, Trigger
from supervisord_py.ledger.table import to_text
from supervisord_py.pipes import due
from supervisord_py.pipes import outcome as outcomes
from supervisord_py.pipes.adapters import CannotRunError
from supervisord_py.pipes.context import PipesContext, whole_ms
from supervisord_py.pipes.models import PipeDefinition
from supervisord_py.pipes.presets import ResolvedPreset, resolve

TIMEOUT_SECONDS = 300.0  # of a pipe that names none
MAX_TURNS = 200
WINDOW_MAX_SECONDS = 8 * 3600.0  # longest time window of a prompt
WINDOW_DEFAULT_SECONDS = 3600.0  # of a pipe that never succeeded and has no interval


async def choose(
    room: PipesContext, definition: PipeDefinition, seconds: float | None = None
) -> tuple[Execution, tuple[str, ...]]:
    """Return an execution with all that it would be run with, as the files stand now, and warnings about presets.

    One that cannot run has failed already, and names what is missing. `seconds` is the timeout of this run alone.
    """
    adapters, presets = await room.shelf.look()
    found = ResolvedPreset(Preset(id=next(iter(definition.presets), None)))
    failure: dict[str, Any] = {}
    try:
        adapters.get(definition.plan.agent)
        found = resolve(definition, presets)
    except CannotRunError as error:
        failure = {"status": Status.FAILED, "error_type": error.error_type, "error_message": error.message}
    config, retries, known = room.config, definition.retries.max_retries, definition.plan
    plan = structs.replace(
        known,
        timeout_seconds=min(seconds or definition.timeout_seconds or TIMEOUT_SECONDS, config.timeout_max_seconds),
        max_turns=known.max_turns or MAX_TURNS,
        retries=config.retries if retries is None else retries,
        fallbacks=found.fallbacks,
    )
    chosen = Execution(id=0, pipe_name=definition.name, plan=plan, preset=found.preset, status=Status.QUEUED)
    return structs.replace(chosen, **failure), found.warnings


def build(
    room: PipesContext,
    definition: PipeDefinition,
    chosen: Execution,
    number: int,
    *,
    context: Mapping[str, Any] | None = None,
    **trigger: Any,
) -> Execution:
    """Return a chosen execution as one that is queued now; nothing is recorded. By hand, unless a `trigger` says so."""
    now = room.clocks.moment()
    # Windows are chained: one begins where the last successful one ended, so that queueing loses no time.
    start = room.states.get(definition.name).last_context_end
    if start is None:
        seconds = due.period(definition.schedule, room.states.progress(definition.name), room.now())
        start = now - (seconds or WINDOW_DEFAULT_SECONDS)
    plan = chosen.plan if context is None else structs.replace(chosen.plan, context=context)
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
        context_start=whole_ms(min(now, max(start, now - WINDOW_MAX_SECONDS))),
        context_end=now,
        api_port=room.config.api_port,
        output_dir=str(definition.folder / "output" / str(number)),
        finished_at=now if chosen.status.is_final else None,
        **trigger,
    )
    prompt = render_prompt(row, definition.body, zone=room.zone_name(definition), api=room.config.api)
    return structs.replace(row, rendered_prompt=prompt)


def again(before: Execution) -> dict[str, Any]:
    return {
        "trigger": Trigger.RETRY,
        "group": before.group,
        "context": before.plan.context,
        "trigger_event": before.trigger_event,
        "trigger_key": before.trigger_key,
        "retry_of": before.id,
        "retry_count": before.retry_count + 1,
    }


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


def next_try(room: PipesContext, it: Execution, definition: PipeDefinition, outcome: Outcome) -> Execution | None:
    """Return the execution that follows a failed one, or None: another preset at once, or the same again later."""
    chance = random.random()  # noqa: S311 - spreads tries, hides nothing
    first, rules = room.config.retry_initial_seconds, definition.retries
    found = outcomes.next_try(outcome, it.plan, it.preset, it.retry_count, first=first, rules=rules, chance=chance)
    if found is None:
        return None
    plan, preset, delay = found
    not_before = None if delay is None else whole_ms(room.clocks.moment() + delay)
    chosen = Execution(
        id=0, pipe_name=it.pipe_name, plan=plan, preset=preset, status=Status.QUEUED, not_before=not_before
    )
    return build(room, definition, chosen, room.ledger.next_number("pipe_executions"), **again(it))

"""What an execution cost, and which ceilings can work: decisions over what an agent tells and what
a preset says. Pure.

The cost is the agent's own figure where it has one. Where it has none it is tokens times the
preset's prices, also where the preset has a `url`: an agent cannot know what a server of one's own
costs. Without either it is unknown, which is not the same as nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from supervisord_py.ledger.pipes import CostSource, Plan, Preset, Usage
from supervisord_py.pipes.adapters import AgentSpec, placeholders_of

_MILLION = 1e6


def has_prices(preset: Preset) -> bool:
    return preset.input_cost is not None and preset.output_cost is not None


def cost_of(
    told: Usage, preset: Preset, *, cached_in_input: bool
) -> tuple[float, CostSource | None]:
    """Return the cost in US dollars and who says so; the source is None where the cost is not
    known.

    `told` is what the agent told, with its own cost or 0. `cached_in_input`: it counts the tokens
    that were read from a cache among those of the input.
    """
    agent_knows = told.cost > 0 and not (preset.url and has_prices(preset))
    if agent_knows:
        return told.cost, CostSource.AGENT
    if told.total_tokens and has_prices(preset):
        return _priced(told, preset, cached_in_input=cached_in_input), CostSource.PRESET
    # An agent that tells tokens and a cost of 0 does not know the price.
    return 0.0, None


def _priced(told: Usage, preset: Preset, *, cached_in_input: bool) -> float:
    input_price = preset.input_cost or 0.0
    output_price = preset.output_cost or 0.0
    read_price = input_price if preset.cache_read_cost is None else preset.cache_read_cost
    write_price = input_price if preset.cache_write_cost is None else preset.cache_write_cost
    fresh, answered = told.input_tokens, told.output_tokens
    if cached_in_input:
        # Some agents tell the tokens of thoughts in the total alone; they are paid for as output.
        answered = max(answered, told.total_tokens - told.input_tokens)
        fresh = max(0, fresh - told.cache_read_tokens - told.cache_write_tokens)
    return (
        fresh * input_price
        + answered * output_price
        + told.cache_read_tokens * read_price
        + told.cache_write_tokens * write_price
    ) / _MILLION


# -- ceilings --------------------------------------------------------------------------------------


class When(IntEnum):
    """When an agent tells what it used."""

    NEVER = 0
    AT_END = 1  # too late to end a run, in time for a daily budget
    LIVE = 2


class Tells(NamedTuple):
    turns: When
    tokens: When
    cost: When


BY_FORMAT: dict[str, Tells] = {
    "text": Tells(When.NEVER, When.NEVER, When.NEVER),
    "pi-jsonl": Tells(When.LIVE, When.LIVE, When.LIVE),
    "claude-json": Tells(When.LIVE, When.LIVE, When.AT_END),
    "codex-jsonl": Tells(When.LIVE, When.AT_END, When.NEVER),
    "gemini-json": Tells(When.LIVE, When.AT_END, When.NEVER),
    "opencode-jsonl": Tells(When.LIVE, When.LIVE, When.LIVE),
}


class Doubt(NamedTuple):
    """A ceiling that does not do what it says. `ceiling` is its key, such as `limits.cost`."""

    ceiling: str
    message: str
    hint: str


def ceiling_doubts(
    plan: Plan,
    daily_tokens: int | None,
    daily_cost: float | None,
    spec: AgentSpec,
    presets: Sequence[Preset],
) -> Iterator[Doubt]:
    """Yield the ceilings that cannot work, or only for a whole day, with this agent and these
    presets.

    `presets` are those that the pipe may be run with, one at least.
    """
    tells = BY_FORMAT[spec.parser]
    if plan.max_turns is not None and tells.turns is When.NEVER:
        yield Doubt(
            "limits.turns", f"has no effect: {spec.name} tells no turns", "timeout: bounds its time"
        )
    limits = (
        ("limits.tokens", plan.max_tokens, When.LIVE),
        ("budget.daily_tokens", daily_tokens, When.AT_END),
    )
    for ceiling, most, needed in limits:
        if most is not None and tells.tokens < needed:
            yield _tokens_doubt(ceiling, spec, tells.tokens)
    costs = (
        ("limits.cost", plan.max_cost, When.LIVE),
        ("budget.daily_cost", daily_cost, When.AT_END),
    )
    for ceiling, dollars, needed in costs:
        if dollars is None:
            continue
        for preset in presets:
            # One preset is enough for a doubt; the first one is named.
            if _when_cost_is_known(spec, tells, preset) < needed:
                yield _cost_doubt(ceiling, spec, tells, preset)
                break


def _when_cost_is_known(spec: AgentSpec, tells: Tells, preset: Preset) -> When:
    """Return when the cost of a run is known, from the agent's own figure or from the preset's
    prices.
    """
    agent_files = {path: file.json for path, file in spec.files.items()}
    gets_prices_from_preset = "input_cost" in placeholders_of(agent_files)
    # With a `url`, such an agent has no prices but those of the preset: its own figure adds
    # nothing.
    has_own_prices = preset.url is None or not gets_prices_from_preset
    agent_reports_cost = When.NEVER
    if spec.tells_cost and has_own_prices:
        agent_reports_cost = tells.cost
    if not has_prices(preset):
        return agent_reports_cost
    # Prices turn tokens into a cost as soon as tokens are known.
    return max(agent_reports_cost, tells.tokens)


def _tokens_doubt(ceiling: str, spec: AgentSpec, tokens_are_known: When) -> Doubt:
    if tokens_are_known is When.NEVER:
        return Doubt(
            ceiling, f"has no effect: {spec.name} tells no tokens", "timeout: bounds its time"
        )
    message = f"cannot end a run: {spec.name} tells its tokens at its end"
    return Doubt(ceiling, message, "budget: {daily_tokens: 1M} bounds a day, timeout: a run")


def _cost_doubt(ceiling: str, spec: AgentSpec, tells: Tells, preset: Preset) -> Doubt:
    if tells.tokens is When.NEVER:
        message = f"has no effect: {spec.name} tells neither tokens nor cost"
        return Doubt(ceiling, message, "timeout: bounds its time")
    place = "a preset" if preset.id is None else f"[presets.{preset.id}]"
    prices = f"write input_cost and output_cost into {place} of presets.toml"
    if _when_cost_is_known(spec, tells, preset) is When.NEVER:
        where = (
            "there is no preset with prices"
            if preset.id is None
            else f"the preset {json.dumps(preset.id)} has no prices"
        )
        return Doubt(ceiling, f"has no effect: {spec.name} tells no cost, and {where}", prices)
    message = f"cannot end a run: {spec.name} tells its cost at its end"
    # With prices, an agent that tells its tokens on the way has a cost on the way.
    hint = (
        prices
        if tells.tokens is When.LIVE
        else "budget: {daily_cost: 2.50} bounds a day, timeout: a run"
    )
    return Doubt(ceiling, message, hint)

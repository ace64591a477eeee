"""What an execution cost, and which ceilings cannot work."""

from __future__ import annotations

import pytest

from supervisord_py.ledger.pipes import CostSource, Plan, Preset, Usage
from supervisord_py.pipes.adapters import AgentSpec, load_adapters
from supervisord_py.pipes.cost import BY_FORMAT, ceiling_doubts, cost_of
from supervisord_py.pipes.streams import PARSERS

AGENTS = load_adapters(None)
PRICES = Preset(id="p", input_cost=3.0, output_cost=15.0)
SERVER = Preset(id="p", url="http://127.0.0.1/v1", input_cost=3.0, output_cost=15.0)
BARE = Preset(id="p")
USED = Usage(input_tokens=1_000_000, output_tokens=100_000, total_tokens=1_100_000)
CACHED = Usage(1_000_000, 100_000, 400_000, 100_000, 1_200_000)


@pytest.mark.parametrize(
    ("told", "preset", "cached_in_input", "expected"),
    [
        (USED, PRICES, False, (4.5, CostSource.PRESET)),
        (USED, BARE, False, (0.0, None)),
        (Usage(), PRICES, False, (0.0, None)),
        (USED, Preset(input_cost=3.0), False, (0.0, None)),
        (USED, Preset(input_cost=0.0, output_cost=0.0), False, (0.0, CostSource.PRESET)),
        # The agent's own figure, but not of a server whose prices it cannot know.
        (Usage(10, 10, 0, 0, 20, 0.7), PRICES, False, (0.7, CostSource.AGENT)),
        (Usage(10, 10, 0, 0, 20, 0.7), BARE, False, (0.7, CostSource.AGENT)),
        (Usage(1_000_000, 0, 0, 0, 1_000_000, 0.7), SERVER, False, (3.0, CostSource.PRESET)),
        # Caches, beside the input or among it, and thoughts that stand in the total alone.
        (CACHED, PRICES, False, (3.0 + 1.5 + 1.2 + 0.3, CostSource.PRESET)),
        (CACHED, PRICES, True, (1.5 + 3.0 + 1.2 + 0.3, CostSource.PRESET)),
        (
            CACHED,
            Preset(input_cost=3.0, output_cost=15.0, cache_read_cost=0.3, cache_write_cost=6.0),
            False,
            (3.0 + 1.5 + 0.12 + 0.6, CostSource.PRESET),
        ),
    ],
)
def test_cost(
    told: Usage, preset: Preset, cached_in_input: bool, expected: tuple[float, CostSource | None]
) -> None:
    cost, source = cost_of(told, preset, cached_in_input=cached_in_input)
    assert (pytest.approx(expected[0]), expected[1]) == (cost, source)


def doubts(agent: str, preset: Preset) -> dict[str, str]:
    """Return what is said of each ceiling of a pipe that has all of them."""
    plan = Plan(agent, max_turns=5, max_tokens=5, max_cost=0.1)
    found = ceiling_doubts(plan, 5, 0.1, AGENTS.get(agent), [preset])
    return {each.ceiling: each.message.partition(":")[0] for each in found}


NO_EFFECT, TOO_LATE = "has no effect", "cannot end a run"
AT_THE_END = {"limits.tokens": TOO_LATE, "limits.cost": TOO_LATE}
NOTHING = dict.fromkeys(
    ("limits.turns", "limits.tokens", "budget.daily_tokens", "limits.cost", "budget.daily_cost"),
    NO_EFFECT,
)
BLIND = {"limits.cost": NO_EFFECT, "budget.daily_cost": NO_EFFECT}


@pytest.mark.parametrize(
    ("agent", "preset", "expected"),
    [
        ("pi", BARE, {}),
        ("pi", Preset(id="p", url="http://127.0.0.1/v1"), BLIND),
        ("pi", SERVER, {}),
        ("opencode", Preset(id="p", url="http://127.0.0.1/v1"), BLIND),
        ("claude", BARE, {"limits.cost": TOO_LATE}),
        ("claude", PRICES, {}),
        ("codex", BARE, {"limits.tokens": TOO_LATE, **BLIND}),
        ("codex", PRICES, AT_THE_END),
        ("gemini", PRICES, AT_THE_END),
        ("qwen", BARE, BLIND),
        ("qwen", PRICES, {}),
        ("llm", PRICES, NOTHING),
        ("aider", BARE, NOTHING),
        ("command", Preset(), NOTHING),
    ],
)
def test_ceilings_that_cannot_work(agent: str, preset: Preset, expected: dict[str, str]) -> None:
    assert doubts(agent, preset) == expected


def test_one_preset_without_prices_is_enough_and_is_named() -> None:
    [doubt] = ceiling_doubts(Plan(), None, 1.0, AGENTS.get("codex"), [PRICES, Preset(id="second")])
    assert "second" in doubt.message
    assert "[presets.second]" in doubt.hint
    assert list(ceiling_doubts(Plan(), None, None, AgentSpec(), [BARE])) == []


def test_every_format_is_known() -> None:
    assert BY_FORMAT.keys() == PARSERS.keys()

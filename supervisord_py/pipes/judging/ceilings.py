"""When an execution has used more than it may."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from supervisord_py.pipes.execution import Plan, Usage


def exceeded(usage: Usage, plan: Plan) -> str | None:
    """Return a sentence that names the ceiling and what was used, None while all is within."""
    if plan.max_turns is not None and usage.turns > plan.max_turns:
        return f"took more than {plan.max_turns} turns (limits.turns)"
    if plan.max_tokens is not None and usage.total_tokens > plan.max_tokens:
        return f"used {usage.total_tokens} tokens of {plan.max_tokens} (limits.tokens)"
    if plan.max_cost is not None and usage.cost > plan.max_cost:
        return f"cost {usage.cost:.4f} USD of {plan.max_cost:g} (limits.cost)"
    return None

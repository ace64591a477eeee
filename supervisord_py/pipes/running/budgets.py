"""What may be used in a day. Pure, but for the sum, which is the ledger's.

Law: a day is that of the pipe's time zone; what runs counts with what it has used so far; an execution that is refused
says how much was used of how much.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    from supervisord_py.ledger.pipe_history import UsageSum


@dataclass(frozen=True, slots=True)
class DailyBudget:
    """Ceilings of a day; None for none. `whose` names them in the refusal."""

    tokens: int | None
    cost: float | None
    whose: str

    @property
    def is_empty(self) -> bool:
        """Whether anything goes."""
        return self.tokens is None and self.cost is None


def day_start(now: float, zone: str) -> float:
    """Return when the present day began in a zone, Unix seconds."""
    local = datetime.fromtimestamp(now, ZoneInfo(zone))
    return local.replace(hour=0, minute=0, second=0, microsecond=0).timestamp()


def refusal(budget: DailyBudget, used: UsageSum) -> str | None:
    """Return why nothing more may be started today, None while something is left."""
    if budget.tokens is not None and used.total_tokens >= budget.tokens:
        return f"{budget.whose} used up: {used.total_tokens} tokens today of {budget.tokens}"
    if budget.cost is not None and used.cost >= budget.cost:
        return f"{budget.whose} used up: {used.cost:.4f} USD today of {budget.cost:g}"
    return None

"""Another try after a failure: a new row that names the one before it.

Law: what passes by itself is tried again later, any other failure of a model gives way to the next preset at once.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from supervisord_py.pipes.execution import Status, Trigger
from supervisord_py.pipes.outcome import next_try
from supervisord_py.pipes.running.freezing import Order
from supervisord_py.pipes.running.intake import Chosen
from supervisord_py.pipes.scheduler import whole_ms

if TYPE_CHECKING:
    from supervisord_py.pipes.execution import Outcome
    from supervisord_py.pipes.outcome import NextTry
    from supervisord_py.pipes.running.intake import Intake
    from supervisord_py.pipes.running.live_run import LiveRun
    from supervisord_py.pipes.running.running_house import RunningHouse


class Retrying:
    """Decides and performs what follows a failure."""

    def __init__(self, house: RunningHouse, intake: Intake) -> None:
        self._house = house
        self._intake = intake

    def decide(self, live: LiveRun, outcome: Outcome) -> NextTry | None:
        """Return what follows; None for nothing."""
        if outcome.status in {Status.COMPLETED, Status.CANCELLED} or live.definition is None:
            return None
        it = live.execution
        chance = random.random()  # noqa: S311 - spreads tries, hides nothing
        limits, rules = self._house.config.retries, live.definition.retries
        return next_try(outcome, it.plan, it.preset, it.retry_count, limits=limits, rules=rules, chance=chance)

    async def try_again(self, live: LiveRun, found: NextTry) -> None:
        """Take the next try in."""
        it, definition = live.execution, live.definition
        if definition is None:
            return
        now = self._house.clocks.moment()
        delay, chosen = found.delay_seconds, Chosen(found.plan, found.preset)
        order = Order(
            Trigger.RETRY,
            it.group,
            context=it.plan.context,
            event=it.trigger_event,
            key=it.trigger_key,
            retry_of=it.id,
            retry_count=it.retry_count + 1,
            not_before=None if delay is None else whole_ms(now + delay),
            cause=live.event,
        )
        follower = await self._intake.take(definition, order, chosen=chosen)
        if follower is not None:
            self._house.chronicle.say("execution_retried", follower, retry_of=it.id)

"""From a trigger to a row: what is accepted is recorded, with everything that it will be run with.

Law: the row is there before anything else happens. What cannot run (a preset that is not there, an agent that nobody
knows) is a row all the same, failed at once, that names what is missing; nothing of it is ever in line (A3).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from supervisord_py.errors import ConfigError
from supervisord_py.ledger import pipe_executions
from supervisord_py.ledger.pipe_state import StateChange
from supervisord_py.pipes import rows
from supervisord_py.pipes.execution import ErrorType, Group, Outcome, Preset, Status, Trigger
from supervisord_py.pipes.presets import PresetProblem, resolve
from supervisord_py.pipes.prompt import PromptFacts, api_address, render_prompt
from supervisord_py.pipes.running import freezing
from supervisord_py.pipes.running.freezing import Order, Refusal
from supervisord_py.pipes.running.live_run import LiveRun
from supervisord_py.pipes.scheduler import whole_ms

if TYPE_CHECKING:
    from supervisord_py.ledger.pipe_claims import Claim
    from supervisord_py.ledger.pipe_executions import PipeExecutionRow
    from supervisord_py.pipes.execution import Execution, Plan
    from supervisord_py.pipes.models import PipeDefinition
    from supervisord_py.pipes.running.admission import Admission
    from supervisord_py.pipes.running.conclusion import Conclusion, Weighed
    from supervisord_py.pipes.running.running_house import RunningHouse


@dataclass(frozen=True, slots=True)
class Chosen:
    """With what it is to be run.

    Attributes:
        refusal: Why it cannot be.
        warnings: What is wrong with presets that it does without: sentences.
    """

    plan: Plan
    preset: Preset
    refusal: Refusal | None = None
    warnings: tuple[str, ...] = ()


class Intake:
    """Takes executions in."""

    def __init__(self, house: RunningHouse, admission: Admission, conclusion: Conclusion) -> None:
        self._house = house
        self._admission = admission
        self._conclusion = conclusion

    async def take(
        self,
        definition: PipeDefinition,
        order: Order,
        *,
        chosen: Chosen | None = None,
        change: StateChange | None = None,
        claim: Claim | None = None,
        interval: float | None = None,
    ) -> LiveRun | None:
        """Record an execution, and put it in line.

        Args:
            definition: Of which pipe.
            order: Why.
            chosen: With what, where that is decided already (a retry).
            change: Of the pipe's state, in the same transaction.
            claim: On the event that leads to it.
            interval: Seconds between two runs, where there is such a thing: for the window.

        Returns:
            None where the pipe has claimed that event before.

        Raises:
            LedgerDegradedError: The disk takes nothing, and there is a claim to be made.
        """
        chosen = chosen or await self.choose(definition, order)
        draft = self._draft(definition, order, chosen, interval)
        work = self._taken(definition, draft, order, chosen, change=change, claim=claim)
        # Whoever asked may go away in the middle; a row that nobody put in line would wait for the next start.
        return await asyncio.shield(self._house.run_task(work))

    async def _taken(
        self,
        definition: PipeDefinition,
        draft: Execution,
        order: Order,
        chosen: Chosen,
        *,
        change: StateChange | None,
        claim: Claim | None,
    ) -> LiveRun | None:
        refused = self._refused(definition, draft, chosen)
        if refused is not None:  # what it means for its pipe is of one piece with its row
            change = StateChange(
                **{**(change.values() if change else {}), **refused.change.values()}, pipe_name=definition.name
            )
        whole = await self._recorded(definition, draft, claim, change)
        if whole is None:
            return None
        if change is not None:
            self._house.states.take(change)
        live = LiveRun(whole, definition, event=order.cause)
        await self._go_on(live, chosen, refused)
        return live

    def _refused(self, definition: PipeDefinition, draft: Execution, chosen: Chosen) -> Weighed | None:
        if chosen.refusal is None:
            return None
        now = draft.finished_at or draft.queued_at
        return self._conclusion.weigh(LiveRun(draft, definition), _outcome(chosen.refusal), now)

    async def _recorded(
        self, definition: PipeDefinition, draft: Execution, claim: Claim | None, change: StateChange | None
    ) -> Execution | None:
        """Write the row; return what stands in it, None where its pipe has claimed the event before."""
        whole = draft

        def build(number: int) -> PipeExecutionRow:
            nonlocal whole
            whole = self._whole(definition, draft, number)
            return rows.row_of(whole)

        ledger = self._house.ledger
        if claim is None:
            await pipe_executions.add(ledger, build, change=change)
        elif await pipe_executions.add_claimed(ledger, build, claim, change=change) is None:
            return None
        return whole

    async def _go_on(self, live: LiveRun, chosen: Chosen, refused: Weighed | None) -> None:
        it = live.execution
        self._house.chronicle.say(
            "execution_queued",
            live,
            trigger=it.trigger.value,
            group=it.group.value,
            retry_of=it.retry_of,
            preset=it.preset.id,
            warnings=list(chosen.warnings),
        )
        if chosen.refusal is None or refused is None:
            self._admission.push(live)
        else:
            await self._conclusion.after_refusal(live, _outcome(chosen.refusal), refused)

    # -- what is frozen ----------------------------------------------------------------------------------------------

    async def choose(self, definition: PipeDefinition, order: Order) -> Chosen:
        """Decide with what a pipe is to be run now."""
        shelf, config = self._house.shelf, self._house.config
        ceilings = freezing.Ceilings()
        adapters, presets = await shelf.look()
        refusal: Refusal | None = None
        fallbacks: tuple[Preset, ...] = ()
        warnings: tuple[str, ...] = ()
        try:
            limits = adapters.get(definition.agent).limits
            ceilings = freezing.Ceilings(limits.turns, limits.tokens, limits.cost)
        except ConfigError as error:
            refusal = Refusal(ErrorType.CONFIG_ERROR, f"{error.detail}; {error.hint}")
        found = resolve(definition, presets)
        if isinstance(found, PresetProblem):
            refusal = refusal or Refusal(found.error_type, f"{found.message}; {found.hint}")
            preset = Preset(id=next(iter(definition.presets), None))
        else:
            preset, fallbacks, warnings = found.preset, found.fallbacks, found.warnings
        return Chosen(freezing.plan_of(definition, fallbacks, ceilings, order, config), preset, refusal, warnings)

    def _draft(self, definition: PipeDefinition, order: Order, chosen: Chosen, interval: float | None) -> Execution:
        house = self._house
        now = house.clocks.moment()
        last_end = house.states.get(definition.name).last_context_end
        span = freezing.window(last_end, interval, now, house.config.scheduler)
        draft = freezing.frozen(definition, order, now, chosen.plan, chosen.preset)
        draft = replace(draft, context_start=whole_ms(span.start), context_end=span.end, api_port=house.config.api_port)
        if chosen.refusal is None:
            return draft
        return replace(
            draft,
            status=Status.FAILED,
            finished_at=now,
            error_type=chosen.refusal.error_type,
            error_message=chosen.refusal.message,
        )

    def _whole(self, definition: PipeDefinition, draft: Execution, number: int) -> Execution:
        """Return the execution with what its id is in. Pure."""
        relative = freezing.output_folder(number)
        config = self._house.config
        facts = PromptFacts(
            context_start=draft.context_start or draft.queued_at,
            context_end=draft.context_end or draft.queued_at,
            zone=definition.timezone or config.default_timezone or self._house.shelf.zone,
            output_dir=relative,
            api=api_address(config.socket, config.api_port, config.api_host),
            context=draft.plan.context,
        )
        return replace(
            draft,
            id=number,
            output_dir=str(definition.folder / freezing.OUTPUT_FOLDER / str(number)),
            rendered_prompt=render_prompt(facts, draft.preset.prompt, definition.body),
        )

    def example(
        self, definition: PipeDefinition, chosen: Chosen, *, number: int = 0, interval: float | None = None
    ) -> Execution:
        """Return an execution as one that is queued now would be; nothing is recorded."""
        order = Order(Trigger.MANUAL, Group.MANUAL)
        return self._whole(definition, self._draft(definition, order, chosen, interval), number)


def _outcome(refusal: Refusal) -> Outcome:
    return Outcome(Status.FAILED, refusal.error_type, refusal.message)

"""Telling somebody that a pipe fails, and that it works again: a command, a webhook.

Law: a hook never holds up an execution, and its own failure is an event, nothing more. What was to be told when a
control plane ended is told by the next one. Its process is the keeper's
child like any other, of a unit of its own (`hook:<pipe>`), so that its output never mixes with an agent's.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.errors import ConflictError, KeeperLostError, PxError
from supervisord_py.ledger import pipe_executions
from supervisord_py.pipes import rows
from supervisord_py.pipes.running.hook_words import facts_of, variables_of
from supervisord_py.pipes.running.live_run import LiveRun
from supervisord_py.pipes.running.pending_notices import PendingNotices
from supervisord_py.process.lifecycle import describe
from supervisord_py.process.spec import ChildSpec, Reason, ResourceLimit

if TYPE_CHECKING:
    from supervisord_py.pipes.definition import HookRules, PipeDefinition
    from supervisord_py.pipes.running.counting import Notice
    from supervisord_py.pipes.running.running_house import RunningHouse

PREFIX = "hook:"
_GRACE_SECONDS = 1.0
_GOOD_STATUS = range(200, 400)
_log = structlog.get_logger(__name__)


class Hooks:
    """Tells whoever a pipe's `on_failure` names."""

    def __init__(self, house: RunningHouse) -> None:
        self._house = house
        self._pending = PendingNotices(house.config.executions_dir)

    async def open(self) -> None:
        """Stop what a control plane before this one left, and tell what it came not to tell."""
        for child in await self._house.placement.list(PREFIX):
            self._house.run_task(self._clear(child.key))
        for number, notice in (await self._pending.open()).items():
            row = await pipe_executions.get(self._house.ledger, number, blobs=False)
            execution = None if row is None else rows.execution_of(row)
            if execution is not None and execution.status.is_final:
                self.tell(LiveRun(execution, self._house.definition(execution.pipe_name)), notice)
            else:
                await self._pending.done(number)  # its end is still to come, and promises it again

    async def promise(self, execution: int, notice: Notice) -> None:
        """Write down what is to be told of an execution whose end is about to be recorded."""
        await self._pending.promise(execution, notice)

    def tell(self, live: LiveRun, notice: Notice) -> None:
        """Begin to tell; returns at once."""
        word = f"pipe_{notice.kind.value}"
        self._house.chronicle.say_of_pipe(word, live.pipe, cause=live.event, failures=notice.failures)
        self._house.run_task(self._tell(live, notice))

    async def _tell(self, live: LiveRun, notice: Notice) -> None:
        """Tell both who want to know, at once; whoever is cut off in the middle leaves it to the next start."""
        definition = live.definition
        if definition is not None and not self._house.states.is_muted(definition):
            rules, facts = definition.on_failure, facts_of(live.execution, notice)
            async with asyncio.TaskGroup() as both:
                if rules.command:
                    both.create_task(self._reported(live.pipe, "command", self._command(definition, rules, facts)))
                if rules.webhook is not None:
                    both.create_task(self._reported(live.pipe, "webhook", self._webhook(rules.webhook, facts)))
        await self._pending.done(live.id)

    async def _reported(self, pipe: str, kind: str, work: Any) -> None:
        """Do one of the two; say so where it fails."""
        try:
            async with asyncio.timeout(self._house.config.hook_seconds):
                why = await work
        except TimeoutError:
            why = f"took longer than {self._house.config.hook_seconds:g} s"
        except (PxError, OSError) as error:
            why = error.detail if isinstance(error, PxError) else str(error)
        if why is not None:
            _log.warning("pipe_hook_failed", pipe=pipe, kind=kind, why=why)
            self._house.chronicle.say_of_pipe("hook_failed", pipe, kind=kind, detail=why)

    # -- command -----------------------------------------------------------------------------------------------------

    async def _command(self, definition: PipeDefinition, rules: HookRules, facts: dict[str, Any]) -> str | None:
        house = self._house
        key, unit = house.placement.new_key(), f"{PREFIX}{definition.name}"
        await house.chronicle.starting(key, unit)
        env = variables_of(house.environ, house.config.env_allow, facts)
        spec = ChildSpec(
            unit, rules.command, str(definition.folder), {**env, **house.own}, limits=(ResourceLimit("core", 0, 0),)
        )
        child = await house.placement.spawn(key, spec)
        try:
            await house.chronicle.spawned(child)
            record = await house.placement.wait(key)
        finally:
            await asyncio.shield(house.run_task(self._clear(key)))
        return None if record.code == 0 else describe(record, Reason.EXIT)

    async def _clear(self, key: str) -> None:
        placement = self._house.placement
        with suppress(KeeperLostError, ConflictError):
            child = await placement.attach(key)
            if child is None:
                return
            await placement.stop(key, grace_seconds=_GRACE_SECONDS, reason=Reason.EXIT.value)
            await self._house.chronicle.ended(key, Reason.EXIT, await placement.wait(key))
            await placement.release(key)

    # -- webhook -----------------------------------------------------------------------------------------------------

    async def _webhook(self, address: str, facts: dict[str, Any]) -> str | None:
        import aiohttp  # noqa: PLC0415 - loaded by the API long before

        try:
            async with aiohttp.ClientSession() as session, session.post(address, json=facts) as answer:
                return None if answer.status in _GOOD_STATUS else f"{address} answered {answer.status}"
        except aiohttp.ClientError as error:
            return f"{address} cannot be reached: {error}"

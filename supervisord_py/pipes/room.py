"""The room of pipes: everything that the daemon asks of it. One per daemon.

Law: what is accepted is a row before anything else happens, and becomes final once, whatever happens. Nothing runs by
itself before the API listens (`start_scheduler`), nothing new is taken in once the end has begun.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import ConflictError, ShuttingDownError
from supervisord_py.ledger import pipe_history
from supervisord_py.pipes import rows
from supervisord_py.pipes.models import BrokenPipe
from supervisord_py.pipes.pipe_files import PipeFiles
from supervisord_py.pipes.room_requests import OutputStream, RunRequest
from supervisord_py.pipes.running import spool
from supervisord_py.pipes.running.output_reading import no_such
from supervisord_py.pipes.running.pipes_build import PipesBuild
from supervisord_py.pipes.views import ExecutionPage, PipesHealth

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from supervisord_py.ledger.store import Ledger
    from supervisord_py.pipes.checks import Check
    from supervisord_py.pipes.config import PipesConfig
    from supervisord_py.pipes.execution import Execution
    from supervisord_py.pipes.front_matter import Value
    from supervisord_py.pipes.models import Declared, PipeDefinition
    from supervisord_py.pipes.room_requests import ExecutionFilter, PublishedEvent
    from supervisord_py.pipes.running.live_run import LiveRun
    from supervisord_py.pipes.scheduler import Clocks
    from supervisord_py.pipes.views import EventClaims, FollowItem, NextReport, OutputPage, PipeView, QueueView
    from supervisord_py.process.events import EventStream
    from supervisord_py.process.keeper_client import KeeperClient

BOTH = (OutputStream.STDOUT, OutputStream.STDERR)
_MOST_NEXT = 50


class Pipes:
    """Pipes and their executions. `open` it where the loop runs; end it with `close` or `detach`.

    Args:
        placement: Where processes come from.
        ledger: Where everything is remembered.
        events: Where it is told what happens; also heard.
        config: What the settings say.
        environ: The daemon's environment, to pick from.
        own: Harmless variables of ours that every agent gets.
        clocks: Tests turn them.
    """

    def __init__(
        self,
        placement: KeeperClient,
        ledger: Ledger,
        events: EventStream,
        config: PipesConfig,
        *,
        environ: Mapping[str, str] | None = None,
        own: Mapping[str, str] | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        self._all = PipesBuild(placement, ledger, events, config, environ=environ, own=own or {}, clocks=clocks)
        self._house = self._all.house
        self._files = PipeFiles(self._all)
        self._is_over = False

    @property
    def config(self) -> PipesConfig:
        """Settings in force."""
        return self._house.config

    # -- beginning and end -------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Read the pipes, take over what runs, close what was cut off, put in line what waited."""
        house = self._house
        await house.shelf.open()
        await house.states.open()
        await self._all.upkeep.begin()
        await self._all.views.open()
        await self._all.adoption.adopt_all()
        await self._all.upkeep.settle_all()
        house.run_task(self._all.upkeep.look_for_ever(), "pipes-watch")
        house.run_task(self._all.sources.hear_tools(), "pipes-hear-tools")
        house.run_task(self._all.sources.hear_files(), "pipes-files")
        house.run_task(self._all.forgetting.for_ever(), "pipes-forget")

    def start_scheduler(self) -> None:
        """Begin to run what is due and what waits: the API listens now."""
        if self._house.is_ending:
            return
        self._all.admission.open_gate()
        self._all.timetable.start()

    async def close(self) -> None:
        """Stop what runs, all at once; what waits goes on waiting, for the next start. Does nothing after an end."""
        if self._is_over:
            return
        self._begin_to_end()
        await self._all.cancelling.shut_down()
        await self._let_go()

    async def detach(self) -> None:
        """End without stopping anything: another control plane takes over what runs."""
        self._begin_to_end()
        await self._let_go()

    def _begin_to_end(self) -> None:
        self._house.is_ending = True
        self._all.admission.close_gate()

    async def _let_go(self) -> None:
        self._is_over = True
        lives = self._house.roster.all()
        for live in lives:
            live.let_go()
        self._all.sources.close()
        await self._house.finish_runs()
        await self._house.let_go()

    def reconfigure(self, config: PipesConfig) -> None:
        """Take new settings: slots and schedules at once, the rest for what is queued from now on."""
        self._house.config = config
        self._all.catalog.reconfigure(config.file_bytes_max, config.default_agent)
        self._all.admission.resize(config.slots)
        self._all.timetable.reconfigure(config.scheduler)

    def health(self) -> PipesHealth:
        """Return how the room is."""
        scheduler = self._all.timetable.health()
        at_work = self._all.admission.queue
        return PipesHealth(
            scheduler_running=scheduler.alive and self.config.enabled,
            scheduler_restarts=scheduler.restarts,
            scheduler_error=scheduler.last_error,
            catalog=self._all.catalog.trouble,
            pipes=len(self._all.catalog.all()),
            broken=self._all.views.broken(),
            queued=len(at_work.waiting()),
            running=len(at_work.running),
            ledger=self._house.ledger.degraded,
        )

    def refused_output(self) -> Mapping[str, str]:
        """Return the units whose output the disk refuses at present, so that their agents wait; and why."""
        return self._house.roster.refused_output()

    async def file_problems(self) -> Mapping[str, Sequence[str]]:
        """Return all that is wrong with agents.toml and presets.toml, in sentences, by `agents` and `presets`."""
        return await asyncio.to_thread(self._house.shelf.problems)

    # -- pipes -------------------------------------------------------------------------------------------------------

    def snapshot(self) -> tuple[PipeView, ...]:
        """Return every pipe, by name; broken ones with their `config_error`."""
        return self._all.views.all()

    def get(self, name: str) -> PipeView:
        """Return one pipe.

        Raises:
            UnknownUnitError: There is none of that name.
        """
        return self._all.views.get(name)

    def definition(self, name: str) -> Declared:
        """Return what a pipe's file says.

        Raises:
            UnknownUnitError: There is none of that name.
        """
        return self._all.views.declared(name)

    def next(self, name: str, count: int = 5) -> NextReport:
        """Return when a pipe is due, and why.

        Raises:
            UnknownUnitError: There is none of that name.
        """
        return self._all.views.next(name, max(1, min(count, _MOST_NEXT)))

    def preview(self, text: str, timezone: str | None = None, count: int = 5) -> dict[str, Any]:
        """Return what a schedule means: JSON values `{valid, summary, error, hint, warnings, next}`; never raises."""
        return self._all.views.preview(text, timezone, max(1, min(count, _MOST_NEXT)))

    def queue(self) -> QueueView:
        """Return all lines."""
        return self._all.views.queue()

    async def rendered(self, name: str) -> str:
        """Return the prompt that a run would have now.

        Raises:
            UnknownUnitError: There is none of that name.
            ConfigError: It is broken.
        """
        return await self._all.by_hand.rendered(self._usable(name))

    async def validate(self, name: str) -> tuple[Check, ...]:
        """Check a pipe, its agent and its presets; nothing is started.

        Raises:
            UnknownUnitError: There is none of that name.
        """
        return await self._files.validate(await self._files.afresh(name))

    async def enable(self, name: str) -> PipeView:
        """Let a pipe run by itself, on this machine."""
        return await self._wish(name, enabled=True)

    async def disable(self, name: str) -> PipeView:
        """Have a pipe not run by itself, on this machine; what waits of it by itself is cancelled."""
        return await self._wish(name, enabled=False)

    async def _wish(self, name: str, *, enabled: bool) -> PipeView:
        definition = self._usable(name)
        self._house.states.change(name, enabled=enabled, enabled_file=definition.enabled)
        await self._all.upkeep.settle(definition)
        self._house.chronicle.say_of_pipe("pipe_enabled" if enabled else "pipe_disabled", name)
        self._all.look_again()
        return self.get(name)

    async def configure(self, name: str, changes: Mapping[str, Value]) -> PipeView:
        """Change front matter keys of a pipe's file; None removes one. Body, comments and other keys stay.

        Raises:
            UnknownUnitError: There is none of that name.
            ConfigError: The file would be broken by it; nothing is written.
        """
        await self._files.configure(self.definition(name), changes)
        return self.get(name)

    async def install(self, source: str, *, name: str | None = None) -> PipeView:
        """Add a pipe from a path, an https address or `example:NAME`: disabled, validated, whole or not at all."""
        self._refuse_at_the_end()
        return await self._files.install(source, name)

    async def scaffold(self, name: str) -> PipeView:
        """Make a new pipe to be filled in."""
        self._refuse_at_the_end()
        return self.get(await self._files.scaffold(name))

    async def remove(self, name: str) -> None:
        """End everything of a pipe, then delete its folder; its executions stay in the ledger."""
        declared = self.definition(name)
        await self._all.cancelling.cancel_pipe(name, "its pipe was removed")
        await self._files.remove(declared)

    async def refresh(self) -> None:
        """Look at the folders now."""
        await self._all.upkeep.refresh()

    # -- executions --------------------------------------------------------------------------------------------------

    async def run(self, name: str, request: RunRequest | None = None) -> Execution:
        """Run a pipe by hand; return its execution: in line, running, or failed at once.

        Raises:
            UnknownUnitError: There is no pipe of that name.
            ConfigError: Its file is broken.
            ConflictError: It runs, or waits for its run, already (unless `request.queue`).
        """
        self._refuse_at_the_end()
        return await self._all.by_hand.run(await self._files.usable(name), request or RunRequest())

    async def retry(self, number: int) -> Execution:
        """Run an execution again, as a new row that names it, with what its pipe says now.

        Raises:
            UnknownUnitError: There is no such execution, or its pipe is gone.
            ConfigError: The pipe's file is broken.
            ConflictError: It is not over, or the pipe runs already.
        """
        self._refuse_at_the_end()
        before = await self.execution(number, blobs=True)
        return await self._all.by_hand.retry(await self._files.usable(before.pipe_name), before)

    async def cancel(self, number: int) -> Execution:
        """End an execution in whatever state it is; return it as it became.

        Raises:
            UnknownUnitError: There is none of that id.
            ConflictError: It is over.
        """
        live = self._house.roster.get(number)
        if live is None:
            over = await self.execution(number)
            raise ConflictError(
                f"execution {number} is over: {over.status}",
                hint=f"pxctl pipe show {number}",
                unit=over.unit,
                execution=number,
                status_word=over.status,
            )
        return await self._all.cancelling.cancel(live, "cancelled on request")

    async def cancel_pipe(self, name: str) -> tuple[Execution, ...]:
        """End everything of a pipe: what runs, what waits; () when there is nothing."""
        self.definition(name)
        return await self._all.cancelling.cancel_pipe(name, "cancelled on request")

    async def execution(self, number: int, *, pipe: str | None = None, blobs: bool = False) -> Execution:
        """Return an execution, with the texts of its output where `blobs` are wanted.

        Raises:
            UnknownUnitError: There is none of that id (of that pipe).
        """
        found = await self._all.reading.execution(number, blobs=blobs)
        if pipe is not None and found.pipe_name != pipe:
            raise no_such(number)
        return found

    async def executions(self, wanted: ExecutionFilter) -> ExecutionPage:
        """Return executions, newest first; never the texts of their output."""
        page = await pipe_history.page(self._house.ledger, rows.filter_of(wanted))
        return ExecutionPage(tuple(self._present(rows.execution_of(row)) for row in page.rows), page.next_cursor)

    def _present(self, execution: Execution) -> Execution:
        """Return what is known of an execution now: memory is ahead of the ledger."""
        live: LiveRun | None = self._house.roster.get(execution.id)
        return execution if live is None else self._all.admission.view(live.execution)

    async def output(
        self, number: int, stream: OutputStream = OutputStream.STDOUT, offset: int = 0, limit: int | None = None
    ) -> OutputPage:
        """Return a piece of an execution's output.

        Raises:
            UnknownUnitError: There is none of that id.
        """
        wanted = self.config.output.page_bytes if limit is None else limit
        return await self._all.reading.page(number, stream, max(0, offset), max(0, min(wanted, spool.PAGE_MAX)))

    def follow(
        self, number: int, streams: Sequence[OutputStream] = BOTH, offset: int = 0
    ) -> AsyncGenerator[FollowItem, None]:
        """Yield an execution's start, output, changes and end; close the iterator when leaving early.

        Args:
            number: Of the execution.
            streams: Which.
            offset: Where the first of them begins; the others begin at 0.

        Raises:
            UnknownUnitError: There is none of that id.
            InterruptedRunError: This control plane ends; the execution goes on.
        """
        return self._all.reading.follow(number, streams, max(0, offset))

    async def wait(self, number: int) -> Execution:
        """Wait until an execution is final; return it with the texts of its output.

        Raises:
            UnknownUnitError: There is none of that id.
            InterruptedRunError: This control plane ends; the execution goes on.
        """
        return await self._all.reading.wait(number)

    async def publish_event(self, event: PublishedEvent) -> EventClaims:
        """Start every enabled pipe that waits for an event, once each; BadRequestError where it is no such event."""
        self._refuse_at_the_end()
        return await self._all.triggering.publish_for_others(event)

    def _usable(self, name: str) -> PipeDefinition:
        found = self._all.catalog.declared(name)
        if isinstance(found, BrokenPipe):
            raise found.error()
        return found

    def _refuse_at_the_end(self) -> None:
        if self._house.is_ending:
            raise ShuttingDownError("The daemon is stopping.", hint="Ask again once it runs.")

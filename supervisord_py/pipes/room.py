"""The room of pipes: everything that the daemon asks of it. One per daemon.

Laws: what is accepted is a row before anything else happens, and becomes final once, whatever happens. Nothing runs by
itself before the API listens (`start_scheduler`), nothing new is taken in once the end has begun. Every end frees its
slot, whatever became of the execution. A control plane that leaves takes nothing with it: what runs goes on.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
from msgspec import structs

from supervisord_py.errors import ConflictError, InterruptedRunError, ShuttingDownError, UnknownUnitError
from supervisord_py.ledger import pipe_history
from supervisord_py.ledger.pipe_executions import EXECUTIONS, Status
from supervisord_py.ledger.table import together
from supervisord_py.pipes import output, retention
from supervisord_py.pipes.catalog import PipeCatalog
from supervisord_py.pipes.checks import PipeFaults
from supervisord_py.pipes.driver import RunDriver
from supervisord_py.pipes.events import EventSources, check_published
from supervisord_py.pipes.intake import BY_HAND, Intake, again
from supervisord_py.pipes.models import PipeDefinition, PipesHealth, usable
from supervisord_py.pipes.outcome import Cause
from supervisord_py.pipes.output import (
    BOTH,
    PAGE_MAX,
    PIECE_BYTES,
    POLL_SECONDS,
    FollowNews,
    FollowOutput,
    OutputPage,
    OutputStream,
)
from supervisord_py.pipes.pipe_files import PipeFiles
from supervisord_py.pipes.queue import Queue
from supervisord_py.pipes.run import REASONS, Run, look_at_runs
from supervisord_py.pipes.scheduler import Clocks, Timetable
from supervisord_py.pipes.shelf import AgentShelf
from supervisord_py.pipes.states import PipeStates, Upkeep
from supervisord_py.pipes.status import PipeStatus
from supervisord_py.pipes.triggers import Triggers
from supervisord_py.process.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterator, Mapping, Sequence

    from supervisord_py.ledger.pipe_executions import Execution
    from supervisord_py.ledger.pipe_history import ExecutionFilter, ExecutionPage
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.pipes.checks import Check
    from supervisord_py.pipes.config import PipesConfig
    from supervisord_py.pipes.front_matter import Value
    from supervisord_py.pipes.models import EventClaims, NextReport, PipeView, PublishedEvent
    from supervisord_py.pipes.output import FollowItem
    from supervisord_py.process.events import EventStream
    from supervisord_py.process.keeper_client import KeeperClient
    from supervisord_py.process.model import Child

_MOST_NEXT = 50
T = TypeVar("T")
LOOK_AGAIN_SECONDS = 30.0
"""A timer of the loop does not count suspend, and the wall clock may be set: the longest time between two looks."""
_log = structlog.get_logger(__name__)


class Pipes:
    """Pipes and their executions. `open` it where the loop runs; end it with `close` or `detach`.

    Args:
        environ: The daemon's environment, to pick from.
        own: Harmless variables of ours that every agent gets.
        clocks: Tests turn them.

    Attributes:
        runs: Every execution that is not final, and those of which an end has still to be told, by id.
        is_ending: Nothing new is taken in.
        task: Does something in the background until the room ends; what it raises is logged.
        snapshot: Returns every pipe, by name; broken ones with their `config_error`.
        queue: Returns all lines.
        definition: Returns what a pipe's file says; UnknownUnitError where there is none of that name.
        refresh: Looks at the folders now.
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
        self.placement = placement
        self.ledger = ledger
        self.events = events
        self.config = config
        self.own = own or {}
        self.clocks = clocks or Clocks()
        self.is_ending = False
        self.runs: dict[int, Run] = {}
        self._of_pipes: dict[str, dict[int, Run]] = {}
        self.supervisor = Supervisor(placement, ledger, events)
        self.driver = RunDriver(self)
        self.states = PipeStates(ledger, self.clocks)
        self.catalog = PipeCatalog(config.pipes_dir, config.file_bytes_max, default_agent=config.default_agent)
        self.shelf = AgentShelf(self, os.environ if environ is None else environ)
        self.faults = PipeFaults(self)
        self.line = Queue(config.slots)
        self.triggers = Triggers(self)
        self.timetable = Timetable(self)
        self.status = PipeStatus(self)
        self.intake = Intake(self)
        self.sources = EventSources(self)
        self.upkeep = Upkeep(self)
        self._files = PipeFiles(self)
        self.task, self.snapshot, self.queue = self.supervisor.task, self.status.all, self.status.queue
        self.definition, self.refresh = self.catalog.declared, self.upkeep.refresh
        self._is_over = self._is_gate_open = False
        self._timer = asyncio.get_running_loop().call_later(LOOK_AGAIN_SECONDS, self.admit)
        """When to look at the line again."""

    # -- beginning and end -------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Read the pipes, take over what runs, close what was cut off, put in line what waited."""
        await self.supervisor.open()
        await self.shelf.open()
        await self.states.open()
        await self.upkeep.begin()
        await self.status.open()
        await self.driver.adopt_all()
        await self.upkeep.settle_all()
        self.task(self.upkeep.look_for_ever())
        self.task(look_at_runs(self))
        self.events.listeners.add(self.sources.hear)
        self.task(self.sources.hear_files())
        self.task(retention.prune_for_ever(self))

    def start_scheduler(self) -> None:
        """Begin to run what is due and what waits: the API listens now."""
        if not self.is_ending:
            self._is_gate_open = True
            self.admit()
            self.timetable.start()

    async def close(self) -> None:
        """Stop what runs, all at once; what waits goes on waiting, for the next start. Does nothing after an end."""
        if not self._is_over:
            self._begin_to_end()
            at_work = [run for run in self.runs.values() if self.line.position(run.id) is None]
            for run in at_work:
                run.want_end(Cause.SHUTDOWN)
            await asyncio.gather(*map(_over, at_work))
            await self.detach()

    async def detach(self) -> None:
        """End without stopping anything: another control plane takes over what runs."""
        self._begin_to_end()
        self._is_over = True
        for run in self.runs.values():
            run.leave()
        self.sources.close()
        await self.supervisor.close()

    def _begin_to_end(self) -> None:
        self.is_ending = True
        self._is_gate_open = False
        self._timer.cancel()

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something to its end, also when whoever asked goes away in the middle; return what it returns."""
        result: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        async def do() -> None:
            try:
                result.set_result(await work)
            except BaseException as error:
                ending = ShuttingDownError("The daemon is stopping.", hint="Ask again once it runs.")
                result.set_exception(error if isinstance(error, Exception) else ending)
                result.exception()  # who asked may be gone
                if not isinstance(error, Exception):
                    raise

        self.task(do())
        return await asyncio.shield(result)

    def reconfigure(self, config: PipesConfig) -> None:
        self.config = config
        self.catalog.reconfigure(config.file_bytes_max, config.default_agent)
        self.line.resize(config.slots)
        self.admit()
        self.timetable.reconfigure()

    def look_again(self) -> None:
        """Have everything that depends on files and wishes look at them again."""
        self.faults.keep_only(self.catalog.all())
        self.timetable.wake()
        self.sources.look()

    # -- who runs ----------------------------------------------------------------------------------------------------

    def of_pipe(self, pipe: str) -> tuple[Run, ...]:
        found = self._of_pipes.get(pipe, {})
        return tuple(found[number] for number in sorted(found))

    def running(self, pipe: str) -> Run | None:
        return next((it for it in self.of_pipe(pipe) if it.execution.status is Status.RUNNING), None)

    def queued(self, pipe: str) -> tuple[Run, ...]:
        return tuple(it for it in self.of_pipe(pipe) if it.execution.status is Status.QUEUED)

    def add(self, run: Run) -> None:
        self.runs[run.id] = self._of_pipes.setdefault(run.name, {})[run.id] = run

    def push(self, *runs: Run) -> None:
        for run in runs:
            self.add(run)
            self.line.push(run.execution)
        self.admit()

    def admit(self) -> None:
        """Start whoever can be, and come back when somebody else might; the line has moved."""
        self._timer.cancel()
        if not self._is_gate_open:
            return
        admitted = self.line.admit(self.clocks.wall())
        for number in admitted:
            if (run := self.runs.get(number)) is None:
                self.line.ended(number)
            else:
                self.task(run.go())
        deadline = self.line.next_deadline()
        if deadline is not None:
            seconds = min(max(0.0, deadline - self.clocks.wall()), LOOK_AGAIN_SECONDS)
            self._timer = asyncio.get_running_loop().call_later(seconds, self.admit)
        if admitted:
            self._tell_places()

    def _tell_places(self) -> None:
        for waiting in self.line.waiting():
            self.runs[waiting.id].tell()

    def view(self, run: Run, row: Execution | None = None) -> Execution:
        """Return an execution as it stands, with its place in line; with the texts of a row of it."""
        it = run.execution
        changes: dict[str, Any] = {} if row is None else {"stdout": row.stdout, "stderr": row.stderr}
        if it.status is Status.QUEUED:  # who has a slot and is being started is the first
            changes["position"] = self.line.position(run.id) or 1
        return structs.replace(it, **changes)

    async def end(self, run: Run, why: str) -> Execution:
        """Cancel one; return it as it became."""

        async def leave_line() -> None:
            await self.ledger.write(together(await run.final_row()))
            run.take_final()
            await self.after(run)

        if run.want_end(Cause.CANCELLED, why) and self.line.remove(run.id):
            await self.finish(leave_line())
            self._tell_places()
        await _over(run)
        return run.execution

    async def cancel_all(self, pipe: str, why: str) -> tuple[Execution, ...]:
        """Cancel all of a pipe's: first those that wait, so that none of them starts in between."""
        order = sorted(self.of_pipe(pipe), key=lambda run: run.execution.status is Status.RUNNING)
        return tuple(await asyncio.gather(*(self.end(run, why) for run in order)))

    async def after(self, run: Run) -> None:
        """Do what follows from an end whose row is final, and free the slot."""
        it = run.execution
        self.supervisor.say(
            f"execution_{it.status.value}",
            run,
            None if run.cause is Cause.NOBODY else REASONS[run.cause],
            error_type=None if it.error_type is None else it.error_type.value,
            error_message=it.error_message,
            exit_code=it.exit_code,
            duration_ms=it.duration_ms,
        )
        self.status.ended(run)
        try:
            if run.following is not None:
                await _safely(run, self.intake.try_again(run, run.following))
            await _safely(run, self.triggers.ended(run))
        finally:
            self.runs.pop(run.id, None)
            self._of_pipes.get(run.name, {}).pop(run.id, None)
            self.line.ended(run.id)
            run.done.set()
            run.tell()
            self.admit()
            self.timetable.ended(run)

    # -- for the parts -----------------------------------------------------------------------------------------------

    def folder(self, execution: int) -> Path:
        return self.config.executions_dir / str(execution)

    def definition_of(self, pipe: str) -> PipeDefinition | None:
        found = self.catalog.get(pipe)
        return found if isinstance(found, PipeDefinition) else None

    def usable(self) -> Iterator[PipeDefinition]:
        return (each for each in self.catalog.all().values() if isinstance(each, PipeDefinition))

    def run_of(self, execution: Execution, child: Child | None = None) -> Run:
        return Run(self, execution, self.definition_of(execution.pipe_name), child.key if child else None)

    def say_of_pipe(self, event: str, pipe: str, *, cause: int | None = None, **facts: Any) -> None:
        self.events.publish(event, f"pipe:{pipe}", cause=cause, **facts)

    # -- pipes -------------------------------------------------------------------------------------------------------

    def health(self) -> PipesHealth:
        scheduler = self.timetable
        return PipesHealth(
            scheduler_running=scheduler.alive and self.config.enabled,
            scheduler_restarts=scheduler.restarts,
            scheduler_error=scheduler.last_error,
            catalog=self.catalog.trouble,
            pipes=len(self.catalog.all()),
            broken=self.status.broken(),
            queued=len(self.line.waiting()),
            running=len(self.line.running),
            ledger=self.ledger.degraded,
        )

    def refused_output(self) -> Mapping[str, str]:
        """Return the units whose output the disk refuses at present, and why."""
        return {run.unit: run.trouble for run in self.runs.values() if run.trouble is not None}

    async def file_problems(self) -> Mapping[str, Sequence[str]]:
        """Return all that is wrong with agents.toml and presets.toml, in sentences, by `agents` and `presets`."""
        return await asyncio.to_thread(self.shelf.problems)

    def get(self, name: str) -> PipeView:
        """Return one pipe; UnknownUnitError where there is none of that name."""
        return self.status.view(self.definition(name))

    def next(self, name: str, count: int = 5) -> NextReport:
        """Return when a pipe is due, and why; UnknownUnitError where there is none of that name."""
        return self.status.next(name, max(1, min(count, _MOST_NEXT)))

    def preview(self, text: str, timezone: str | None = None, count: int = 5) -> dict[str, Any]:
        """Return what a schedule means: JSON values `{valid, summary, error, hint, warnings, next}`; never raises."""
        return self.status.preview(text, timezone, max(1, min(count, _MOST_NEXT)))

    async def rendered(self, name: str) -> str:
        return await self.intake.rendered(usable(self.definition(name)))

    async def validate(self, name: str) -> tuple[Check, ...]:
        """Check a pipe, its agent and its presets; nothing is started. UnknownUnitError where there is none."""
        return await self._files.validate(await self._files.afresh(name))

    async def enable(self, name: str) -> PipeView:
        return await self._wish(name, enabled=True)

    async def disable(self, name: str) -> PipeView:
        """Have a pipe not run by itself, on this machine; what waits of it by itself is cancelled."""
        return await self._wish(name, enabled=False)

    async def _wish(self, name: str, *, enabled: bool) -> PipeView:
        definition = usable(self.definition(name))
        self.states.change(name, enabled=enabled, enabled_file=definition.enabled)
        await self.upkeep.settle(definition)
        self.say_of_pipe("pipe_enabled" if enabled else "pipe_disabled", name)
        self.look_again()
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
        await self.cancel_all(name, "its pipe was removed")
        await self._files.remove(declared)

    # -- executions --------------------------------------------------------------------------------------------------

    async def run(
        self,
        name: str,
        *,
        context: Mapping[str, Any] | None = None,
        queue: bool = False,
        timeout_seconds: float | None = None,
    ) -> Execution:
        """Run a pipe by hand; return its execution: in line, running, or failed at once.

        Args:
            context: JSON values that the prompt shows to the agent; None for none.
            queue: Wait in line where the pipe runs already, instead of being refused.
            timeout_seconds: Of this run alone; None for the pipe's own.

        Raises UnknownUnitError, ConfigError: there is no pipe of that name, or its file is broken;
        ConflictError: it runs, or waits for its run, already (unless `queue`).
        """
        self._refuse_at_the_end()
        order = BY_HAND._replace(context=context, timeout_seconds=timeout_seconds)
        return await self.intake.run(await self._files.usable(name), order, queue=queue)

    async def run_each(
        self, name: str, contexts: Sequence[Mapping[str, Any]], *, timeout_seconds: float | None = None
    ) -> tuple[Execution, ...]:
        """Queue a run by hand for each context, in their order: all of them or none. Raises as `run`."""
        self._refuse_at_the_end()
        orders = [BY_HAND._replace(context=each, timeout_seconds=timeout_seconds) for each in contexts]
        return await self.intake.run_each(await self._files.usable(name), orders)

    async def retry(self, number: int) -> Execution:
        """Run an execution again, as a new row that names it, with what its pipe says now; raises as `run`."""
        self._refuse_at_the_end()
        before = await self.execution(number, blobs=True)
        definition = await self._files.usable(before.pipe_name)
        if not before.status.is_final:
            raise ConflictError(
                f"execution {number} is {before.status}; only one that is over can be retried",
                hint=f"`pxctl pipe cancel {number}` ends it",
                unit=before.unit,
                execution=number,
            )
        return await self.intake.run(definition, again(before), queue=False)

    async def cancel(self, number: int) -> Execution:
        """End an execution in whatever state it is; return it as it became. ConflictError where it is over."""
        run = self.runs.get(number)
        if run is None:
            over = await self.execution(number)
            raise ConflictError(
                f"execution {number} is over: {over.status}",
                hint=f"pxctl pipe show {number}",
                unit=over.unit,
                execution=number,
                status_word=over.status,
            )
        return await self.end(run, "cancelled on request")

    async def cancel_pipe(self, name: str) -> tuple[Execution, ...]:
        """End everything of a pipe: what runs, what waits; () when there is nothing."""
        self.definition(name)
        return await self.cancel_all(name, "cancelled on request")

    async def execution(self, number: int, *, pipe: str | None = None, blobs: bool = False) -> Execution:
        """Return an execution as it stands, with the texts of its output where wanted: memory is ahead of the ledger.

        Raises UnknownUnitError: there is none of that id, or it is not one of the `pipe`.
        """
        run, rows = self.runs.get(number), []
        if run is None or blobs:
            rows = await (EXECUTIONS.find if blobs else EXECUTIONS.listed)(self.ledger, "WHERE id = ?", number)
        found = next(iter(rows), None)
        found = found if run is None else self.view(run, found)
        if found is None or pipe not in {None, found.pipe_name}:
            raise UnknownUnitError(f"there is no execution {number}", hint="see `pxctl pipe runs`", execution=number)
        return found

    async def executions(self, wanted: ExecutionFilter) -> ExecutionPage:
        """Return executions, newest first; never the texts of their output. Memory is ahead of the ledger."""
        found = await pipe_history.page(self.ledger, wanted)
        rows = (self.view(run) if (run := self.runs.get(row.id)) else row for row in found.executions)
        return found._replace(executions=tuple(rows))

    async def output(
        self, number: int, stream: OutputStream = OutputStream.STDOUT, offset: int = 0, limit: int | None = None
    ) -> OutputPage:
        """Return a piece of an execution's output; where the files are gone (retention) the row's text stands for them.

        Raises UnknownUnitError: there is no execution of that id.
        """
        offset = max(0, offset)
        limit = max(0, min(self.config.output.page_bytes if limit is None else limit, PAGE_MAX))
        known = await self.execution(number)  # before the file is read: a final one's is whole then
        folder = self.folder(number)
        total, data = await asyncio.to_thread(
            lambda: (output.size(folder, stream), output.read(folder, stream, offset, limit))
        )
        if total is None and known.status.is_final:
            known = await self.execution(number, blobs=True)
            return output.page_of_row(known, stream, offset, limit)
        is_end = known.status.is_final and not known.truncated and offset + len(data) >= (total or 0)
        return OutputPage(data, offset, total or 0, is_end, known.status.is_final and known.truncated)

    async def follow(
        self, number: int, streams: Sequence[OutputStream] = BOTH, *begins: int
    ) -> AsyncGenerator[FollowItem, None]:
        """Yield an execution's start, output, changes and end; close the iterator when leaving early.

        `begins` say where the streams begin, in their order; those that are not given begin at 0.

        Raises:
            UnknownUnitError: There is none of that id.
            InterruptedRunError: This control plane ends; the execution goes on.
        """
        known = await self.execution(number)
        yield FollowNews("start", known)
        offsets = dict(zip(streams, (*begins, *[0] * len(streams)), strict=False))
        run = self.runs.get(number)
        while run is not None and not run.done.is_set():
            news, now = run.news, self.view(run)
            if (now.status, now.position) != (known.status, known.position) and not now.status.is_final:
                yield FollowNews("status", now)
            known, found = now, False
            for stream, at in offsets.items():
                if data := await asyncio.to_thread(output.read, self.folder(number), stream, at, PIECE_BYTES):
                    found = True
                    offsets[stream] = at + len(data)
                    yield FollowOutput(stream, at, data)
            if run.is_left:
                raise _cut_off(number)
            if not found:
                with suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), None if now.position is not None else POLL_SECONDS)
        for stream, at in offsets.items():
            position = at
            while (page := await self.output(number, stream, position, PIECE_BYTES)).data:
                yield FollowOutput(stream, position, page.data)
                position += len(page.data)
        yield FollowNews("done", await self.execution(number) if run is None else self.view(run))

    async def wait(self, number: int) -> Execution:
        """Wait until an execution is final; return it with the texts of its output. Raises as `follow` does."""
        run = self.runs.get(number)
        if run is None:
            return await self.execution(number, blobs=True)
        await _over(run)
        if not run.done.is_set():
            raise _cut_off(number)
        return run.execution  # with its texts: a full disk may not show them yet

    async def publish_event(self, event: PublishedEvent) -> EventClaims:
        """Start every enabled pipe that waits for an event, once each; BadRequestError where it is no such event."""
        self._refuse_at_the_end()
        check_published(event.name)
        return await self.triggers.publish(event)

    def _refuse_at_the_end(self) -> None:
        if self.is_ending:
            raise ShuttingDownError("The daemon is stopping.", hint="Ask again once it runs.")


async def _over(run: Run) -> None:
    while not run.done.is_set() and not run.is_left:
        await run.news.wait()


async def _safely(run: Run, work: Awaitable[None]) -> None:
    """Do one of the things that follow; that it fails must not keep the others from being done."""
    try:
        await work
    except Exception:
        _log.exception("pipe_aftermath_failed", unit=run.unit, execution=run.id)


def _cut_off(number: int) -> InterruptedRunError:
    return InterruptedRunError(
        f"the control plane is being replaced or stopped; execution {number} is not lost",
        hint=f"follow it again: `pxctl pipe tail {number}`",
        execution=number,
    )

"""The room of pipes: everything that the daemon asks of it. One per daemon.

Laws: what is accepted is a row before anything else happens, and becomes final once, whatever
happens. Nothing runs by itself before the API listens (`start_scheduler`), nothing new is taken in
once the end has begun. Every end frees its slot, whatever became of the execution. A control plane
that leaves takes nothing with it: what runs goes on.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import structlog
from msgspec import structs

from supervisord_py import errors
from supervisord_py.ledger import pipes as ledger_pipes
from supervisord_py.ledger.pipes import EXECUTIONS, Execution, Trigger
from supervisord_py.pipes import output
from supervisord_py.pipes.context import again
from supervisord_py.pipes.definition import EVENT_NAME, PUBLISHED
from supervisord_py.pipes.executions import LOOK_SECONDS, RunDriver
from supervisord_py.pipes.files import PipeFiles
from supervisord_py.pipes.models import Check, PipesConfig, PipeView, PublishedEvent, usable
from supervisord_py.pipes.outcome import Cause
from supervisord_py.pipes.output import BOTH, FollowItem, FollowNews, OutputPage, OutputStream
from supervisord_py.pipes.schedule import shown
from supervisord_py.pipes.status import PipeViews
from supervisord_py.pipes.triggers import Triggers

KEEP_EXECUTIONS = 10_000  # of each pipe
KEEP_BYTES = 4096 * 1024 * 1024  # of all files
WAITING_MAX = 10_000  # executions of one pipe in line: somebody asks in a loop
_log = structlog.get_logger(__name__)


class Pipes(PipeViews):
    """Pipes and their executions.

    `open` it where the loop runs; end it with `close` or `detach`.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.files = PipeFiles(self)  # adds, changes and removes pipes
        self.triggers = Triggers(self)
        self.announce = self.triggers.announce

    # -- beginning and end -------------------------------------------------------------------------

    async def open(self) -> None:
        await self.states.open()
        await asyncio.to_thread(self.catalog.refresh)
        self.look_again()  # who waits for events hears, too, of what ended while nobody was here
        self.driver = driver = RunDriver(self)
        await driver.adopt_all()
        await self.files.settle_all()
        self.look_again()
        self.task(self.files.look_for_ever())
        self.task(self.look_at_runs())
        self.events.listeners.add(self.triggers.hear)
        self.task(self.triggers.hear_files())

    def start_scheduler(self) -> None:
        if not self.is_ending:
            self.is_gate_open = True
            self.admit()
            self.task(self.timetable.run())

    async def close(self) -> None:
        """Stop what runs, all at once; what waits goes on waiting, for the next start.

        Does nothing after an end.
        """
        if not self.is_ending:
            self.close_gate()
            at_work = [
                run for run in self.runs.values() if self.line.position(run.execution) is None
            ]
            for run in at_work:
                run.want_end(Cause.SHUTDOWN)
            await asyncio.gather(*(run.until_done() for run in at_work), return_exceptions=True)
            await self.detach()

    async def detach(self) -> None:
        """End without stopping anything: another control plane takes over what runs."""
        self.close_gate()
        for run in self.runs.values():
            run.leave()
        self.events.listeners.discard(self.triggers.hear)
        await self.supervisor.close()

    def reconfigure(self, config: PipesConfig) -> None:
        self.config = self.shelf.config = config
        self.catalog.reconfigure(config.default_agent)
        self.clocks_jumped()

    def clocks_jumped(self) -> None:
        self.admit()
        self.due_bell.set()

    async def prune(self) -> int:
        """Remove rows and files beyond the limits, in small batches, oldest first; return how many
        executions went.

        Nothing open is ever touched, nor what an agent wrote into its pipe's `output/`.
        """
        before, total = self.clocks.wall() - self.config.keep_days * 86400.0, 0
        most = {"rows_of_each": KEEP_EXECUTIONS, "bytes_of_all": KEEP_BYTES}
        while gone := await ledger_pipes.prune(self.ledger, before=before, **most):
            for number in gone:
                await asyncio.to_thread(shutil.rmtree, self.folder(number), ignore_errors=True)
            total += len(gone)
        return total

    # -- pipes -------------------------------------------------------------------------------------

    async def validate(self, name: str) -> Sequence[Check]:
        """Say what is wrong with a pipe, or odd; UnknownUnitError where there is none of that
        name.
        """
        return await self.checks_of(await self.files.afresh(name))

    async def rendered(self, name: str) -> str:
        definition = usable(self.definition(name))
        newest, _ = await ledger_pipes.page(self.ledger, ledger_pipes.ExecutionFilter(limit=1))
        chosen, _warnings = await self.choose(definition)
        return (
            self.build(definition, chosen, newest[0].id + 1 if newest else 1).rendered_prompt or ""
        )

    async def enable(self, name: str, *, enabled: bool = True) -> PipeView:
        """Have a pipe run by itself or not, on this machine; if not, what waits of it by itself
        is cancelled.
        """
        definition = usable(self.definition(name))
        self.states.change(name, enabled=enabled, enabled_file=definition.enabled)
        await self.files.settle(definition)
        self.events.publish("pipe_enabled" if enabled else "pipe_disabled", f"pipe:{name}")
        self.look_again()
        await self.ledger.flush()  # who is told so may rely on it, also when we are killed now
        return self.get(name)

    # -- executions --------------------------------------------------------------------------------

    async def run(
        self,
        name: str,
        triggers: Sequence[Mapping[str, Any]] = ({},),
        *,
        seconds: float | None = None,
        queue: bool = False,
        on_accepted: Callable[[], None] | None = None,
    ) -> Sequence[Execution]:
        """Run a pipe by hand, once for each trigger, all or none; return how they are then: in
        line, or failed.

        `triggers` have what is to be known of each, such as its `context`; `seconds` is a timeout
        of theirs; with `queue` they wait in line where the pipe runs already, instead of being
        refused. `on_accepted` is called right before the first one is recorded.

        Raises UnknownUnitError, ConfigError: there is no pipe of that name, or its file is broken;
        ConflictError: it runs, or waits for its run, already (unless `queue`).
        """
        self.refuse_at_the_end()
        definition = usable(await self.files.afresh(name))
        chosen, warnings = await self.choose(definition, seconds)
        # From here to the last of them nobody else has a turn: of two that ask at once, the second
        # sees the first.
        self._check_by_hand(name, len(triggers), seconds, queue=queue)
        if on_accepted is not None:
            on_accepted()
        rows = tuple(
            map(self.view, await self.enqueue(definition, chosen, triggers, warnings=warnings))
        )
        await self.ledger.flush()
        return rows

    async def retry(
        self, number: int, *, queue: bool = False, on_accepted: Callable[[], None] | None = None
    ) -> Execution:
        """Run an execution again, as a new row that names it, with what its pipe says now; else
        as `run`.
        """
        before = await self.execution(number, blobs=True)
        if not before.status.is_final:
            said = f"execution {number} is {before.status}; only one that is over can be retried"
            hint = f"`pxctl pipe cancel {number}` ends it"
            raise errors.ConflictError(said, hint=hint, unit=before.unit, execution=number)
        return (
            await self.run(before.pipe_name, [again(before)], queue=queue, on_accepted=on_accepted)
        )[0]

    def _check_by_hand(self, name: str, count: int, seconds: float | None, *, queue: bool) -> None:
        """Refuse what nobody can mean: too long a timeout, too many in line, a run beside another
        (not `queue`).

        The other one is at work already, or was asked for by hand, too.
        """
        unit, others, most = (
            f"pipe:{name}",
            self.of_pipes.get(name, {}),
            self.config.timeout_max_seconds,
        )
        if seconds is not None and seconds > most:
            message = (
                f"a timeout is at most {most:g} s (pipes.timeout_max_seconds), not {seconds:g} s"
            )
            hint = "leave it out: the pipe has one of its own"
            raise errors.InvalidInputError.at("/timeout", message, hint, unit=unit)
        for run in () if queue else others.values():
            waits = self.line.position(run.execution) is not None
            if not waits or run.execution.trigger is Trigger.MANUAL:
                message = (
                    f"pipe {name} {'is in line already' if waits else 'runs already'}: execution "
                    f"{run.id}"
                )
                hint = f"follow it: `pxctl pipe tail {run.id}`; or wait in line with --queue"
                raise errors.ConflictError(
                    message, hint=hint, unit=unit, execution=run.id, pid=run.execution.pid
                )
        if len(others) + count > WAITING_MAX:
            message = (
                f"{len(others)} executions of pipe {name} wait already, of {WAITING_MAX} at most"
            )
            hint = f"`pxctl pipe queue` shows them; `pxctl pipe cancel {name}` ends them all"
            raise errors.OverloadedError(message, hint=hint, unit=unit, retry_after_seconds=60)

    async def cancel(self, number: int) -> Execution:
        """End an execution in whatever state it is; return it as it became.

        ConflictError where it is over.
        """
        run = self.runs.get(number)
        if run is None:
            over = await self.execution(number)
            said, hint = f"execution {number} is over: {over.status}", f"pxctl pipe show {number}"
            raise errors.ConflictError(said, hint=hint, unit=over.unit, execution=number)
        return await self.end(run, "cancelled on request")

    async def cancel_pipe(self, name: str) -> tuple[Execution, ...]:
        self.definition(name)
        return await self.cancel_all(name, "cancelled on request")

    async def publish_event(self, event: PublishedEvent) -> dict[str, list[dict[str, Any]]]:
        """Start every enabled pipe that waits for an event, once each; not to be cancelled.

        Raises BadRequestError: there is no such event.
        """
        self.refuse_at_the_end()
        is_ours = event.name.partition(":")[0] in PUBLISHED
        if is_ours or not EVENT_NAME.fullmatch(event.name):
            why = (
                "is told by what happens here, and by nobody else"
                if is_ours
                else "is no name of an event"
            )
            hint = (
                "give it a name of its own: letters, digits, `.`, `_` and `-`, at most 128, for "
                "example deploy_done"
            )
            raise errors.BadRequestError(f"{shown(event.name)} {why}", hint=hint)
        return await self.triggers.publish(event)

    # -- reading -----------------------------------------------------------------------------------

    async def execution(
        self, number: int, *, pipe: str | None = None, blobs: bool = False
    ) -> Execution:
        """Return an execution as it stands, with the texts of its output where wanted: memory is
        ahead of the ledger.

        Raises UnknownUnitError: there is none of that id, or it is not one of the `pipe`.
        """
        run = self.runs.get(number)
        if run is not None:
            found: Execution | None = self.view(run)
            if blobs and not run.execution.status.is_final:
                texts = await asyncio.to_thread(output.texts, run.folder, self.config.row_bytes)
                found = structs.replace(self.view(run), **texts)
        else:
            rows = await (EXECUTIONS.find if blobs else EXECUTIONS.listed)(
                self.ledger, "WHERE id = ?", number
            )
            found = next(iter(rows), None)
        if found is None or pipe not in {None, found.pipe_name}:
            said, hint = f"there is no execution {number}", "see `pxctl pipe runs`"
            raise errors.UnknownUnitError(said, hint=hint, execution=number)
        return found

    async def executions(
        self, wanted: ledger_pipes.ExecutionFilter
    ) -> tuple[Sequence[Execution], int | None]:
        """Return a page of executions, without the texts of their output.

        Memory is ahead of the ledger.
        """
        rows, cursor = await ledger_pipes.page(self.ledger, wanted)
        return [self.view(run) if (run := self.runs.get(row.id)) else row for row in rows], cursor

    async def output(
        self,
        number: int,
        stream: OutputStream = OutputStream.STDOUT,
        offset: int = 0,
        limit: int | None = None,
    ) -> OutputPage:
        """Return a piece of an execution's output.

        Raises UnknownUnitError: there is no execution of that id.
        """
        limit = output.PAGE_BYTES if limit is None else min(limit, output.PAGE_MAX)
        known = await self.execution(number)  # before the file is read: a final one's is whole then
        return await asyncio.to_thread(
            output.page, self.folder(number), known, stream, offset, limit
        )

    async def follow(
        self, number: int, streams: Sequence[OutputStream] = BOTH, *begins: int
    ) -> AsyncGenerator[FollowItem, None]:
        """Yield an execution's start, output, changes and end; close the iterator when leaving
        early.

        `begins` say where the streams begin, in their order; those that are not given begin at 0.
        Raises UnknownUnitError: there is none of that id; InterruptedRunError: this control plane
        ends, the execution goes on.
        """
        # before anybody else has a turn: what ends meanwhile is dropped, and known stale
        run = self.runs.get(number)
        known, folder = await self.execution(number), self.folder(number)
        yield FollowNews("start", known)
        offsets = dict(zip(streams, (*begins, *[0] * len(streams)), strict=False))
        if run is not None:
            run.followers += 1
            run.tell()
        try:
            while True:
                # before the files are read: they are whole then
                is_over = run is None or run.done.is_set()
                now, news = (self.view(run), run.news) if run else (known, None)
                if (now.status, now.position) != (
                    known.status,
                    known.position,
                ) and not now.status.is_final:
                    yield FollowNews("status", now)
                known = now
                pieces = await asyncio.to_thread(output.pieces, folder, offsets)
                for piece in pieces:
                    offsets[piece.stream] = piece.offset + len(piece.data)
                    yield piece
                if is_over and not pieces:
                    break
                if run and not is_over:
                    run.refuse_if_left()
                if news is not None and not pieces:
                    await asyncio.wait(
                        (news,),
                        timeout=output.POLL_SECONDS if now.position is None else LOOK_SECONDS,
                    )
        finally:
            if run is not None:
                run.followers -= 1
        yield FollowNews("done", known)

    async def wait(self, number: int) -> Execution:
        """Wait until an execution is final; return it with the texts of its output.

        Raises as `follow` does.
        """
        run = self.runs.get(number)
        if run is None:
            return await self.execution(number, blobs=True)
        await run.until_done()
        return run.execution  # with its texts: a full disk may not show them yet

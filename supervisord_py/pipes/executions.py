"""Executions that are not final, and those that are: what the room of pipes knows of each, and how it is read.

Law: the row of one is on its way to the ledger before anything else happens, and before every row that follows from it;
whoever promises it to somebody flushes the ledger first. Every end frees its slot, whatever became of the execution.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn

import structlog
from msgspec import structs

from supervisord_py.errors import ShuttingDownError, UnknownUnitError
from supervisord_py.ledger import pipes as ledger_pipes
from supervisord_py.ledger.pipes import EXECUTIONS, PIPE_STATES, Claim, Execution, Outcome, Status, Trigger, claimed
from supervisord_py.ledger.table import together
from supervisord_py.pipes import output
from supervisord_py.pipes.context import FEW, PipesContext
from supervisord_py.pipes.models import PipeDefinition
from supervisord_py.pipes.outcome import REASONS, Cause
from supervisord_py.pipes.output import BOTH, FollowItem, FollowNews, OutputPage, OutputStream
from supervisord_py.pipes.queue import Queue
from supervisord_py.pipes.run import Run, measured
from supervisord_py.pipes.schedule import Manual
from supervisord_py.process import clock
from supervisord_py.process.instance import Phase

LOOK_SECONDS = 1.0
_log = structlog.get_logger(__name__)


class Executions(PipesContext):
    """All executions: what is at work or in line in memory, which is ahead of the ledger, and the others in that."""

    announce: Callable[[Run], Awaitable[None]]  # tells other pipes of an end; the room sets it

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.is_ending = False  # nothing new is taken in
        self.is_gate_open = False  # who waits may be started
        self.runs: dict[int, Run] = {}  # each that is not final, or of which the end has still to be told
        self.of_pipes: dict[str, dict[int, Run]] = {}  # the same, by pipe
        self.line = Queue()
        self.listening: tuple[PipeDefinition, ...] = ()  # the pipes that wait for events
        self.due_bell = asyncio.Event()  # who is due may be another: a pipe, a clock changed, a pipe with times is free
        self.listener_bell = asyncio.Event()  # who waits for which events may be another

    def refuse_at_the_end(self) -> None:
        if self.is_ending:
            raise ShuttingDownError("The daemon is stopping.", hint="Ask again once it runs.")

    def look_again(self) -> None:
        self.listening = tuple(each for each in self.usable() if each.events)
        self.listener_bell.set()
        self.due_bell.set()

    # -- who is there ------------------------------------------------------------------------------------------------

    def add(self, run: Run) -> None:
        self.runs[run.id] = self.of_pipes.setdefault(run.execution.pipe_name, {})[run.id] = run

    def of_pipe(self, pipe: str) -> tuple[Run, ...]:
        found = self.of_pipes.get(pipe, {})
        return tuple(found[number] for number in sorted(found))

    def is_leaving_line(self, pipe: str) -> bool:
        return any(run.is_leaving_line for run in self.of_pipe(pipe))

    def running(self, pipe: str) -> Run | None:
        return next((it for it in self.of_pipe(pipe) if it.execution.status is Status.RUNNING), None)

    def queued(self, pipe: str) -> tuple[Run, ...]:
        return tuple(it for it in self.of_pipe(pipe) if it.execution.status is Status.QUEUED)

    def view(self, run: Run) -> Execution:
        """Return an execution as it stands, with its place in line."""
        if run.execution.status is Status.QUEUED:  # who has a slot and is being started is the first
            return structs.replace(run.execution, position=self.line.position(run.execution) or 1)
        return run.execution

    # -- recording ---------------------------------------------------------------------------------------------------

    async def enqueue(
        self,
        definition: PipeDefinition,
        chosen: Execution,
        triggers: Sequence[Mapping[str, Any]],
        *,
        claim: Claim | None = None,
        cause: int | None = None,
        warnings: Sequence[str] = (),
        **change: Any,
    ) -> tuple[Run, ...]:
        """Record executions, all or none, with a `change` of what is remembered of their pipe, and put them in line.

        `chosen` is what each of them is, but for its trigger; `cause` the event of the daemon's that led to them.
        With a `claim` on an event: in its transaction, where it is free, else none. Without one, nobody has a turn.
        Raises LedgerDegradedError: the disk takes nothing, and nobody can know whether it is claimed.
        """
        rows, is_refused = [self.build(definition, chosen, **each) for each in triggers], chosen.status.is_final
        operations = [EXECUTIONS.insert(row) for row in rows]
        for row in rows if is_refused else ():  # what it means for its pipe is of one piece with it
            refusal = Outcome(row.status, row.error_type)
            change |= self.states.change_by(row, refusal, row.queued_at, goes_on=False)
            self.states.take(definition.name, **change)
        if change:
            self.states.take(definition.name, **change)
            operations.append(PIPE_STATES.merge(definition.name, **change))
        # One that fails at once keeps no claim: told again, the event may start the pipe.
        if claim is None or is_refused:
            self.ledger.post(together(*operations))
        elif not await self.ledger.call(claimed(claim, together(*operations))):
            return ()
        asyncio.get_running_loop().call_soon(self.admit)  # once, and after whoever asked has seen them in line
        return tuple(self.take_in(definition, row, cause, warnings) for row in rows)

    def take_in(
        self, definition: PipeDefinition, row: Execution, cause: int | None = None, warnings: Sequence[str] = ()
    ) -> Run:
        """Put an execution whose row is written or on its way into the line, and tell everybody of it."""
        run = Run(self, row, definition)
        run.event = cause
        self.supervisor.say(
            "execution_queued",
            run,
            trigger=row.trigger.value,
            group=row.group.value,
            retry_of=row.retry_of,
            preset=row.preset.id,
            warnings=list(warnings),
        )
        if row.status is Status.QUEUED:
            self.push(run)
        else:
            self.add(run)
            self.task(run.finish())
        return run

    # -- who runs ----------------------------------------------------------------------------------------------------

    def push(self, run: Run) -> None:
        """Put an execution into the line; whoever does so sees to it that `admit` follows."""
        self.add(run)
        self.line.push(run.execution)

    def admit(self) -> None:
        for number in self.line.admit(self.clocks.wall(), self.config) if self.is_gate_open else ():
            self.task(self.runs[number].go())

    async def end(self, run: Run, why: str) -> Execution:
        if run.want_end(Cause.CANCELLED, why) and self.line.remove(run.id):
            self.task(run.end_now())
        await run.until_done()
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
            REASONS.get(run.cause),
            error_type=None if it.error_type is None else it.error_type.value,
            error_message=it.error_message,
            exit_code=it.exit_code,
            duration_ms=it.duration_ms,
        )
        self.states.ended(it)
        try:
            if run.following is not None and run.definition is not None:
                follower = self.take_in(run.definition, run.following, run.event)
                self.supervisor.say("execution_retried", follower, retry_of=run.id)
            if self.listening:
                await self.announce(run)
            if it.trigger is Trigger.SCHEDULED and it.status is Status.CANCELLED and it.started_at is None:
                # Else it would read as if what was decided (its first run, say) had come to pass.
                words = f"execution {run.id} did not run: {it.error_message or 'cancelled'}"
                self.states.decided(it.pipe_name, words)
        except Exception:  # that it fails must not keep the slot
            _log.exception("pipe_aftermath_failed", unit=run.unit, execution=run.id)
        finally:
            self.runs.pop(run.id, None)
            self.of_pipes.get(it.pipe_name, {}).pop(run.id, None)
            self.line.running.pop(run.id, None)
            run.done.set()
            run.tell()
            self.admit()
            if run.definition is None or not isinstance(run.definition.schedule, Manual):
                self.due_bell.set()  # a pipe that has times is free

    def close_gate(self) -> None:
        self.is_ending, self.is_gate_open = True, False

    async def look_at_runs(self) -> NoReturn:
        """Look at all that run, and whose time in line has come, once a second."""
        while True:
            await clock.tick(LOOK_SECONDS)
            if self.watch.look():
                self.due_bell.set()
            if self.line.next_deadline is not None and self.line.next_deadline <= self.clocks.wall():
                self.admit()
            at_work = [it for it in self.runs.values() if it.phase is Phase.READY and not it.is_left]
            if at_work:
                stamps = measured(at_work) if len(at_work) <= FEW else await asyncio.to_thread(measured, at_work)
                for run, stamp in zip(at_work, stamps, strict=True):
                    try:
                        run.look(stamp, self.watch.resumed_at)
                    except Exception as defect:  # it ends that run, and the others are looked at as before
                        run.broke(defect)

    # -- reading -----------------------------------------------------------------------------------------------------

    async def execution(self, number: int, *, pipe: str | None = None, blobs: bool = False) -> Execution:
        """Return an execution as it stands, with the texts of its output where wanted: memory is ahead of the ledger.

        Raises UnknownUnitError: there is none of that id, or it is not one of the `pipe`.
        """
        run = self.runs.get(number)
        if run is not None:
            found: Execution | None = self.view(run)
            if blobs and not run.execution.status.is_final:
                texts = await asyncio.to_thread(output.texts, run.folder, self.config.row_bytes)
                found = structs.replace(self.view(run), **texts)
        else:
            rows = await (EXECUTIONS.find if blobs else EXECUTIONS.listed)(self.ledger, "WHERE id = ?", number)
            found = next(iter(rows), None)
        if found is None or pipe not in {None, found.pipe_name}:
            raise UnknownUnitError(f"there is no execution {number}", hint="see `pxctl pipe runs`", execution=number)
        return found

    async def executions(self, wanted: ledger_pipes.ExecutionFilter) -> ledger_pipes.ExecutionPage:
        """Return executions, newest first; never the texts of their output. Memory is ahead of the ledger."""
        found = await ledger_pipes.page(self.ledger, wanted)
        rows = (self.view(run) if (run := self.runs.get(row.id)) else row for row in found.executions)
        return found._replace(executions=tuple(rows))

    async def output(
        self, number: int, stream: OutputStream = OutputStream.STDOUT, offset: int = 0, limit: int | None = None
    ) -> OutputPage:
        """Return a piece of an execution's output. Raises UnknownUnitError: there is no execution of that id."""
        limit = max(0, min(output.PAGE_BYTES if limit is None else limit, output.PAGE_MAX))
        known = await self.execution(number)  # before the file is read: a final one's is whole then
        return await asyncio.to_thread(output.page, self.folder(number), known, stream, max(0, offset), limit)

    async def follow(
        self, number: int, streams: Sequence[OutputStream] = BOTH, *begins: int
    ) -> AsyncGenerator[FollowItem, None]:
        """Yield an execution's start, output, changes and end; close the iterator when leaving early.

        `begins` say where the streams begin, in their order; those that are not given begin at 0. Raises
        UnknownUnitError: there is none of that id; InterruptedRunError: this control plane ends, the execution goes on.
        """
        run = self.runs.get(number)  # before anybody else has a turn: what ends meanwhile is dropped, and known stale
        known, folder = await self.execution(number), self.folder(number)
        yield FollowNews("start", known)
        offsets = dict(zip(streams, (*begins, *[0] * len(streams)), strict=False))
        if run is not None:
            run.followers += 1
            run.tell()
        try:
            while True:
                is_over = run is None or run.done.is_set()  # before the files are read: they are whole then
                now, news = (self.view(run), run.news) if run else (known, None)
                if (now.status, now.position) != (known.status, known.position) and not now.status.is_final:
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
                    await asyncio.wait((news,), timeout=output.POLL_SECONDS if now.position is None else LOOK_SECONDS)
        finally:
            if run is not None:
                run.followers -= 1
        yield FollowNews("done", known)

    async def wait(self, number: int) -> Execution:
        """Wait until an execution is final; return it with the texts of its output. Raises as `follow` does."""
        run = self.runs.get(number)
        if run is None:
            return await self.execution(number, blobs=True)
        await run.until_done()
        return run.execution  # with its texts: a full disk may not show them yet

"""Executions that are not final, and those that are: what the room of pipes knows of each, and how it is read.

Law: the row of one is on its way to the ledger before anything else happens, and before every row that follows from it;
whoever promises it to somebody flushes the ledger first.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from msgspec import structs

from supervisord_py.errors import InterruptedRunError, UnknownUnitError
from supervisord_py.ledger import pipe_history
from supervisord_py.ledger.pipe_executions import EXECUTIONS, Status
from supervisord_py.ledger.pipe_state import PIPE_STATES, claimed
from supervisord_py.ledger.table import together
from supervisord_py.pipes import output
from supervisord_py.pipes.clocks import Resumes
from supervisord_py.pipes.ending import conclude
from supervisord_py.pipes.intake import build
from supervisord_py.pipes.means import Means
from supervisord_py.pipes.outcome import Cause
from supervisord_py.pipes.output import (
    BOTH,
    PAGE_BYTES,
    PAGE_MAX,
    PIECE_BYTES,
    POLL_SECONDS,
    FollowNews,
    FollowOutput,
    OutputPage,
    OutputStream,
)
from supervisord_py.pipes.queue import Queue
from supervisord_py.pipes.run import Run
from supervisord_py.pipes.scheduler import Timetable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from pathlib import Path

    from supervisord_py.ledger.pipe_executions import Execution
    from supervisord_py.ledger.pipe_history import ExecutionFilter, ExecutionPage
    from supervisord_py.ledger.pipe_state import Claim
    from supervisord_py.pipes.models import Chosen, Order, PipeDefinition
    from supervisord_py.pipes.output import FollowItem

LOOK_SECONDS = 1.0
LOOK_AGAIN_SECONDS = 30.0
"""A timer of the loop does not count suspend, and the wall clock may be set: where nobody tells, the longest wait."""


class Executions(Means):
    """All executions: those at work or in line in memory, which is ahead of the ledger, and the others in the ledger.

    Attributes:
        runs: Every execution that is not final, and those of which an end has still to be told.
        of_pipes: The same, by pipe.
        line: Who waits, and who holds a slot.
        is_gate_open: Who waits may be started.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.runs: dict[int, Run] = {}
        self.line = Queue(self.config)
        self.of_pipes: dict[str, dict[int, Run]] = {}
        self.timetable = Timetable(self, self.is_leaving_line)
        self.is_gate_open = False
        self._timer = asyncio.get_running_loop().call_later(LOOK_AGAIN_SECONDS, self.admit)
        """When to look at the line again."""

    def add(self, run: Run) -> None:
        self.runs[run.id] = self.of_pipes.setdefault(run.execution.pipe_name, {})[run.id] = run

    def of_pipe(self, pipe: str) -> tuple[Run, ...]:
        found = self.of_pipes.get(pipe, {})
        return tuple(found[number] for number in sorted(found))

    def is_leaving_line(self, pipe: str) -> bool:
        """Say whether some execution of a pipe is to end, or has ended, before it ran."""
        return any(run.is_leaving_line for run in self.of_pipe(pipe))

    def running(self, pipe: str) -> Run | None:
        return next((it for it in self.of_pipe(pipe) if it.execution.status is Status.RUNNING), None)

    def queued(self, pipe: str) -> tuple[Run, ...]:
        return tuple(it for it in self.of_pipe(pipe) if it.execution.status is Status.QUEUED)

    def view(self, run: Run) -> Execution:
        """Return an execution as it stands, with its place in line."""
        if run.execution.status is Status.QUEUED:  # who has a slot and is being started is the first
            return structs.replace(run.execution, position=self.line.position(run.id) or 1)
        return run.execution

    # -- recording ---------------------------------------------------------------------------------------------------

    async def enqueue(
        self,
        definition: PipeDefinition,
        orders: Sequence[Order],
        chosen: Chosen,
        claim: Claim | None = None,
        **change: Any,
    ) -> tuple[Run, ...]:
        """Record executions, all or none, with a `change` of what is remembered of their pipe, and put them in line.

        With a `claim` on an event: in its transaction, where it is free, else none. Without one, nobody has a turn.
        Raises LedgerDegradedError: the disk takes nothing, and nobody can know whether it is claimed.
        """
        rows = [build(self, definition, it, chosen, self.ledger.next_number("pipe_executions")) for it in orders]
        operations = [EXECUTIONS.insert(row) for row in rows]
        if (refusal := chosen.refusal) is not None:  # what it means for its pipe is of one piece with it
            for row in rows:
                change |= self.states.change_by(row, refusal, row.queued_at, goes_on=False)
                self.states.take(definition.name, **change)
        if change:
            self.states.take(definition.name, **change)
            operations.append(PIPE_STATES.merge(definition.name, **change))
        # One that fails at once keeps no claim: told again, the event may start the pipe.
        if claim is None or refusal is not None:
            self.ledger.post(together(*operations))
        elif not await self.ledger.call(claimed(claim, together(*operations))):
            return ()
        return tuple(self.take_in(definition, *each, chosen) for each in zip(rows, orders, strict=True))

    def take_in(self, definition: PipeDefinition, row: Execution, order: Order, chosen: Chosen) -> Run:
        """Put an execution whose row is written or on its way into the line, and tell everybody of it."""
        run = Run(self, row, definition, conclude, self.after)
        run.event, run.outcome = order.cause, chosen.refusal
        self.supervisor.say(
            "execution_queued",
            run,
            trigger=row.trigger.value,
            group=row.group.value,
            retry_of=row.retry_of,
            preset=row.preset.id,
            warnings=list(chosen.warnings),
        )
        if chosen.refusal is None:
            self.push(run)
        else:
            self.add(run)
            self.task(run.finish())
        return run

    # -- who runs ----------------------------------------------------------------------------------------------------

    def push(self, run: Run) -> None:
        """Put an execution into the line; it is admitted at the next turn of the loop, with all that come now."""
        self.add(run)
        self.line.push(run.execution)
        self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(0, self.admit)

    def admit(self) -> None:
        """Start whoever can be, and come back when somebody else might."""
        self._timer.cancel()
        if not self.is_gate_open:
            return
        for number in self.line.admit(self.clocks.wall()):
            self.task(self.runs[number].go())
        if self.line.next_deadline is not None:
            seconds = min(max(0.0, self.line.next_deadline - self.clocks.wall()), LOOK_AGAIN_SECONDS)
            self._timer = asyncio.get_running_loop().call_later(seconds, self.admit)

    async def end(self, run: Run, why: str) -> Execution:
        """Cancel one; return it as it became."""
        if run.want_end(Cause.CANCELLED, why) and self.line.remove(run.id):
            self.task(self._end_unrun(run))
        await run.until_done()
        return run.execution

    async def _end_unrun(self, run: Run) -> None:
        await self.ledger.write(together(await conclude(run)))
        await run.finish()

    async def cancel_all(self, pipe: str, why: str) -> tuple[Execution, ...]:
        """Cancel all of a pipe's: first those that wait, so that none of them starts in between."""
        order = sorted(self.of_pipe(pipe), key=lambda run: run.execution.status is Status.RUNNING)
        return tuple(await asyncio.gather(*(self.end(run, why) for run in order)))

    @abstractmethod
    async def after(self, run: Run) -> None:
        """Do what follows from an end whose row is final, and free the slot."""

    def close_gate(self) -> None:
        """Start nobody any more, and take nothing in."""
        self.is_ending, self.is_gate_open = True, False
        self._timer.cancel()

    async def look_at_runs(self) -> NoReturn:
        """Look at all that run, once a second: a thousand agents that say nothing are one thread's work of a moment."""
        resumes = Resumes(self.clocks)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            resumes.look()
            at_work = [run for run in self.runs.values() if run.is_at_work]
            if at_work:
                stamps = await asyncio.to_thread(lambda: [run.measured() for run in at_work])  # noqa: B023  awaited here
                for run, stamp in zip(at_work, stamps, strict=True):
                    try:
                        run.look(stamp, resumes.resumed_at)
                    except Exception as defect:  # it ends that run, and the others are looked at as before
                        run.break_off(defect)

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

    async def executions(self, wanted: ExecutionFilter) -> ExecutionPage:
        """Return executions, newest first; never the texts of their output. Memory is ahead of the ledger."""
        found = await pipe_history.page(self.ledger, wanted)
        rows = (self.view(run) if (run := self.runs.get(row.id)) else row for row in found.executions)
        return found._replace(executions=tuple(rows))

    async def output(
        self, number: int, stream: OutputStream = OutputStream.STDOUT, offset: int = 0, limit: int | None = None
    ) -> OutputPage:
        """Return a piece of an execution's output. Raises UnknownUnitError: there is no execution of that id."""
        limit = max(0, min(PAGE_BYTES if limit is None else limit, PAGE_MAX))
        known = await self.execution(number)  # before the file is read: a final one's is whole then
        return await asyncio.to_thread(output.page, self.folder(number), known, stream, max(0, offset), limit)

    async def follow(
        self, number: int, streams: Sequence[OutputStream] = BOTH, *begins: int
    ) -> AsyncGenerator[FollowItem, None]:
        """Yield an execution's start, output, changes and end; close the iterator when leaving early.

        `begins` say where the streams begin, in their order; those that are not given begin at 0.

        Raises:
            UnknownUnitError: There is none of that id.
            InterruptedRunError: This control plane ends; the execution goes on.
        """
        run = self.runs.get(number)  # before anybody else has a turn: what ends meanwhile is dropped, and known stale
        known, folder = await self.execution(number), self.folder(number)
        yield FollowNews("start", known)
        offsets = dict(zip(streams, (*begins, *[0] * len(streams)), strict=False))
        while True:
            is_over = run is None or run.done.is_set()  # before the files are read: they are whole then
            news = None if run is None else run.news
            now = known if run is None else self.view(run)
            if (now.status, now.position) != (known.status, known.position) and not now.status.is_final:
                yield FollowNews("status", now)
            known = now
            pieces = await asyncio.to_thread(_pieces, folder, offsets)
            for piece in pieces:
                offsets[piece.stream] = piece.offset + len(piece.data)
                yield piece
            if is_over and not pieces:
                break
            if run is not None and run.is_left and not is_over:
                raise _cut_off(number)
            if not pieces and news is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(news.wait(), POLL_SECONDS if now.position is None else LOOK_SECONDS)
        yield FollowNews("done", known)

    async def wait(self, number: int) -> Execution:
        """Wait until an execution is final; return it with the texts of its output. Raises as `follow` does."""
        run = self.runs.get(number)
        if run is None:
            return await self.execution(number, blobs=True)
        await run.until_done()
        if not run.done.is_set():
            raise _cut_off(number)
        return run.execution  # with its texts: a full disk may not show them yet


def _pieces(folder: Path, offsets: Mapping[OutputStream, int]) -> list[FollowOutput]:
    """Return what each stream has from its offset on, where it has something. Blocking."""
    found = [FollowOutput(each, at, output.read(folder, each, at, PIECE_BYTES)) for each, at in offsets.items()]
    return [piece for piece in found if piece.data]


def _cut_off(number: int) -> InterruptedRunError:
    return InterruptedRunError(
        f"the control plane is being replaced or stopped; execution {number} is not lost",
        hint=f"follow it again: `pxctl pipe tail {number}`",
        execution=number,
    )

"""Executions that are not final, and those that are: what the room of pipes knows of each, and how it is read."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import structs

from supervisord_py.errors import InterruptedRunError, UnknownUnitError
from supervisord_py.ledger import pipe_history
from supervisord_py.ledger.pipe_executions import EXECUTIONS, Status
from supervisord_py.pipes import output
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
from supervisord_py.pipes.queue import Queue

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence
    from pathlib import Path

    from supervisord_py.ledger.pipe_executions import Execution
    from supervisord_py.ledger.pipe_history import ExecutionFilter, ExecutionPage
    from supervisord_py.ledger.store import Ledger
    from supervisord_py.pipes.config import PipesConfig
    from supervisord_py.pipes.output import FollowItem
    from supervisord_py.pipes.run import Run


class Executions:
    """All executions: those at work or in line in memory, which is ahead of the ledger, and the others in the ledger.

    Attributes:
        runs: Every execution that is not final, and those of which an end has still to be told, by id.
        line: Who waits, and who holds a slot.
    """

    def __init__(self, ledger: Ledger, config: PipesConfig) -> None:
        self.ledger = ledger
        self.config = config
        self.runs: dict[int, Run] = {}
        self.line = Queue(config.slots)
        self._of_pipes: dict[str, dict[int, Run]] = {}

    def folder(self, execution: int) -> Path:
        return self.config.executions_dir / str(execution)

    def add(self, run: Run) -> None:
        self.runs[run.id] = self._of_pipes.setdefault(run.name, {})[run.id] = run

    def drop(self, run: Run) -> None:
        self.runs.pop(run.id, None)
        self._of_pipes.get(run.name, {}).pop(run.id, None)
        self.line.ended(run.id)

    def of_pipe(self, pipe: str) -> tuple[Run, ...]:
        found = self._of_pipes.get(pipe, {})
        return tuple(found[number] for number in sorted(found))

    def running(self, pipe: str) -> Run | None:
        return next((it for it in self.of_pipe(pipe) if it.execution.status is Status.RUNNING), None)

    def queued(self, pipe: str) -> tuple[Run, ...]:
        return tuple(it for it in self.of_pipe(pipe) if it.execution.status is Status.QUEUED)

    def view(self, run: Run) -> Execution:
        """Return an execution as it stands, with its place in line."""
        if run.execution.status is Status.QUEUED:  # who has a slot and is being started is the first
            return structs.replace(run.execution, position=self.line.position(run.id) or 1)
        return run.execution

    # -- reading -----------------------------------------------------------------------------------------------------

    async def execution(self, number: int, *, pipe: str | None = None, blobs: bool = False) -> Execution:
        """Return an execution as it stands, with the texts of its output where wanted: memory is ahead of the ledger.

        Raises UnknownUnitError: there is none of that id, or it is not one of the `pipe`.
        """
        run = self.runs.get(number)
        if run is not None:
            found: Execution | None = self.view(run)
            if blobs and not run.execution.status.is_final:
                texts = await asyncio.to_thread(output.texts, run.folder, self.config.output.row_bytes)
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
        limit = max(0, min(self.config.output.page_bytes if limit is None else limit, PAGE_MAX))
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
                    await asyncio.wait_for(news.wait(), None if now.position is not None else POLL_SECONDS)
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

"""An execution's output, for whoever looks: in pages, and live.

Law: the files are the truth, a bell only says "look"; any number of followers, each at its own speed, none of which
holds anything up. Offsets are those of the files: a follower that was cut off goes on where it was. Where the files
are gone (retention) the row's text stands for them. A page says where not all was kept (`truncated`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from supervisord_py.errors import InterruptedRunError, UnknownUnitError
from supervisord_py.ledger import pipe_executions
from supervisord_py.pipes import rows
from supervisord_py.pipes.room_requests import OutputStream
from supervisord_py.pipes.running import spool
from supervisord_py.pipes.views import FollowDone, FollowItem, FollowOutput, FollowStart, FollowStatus, OutputPage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
    from pathlib import Path

    from supervisord_py.pipes.execution import Execution
    from supervisord_py.pipes.running.running_house import RunningHouse

PIECE_BYTES = 64 * 1024


class OutputReading:
    """Reads the output of executions.

    Args:
        house: Whose.
        view: Adds the place in line.
    """

    def __init__(self, house: RunningHouse, view: Callable[[Execution], Execution]) -> None:
        self._house = house
        self._view = view

    async def execution(self, number: int, *, blobs: bool) -> Execution:
        """Return an execution as it stands.

        Raises:
            UnknownUnitError: There is none of that id.
        """
        live = self._house.roster.get(number)
        if live is not None and not blobs:
            return self._view(live.execution)
        row = await pipe_executions.get(self._house.ledger, number, blobs=blobs)
        if live is not None:
            return self._view(live.execution if row is None else live.with_texts(row.stdout, row.stderr))
        if row is None:
            raise no_such(number)
        return rows.execution_of(row)

    async def page(self, number: int, stream: OutputStream, offset: int, limit: int) -> OutputPage:
        """Return a piece of a stream.

        Raises:
            UnknownUnitError: There is no execution of that id.
        """
        known = await self.execution(number, blobs=False)  # before the file is read: a final one's is whole then
        page = await asyncio.to_thread(_page, known, self._house.folder(number), stream, offset, limit)
        if page is not None:
            return page
        if not known.status.is_final:
            return OutputPage(b"", offset, 0, complete=False)
        return _page_of_row(await self.execution(number, blobs=True), stream, offset, limit)

    async def follow(
        self, number: int, streams: Sequence[OutputStream], offset: int
    ) -> AsyncGenerator[FollowItem, None]:
        """Yield an execution's start, its output as it comes, its changes, and its end.

        Args:
            number: Of the execution.
            streams: Which.
            offset: Where the first of them begins; the others begin at 0.
        """
        known = await self.execution(number, blobs=False)
        yield FollowStart(known)
        offsets = dict.fromkeys(streams, 0)
        if streams:
            offsets[streams[0]] = offset
        live = self._house.roster.get(number)
        while live is not None and not live.done.is_set():
            rings = live.bell.rings
            now = self._view(live.execution)
            if (now.status, now.position) != (known.status, known.position) and not now.status.is_final:
                yield FollowStatus(now)
            known = now
            found = False
            for stream in streams:
                async for piece in self._pieces(number, stream, offsets):
                    found = True
                    yield piece
            if live.left.is_set():
                raise _cut_off(number)
            if not found:
                await live.bell.after(rings)
        for stream in streams:
            async for piece in self._rest(number, stream, offsets):
                yield piece
        final = await self.execution(number, blobs=False) if live is None else self._view(live.execution)
        yield FollowDone(final)

    async def _pieces(
        self, number: int, stream: OutputStream, offsets: dict[OutputStream, int]
    ) -> AsyncIterator[FollowOutput]:
        """Yield a bounded piece of what is there now."""
        at = offsets[stream]
        data = await asyncio.to_thread(spool.read, self._house.folder(number), stream, at, PIECE_BYTES)
        if data:
            offsets[stream] = at + len(data)
            yield FollowOutput(stream, at, data)

    async def _rest(
        self, number: int, stream: OutputStream, offsets: dict[OutputStream, int]
    ) -> AsyncIterator[FollowOutput]:
        """Yield all that is left of an execution that is over."""
        while True:
            page = await self.page(number, stream, offsets[stream], PIECE_BYTES)
            if page.data:
                offsets[stream] = page.offset + len(page.data)
                yield FollowOutput(stream, page.offset, page.data)
            if page.complete or not page.data:
                return

    async def wait(self, number: int) -> Execution:
        """Wait until an execution is final; return it with the text of its output.

        Raises:
            UnknownUnitError: There is none of that id.
        """
        live = self._house.roster.get(number)
        if live is not None:
            while not live.done.is_set():
                if live.left.is_set():
                    raise _cut_off(number)
                await live.bell.after(live.bell.rings)
            await self._house.ledger.flush()
            if live.texts is not None:
                return live.with_texts(*live.texts)
            row = await pipe_executions.get(self._house.ledger, number, blobs=True)
            return live.execution if row is None else live.with_texts(row.stdout, row.stderr)
        return await self.execution(number, blobs=True)


def no_such(number: int) -> UnknownUnitError:
    """Return the error of an id that nobody knows."""
    return UnknownUnitError(f"there is no execution {number}", hint="see `pxctl pipe runs`", execution=number)


def _cut_off(number: int) -> InterruptedRunError:
    return InterruptedRunError(
        f"the control plane is being replaced or stopped; execution {number} is not lost",
        hint=f"follow it again: `pxctl pipe tail {number}`",
        execution=number,
    )


def _page(known: Execution, folder: Path, stream: OutputStream, offset: int, limit: int) -> OutputPage | None:
    """Return what is there of a stream; None where there is no file. Blocking."""
    size = spool.size(folder, stream)
    if size is None:
        return None
    data = spool.read(folder, stream, offset, limit)
    if not known.status.is_final:  # its files still grow, and after a restart they lag behind its row
        return OutputPage(data, offset, size, complete=False)
    truncated = known.truncated if stream is OutputStream.EVENTS else _said(known, stream) > size
    total = max(size, _said(known, stream))
    return OutputPage(data, offset, total, not truncated and offset + len(data) >= total, truncated)


def _page_of_row(known: Execution, stream: OutputStream, offset: int, limit: int) -> OutputPage:
    text = {OutputStream.STDOUT: known.stdout, OutputStream.STDERR: known.stderr}.get(stream) or ""
    whole, said = text.encode("utf-8", "surrogateescape"), _said(known, stream)
    truncated = said > len(whole) or (said != len(whole) and not known.invalid_utf8)
    total = max(said, len(whole)) if truncated else len(whole)
    data = whole[offset : offset + limit]
    return OutputPage(data, offset, total, not truncated and offset + len(data) >= total, truncated)


def _said(execution: Execution, stream: OutputStream) -> int:
    """Return how many bytes of a stream there were; 0 for the agent's own events, which nobody counts."""
    return {OutputStream.STDOUT: execution.stdout_bytes, OutputStream.STDERR: execution.stderr_bytes}.get(stream, 0)

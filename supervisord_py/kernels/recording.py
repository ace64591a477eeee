"""Records cells of kernels that do not write their files themselves: off the loop, in the order of the messages.

Who reads the wire never waits for a disk, and what waits for the disk is bounded; what goes beyond the bound is
dropped, counted, and told with the cell. Whoever waits for news is woken after it is in the files.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.kernels.inside.cell_writer import CellWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisord_py.kernels.backend import ExecuteRequest

QUEUE_BYTES = 256 * 1024 * 1024
CELLS_KEPT = 16  # so many cells, the newest, still take output that comes after their end
_log = structlog.get_logger(__name__)


class Recording:
    """The recorders of one kernel; `close` it."""

    def __init__(self, queue_bytes: int = QUEUE_BYTES) -> None:
        self._queue_bytes = queue_bytes
        self._cells: dict[str, tuple[CellWriter, Callable[[], None]]] = {}
        self._dropped: Counter[str] = Counter()
        self._jobs: asyncio.Queue[tuple[str, Callable[[], object], int, asyncio.Future[None] | None]] = asyncio.Queue()
        self._waiting_bytes = 0
        self._task = asyncio.create_task(self._work())

    async def open(self, request: ExecuteRequest, wake: Callable[[], None], *, begin: bool, pid: int | None) -> None:
        """Record a cell from now on; without `begin` go on with what an earlier control plane has begun."""
        writer = await asyncio.to_thread(CellWriter, str(request.cells_dir), request.cell_id, request.cell_bytes)
        self._cells[request.cell_id] = writer, wake
        if begin:
            await self._do(request.cell_id, lambda: writer.begin(request.code, pid))
        while len(self._cells) > CELLS_KEPT:
            oldest = next(iter(self._cells))
            await self._do(oldest, self._cells[oldest][0].close)
            del self._cells[oldest]

    def record(self, cell_id: str, kind: str, content: Callable[[], Mapping[str, Any]], size: int) -> None:
        """Record output of a known cell, read when its turn has come; `size` is what it holds until then, in bytes."""
        known = self._cells.get(cell_id)
        if known is not None and self._waiting_bytes + size > self._queue_bytes:
            self._dropped[cell_id] += size
        elif known is not None:
            self._waiting_bytes += size
            self._jobs.put_nowait((cell_id, lambda: known[0].message(kind, content()), size, None))

    async def end(self, cell_id: str, reply: Mapping[str, Any], *, status: str | None = None) -> int:
        """Write the end of a cell behind all that came before; return how many bytes of messages were dropped."""
        writer = self._cells[cell_id][0]
        await self._do(cell_id, lambda: writer.reply(reply, status))
        return self._dropped.pop(cell_id, 0)

    async def close(self) -> None:
        for cell_id, (writer, _) in self._cells.items():
            await self._do(cell_id, writer.close)
        self._cells.clear()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _do(self, cell_id: str, work: Callable[[], object]) -> None:
        """Do something in its turn, and wait until it is done."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._jobs.put_nowait((cell_id, work, 0, done))
        await asyncio.shield(done)

    async def _work(self) -> None:
        while True:
            jobs = [await self._jobs.get()]
            while not self._jobs.empty():
                jobs.append(self._jobs.get_nowait())
            await asyncio.to_thread(_perform, [work for _, work, _, _ in jobs])
            for _, _, size, done in jobs:
                self._waiting_bytes -= size
                if done is not None and not done.done():
                    done.set_result(None)
            for cell_id in {cell_id for cell_id, _, _, _ in jobs} & self._cells.keys():
                self._cells[cell_id][1]()


def _perform(jobs: list[Callable[[], object]]) -> None:
    for job in jobs:
        try:
            job()
        except Exception:
            _log.exception("cell_not_recorded")

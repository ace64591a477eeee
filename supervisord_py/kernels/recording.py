"""Records cells of kernels that do not write their files themselves: off the loop, in the order of the messages.

The reader of the wire never waits for a disk, and what waits for the disk is bounded; what goes beyond the bound is
dropped, counted, and told with the cell. Whoever waits for news is woken after it is in the files.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from supervisord_py.kernels.cell_files import error_in, reply_of
from supervisord_py.kernels.inside.cell_writer import STATUS_MIME, CellWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from supervisord_py.kernels.backend import ExecuteRequest
    from supervisord_py.kernels.kernel_client import Message

QUEUE_BYTES = 256 * 1024 * 1024
CELLS_KEPT = 16
"""So many cells, the newest, still take output that comes after their end."""
_log = structlog.get_logger(__name__)


class CellRecorder:
    """Writes the files of a cell from the iopub messages of a kernel; blocking."""

    def __init__(self, folder: Path, cell_id: str, cap: int) -> None:
        self._writer = CellWriter(str(folder), cell_id, cap)
        self._began = time.monotonic()
        self.begin = self._writer.begin
        self.close = self._writer.close

    def take(self, msg_type: str, content: Mapping[str, Any]) -> bool:
        """Record a message of the cell; False for one that is no output."""
        writer = self._writer
        data, metadata, transient = (_map(content, name) for name in ("data", "metadata", "transient"))
        if msg_type == "stream":
            name = "stderr" if content.get("name") == "stderr" else "stdout"
            writer.write(name, str(content.get("text") or "").encode("utf-8", "surrogatepass"))
        elif msg_type in {"display_data", "update_display_data"}:
            named = transient.get("display_id")
            is_update = msg_type == "update_display_data"
            if isinstance(data.get(STATUS_MIME, {}), dict):
                writer.display(data, metadata, None if named is None else str(named), update=is_update)
        elif msg_type == "execute_result":
            count = content.get("execution_count")
            writer.result(data, metadata, count if isinstance(count, int) else None)
        elif msg_type == "clear_output":
            writer.clear(content.get("wait") is True)
        elif msg_type == "error":
            error = error_in(content, "ename", "evalue")
            writer.error(error.name, error.value, error.traceback)
        else:
            return False
        return True

    def end(self, content: Mapping[str, Any], *, status: str | None = None) -> None:
        """The cell has ended. Output that comes later may still be taken.

        Args:
            content: Of the execute_reply; {} where none came.
            status: `ok`, `error` or `aborted`, where it is not to be the reply's.
        """
        reply = reply_of(content)
        error = reply.error
        told = None if error is None else {"name": error.name, "value": error.value, "traceback": [*error.traceback]}
        self._writer.end(
            status or (reply.status.value if content else "error"),
            execution_count=reply.execution_count,
            duration=time.monotonic() - self._began,
            ask_exit=reply.asked_exit,
            error=told,
        )


def _map(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = content.get(name)
    return value if isinstance(value, dict) else {}


class Recording:
    """The recorders of one kernel; `close` it."""

    def __init__(self, queue_bytes: int = QUEUE_BYTES) -> None:
        self._queue_bytes = queue_bytes
        self._cells: OrderedDict[str, tuple[CellRecorder, Callable[[], None]]] = OrderedDict()
        self._dropped: Counter[str] = Counter()
        self._jobs: asyncio.Queue[tuple[str, Callable[[], object], int, asyncio.Future[None] | None]] = asyncio.Queue()
        self._waiting_bytes = 0
        self._task = asyncio.create_task(self._work())

    async def open(self, request: ExecuteRequest, wake: Callable[[], None], *, begin: bool, pid: int | None) -> None:
        """Record a cell from now on; without `begin` go on with what an earlier control plane has begun."""
        recorder = await asyncio.to_thread(CellRecorder, request.cells_dir, request.cell_id, request.cell_bytes)
        self._cells[request.cell_id] = recorder, wake
        if begin:
            await self._do(request.cell_id, lambda: recorder.begin(request.code, pid))
        while len(self._cells) > CELLS_KEPT:
            oldest = next(iter(self._cells))
            await self._do(oldest, self._cells[oldest][0].close)
            del self._cells[oldest]

    def take(self, message: Message) -> None:
        """Record a message if it is output of a cell that is known."""
        known = self._cells.get(message.parent_id)
        if known is None or message.type == "status":
            return
        if self._waiting_bytes + message.size > self._queue_bytes:
            self._dropped[message.parent_id] += message.size
            return
        self._waiting_bytes += message.size
        job = partial(_take, known[0], message)
        self._jobs.put_nowait((message.parent_id, job, message.size, None))

    async def end(self, cell_id: str, reply: Mapping[str, Any], *, status: str | None = None) -> int:
        """Write the end of a cell behind all that came before; return how many bytes of messages were dropped."""
        recorder = self._cells[cell_id][0]
        await self._do(cell_id, lambda: recorder.end(reply, status=status))
        return self._dropped.pop(cell_id, 0)

    async def close(self) -> None:
        for cell_id, (recorder, _) in self._cells.items():
            await self._do(cell_id, recorder.close)
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


def _take(recorder: CellRecorder, message: Message) -> None:
    recorder.take(message.type, message.content())


def _perform(jobs: list[Callable[[], object]]) -> None:
    for job in jobs:
        try:
            job()
        except Exception:
            _log.exception("cell_not_recorded")

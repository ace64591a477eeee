"""A backend without processes: cells are words that say how they behave, so that policies can be driven to the corner.

Words of a cell: `ok`, `say TEXT`, `hold` (it ends when `release` is called, by an interrupt, or with its kernel).
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from supervisord_py.kernels.backend import ExecuteRequest, KernelGoneError, Launch, Reply
from supervisord_py.kernels.inside.cell_writer import CellWriter
from supervisord_py.kernels.session import CellError, CellStatus
from supervisord_py.process.model import Child, ExitRecord, Identity


class FakeHandle:
    connection_file: Path | None = None
    child: Child | None = None

    def __init__(self, backend: FakeBackend, launch: Launch) -> None:
        self.backend = backend
        self.launch = launch
        self.died: asyncio.Future[ExitRecord | None] = asyncio.get_running_loop().create_future()
        self.foreign_busy = False
        self.foreign_used_at: float | None = None
        self.rungs: list[str] = []
        self.cell: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    async def execute(self, request: ExecuteRequest, *, is_sent: bool = False) -> Reply:
        word, _, text = request.code.partition(" ")
        writer = CellWriter(str(request.cells_dir), request.cell_id, request.cell_bytes)
        writer.begin(request.code)
        reply = Reply(CellStatus.OK)
        try:
            if word == "say":
                writer.write("stdout", text.encode())
            if word == "hold":
                self.cell = asyncio.get_running_loop().create_future()
                self.backend.held.set()
                await asyncio.wait({self.cell, self.died}, return_when=asyncio.FIRST_COMPLETED)
                if not self.cell.done():
                    raise KernelGoneError("gone")
                reply = self.cell.result()
            writer.end(reply.status.value, execution_count=1, duration=0.0)
        finally:
            writer.close()
        return reply

    def release(self) -> None:
        self.cell.set_result(Reply(CellStatus.OK))

    def die(self, code: int | None, signal: int | None = None) -> None:
        if not self.died.done():
            place = (self.launch.instance, f"kernel:{self.launch.session_id}", Identity(1, 1, "b"))
            self.died.set_result(ExitRecord(*place, time.time(), time.time(), code, signal, 0.0, 0.0, 0, 0, 0))

    async def interrupt(self) -> str:
        self.rungs.append("interrupt")
        if not self.cell.done():
            self.cell.set_result(Reply(CellStatus.ERROR, CellError("KeyboardInterrupt", "")))
        return "sigint"

    async def terminate(self) -> str:
        self.die(None, 15)
        return "sigterm"

    kill = terminate

    async def shutdown(self, grace_seconds: float, reason: str) -> tuple[int, ...]:
        self.die(None, 15)
        return ()

    async def close(self) -> None:
        """Nothing is connected."""


class FakeBackend:
    """Starts handles; `starts` and `stopped` tell what was done."""

    def __init__(self) -> None:
        self.handles: list[FakeHandle] = []
        self.starts: list[Launch] = []
        self.held = asyncio.Event()

    @property
    def handle(self) -> FakeHandle:
        return self.handles[-1]

    async def spec(self, launch: Launch) -> None:
        """Nothing is spawned."""

    async def start(self, launch: Launch, child: Child | None, *, deadline: float) -> FakeHandle:
        self.starts.append(launch)
        self.handles.append(FakeHandle(self, launch))
        return self.handle

    async def attach(self, launch: Launch, child: Child) -> FakeHandle | None:
        return None

    async def annotate(self, instance: str, tag: str) -> None:
        """Nothing is kept."""

    async def close(self, *, stop: bool) -> None:
        """Nothing is held."""

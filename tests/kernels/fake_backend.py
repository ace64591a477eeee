"""A backend without processes: cells are words that say how they behave, so that policies can be driven to the corner.

Words of a cell: `ok`, `say TEXT`, `fail`, `hold` (ends when `release` is called, or by an interrupt), `deaf` (an
interrupt does nothing), `immortal` (nothing does), `die`, `exit`, `exit late` (the death is heard before the reply).
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from supervisord_py.errors import StartFailedError
from supervisord_py.kernels.backend import ExecuteRequest, KernelGoneError, Launch, Reply
from supervisord_py.kernels.config import KernelsConfig
from supervisord_py.kernels.inside.cell_writer import CellWriter
from supervisord_py.kernels.session import BackendName, CellError, CellStatus
from supervisord_py.process.model import Child, ExitRecord, Identity


def no_descriptors() -> StartFailedError:
    """Return how a start fails for want of descriptors."""
    return StartFailedError("no descriptors", reason="spawn_failed", stage="fds", errno=errno.EMFILE)


class FakeHandle:
    """A kernel that is none."""

    connection_file: Path | None = None

    def __init__(self, backend: FakeBackend, launch: Launch) -> None:
        self.backend = backend
        self.launch = launch
        self.child: Child | None = None
        self.died: asyncio.Future[ExitRecord | None] = asyncio.get_running_loop().create_future()
        self.foreign_busy = False
        self.foreign_used_at: float | None = None
        self.rungs: list[str] = []
        self.ran: list[str] = []
        self.survivors: tuple[int, ...] = ()
        self.cell: asyncio.Future[Reply] | None = None
        self.immortal = False
        self.closed = False

    async def execute(self, request: ExecuteRequest, *, is_sent: bool = False) -> Reply:
        self.ran.append(request.code)
        word, _, rest = request.code.partition(" ")
        writer = CellWriter(str(request.cells_dir), request.cell_id, request.cell_bytes)
        writer.begin(request.code)
        try:
            reply = await self._behave(word, rest, writer)
            status = reply.status.value
            writer.end(status, execution_count=1, duration=0.0, ask_exit=reply.ask_exit)
        finally:
            writer.close()
        return reply

    async def _behave(self, word: str, rest: str, writer: CellWriter) -> Reply:
        match word:
            case "say":
                writer.write("stdout", rest.encode())
            case "fail":
                return Reply(CellStatus.ERROR, CellError("ValueError", "no"))
            case "exit" if rest == "late":
                self.die(0)
                for _ in range(20):  # whoever waits for the death has heard of it by then
                    await asyncio.sleep(0)
                return Reply(CellStatus.OK, ask_exit=True)
            case "exit":
                asyncio.get_running_loop().call_soon(self.die, 0)
                return Reply(CellStatus.OK, ask_exit=True)
            case "die":
                self.die(None, 11)
            case "hold" | "deaf" | "immortal":
                self.immortal = word == "immortal"
                return await self._until_told(word)
        if self.died.done():
            raise KernelGoneError("gone")
        return Reply(CellStatus.OK)

    async def _until_told(self, word: str) -> Reply:
        self.cell = asyncio.get_running_loop().create_future()
        self.backend.held.set()
        self.word = word
        try:
            await asyncio.wait({self.cell, self.died}, return_when=asyncio.FIRST_COMPLETED)
            if not self.cell.done():
                raise KernelGoneError("gone")
            return self.cell.result()
        finally:
            self.cell = None

    def release(self) -> None:
        """Let the cell end well."""
        assert self.cell is not None
        self.cell.set_result(Reply(CellStatus.OK))

    def die(self, code: int | None, signal: int | None = None) -> None:
        """End the process."""
        if not self.died.done():
            now = time.time()
            identity = Identity(1, 1, "b")
            unit = f"kernel:{self.launch.session_id}"
            self.died.set_result(
                ExitRecord(self.launch.instance, unit, identity, now, now, code, signal, 0.0, 0.0, 0, 0, 0)
            )

    async def interrupt(self) -> str:
        self.rungs.append("interrupt")
        if self.cell is not None and not self.cell.done() and self.word == "hold":
            self.cell.set_result(Reply(CellStatus.ERROR, CellError("KeyboardInterrupt", "")))
        return "sigint"

    async def terminate(self) -> str:
        self.rungs.append("terminate")
        if not self.immortal and "term-proof" not in self.backend.nature:
            self.die(None, 15)
        return "sigterm"

    async def kill(self) -> str:
        self.rungs.append("kill")
        if not self.immortal:
            self.die(None, 9)
        return "sigkill"

    async def shutdown(self, grace_seconds: float, reason: str) -> tuple[int, ...]:
        self.backend.stopped.append((self.launch.session_id, reason))
        if self.survivors:
            survivors, self.survivors = self.survivors, ()
            return survivors
        self.die(None, 15)
        return ()

    async def close(self) -> None:
        self.closed = True


class FakeBackend:
    """Starts handles. `nature` holds words that change how; `starts` and `stopped` tell what was done."""

    def __init__(self) -> None:
        self.nature: set[str] = set()
        self.handles: list[FakeHandle] = []
        self.starts: list[Launch] = []
        self.stopped: list[tuple[str, str]] = []
        self.fail_next: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.held = asyncio.Event()

    async def make(self, name: BackendName, config: KernelsConfig) -> FakeBackend:
        return self

    @property
    def handle(self) -> FakeHandle:
        """The newest kernel."""
        return self.handles[-1]

    async def spec(self, launch: Launch) -> None:
        """Nothing is spawned."""

    async def start(self, launch: Launch, child: Child | None, *, deadline: float) -> FakeHandle:
        self.starts.append(launch)
        await self.gate.wait()
        if self.fail_next:
            raise self.fail_next.pop(0)
        self.handles.append(FakeHandle(self, launch))
        return self.handle

    async def attach(self, launch: Launch, child: Child) -> FakeHandle | None:
        return None

    async def specs(self) -> Mapping[str, Mapping[str, Any]]:
        return {}

    async def annotate(self, instance: str, tag: str) -> None:
        """Nothing is kept."""

    async def close(self, *, stop: bool) -> None:
        """Nothing is held."""

"""A real keeper and a real placement for tests of kernels, with short private folders.

Control planes come and go.
"""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from msgspec.structs import replace

from keeper.keeper_rig import RealKeeper
from kernels.cell_folder import config_in, out_of, records_of
from supervisord_py.kernels.backend import Backends, ExecuteRequest, KernelHandle, Launch, Reply
from supervisord_py.kernels.cell_files import CellLog
from supervisord_py.kernels.direct import DirectBackend
from supervisord_py.kernels.kernel_pool import KernelPool
from supervisord_py.kernels.live_session import KernelInstance, LiveSession
from supervisord_py.kernels.session import BackendName, SessionKey
from supervisord_py.ledger.store import Ledger
from supervisord_py.process.events import EventStream
from supervisord_py.process.keeper_client import KeeperClient
from supervisord_py.process.model import Reason
from supervisord_py.process.supervisor import Supervisor
from waiting import PATIENCE, eventually

__all__ = ["PATIENCE", "eventually"]
STOCK = (sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}")
"""argv of a kernel that knows nothing of us, as a kernelspec gives it."""


class KernelRig:
    """The keeper, the placement of its present control plane, and what was started through them."""

    def __init__(self, folder: Path, keeper: RealKeeper) -> None:
        self.folder = folder
        self.keeper = keeper
        self.placement: KeeperClient
        self.config = config_in(folder, zygotes=0)  # processes are counted here
        self.started: list[KernelInstance] = []
        self.handles: list[KernelHandle] = []
        self.ledger: Ledger | None = None
        self._supervisor: Supervisor | None = None

    async def supervise(self) -> Supervisor:
        if self._supervisor is None:
            self.ledger = await Ledger.open(self.folder / "pxd.db")
            events = await EventStream.open(self.ledger)
            self._supervisor = Supervisor(self.placement, self.ledger, events)
        return self._supervisor

    async def connect(self) -> KeeperClient:
        self.placement = await self.keeper.client()
        return self.placement

    async def replace(self) -> KeeperClient:
        """Die as a control plane, and be the next one: what the keeper holds lives on."""
        for handle in self.handles:
            await handle.close()
        self.handles.clear()
        await self._put_down()
        self.keeper.end_control()
        return await self.connect()

    def launch(self, session: str = "s-000000", **changes: Any) -> Launch:
        cwd, cells = self.folder / "cwd", self.folder / "cells" / session
        cwd.mkdir(exist_ok=True)
        cells.mkdir(mode=0o700, parents=True, exist_ok=True)
        home = str(self.folder)
        env = {
            "PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin",
            "HOME": home,
            "IPYTHONDIR": f"{home}/ipy",
        }
        made = Launch(session, self.placement.new_key(), sys.executable, str(cwd), env, cells)
        return replace(made, **changes)

    def stock(self, session: str = "stock-000000", **changes: Any) -> Launch:
        spec = {"interpreter": None, "kernelspec": "stock", "kernelspec_argv": STOCK, **changes}
        return self.launch(session, **spec)

    async def start(self, backend: Any, launch: Launch) -> Any:
        """Start a kernel as the room does, and stop it if it does not come up; its connections
        end with the rig.
        """

        supervisor, nobody = await self.supervise(), cast("Any", None)
        backends = Backends(supervisor, lambda: self.config)
        backends.made = dict.fromkeys(BackendName, backend)
        pool = KernelPool(
            supervisor, cast("Ledger", self.ledger), nobody, backends, self.config, nobody
        )
        session = LiveSession(SessionKey("rig", launch.cwd, "", BackendName.DIRECT), "python", 0.0)
        kernel = KernelInstance(launch.instance, session, unit=f"kernel:{launch.session_id}")
        kernel.launch = launch
        self.started.append(kernel)
        try:
            await supervisor.start(pool, kernel)
        except BaseException:
            reason = Reason.CANCELLED if kernel.error is None else None
            await asyncio.shield(supervisor.stop(pool, kernel, reason))
            raise
        assert kernel.handle is not None
        self.handles.append(kernel.handle)
        return kernel.handle

    def request(self, launch: Launch, code: str, **changes: Any) -> ExecuteRequest:
        made = ExecuteRequest(uuid.uuid4().hex[:16], code, launch.cells_dir, 64 * 1024, 1 << 32)
        return replace(made, **changes)

    def out(self, request: ExecuteRequest) -> bytes:
        return out_of(request.cells_dir, request.cell_id)

    def records(self, request: ExecuteRequest, kind: str | None = None) -> list[dict[str, Any]]:
        return records_of(request.cells_dir, request.cell_id, kind)

    async def close(self) -> None:
        for handle in self.handles:
            await handle.close()
        await self._put_down()

    async def _put_down(self) -> None:
        if self._supervisor is not None and self.ledger is not None:
            await self._supervisor.close()
            await self.ledger.close()
        self._supervisor = None
        self.placement.close()


@dataclass(slots=True)
class Ran:
    reply: Reply
    request: ExecuteRequest
    out: bytes
    records: list[dict[str, Any]] = field(repr=False)

    def kinds(self) -> list[str]:
        """Return the kinds of its records, the streams left out: how often they change is the
        kernel's affair.
        """
        return [each["kind"] for each in self.records if each["kind"] != "err"]


class Running:
    """A kernel of a backend.

    `make` gives one for the present control plane; `start` or `attach` it first.
    """

    def __init__(
        self, rig: KernelRig, launch: Launch, make: Callable[[], Awaitable[Any]] | None = None
    ) -> None:
        self.rig, self.launch = rig, launch
        self.make = make or self.direct
        self.handle: Any = None

    async def direct(self) -> DirectBackend:
        return DirectBackend(await self.rig.supervise(), lambda: self.rig.config)

    async def start(self, **changes: Any) -> Any:
        self.launch = replace(self.launch, **changes)
        self.handle = await self.rig.start(await self.make(), self.launch)
        return self.handle

    async def attach(self) -> Any:
        await self.rig.replace()
        child = await self.rig.placement.attach(self.launch.instance)
        self.handle = await (await self.make()).attach(self.launch, child)
        if self.handle is not None:
            self.rig.handles.append(self.handle)
        return self.handle

    def begin(self, code: str) -> tuple[ExecuteRequest, asyncio.Task[Reply]]:
        request = self.rig.request(self.launch, code)
        return request, asyncio.ensure_future(self.handle.execute(request))

    async def begin_and_wait(self, code: str) -> tuple[ExecuteRequest, asyncio.Task[Reply]]:
        request, task = self.begin(code)
        await eventually(lambda: task.done() or self.rig.out(request), "its first output")
        assert not task.done(), task.result()
        return request, task

    async def run(self, code: str) -> Ran:
        request, task = self.begin(code)
        reply = await asyncio.wait_for(task, PATIENCE)
        # both streams, in their order
        out = CellLog(request.cells_dir, request.cell_id).page(0, 1 << 30).data
        return Ran(reply, request, out, self.rig.records(request))

    async def follow(self, request: ExecuteRequest) -> Reply:
        found: Reply = await asyncio.wait_for(self.handle.execute(request, is_sent=True), PATIENCE)
        return found


@asynccontextmanager
async def kernel_house(folder: Path) -> AsyncIterator[KernelRig]:
    async with AsyncExitStack() as stack:
        rig = KernelRig(folder, RealKeeper(folder))
        stack.push_async_callback(asyncio.to_thread, rig.keeper.close)
        await rig.connect()
        stack.push_async_callback(rig.close)
        yield rig

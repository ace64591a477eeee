"""The room of kernels under test: a real keeper, a real ledger, real or fake backends. Control planes come and go."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from keeper.keeper_rig import RealKeeper
from kernels.kernel_rig import PATIENCE, KernelRig, eventually
from supervisord_py.kernels.config import KernelsConfig
from supervisord_py.kernels.room import Kernels
from supervisord_py.kernels.session import BackendName, CallEvent, CallRequest, CallResult, Cell
from supervisord_py.ledger.instances import INSTANCES
from supervisord_py.ledger.store import Ledger
from supervisord_py.process.events import EventStream

__all__ = ["PATIENT", "RoomHouse", "eventually", "room_house"]
PATIENT = {"ladder_again_seconds": 60.0, "ladder_terminate_seconds": 120.0, "ladder_kill_seconds": 180.0}
"""A ladder of which a cell that yields meets the first rung alone, however long its kernel is held up."""


class RoomHouse:
    """One room, and what it told."""

    def __init__(self, rig: KernelRig, backend: Any = None) -> None:
        self.rig = rig
        self.config = replace(rig.config, python=sys.executable, managed=False)
        self.cwd = rig.folder / "work"
        self.cwd.mkdir()
        self.backend = backend
        self.ledger: Ledger
        self.events: EventStream
        self.room: Kernels
        self.environ = {"PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin", "HOME": str(rig.folder)}

    async def open(self) -> None:
        (self.rig.folder / "state").mkdir(exist_ok=True)
        self.ledger = await Ledger.open(self.rig.folder / "state" / "pxd.db")
        self.events = await EventStream.open(self.ledger)
        self.room = Kernels(
            self.rig.placement,
            self.ledger,
            self.config,
            self.events,
            environ=self.environ,
        )
        if self.backend is not None:
            self.room.pool.backends.made = dict.fromkeys(BackendName, self.backend)
        await self.room.open()

    async def close(self) -> None:
        await self.room.close()
        await self._put_down()

    async def _put_down(self) -> None:
        self.events.close()
        await self.ledger.close()

    async def replace(self, *, changes: Mapping[str, Any] | None = None) -> None:
        """Vanish, and be the next control plane."""
        await self.room.detach()
        await self._put_down()
        await self.rig.replace()
        self.config = replace(self.config, **(changes or {}))
        await self.open()

    def reconfigure(self, **changes: Any) -> KernelsConfig:
        self.config = replace(self.config, **changes)
        self.room.reconfigure(self.config)
        return self.config

    def request(self, *codes: str, **changes: Any) -> CallRequest:
        made = CallRequest(
            cells=tuple(Cell(code) for code in codes),
            arrived_at=asyncio.get_running_loop().time(),
            cwd=str(self.cwd),
            timeout_seconds=60.0,
        )
        return replace(made, **changes)

    async def run(self, *codes: str, tell: Callable[[CallEvent], None] | None = None, **changes: Any) -> CallResult:
        return await self.room.execute(self.request(*codes, **changes), tell or (lambda _: None))

    async def said(self, unit: str | None = None) -> list[Any]:
        await self._committed()
        return await self.events.history(unit=unit)

    async def _committed(self) -> None:
        """Wait until all that was written so far is in the file: a busy disk makes the ledger give up for a while."""
        deadline = time.monotonic() + PATIENCE
        while not await self.ledger.flush():
            assert time.monotonic() < deadline, "the ledger was not written"

    async def words(self, unit: str | None = None) -> list[str]:
        return [each.event for each in await self.said(unit)]

    async def ended_row(self, key: str) -> Any:
        deadline = time.monotonic() + PATIENCE
        while (row := await self.row(key)) is None or row.ended_at is None:
            assert time.monotonic() < deadline, f"the end of {key} was not recorded"
            await asyncio.sleep(0.01)
        return row

    async def row(self, key: str) -> Any:
        await self._committed()
        return await INSTANCES.get(self.ledger, key)


@asynccontextmanager
async def room_house(folder: Path, backend: Any = None, **changes: Any) -> AsyncIterator[RoomHouse]:
    keeper = RealKeeper(folder)
    rig = KernelRig(folder, keeper)
    try:
        await rig.connect()
        house = RoomHouse(rig, backend)
        house.config = replace(house.config, **changes)
        await house.open()
        try:
            yield house
        finally:
            await house.close()
            await rig.close()
    finally:
        await asyncio.to_thread(keeper.close)

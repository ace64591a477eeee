"""The room of kernels under test: a real keeper, a real ledger, real or fake backends.

Control planes come and go.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from kernels.kernel_rig import PATIENCE, KernelRig, eventually, kernel_house
from supervisord_py.kernels.room import Kernels
from supervisord_py.kernels.session import CallRequest, CallResult, Cell
from supervisord_py.ledger.instances import INSTANCES
from supervisord_py.ledger.store import Ledger
from supervisord_py.process.events import EventStream

__all__ = ["PATIENT", "RoomHouse", "eventually", "room_house"]
PATIENT = {"ladder_terminate_seconds": 180.0, "ladder_kill_seconds": 240.0}
"""A ladder of which a cell that yields meets the first rung alone, however long its kernel is
held up.
"""


class RoomHouse:
    """One room, and what it told."""

    def __init__(self, rig: KernelRig) -> None:
        self.rig = rig
        self.config = replace(rig.config, python=sys.executable, managed=False)
        self.cwd = rig.folder / "work"
        self.cwd.mkdir()
        self.ledger: Ledger
        self.events: EventStream
        self.room: Kernels
        self.environ = {
            "PATH": f"{os.path.dirname(sys.executable)}:/usr/bin:/bin",
            "HOME": str(rig.folder),
        }

    async def open(self) -> None:
        (self.rig.folder / "state").mkdir(exist_ok=True)
        self.ledger = await Ledger.open(self.rig.folder / "state" / "pxd.db")
        self.events = await EventStream.open(self.ledger)
        self.room = Kernels(
            self.rig.placement, self.ledger, self.config, self.events, environ=self.environ
        )
        await self.room.open()

    async def put_down(self) -> None:
        self.events.close()
        await self.ledger.close()

    async def replace(self) -> None:
        """Vanish, and be the next control plane."""
        await self.room.detach()
        await self.put_down()
        await self.rig.replace()
        await self.open()

    async def run(self, *codes: str, **changes: Any) -> CallResult:
        cells, now = tuple(Cell(code) for code in codes), asyncio.get_running_loop().time()
        usual = CallRequest(cells=cells, arrived_at=now, cwd=str(self.cwd), timeout_seconds=60.0)
        return await self.room.execute(replace(usual, **changes), lambda _: None)

    async def said(self) -> list[Any]:
        async with asyncio.timeout(PATIENCE):
            while not await self.ledger.flush():
                pass  # a busy disk makes the ledger give up for a while
        return await self.events.history()

    async def ended_row(self, key: str) -> Any:
        async with asyncio.timeout(PATIENCE):
            while (row := await INSTANCES.get(self.ledger, key)) is None or row.ended_at is None:
                await asyncio.sleep(0.01)
        return row


@asynccontextmanager
async def room_house(folder: Path, **changes: Any) -> AsyncIterator[RoomHouse]:
    async with kernel_house(folder) as rig:
        house = RoomHouse(rig)
        house.config = replace(house.config, **changes)
        await house.open()
        try:
            yield house
        finally:
            await house.room.close()
            await house.put_down()

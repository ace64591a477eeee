"""How long executions are remembered: rows and files go together, in small batches, oldest first.

Law: nothing open is ever touched, nor what an agent wrote into its pipe's `output/`. A folder whose row is gone goes;
private files that a crash left behind go at once.
"""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, NoReturn

import structlog

from supervisord_py.errors import PxError
from supervisord_py.ledger import pipe_history
from supervisord_py.pipes.running.stopping import remove_private_files

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from supervisord_py.pipes.running.running_house import RunningHouse

_DAY = 86400.0
FIRST_SECONDS = 30.0
EVERY_SECONDS = 3600.0
_BATCH = 200
_log = structlog.get_logger(__name__)


class Forgetting:
    """Sweeps."""

    def __init__(self, house: RunningHouse) -> None:
        self._house = house

    async def for_ever(self) -> NoReturn:
        """Sweep now and then. A ledger in trouble is left alone until the next time."""
        await asyncio.sleep(FIRST_SECONDS)
        while True:
            try:
                await self.sweep()
            except PxError as error:
                _log.warning("pipes_not_swept", detail=error.detail)
            await asyncio.sleep(EVERY_SECONDS)

    async def sweep(self) -> int:
        """Remove what is beyond the limits; return how many executions went."""
        limits = self._house.config.output
        keep = pipe_history.KeepLimits(limits.keep_days * _DAY, limits.keep_executions, limits.keep_bytes)
        total = 0
        while gone := await pipe_history.prune(self._house.ledger, keep, self._house.clocks.wall(), _BATCH):
            await asyncio.to_thread(_remove, [self._house.folder(number) for number in gone])
            total += len(gone)
        await self._sweep_orphans()
        return total

    async def _sweep_orphans(self) -> None:
        """Remove folders whose row is gone, and private files of executions that are over."""
        root = self._house.config.executions_dir
        found = await asyncio.to_thread(_numbered, root)
        for start in range(0, len(found), _BATCH):
            batch = found[start : start + _BATCH]
            there = await pipe_history.existing(self._house.ledger, batch)
            gone = [number for number in batch if number not in there and self._house.roster.get(number) is None]
            over = [number for number in batch if number in there and self._house.roster.get(number) is None]
            await asyncio.to_thread(_remove, [self._house.folder(number) for number in gone])
            await asyncio.to_thread(_tidy, [self._house.folder(number) for number in over])


def _numbered(root: Path) -> list[int]:
    try:
        return sorted(int(each.name) for each in root.iterdir() if each.name.isdecimal())
    except OSError:
        return []


def _remove(folders: Iterable[Path]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _tidy(folders: Iterable[Path]) -> None:
    for folder in folders:
        remove_private_files(folder)

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
from supervisord_py.pipes.launch import remove_private

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from supervisord_py.pipes.executions import Executions

_DAY = 86400.0
FIRST_SECONDS = 30.0
EVERY_SECONDS = 3600.0
KEEP_EXECUTIONS = 10_000  # of each pipe
KEEP_BYTES = 4096 * 1024 * 1024  # of all files
_BATCH = 200
_log = structlog.get_logger(__name__)


async def prune_for_ever(room: Executions) -> NoReturn:
    """Prune now and then. A ledger in trouble is left alone until the next time."""
    await asyncio.sleep(FIRST_SECONDS)
    while True:
        try:
            await prune(room)
        except PxError as error:
            _log.warning("pipes_not_pruned", detail=error.detail)
        await asyncio.sleep(EVERY_SECONDS)


async def prune(room: Executions) -> int:
    """Remove what is beyond the limits; return how many executions went."""
    before, total = room.clocks.wall() - room.config.keep_days * _DAY, 0
    while gone := await pipe_history.prune(
        room.ledger,
        before=before,
        rows_of_each=KEEP_EXECUTIONS,
        bytes_of_all=KEEP_BYTES,
        batch=_BATCH,
    ):
        await asyncio.to_thread(_remove, [room.folder(number) for number in gone], ())
        total += len(gone)
    found = await asyncio.to_thread(_numbered, room.config.executions_dir)
    for batch in (found[start : start + _BATCH] for start in range(0, len(found), _BATCH)):
        there = await pipe_history.existing(room.ledger, batch)
        over = [number for number in batch if number not in room.runs]
        orphans, known = ([room.folder(it) for it in over if (it in there) is has_row] for has_row in (False, True))
        await asyncio.to_thread(_remove, orphans, known)
    return total


def _numbered(root: Path) -> list[int]:
    try:
        return sorted(int(each.name) for each in root.iterdir() if each.name.isdecimal())
    except OSError:
        return []


def _remove(whole: Iterable[Path], private: Iterable[Path]) -> None:
    for folder in whole:
        shutil.rmtree(folder, ignore_errors=True)
    for folder in private:
        remove_private(folder)

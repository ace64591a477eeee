"""Removes the files of cells that are too old or too much, in small batches in a thread: nobody has to wait for it.

A cell's record file goes first, because it is the sign that a cell is kept; a sweep that is cut off leaves strays that
the next one takes. Links are removed, not what they lead to. A folder that belongs to no session goes when nothing in
it has changed for an hour, so that one that is just being made is safe.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import structlog

from supervisord_py.kernels.inside.cell_writer import RECORDS, STREAMS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from pathlib import Path

    from supervisord_py.kernels.config import CellLimits

DAY_SECONDS = 86_400.0
BATCH = 50
FORGOTTEN_SECONDS = 3600.0
_log = structlog.get_logger(__name__)


class KeptCell(NamedTuple):
    """All files of one cell: bytes of all of them, Unix seconds of the last change; one that runs may still grow."""

    session_id: str
    cell_id: str
    size: int
    changed_at: float
    running: bool = False


async def sweep(
    cells_dir: Path,
    limits: CellLimits,
    *,
    now: float,
    running: Callable[[], Collection[tuple[str, str]]],
    known: Collection[str],
) -> int:
    """Remove what is too old or too much; return how many cells went. A file that cannot be removed is no error.

    `running` returns `(session id, cell id)` of all cells that run, and is asked again before each batch; `known` are
    the ids of all sessions that are remembered; `now` is in Unix seconds.
    """
    folders, cells = await asyncio.to_thread(_look, cells_dir, known, now, frozenset(running()), limits.cell_bytes)
    going = doomed(cells, limits, now)
    for start in range(0, len(going), BATCH):
        spared = frozenset(running())
        batch = [cell for cell in going[start : start + BATCH] if (cell.session_id, cell.cell_id) not in spared]
        await asyncio.to_thread(_remove, cells_dir, batch)
    for folder in folders:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
    if going or folders:
        _log.info("cells_swept", cells=len(going), bytes=sum(cell.size for cell in going), folders=len(folders))
    return len(going)


def _look(
    cells_dir: Path, known: Collection[str], now: float, running: Collection[tuple[str, str]], cap: int
) -> tuple[list[Path], list[KeptCell]]:
    """Return the folders that nobody knows, and all cells of the others, strays of half removed ones included.

    What a child goes on writing after the end of its cell is held to the cap here.
    """
    forgotten, cells = [], []
    for folder in cells_dir.iterdir() if cells_dir.is_dir() else ():
        if folder.is_symlink() or not folder.is_dir():
            continue
        found: dict[str, tuple[int, float]] = {}
        newest = now
        with suppress(OSError):  # it may go while it is looked at
            newest = folder.stat().st_mtime
            for path in folder.iterdir():
                status, cell_id = path.lstat(), path.name.partition(".")[0]
                size, changed = found.get(cell_id, (0, 0.0))
                found[cell_id] = size + status.st_blocks * 512, max(changed, status.st_mtime)
                newest = max(newest, status.st_mtime)
                if path.suffix in STREAMS.values() and stat.S_ISREG(status.st_mode) and status.st_size > cap:
                    os.truncate(path, cap)
        name = folder.name
        if name not in known and now - newest > FORGOTTEN_SECONDS:
            forgotten.append(folder)
        else:
            cells += [KeptCell(name, each, *facts, (name, each) in running) for each, facts in found.items()]
    return forgotten, cells


def _remove(cells_dir: Path, cells: Iterable[KeptCell]) -> None:
    for cell in cells:
        paths = list((cells_dir / cell.session_id).glob(f"{cell.cell_id}.*"))
        for path in sorted(paths, key=lambda path: path.suffix != RECORDS):
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                _log.warning("cell_file_not_removed", session=cell.session_id, file=path.name, errno=error.errno)


def doomed(cells: Iterable[KeptCell], limits: CellLimits, now: float) -> tuple[KeptCell, ...]:
    """Return the cells whose files are to go, oldest first, by `keep_days`, `session_bytes` and `total_bytes`."""
    by_age = sorted(cells, key=lambda cell: (cell.changed_at, cell.session_id, cell.cell_id))
    going = {cell for cell in by_age if not cell.running and now - cell.changed_at > limits.keep_days * DAY_SECONDS}
    sessions: dict[str, list[KeptCell]] = {}
    for cell in by_age:
        sessions.setdefault(cell.session_id, []).append(cell)
    quotas = [*((each, limits.session_bytes) for each in sessions.values()), (by_age, limits.total_bytes)]
    for group, quota in quotas:
        left = sum(cell.size for cell in group if cell not in going)
        for cell in group:
            if left > quota and cell.size and not cell.running and cell not in going:
                going.add(cell)
                left -= cell.size
    return tuple(cell for cell in by_age if cell in going)

"""Removes the files that retention gives up, in small batches in a thread, so that nobody has to wait for it.

Law: a cell's record file goes first, because it is the sign that a cell is kept; a sweep that is cut off leaves strays
that the next one takes. Nothing is followed out of the folder: links are removed, not what they lead to. A folder that
belongs to no session goes when nothing in it has changed for an hour, so that one that is just being made is safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from supervisord_py.kernels.inside.cell_writer import RECORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from supervisord_py.kernels.config import OutputLimits

    Running = Callable[[], Collection[tuple[str, str]]]

DAY_SECONDS = 86_400.0
BATCH = 50
FORGOTTEN_SECONDS = 3600.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep removed: cells, their bytes, and folders of sessions that nobody knows."""

    cells: int = 0
    size: int = 0
    folders: int = 0


async def sweep(
    cells_dir: Path, limits: OutputLimits, *, now: float, running: Running, known: Collection[str]
) -> Swept:
    """Remove what is too old or too much. Never raises for the sake of a file that cannot be removed.

    Args:
        cells_dir: `cells_dir/<session id>/<cell id>.*`.
        limits: What may stay.
        now: Unix seconds.
        running: Returns `(session id, cell id)` of all cells that run; asked again before each batch.
        known: Ids of all sessions that are remembered.
    """
    folders = await asyncio.to_thread(_forgotten, cells_dir, known, now)
    cells = await asyncio.to_thread(_kept, cells_dir, frozenset(running()), frozenset(folders))
    going = doomed(cells, limits, now)
    for start in range(0, len(going), BATCH):
        spared = frozenset(running())
        batch = [cell for cell in going[start : start + BATCH] if (cell.session_id, cell.cell_id) not in spared]
        await asyncio.to_thread(_remove_cells, cells_dir, batch)
    for name in folders:
        await asyncio.to_thread(shutil.rmtree, cells_dir / name, ignore_errors=True)
    swept = Swept(len(going), sum(cell.size for cell in going), len(folders))
    if swept != Swept():
        _log.info("cells_swept", cells=swept.cells, bytes=swept.size, folders=swept.folders)
    return swept


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError), os.scandir(folder) as entries:
        yield from entries


def _kept(cells_dir: Path, running: frozenset[tuple[str, str]], without: frozenset[str]) -> list[KeptCell]:
    """Return all cells of all sessions, strays of half removed ones included."""
    return [
        cell
        for folder in _entries(cells_dir)
        if folder.is_dir(follow_symlinks=False) and folder.name not in without
        for cell in _cells_of(folder, running)
    ]


def _cells_of(folder: os.DirEntry[str], running: frozenset[tuple[str, str]]) -> Iterator[KeptCell]:
    sizes: dict[str, int] = {}
    changes: dict[str, float] = {}
    for entry in _entries(Path(folder.path)):
        with contextlib.suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            cell_id = entry.name.partition(".")[0]
            sizes[cell_id] = sizes.get(cell_id, 0) + status.st_blocks * 512
            changes[cell_id] = max(changes.get(cell_id, 0.0), status.st_mtime)
    for cell_id, size in sizes.items():
        yield KeptCell(folder.name, cell_id, size, changes[cell_id], (folder.name, cell_id) in running)


def _remove_cells(cells_dir: Path, cells: list[KeptCell]) -> None:
    wanted: dict[str, set[str]] = {}
    for cell in cells:
        wanted.setdefault(cell.session_id, set()).add(cell.cell_id)
    for session_id, ids in wanted.items():
        names = [each.name for each in _entries(cells_dir / session_id) if each.name.partition(".")[0] in ids]
        for name in sorted(names, key=lambda name: not name.endswith(RECORDS)):
            try:
                (cells_dir / session_id / name).unlink()
            except FileNotFoundError:
                continue
            except OSError as error:
                _log.warning("cell_file_not_removed", session=session_id, file=name, errno=error.errno)


def _forgotten(cells_dir: Path, known: Collection[str], now: float) -> list[str]:
    """Return the folders of sessions that nobody knows and nothing has touched for an hour."""
    found = []
    for folder in _entries(cells_dir):
        if not folder.is_dir(follow_symlinks=False) or folder.name in known:
            continue
        changes = [folder.stat(follow_symlinks=False).st_mtime]
        for entry in _entries(Path(folder.path)):
            with contextlib.suppress(FileNotFoundError):
                changes.append(entry.stat(follow_symlinks=False).st_mtime)
        if now - max(changes) > FORGOTTEN_SECONDS:
            found.append(folder.name)
    return found


@dataclass(frozen=True, slots=True)
class KeptCell:
    """All files of one cell.

    Attributes:
        size: Bytes of all of them.
        changed_at: Unix seconds of the last change of any of them.
        running: They may still grow.
    """

    session_id: str
    cell_id: str
    size: int
    changed_at: float
    running: bool = False


def doomed(cells: Iterable[KeptCell], limits: OutputLimits, now: float) -> tuple[KeptCell, ...]:
    """Return the cells whose files are to go, oldest first.

    Args:
        cells: All that are kept, in any order.
        limits: `keep_days`, `session_bytes`, `total_bytes`.
        now: Unix seconds.
    """
    by_age = sorted(cells, key=lambda cell: (cell.changed_at, cell.session_id, cell.cell_id))
    going: set[KeptCell] = set()
    for cell in by_age:
        if not cell.running and now - cell.changed_at > limits.keep_days * DAY_SECONDS:
            going.add(cell)
    sessions: dict[str, list[KeptCell]] = {}
    for cell in by_age:
        sessions.setdefault(cell.session_id, []).append(cell)
    for of_session in sessions.values():
        _shrink(of_session, going, limits.session_bytes)
    _shrink(by_age, going, limits.total_bytes)
    return tuple(cell for cell in by_age if cell in going)


def _shrink(by_age: list[KeptCell], going: set[KeptCell], quota: int) -> None:
    """Doom the oldest until the rest is within the quota."""
    left = sum(cell.size for cell in by_age if cell not in going)
    for cell in by_age:
        if left <= quota:
            return
        if cell.size and not cell.running and cell not in going:
            going.add(cell)
            left -= cell.size

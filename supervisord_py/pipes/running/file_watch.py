"""Files that pipes wait for (`file_changed:PATH`): announced by the system, folder by folder.

Law: what is watched is what some pipe names, no more; a folder that is not there yet is looked for again, and what it
holds when it appears is new. An occurrence is named by path, time and size, so that one change told twice starts a pipe
once.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import structlog

from supervisord_py.pipes.declaring.announcements import announced

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

LOOK_SECONDS = 5.0
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Root:
    """A folder to be watched, with all below it or not."""

    path: str
    deep: bool


@dataclass(frozen=True, slots=True)
class FileChange:
    """A file was made or written. `key` names this occurrence."""

    path: str
    key: str


class FileWatch:
    """Watches folders.

    Args:
        roots: What is to be watched now.
        on_change: Awaited with each change.
    """

    def __init__(
        self, roots: Callable[[], frozenset[Root]], on_change: Callable[[FileChange], Awaitable[None]]
    ) -> None:
        self._roots = roots
        self._on_change = on_change
        self._wake = asyncio.Event()
        self._changed: asyncio.Queue[FileChange] = asyncio.Queue()
        self._threads: list[tuple[threading.Thread, threading.Event]] = []
        self._watched: frozenset[Root] = frozenset()
        self._absent: frozenset[Root] = frozenset()

    def look(self) -> None:
        """Look now what is to be watched."""
        self._wake.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        telling = asyncio.ensure_future(self._tell())
        try:
            while True:
                self._wake.clear()
                await self._look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS if self._roots() else None):
                        await self._wake.wait()
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            await asyncio.to_thread(self._stop)

    async def _look(self) -> None:
        wanted = self._roots()
        present = await asyncio.to_thread(_present, wanted)
        await self._listen(present)
        appeared, self._absent = present & self._absent, wanted - present
        for change in await asyncio.to_thread(_held, appeared):
            self._changed.put_nowait(change)

    async def _tell(self) -> None:
        while True:
            change = await self._changed.get()
            try:
                await self._on_change(change)
            except Exception:  # noqa: BLE001 - one change must not end the watch
                _log.exception("file_change_not_told", path=change.path)

    async def _listen(self, wanted: frozenset[Root]) -> None:
        self._threads = [each for each in self._threads if each[0].is_alive()]
        if wanted == self._watched and (self._threads or not wanted):
            return
        await asyncio.to_thread(self._stop)
        self._watched = wanted
        loop = asyncio.get_running_loop()
        for deep in (False, True):
            paths = sorted(root.path for root in wanted if root.deep is deep)
            if not paths:
                continue
            ending = threading.Event()
            arguments = (loop, paths, deep, ending)
            thread = threading.Thread(target=self._announce, args=arguments, name="pipe files", daemon=True)
            self._threads.append((thread, ending))
            thread.start()

    def _stop(self) -> None:
        for _, ending in self._threads:
            ending.set()
        for thread, _ in self._threads:
            thread.join()
        self._threads = []

    def _announce(
        self,
        loop: asyncio.AbstractEventLoop,
        paths: list[str],
        deep: bool,  # noqa: FBT001 - a thread's target
        ending: threading.Event,
    ) -> None:
        try:
            for change in _changes(paths, ending, deep=deep):
                loop.call_soon_threadsafe(self._changed.put_nowait, change)
        except (OSError, RuntimeError, ImportError) as error:
            _log.warning("files_not_watched", paths=paths, detail=str(error))


def _changes(paths: list[str], ending: threading.Event, *, deep: bool) -> Iterator[FileChange]:
    from watchfiles import Change  # noqa: PLC0415 - 20 ms, wanted only where a pipe names files

    for changes in announced(paths, ending, deep=deep):
        for path in sorted({path for kind, path in changes if kind is not Change.deleted}):
            found = _occurrence(path)
            if found is not None:
                yield found


def _occurrence(path: str) -> FileChange | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    if os.path.isdir(path):
        return None
    return FileChange(path, f"{path}:{stat.st_mtime_ns}:{stat.st_size}")


def _held(roots: frozenset[Root]) -> list[FileChange]:
    """Return what lies in folders. Blocking."""
    walks = (os.walk(root.path) if root.deep else islice(os.walk(root.path), 1) for root in roots)
    paths = (os.path.join(folder, name) for walk in walks for folder, _, names in walk for name in names)
    return [found for found in map(_occurrence, sorted(paths)) if found is not None]


def _present(roots: frozenset[Root]) -> frozenset[Root]:
    return frozenset(root for root in roots if os.path.isdir(root.path))

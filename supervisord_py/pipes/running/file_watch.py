"""Files that pipes wait for (`file_changed:PATH`): announced by the system, folder by folder.

Law: what is watched is what some pipe names, no more. From the moment when a folder is named, no change in it is lost:
who listens is relieved only by somebody who listens already, and where it took a while until somebody did, the folder
is looked through for what changed meanwhile. A folder that is not there yet is looked for again, and what it holds when
it appears is new. An occurrence is named by path, time and size, so that one change told twice starts a pipe once.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

import structlog

from supervisord_py.pipes.running.file_listener import FileChange, FileListener, Root, occurrence
from supervisord_py.process.clock import file_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

LOOK_SECONDS = 5.0
REPEAT_SECONDS = 10.0
"""Two listeners, or one and a look, tell the same change within less."""
_log = structlog.get_logger(__name__)


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
        self._asked: int | None = file_time()
        """Since when something may be named that was not (ns); None: since the last look, nothing is."""
        self._changed: asyncio.Queue[FileChange] = asyncio.Queue()
        self._told: dict[str, float] = {}
        """Occurrences, and when they were told, on the loop's clock."""
        self._listeners: dict[bool, FileListener] = {}
        """Who listens: to what is deep, and to what is not."""
        self._begun: set[FileListener] = set()
        """All whose threads may be at work."""
        self._owed: dict[Root, int] = {}
        """Folders to which nobody listens yet, and since when (ns) what changes in them is to be told."""

    def look(self, named_at: int | None = None) -> None:
        """Look now what is to be watched.

        Args:
            named_at: What changes from this time on is not lost (ns since 1970, of `file_time`); None: from now on.
        """
        at = file_time() if named_at is None else named_at
        self._asked = at if self._asked is None else min(at, self._asked)
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
        since, self._asked = self._asked, None
        wanted = self._roots()
        self._note_ends()
        heard, owed = self._heard(), self._owed
        if since is None:  # what is new has been named, but whoever knows when has yet to tell us
            wanted &= heard | owed.keys()
        self._owed = {root: owed.get(root, since or 0) for root in wanted if root in owed or root not in heard}
        present = await asyncio.to_thread(_present, wanted)
        self._owed |= dict.fromkeys(wanted - present, 0)
        for deep in (False, True):
            await self._relieve(frozenset(root for root in present if root.deep is deep), deep=deep)
        heard = self._heard()
        made_good = {root: at for root, at in self._owed.items() if root in heard and root in present}
        for change in await asyncio.to_thread(_changed_since, made_good):
            self._hear(change)
        self._owed = {root: at for root, at in self._owed.items() if root not in made_good}

    def _note_ends(self) -> None:
        """Forget who listens no more, and what was told long ago."""
        for deep, listener in tuple(self._listeners.items()):
            if not listener.is_alive:
                del self._listeners[deep]
                self._begun.discard(listener)
                self._owed |= {root: self._owed.get(root, listener.told_until) for root in listener.roots}
        late = asyncio.get_running_loop().time() - REPEAT_SECONDS
        self._told = {key: at for key, at in self._told.items() if at > late}

    def _heard(self) -> frozenset[Root]:
        return frozenset(root for listener in self._listeners.values() for root in listener.roots)

    async def _relieve(self, roots: frozenset[Root], *, deep: bool) -> None:
        """Have these folders be listened to; where nobody can, who listens now goes on until the next look."""
        old = self._listeners.get(deep)
        if roots == (old.roots if old is not None else frozenset()):
            return
        if roots:
            fresh = FileListener(roots, self._hear, deep=deep)
            self._begun.add(fresh)
            if not await fresh.begin():
                await asyncio.to_thread(fresh.stop)
                self._begun.discard(fresh)
                return
            self._listeners[deep] = fresh
        else:
            del self._listeners[deep]
        if old is not None:
            await old.finish()
            self._begun.discard(old)

    def _hear(self, change: FileChange) -> None:
        if change.key not in self._told:
            self._told[change.key] = asyncio.get_running_loop().time()
            self._changed.put_nowait(change)

    async def _tell(self) -> None:
        while True:
            change = await self._changed.get()
            try:
                await self._on_change(change)
            except Exception:
                _log.exception("file_change_not_told", path=change.path)

    def _stop(self) -> None:
        for listener in self._begun:
            listener.stop()
        self._begun.clear()
        self._listeners.clear()


def _changed_since(roots: Mapping[Root, int]) -> list[FileChange]:
    """Return the files in folders to which something happened since. Blocking."""
    return [found for root, since in roots.items() for path in _files(root) if (found := occurrence(path, since))]


def _files(root: Root) -> Iterator[str]:
    walk = os.walk(root.path) if root.deep else islice(os.walk(root.path), 1)
    return (os.path.join(folder, name) for folder, _, names in walk for name in sorted(names))


def _present(roots: frozenset[Root]) -> frozenset[Root]:
    return frozenset(root for root in roots if os.path.isdir(root.path))

"""Hears of changes in a fixed set of folders, on a thread of its own.

Law: it is known from when on it hears, and until when it has told all that it heard; so one can take over from another
and nothing falls between them, though both may tell the same change.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from supervisord_py.pipes.declaring.announcements import announced
from supervisord_py.process.clock import file_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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


def occurrence(path: str, since: int = 0) -> FileChange | None:
    """Return how a file stands; None where there is none, or nothing became of it from `since` on (ns). Blocking.

    What counts is the time of the inode's change: a file that was moved here keeps the time of its text.
    """
    try:
        stat = os.stat(path)
    except OSError:
        return None
    if os.path.isdir(path) or stat.st_ctime_ns < since:
        return None
    return FileChange(path, f"{path}:{stat.st_mtime_ns}:{stat.st_size}")


class FileListener:
    """Listens until it is told not to.

    Args:
        roots: Folders that are there, all of them deep or none.
        deep: Which.
        on_change: Called on the loop with each change.

    Attributes:
        roots: As above.
        told_until: What changed before has been told (ns, as files have it); 0 before it listens.
    """

    def __init__(self, roots: frozenset[Root], on_change: Callable[[FileChange], None], *, deep: bool) -> None:
        self.roots = roots
        self.told_until = 0
        self._deep = deep
        self._on_change = on_change
        self._opened = asyncio.Event()
        self._last, self._ending = threading.Event(), threading.Event()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._listen, name="pipe files", daemon=True)

    @property
    def is_alive(self) -> bool:
        """Whether it listens still."""
        return self._thread.is_alive()

    async def begin(self) -> bool:
        """Begin to listen; return whether it does, once every change that follows is heard."""
        self._thread.start()
        await self._opened.wait()
        return self.told_until > 0

    async def finish(self) -> None:
        """Listen no more, once all is told that changed before this was called."""
        self._last.set()
        await asyncio.to_thread(self._thread.join)

    def stop(self) -> None:
        """Listen no more, whatever is left untold. Blocking."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _listen(self) -> None:
        paths = sorted(root.path for root in self.roots)
        try:
            self._hear(paths)
        except (OSError, RuntimeError, ImportError) as error:
            _log.warning("files_not_watched", paths=paths, detail=str(error))
        finally:
            self._call(self._opened.set)

    def _hear(self, paths: list[str]) -> None:
        rounds = announced(paths, self._ending, deep=self._deep)
        is_last = False
        while not is_last:
            # Both before the round: it has all that came before it began, so it may be the last one.
            is_last, began = self._last.is_set(), file_time()
            changes = next(rounds, None)
            if changes is None:
                return
            for change in _occurrences(changes):
                self._call(self._on_change, change)
            self.told_until = began
            self._call(self._opened.set)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(function, *arguments)


def _occurrences(changes: Iterable[tuple[object, str]]) -> Iterator[FileChange]:
    from watchfiles import Change  # noqa: PLC0415 - 20 ms, wanted only where a pipe names files

    for path in sorted({path for kind, path in changes if kind is not Change.deleted}):
        found = occurrence(path)
        if found is not None:
            yield found

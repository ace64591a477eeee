"""Changes of the pipes' files are heard of within a second: announced by the system, or found by looking.

The system announces what happens in the pipes directory and in each pipe's own folder, never below it, where agents
write. What nobody announces (a link's target, a network disk, no watches left) a look at the stamps finds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from typing import TYPE_CHECKING

from supervisord_py.pipes.declaring.announcements import announced
from supervisord_py.pipes.declaring.catalog import SETTLE_SECONDS
from supervisord_py.pipes.declaring.files import PIPE_FILE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from supervisord_py.pipes.declaring.catalog import PipeCatalog


async def watch(
    catalog: PipeCatalog,
    refresh: Callable[[], Awaitable[None]],
    look_seconds: float,
    *,
    told: Callable[[str], None] = lambda _sentence: None,
    wake: asyncio.Event | None = None,
) -> None:
    """Keep a catalog fresh until cancelled.

    Args:
        catalog: Whose folders are listened to.
        refresh: Has the catalog look, and takes in what it found. What it raises ends the watch.
        look_seconds: Longest time between two looks.
        told: Gets a sentence when announcements do not work; looks go on.
        wake: Set it for a look at once.
    """
    bell = wake or asyncio.Event()
    announcements = _Announcements(bell, told)
    try:
        while True:
            bell.clear()
            await refresh()
            announcements.listen_at(_folders(catalog))
            pause = min(look_seconds, SETTLE_SECONDS) if catalog.unsettled else look_seconds
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await bell.wait()
    finally:
        await asyncio.to_thread(announcements.stop)


def _folders(catalog: PipeCatalog) -> frozenset[str]:
    return frozenset({str(catalog.pipes_dir), *(str(each.folder) for each in catalog.all().values())})


class _Announcements:
    """Rings the bell when the system announces something. One thread, replaced when there are other folders."""

    def __init__(self, bell: asyncio.Event, told: Callable[[str], None]) -> None:
        self._bell = bell
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._folders: frozenset[str] = frozenset()
        self._threads: list[tuple[threading.Thread, threading.Event]] = []

    def listen_at(self, folders: frozenset[str]) -> None:
        """Listen at these folders from now on. What cannot be listened at is tried again when the folders change."""
        if folders == self._folders:
            return
        self._folders = folders
        for _thread, ending in self._threads:
            ending.set()
        self._threads = [each for each in self._threads if each[0].is_alive()]
        ended = threading.Event()
        thread = threading.Thread(target=self._listen, args=(folders, ended), name="pipe announcements", daemon=True)
        self._threads.append((thread, ended))
        thread.start()

    def stop(self) -> None:
        """End the threads, and wait until they are gone: a few steps. Blocking."""
        for _thread, ending in self._threads:
            ending.set()
        for thread, _ending in self._threads:
            thread.join()

    def _listen(self, folders: frozenset[str], ending: threading.Event) -> None:
        try:
            self._announce(folders, ending)
        except (OSError, RuntimeError, ImportError) as error:
            why = str(error) or type(error).__name__
            self._loop.call_soon_threadsafe(self._told, f"changes of pipes are looked for, not announced: {why}")

    def _announce(self, folders: frozenset[str], ending: threading.Event) -> None:
        present = [each for each in folders if os.path.isdir(each)]
        if not present:
            return
        rounds = announced(present, ending, deep=False)
        # The first round says that the watches are set. What happened since the look was announced to nobody.
        next(rounds, None)
        self._ring()
        for changes in rounds:
            if _concern(folders, (path for _kind, path in changes)):
                self._ring()

    def _ring(self) -> None:
        self._loop.call_soon_threadsafe(self._bell.set)


def _concern(folders: frozenset[str], paths: Iterable[str]) -> bool:
    """Say whether one of the paths is a pipe's file or a folder of the pipes directory."""
    return any(os.path.basename(path) == PIPE_FILE or os.path.dirname(path) in folders for path in paths)

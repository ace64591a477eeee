"""Where events come from that nobody publishes on purpose: tools that fail, and files (`file_changed:PATH`).

What is watched is what some pipe names, no more. A change is named by path, time and size, so that one told twice
starts a pipe once; what changes before the system announces it, or while the folders watched become others, may be
missed.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from supervisord_py.ledger.events import Event
from supervisord_py.pipes.room_requests import PublishedEvent
from supervisord_py.pipes.scheduling.events import FILE_CHANGED, goes_below, watch_root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from supervisord_py.pipes.definition import PipeDefinition
    from supervisord_py.pipes.running.running_house import RunningHouse
    from supervisord_py.pipes.running.triggering import Triggering

TOOL_FAILURES = frozenset(("died", "start_failed", "run_failed"))
LOOK_SECONDS = 2.0
"""So often it is looked whether folders that are named have come to be, or a listener has died."""
_TOOL = "tool:"
_DIED = "died"
_STEP_MS, _GATHER_MS = 100, 400
"""A stop is noticed within a step; an editor makes several changes of one save."""
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Root:
    """A folder to be watched, with all below it or not."""

    path: str
    deep: bool


class EventSources:
    """Listens for what pipes wait for.

    Args:
        house: Whose events.
        triggering: Starts pipes.
        pipes: All that can be used at present.
    """

    def __init__(
        self, house: RunningHouse, triggering: Triggering, pipes: Callable[[], Iterable[PipeDefinition]]
    ) -> None:
        self._house = house
        self._triggering = triggering
        self._pipes = pipes
        self._heard = house.events.subscribe()
        self._wake = asyncio.Event()
        self._changed: asyncio.Queue[str] = asyncio.Queue()

    def close(self) -> None:
        """Hear no more."""
        self._heard.close()

    def look(self) -> None:
        """Look now which files pipes wait for."""
        self._wake.set()

    async def hear_tools(self) -> None:
        """Turn tools' failures into events, until the stream ends."""
        async for item in self._heard:
            if isinstance(item, Event) and item.event in TOOL_FAILURES and (item.unit or "").startswith(_TOOL):
                name = (item.unit or "").removeprefix(_TOOL)
                facts = {"reason": item.reason, "instance": item.instance, **item.facts}
                event = PublishedEvent("tool_failed", name, _occurrence(item), facts)
                await self._triggering.publish(event, item.id)

    async def hear_files(self) -> None:
        """Turn changes of files into events, until cancelled."""
        watching = asyncio.ensure_future(self._watch())
        try:
            while True:
                path = await self._changed.get()
                key = await asyncio.to_thread(_file_key, path)
                if key is not None:
                    try:
                        await self._triggering.publish(PublishedEvent(FILE_CHANGED, path, key, {"path": path}))
                    except Exception:
                        _log.exception("file_change_not_told", path=path)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _watch(self) -> None:
        listeners: dict[bool, _Listener] = {}
        try:
            while True:
                self._wake.clear()
                wanted = self._roots()
                present = await asyncio.to_thread(lambda roots: {it for it in roots if os.path.isdir(it.path)}, wanted)
                for deep in (False, True):
                    paths = frozenset(root.path for root in present if root.deep is deep)
                    old = listeners.get(deep)
                    if old is not None and (old.paths != paths or not old.is_alive()):
                        listeners.pop(deep).ending.set()
                    if paths and deep not in listeners:
                        listeners[deep] = _Listener(paths, self._changed.put_nowait, deep=deep)
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS if wanted else None):
                        await self._wake.wait()
        finally:
            for listener in listeners.values():
                listener.ending.set()

    def _roots(self) -> frozenset[Root]:
        found: set[Root] = set()
        for definition in self._pipes():
            for pattern in definition.events:
                if pattern.event == FILE_CHANGED and self._house.states.is_enabled(definition):
                    folder = str(definition.folder)
                    found.add(Root(watch_root(pattern, folder), deep=goes_below(pattern, folder)))
        return frozenset(found)


class _Listener(threading.Thread):
    """Tells of changes in folders until `ending` is set; a thread, for setting up a deep tree takes seconds."""

    def __init__(self, paths: frozenset[str], tell: Callable[[str], None], *, deep: bool) -> None:
        super().__init__(name="pipe files", daemon=True)
        self.paths = paths
        self.ending = threading.Event()
        self._tell = tell
        self._deep = deep
        self._loop = asyncio.get_running_loop()
        self.start()

    def run(self) -> None:
        try:
            # 20 ms, wanted only where a pipe names files; its binary part may be missing on a rare machine.
            from watchfiles import Change, watch

            for changes in watch(
                *sorted(self.paths),
                watch_filter=None,
                recursive=self._deep,
                debounce=_GATHER_MS,
                step=_STEP_MS,
                stop_event=self.ending,
                raise_interrupt=False,
                rust_timeout=_STEP_MS,
                ignore_permission_denied=True,
            ):
                for path in sorted({path for kind, path in changes if kind is not Change.deleted}):
                    self._loop.call_soon_threadsafe(self._tell, path)
        except (OSError, RuntimeError, ImportError) as error:  # RuntimeError: the loop is closed, too
            _log.warning("files_not_watched", paths=sorted(self.paths), detail=str(error))


def _file_key(path: str) -> str | None:
    """Name an occurrence by how a file stands; None where there is none. Blocking."""
    with suppress(OSError):
        stat = os.stat(path)
        if not os.path.isdir(path):
            return f"{path}:{stat.st_mtime_ns}:{stat.st_size}"
    return None


def _occurrence(failure: Event) -> str:
    """Return what tells one failure from another: a process that dies in a run is one failure, told by two events."""
    is_end = failure.event == _DIED or bool(failure.facts.get("instance_ended"))
    return failure.instance if is_end and failure.instance else str(failure.id)

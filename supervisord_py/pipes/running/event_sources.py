"""Where events come from that nobody publishes on purpose: files, and tools that fail."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.pipes.room_requests import PublishedEvent
from supervisord_py.pipes.running.file_listener import Root
from supervisord_py.pipes.running.file_watch import FileWatch
from supervisord_py.pipes.scheduling.events import FILE_CHANGED, goes_below, watch_root
from supervisord_py.process.events import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from supervisord_py.pipes.definition import PipeDefinition
    from supervisord_py.pipes.running.file_listener import FileChange
    from supervisord_py.pipes.running.running_house import RunningHouse
    from supervisord_py.pipes.running.triggering import Triggering

TOOL_FAILURES = frozenset(("died", "start_failed", "run_failed"))
_TOOL = "tool:"
_DIED = "died"


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
        self.files = FileWatch(self._roots, self._file_changed)

    def close(self) -> None:
        """Hear no more."""
        self._heard.close()

    async def hear_tools(self) -> None:
        """Turn tools' failures into events, until the stream ends."""
        async for item in self._heard:
            if isinstance(item, Event) and item.event in TOOL_FAILURES and (item.unit or "").startswith(_TOOL):
                name = (item.unit or "").removeprefix(_TOOL)
                facts = {"reason": item.reason, "instance": item.instance, **item.facts}
                event = PublishedEvent("tool_failed", name, _occurrence(item), facts)
                await self._triggering.publish(event, item.id)

    def _roots(self) -> frozenset[Root]:
        found: set[Root] = set()
        for definition in self._pipes():
            for pattern in definition.events:
                if pattern.event == FILE_CHANGED and self._house.states.is_enabled(definition):
                    folder = str(definition.folder)
                    found.add(Root(watch_root(pattern, folder), deep=goes_below(pattern, folder)))
        return frozenset(found)

    async def _file_changed(self, change: FileChange) -> None:
        await self._triggering.publish(PublishedEvent(FILE_CHANGED, change.path, change.key, {"path": change.path}))


def _occurrence(failure: Event) -> str:
    """Return what tells one failure from another: a process that dies in a run is one failure, told by two events."""
    is_end = failure.event == _DIED or bool(failure.facts.get("instance_ended"))
    return failure.instance if is_end and failure.instance else str(failure.id)

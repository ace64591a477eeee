"""Callbacks of one kind, and what came before the first of them.

Law: an event that comes while nobody listens waits for the first listener (up to a bound); one listener's failure is
logged and harms neither the others nor the reader of the channel.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable

_log = structlog.get_logger(__name__)
T = TypeVar("T")
EARLY_MAX = 4096


class Topic(Generic[T]):
    """Calls its listeners for each event.

    Args:
        name: For the log.
        early: How many events wait for the first listener; the oldest are dropped beyond that.
    """

    def __init__(self, name: str, early: int = EARLY_MAX) -> None:
        self._name = name
        self._listeners: list[Callable[[T], None]] = []
        self._early: deque[T] = deque(maxlen=early)

    def listen(self, callback: Callable[[T], None]) -> None:
        """Call back from now on; the first listener gets what came before it."""
        self._listeners.append(callback)
        while self._early:
            self.tell(callback, self._early.popleft())

    def emit(self, event: T) -> None:
        """Pass an event on, or keep it for the first listener."""
        if not self._listeners:
            self._early.append(event)
        for callback in tuple(self._listeners):
            self.tell(callback, event)

    def tell(self, callback: Callable[[T], None], event: T) -> None:
        """Call one listener; whatever it raises is logged."""
        try:
            callback(event)
        except Exception:  # a listener's defect must not end the channel that all hang on
            _log.exception("callback_failed", topic=self._name)

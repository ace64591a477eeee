"""What the event loop complains about, told now and then: an accept without descriptors complains in bursts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

QUIET_SECONDS = 10.0
"""The same complaint is not told again for this long; how often it came meanwhile is told with the next one."""

_log = structlog.get_logger()


class LoopTrouble:
    """An exception handler for the loop, with a memory of what it has told."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, int]] = {}

    def __call__(self, loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
        """Log a complaint of the loop, unless the same one was logged a moment ago."""
        message, error = str(context.get("message", "")), context.get("exception")
        key = f"{message.splitlines()[0] if message else ''} {type(error).__name__}"
        told_at, unsaid = self._told.get(key, (float("-inf"), 0))
        if loop.time() - told_at < QUIET_SECONDS:
            self._told[key] = (told_at, unsaid + 1)
            return
        self._told[key] = (loop.time(), 0)
        _log.error("loop_trouble", detail=message, error=repr(error) if error else None, unsaid=unsaid)

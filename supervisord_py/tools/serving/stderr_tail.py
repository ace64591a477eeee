"""The end of an instance's stderr, read from the output segments that the keeper writes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from supervisord_py.process.output import OutputReader, Stream
from supervisord_py.tools.serving.failure import decode_tail

if TYPE_CHECKING:
    from supervisord_py.process.placement import Placement
    from supervisord_py.tools.serving.instance import Instance

DRAIN_SECONDS = 0.5
"""How long a failure waits for the last words of a tree that is slow to end."""


class StderrTails:
    """Reads tails of at most `limit` bytes."""

    def __init__(self, placement: Placement, limit: int) -> None:
        self._placement = placement
        self._limit = limit

    async def of(self, instance: Instance) -> str:
        """Return what an instance has written to stderr so far, the end of it."""
        if instance.child is None:
            return ""
        end = instance.record.log_end if instance.record else None
        raw = await asyncio.to_thread(self._read, instance.spec.unit, instance.child.log_position, end)
        return decode_tail(raw, self._limit)

    def _read(self, unit: str, start: int, end: int | None) -> bytes:
        try:
            reader = OutputReader.of(self._placement.log_dir, unit)
            return reader.tail_bytes(start, reader.end() if end is None else end, Stream.STDERR, self._limit)
        except OSError:
            return b""  # a full or broken disk must not hide the failure itself

    async def last_words(self, instance: Instance) -> str:
        """Return the tail of an instance whose leader has ended, after its pipes are drained if that is quick."""
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                grace = instance.spec.stop_timeout_seconds
                await self._placement.stop(instance.key, grace_seconds=grace, reason="exit")
        except TimeoutError:
            pass  # leftovers of its tree take their time; the stop goes on at the keeper
        return await self.of(instance)

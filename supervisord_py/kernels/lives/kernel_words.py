"""The end of a kernel's own log: what it said before it died."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from supervisord_py.kernels.kernel_endings import decode_tail
from supervisord_py.process.output import OutputReader

if TYPE_CHECKING:
    from supervisord_py.kernels.lives.kernel_life import KernelLife
    from supervisord_py.process.placement import Placement

TAIL_BYTES = 8192
DRAIN_SECONDS = 0.5
"""How long a death waits for the last words of a tree that is slow to end."""


class LastWords:
    """Reads the ends of kernels' logs."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    async def of(self, life: KernelLife) -> str:
        """Return the end of what a life has printed to its own stdout and stderr so far; '' where it has no log."""
        if life.child is None:
            return ""
        end = life.record.log_end if life.record else None
        raw = await asyncio.to_thread(self._read, life.unit, life.child.log_position, end)
        return decode_tail(raw, TAIL_BYTES)

    async def after_death(self, life: KernelLife, grace_seconds: float) -> str:
        """Return the tail of a life whose leader has ended, after its pipes are drained if that is quick."""
        if life.child is None:
            return ""
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._placement.stop(life.key, grace_seconds=grace_seconds, reason="exit")
        except TimeoutError:
            pass  # leftovers of its tree take their time; the stop goes on at the keeper
        return await self.of(life)

    def _read(self, unit: str, start: int, end: int | None) -> bytes:
        try:
            reader = OutputReader.of(self._placement.log_dir, unit)
            return reader.tail_bytes(start, reader.end() if end is None else end, None, TAIL_BYTES)
        except OSError:
            return b""  # a full or broken disk must not hide the end itself

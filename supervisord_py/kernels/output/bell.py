"""Tells any number of followers of a cell that there is news, and misses nobody.

Law: rings are counted, not queued: a follower that was away hears one ring for all that it missed, and one that does
not listen costs nothing. After `close` there is no more news, and every wait ends at once.
"""

from __future__ import annotations

import asyncio


class Bell:
    """One for each running cell. To be used on one event loop."""

    def __init__(self) -> None:
        self.rings = 0
        self.is_closed = False
        self._next: asyncio.Future[None] | None = None

    @classmethod
    def closed(cls) -> Bell:
        """Return the bell of a cell that is over."""
        bell = cls()
        bell.close()
        return bell

    def ring(self) -> None:
        """There is something new in the files."""
        self.rings += 1
        if self._next is not None and not self._next.done():
            self._next.set_result(None)
        self._next = None

    def close(self) -> None:
        """The cell is over, everything is in its files. May be called twice."""
        self.is_closed = True
        self.ring()

    async def after(self, rings: int) -> None:
        """Wait until it rang more often than `rings` times, or is closed."""
        while self.rings <= rings and not self.is_closed:
            if self._next is None:
                self._next = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._next)

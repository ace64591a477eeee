"""Tells any number of followers that there is news about one execution; none of them is queued for.

Law: a ring never waits. Who missed rings sees by their count that he did, and looks where the truth is: row and files.
"""

from __future__ import annotations

import asyncio


class Bell:
    """Rung at each news; closed when nothing more will come."""

    __slots__ = ("_next", "is_closed", "rings")

    def __init__(self) -> None:
        self._next: asyncio.Event | None = None
        """There while somebody waits: most rings are for nobody."""
        self.rings = 0
        self.is_closed = False

    def ring(self) -> None:
        """Wake whoever waits."""
        self.rings += 1
        if self._next is not None:
            self._next.set()
            self._next = None

    def close(self) -> None:
        """Ring for the last time."""
        self.is_closed = True
        self.ring()

    async def after(self, rings: int) -> None:
        """Wait until it has rung more than `rings` times; at once when it is closed."""
        while self.rings <= rings and not self.is_closed:
            if self._next is None:
                self._next = asyncio.Event()
            await self._next.wait()

"""What is to become of the control plane: the strongest wish so far, and a way to wait for the first.

Signals, the API and the keeper all wish; nobody acts but the one who waits. A stronger wish replaces a weaker one, also
while the weaker is being fulfilled; a weaker one is forgotten.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum


class Wish(IntEnum):
    """How to end, weakest first."""

    NONE = 0
    REPLACE = 1
    """End alone; the keeper starts another control plane, the children stay."""
    RESTART_ALL = 2
    """Stop the children, then have the keeper become a new daemon."""
    STOP = 3
    """Stop the children, then the keeper."""
    KEEPER_LOST = 4
    """The keeper is dead: write down what was interrupted, then kill what it left."""


class Wishes:
    """The strongest wish, awaitable."""

    def __init__(self) -> None:
        self._strongest = Wish.NONE
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def strongest(self) -> Wish:
        """The wish to fulfil."""
        return self._strongest

    def make(self, wish: Wish) -> None:
        """Wish; on the loop's thread."""
        if wish > self._strongest:
            self._strongest = wish
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(None)

    async def stronger_than(self, wish: Wish) -> Wish:
        """Wait for a wish above `wish` and return it."""
        while self._strongest <= wish:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
        return self._strongest

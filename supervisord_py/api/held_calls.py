"""Work that is told as server-sent events, kept for a client that was cut off and comes back with `Last-Event-ID`.

Law: coming back runs nothing again. Who does not come back in time has left: what ends with its client is cancelled
then, as the work of any other client is at once.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import UnknownUnitError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from supervisord_py.api.call_feed import CallFeed
    from supervisord_py.errors import InterruptedRunError

Work = asyncio.Task[dict[str, Any]]


@dataclass(slots=True, eq=False)
class HeldCall:
    """One work and who follows it.

    Attributes:
        path: Of its request; who comes back asks there.
        feed: What is told of it.
        work: Returns the document that is told at the end.
        interrupted: What is said where it goes on without us.
        ends_with_client: It is cancelled when nobody follows it any more.
        hold_seconds: How long it may have no follower; 0 where nobody can come back.
        is_told: A follower got all of it.
    """

    path: str
    feed: CallFeed
    work: Work
    interrupted: InterruptedRunError
    ends_with_client: bool
    hold_seconds: float
    is_told: bool = False
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    followers: int = 0
    timer: asyncio.TimerHandle | None = None


class HeldCalls:
    """All of one API.

    Args:
        leave: Lets go of work that goes on by itself.
        closing: Set when the API ends: nobody can come back then, and the rooms say what becomes of their work.
    """

    def __init__(self, leave: Callable[[Work], None], closing: asyncio.Event) -> None:
        self._leave = leave
        self._closing = closing
        self._calls: dict[str, HeldCall] = {}

    def find(self, identifier: str, path: str) -> HeldCall:
        """Return a call to come back to.

        Raises:
            UnknownUnitError: There is none.
        """
        held = self._calls.get(identifier)
        if held is None or held.path != path:
            raise UnknownUnitError(
                "The stream to be resumed is not there any more; nothing was run again.",
                hint="what its cells gave is at GET /api/kernels/{k}/cells; run again without Last-Event-ID",
            )
        return held

    @asynccontextmanager
    async def followed(self, held: HeldCall) -> AsyncIterator[None]:
        """Follow a call while the block lasts."""
        self._calls[held.id] = held
        held.followers += 1
        _stop(held)
        try:
            yield
        finally:
            held.followers -= 1
            if not held.followers:
                await self._unfollowed(held)

    async def _unfollowed(self, held: HeldCall) -> None:
        if held.hold_seconds > 0 and not held.is_told and not self._closing.is_set():
            held.timer = asyncio.get_running_loop().call_later(held.hold_seconds, self._give_up, held)
            return
        del self._calls[held.id]
        if held.ends_with_client and not self._closing.is_set():
            held.work.cancel()
            await asyncio.wait({held.work})
        self._leave(held.work)

    def _give_up(self, held: HeldCall) -> None:
        """Nobody came back."""
        del self._calls[held.id]
        if held.ends_with_client and not self._closing.is_set():
            held.work.cancel()
        self._leave(held.work)

    def close(self) -> None:
        """Wait for nobody any more."""
        for held in self._calls.values():
            _stop(held)
            self._leave(held.work)
        self._calls.clear()


def _stop(held: HeldCall) -> None:
    if held.timer is not None:
        held.timer.cancel()
    held.timer = None

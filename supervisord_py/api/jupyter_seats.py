"""Connections of Jupyter's front ends to kernels that outlive their WebSockets.

A front end names itself (`session_id`) when it opens a WebSocket. Where that one is lost, its
connection to the kernel is kept: what the kernel says waits, bounded as for a client that reads
slowly, and the front end gets it when it comes back under the same name. A connection ends with its
kernel; what had come until then is still given.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from supervisord_py.kernels.channels import Channels
    from supervisord_py.process.model import ExitRecord

KEPT_SECONDS = 86_400.0  # how long a front end may be away: a browser's tab over night
KEPT_MAX = 4  # connections of one session whose front ends are away; the oldest go


class SeatKey(NamedTuple):
    """Whose connection it is."""

    session_id: str  # of the kernel's session
    client: str  # as the front end names itself


class Seat:
    """One connection to one life of a kernel. `died` is done when that life is over."""

    def __init__(self, channels: Channels, died: asyncio.Future[ExitRecord | None]) -> None:
        self.channels = channels
        self.died = died


class Seats:
    """All connections whose front ends are away, and the WebSockets that are open under a name."""

    def __init__(self) -> None:
        self._kept: dict[SeatKey, tuple[Seat, asyncio.Task[None]]] = {}
        self._open: dict[SeatKey, OpenSocket] = {}
        self._closing: set[asyncio.Task[None]] = set()

    async def enter(self, key: SeatKey) -> OpenSocket:
        """Note that a WebSocket is open under a name; one that is still open under it is closed
        first.

        A front end comes back before the loss of its last WebSocket was noticed.
        """
        while (other := self._open.get(key)) is not None:
            other.must_leave.set()
            await other.has_left.wait()
        self._open[key] = socket = OpenSocket()
        return socket

    def leave(self, key: SeatKey, socket: OpenSocket) -> None:
        if self._open.get(key) is socket:
            del self._open[key]
        socket.has_left.set()

    def keep(self, key: SeatKey, seat: Seat) -> None:
        """Keep a connection until its front end comes back, or for as long as that may take."""
        self._drop(key)
        others = [each for each in self._kept if each.session_id == key.session_id]
        for other in others[: max(0, len(others) + 1 - KEPT_MAX)]:
            self._drop(other)
        self._kept[key] = seat, asyncio.create_task(self._watch(key, seat))

    def take(self, key: SeatKey) -> Seat | None:
        """Return the connection of a front end that comes back, if it is kept."""
        kept = self._kept.pop(key, None)
        if kept is None:
            return None
        seat, watch = kept
        watch.cancel()
        return seat

    async def close(self) -> None:
        seats = [self.take(key) for key in tuple(self._kept)]
        await asyncio.gather(*(seat.channels.close() for seat in seats if seat is not None))

    async def _watch(self, key: SeatKey, seat: Seat) -> None:
        """Stop listening to a kernel that has ended; forget a connection that nobody comes back
        for.
        """
        await asyncio.wait({seat.died}, timeout=KEPT_SECONDS)
        await asyncio.shield(seat.channels.close())
        if seat.died.done():  # what it said is still to be given
            await asyncio.sleep(KEPT_SECONDS)
        if (kept := self._kept.get(key)) is not None and kept[0] is seat:
            del self._kept[key]

    def _drop(self, key: SeatKey) -> None:
        if (seat := self.take(key)) is not None:
            closing = asyncio.create_task(seat.channels.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


class OpenSocket:
    """A WebSocket under a name. `must_leave`: another one is to take its place."""

    def __init__(self) -> None:
        self.must_leave = asyncio.Event()
        self.has_left = asyncio.Event()

"""Questions to the keeper and their answers, matched by number; events in between.

Law: every question ends, by its answer, by its deadline or by the loss of the keeper, and each of the last two raises
`KeeperLostError`. An answer that nobody waits for any more is dropped, its descriptors closed.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import KeeperLostError, TooLargeError
from supervisord_py.process.wire import Channel, Frame, WireError, close_fds

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from supervisord_py.process.wire import Message

_GONE_HINT = "the daemon ends now and its children with it; see `pxctl why UNIT` after the next start"
_MUTE_HINT = "see `pxctl doctor`; `pxctl daemon restart --all` replaces keeper and control plane"


class RefusedError(Exception):
    """The keeper said no. `kind` is one of keeper/protocol.py; `members` is the whole error object."""

    def __init__(self, members: Message) -> None:
        self.kind = str(members.get("kind"))
        self.detail = str(members.get("detail", self.kind))
        self.members = members
        super().__init__(self.detail)


class Calls:
    """The control plane's end of the channel.

    Args:
        sock: Connected to the keeper; owned from now on.
        on_event: Called with each event's JSON object.
        on_lost: Called once when the keeper is gone; not after `close()`.
    """

    def __init__(
        self, sock: socket.socket, *, on_event: Callable[[Message], None], on_lost: Callable[[], None]
    ) -> None:
        self._on_event = on_event
        self._on_lost = on_lost
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Frame]] = {}
        self._channel = Channel(sock, self._frame, self._closed)

    @property
    def closed(self) -> bool:
        """Whether no question can be asked any more."""
        return self._channel.closed

    async def ask(self, verb: str, seconds: float, *, fds: Sequence[int] = (), **members: Any) -> Message:
        """Ask, and return the answer.

        Args:
            verb: Of keeper/protocol.py.
            seconds: Deadline.
            fds: Descriptors that ride along; they stay the caller's.
            members: Members of the request, JSON values.

        Raises:
            RefusedError: The keeper said no.
            KeeperLostError: It is gone or late.
            TooLargeError: The request does not fit into a frame.
        """
        frame = await self._exchange(verb, seconds, fds, members)
        close_fds(frame.fds)
        return _accepted(frame.message)

    async def ask_fd(self, verb: str, seconds: float, **members: Any) -> int:
        """Ask for a descriptor, and return it; raises like `ask`. The caller closes it."""
        frame = await self._exchange(verb, seconds, (), members)
        if len(frame.fds) != 1:
            close_fds(frame.fds)
            _accepted(frame.message)
            raise KeeperLostError(f"the keeper answered `{verb}` with {len(frame.fds)} descriptors instead of one")
        return frame.fds[0]

    def tell(self, verb: str) -> None:
        """Send a request whose answer does not matter; nothing happens when the keeper is gone."""
        if not self._channel.closed:
            self._channel.send({"id": next(self._numbers), "verb": verb})

    def close(self) -> None:
        """End the channel from this side."""
        self._channel.close()
        self._fail_pending("the channel to the keeper was closed")

    async def _exchange(self, verb: str, seconds: float, fds: Sequence[int], members: Message) -> Frame:
        number = next(self._numbers)
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(seconds):
                await self._channel.drain()
                self._send({"id": number, "verb": verb, **members}, fds)
                self._pending[number] = future
                return await future
        except TimeoutError as error:
            _discard(future)
            raise KeeperLostError(
                f"the keeper did not answer `{verb}` within {seconds:g} s", hint=_MUTE_HINT
            ) from error
        except asyncio.CancelledError:
            _discard(future)
            raise
        finally:
            self._pending.pop(number, None)

    def _send(self, message: Message, fds: Sequence[int]) -> None:
        if self._channel.closed:
            raise KeeperLostError("the keeper is gone", hint=_GONE_HINT)
        try:
            self._channel.send(message, fds)
        except WireError as error:
            raise TooLargeError(f"`{message['verb']}` cannot be sent to the keeper: {error}") from error

    def _frame(self, frame: Frame) -> None:
        number = frame.message.get("id")
        if number is None:
            close_fds(frame.fds)
            self._on_event(frame.message)
            return
        future = self._pending.pop(number, None) if isinstance(number, int) else None
        if future is None or future.done():
            close_fds(frame.fds)
        else:
            future.set_result(frame)

    def _closed(self, cause: Exception | None) -> None:
        self._fail_pending("the keeper is gone" if cause is None else f"the keeper is lost: {cause}")
        self._on_lost()

    def _fail_pending(self, detail: str) -> None:
        pending, self._pending = self._pending, {}
        for future in pending.values():
            if not future.done():
                future.set_exception(KeeperLostError(detail, hint=_GONE_HINT))


def _accepted(message: Message) -> Message:
    if message.get("ok") is True:
        return message
    error = message.get("error")
    raise RefusedError(error if isinstance(error, dict) else {"kind": "failed", "detail": f"refused: {message}"})


def _discard(future: asyncio.Future[Frame]) -> None:
    """Close what an answer brought that came in the very moment its asker gave up."""
    if future.done() and not future.cancelled() and future.exception() is None:
        close_fds(future.result().fds)

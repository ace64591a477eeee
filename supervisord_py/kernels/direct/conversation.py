"""What is said with one kernel: requests of ours with their replies, their end of output, and everybody else's.

Law: what comes is given to the request that it belongs to by its parent's id, also after whoever asked has gone away; a
request is over when its reply and its `idle` were seen, in either order, because they come on different sockets.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import TYPE_CHECKING, Any

from supervisord_py.errors import InterruptedRunError
from supervisord_py.kernels.foreign_requests import ForeignRequests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisord_py.kernels.direct.message import Message

    Overhear = Callable[[Message], None]


class Exchange:
    """One request under way.

    Attributes:
        id: Message id of the request.
        channel: On which it was sent.
        reply: The reply's content, once it came.
        idle: Done when the kernel said that all output of it was sent, or can say so no more.
        heard: How many messages of its output came so far.
    """

    __slots__ = ("channel", "heard", "id", "idle", "overhear", "reply")

    def __init__(self, msg_id: str, channel: str, overhear: Overhear | None) -> None:
        loop = asyncio.get_running_loop()
        self.id = msg_id
        self.channel = channel
        self.reply: asyncio.Future[dict[str, Any]] = loop.create_future()
        self.idle: asyncio.Future[None] = loop.create_future()
        self.overhear = overhear
        self.heard = 0

    @property
    def over(self) -> bool:
        """Reply and idle were seen."""
        return self.reply.done() and self.idle.done()

    @property
    def is_complete(self) -> bool:
        """All output of it was heard."""
        return self.idle.done() and self.idle.exception() is None


class Conversation:
    """The requests of one kernel under way; `hear` is told every message by the wire.

    Args:
        name: Our session: requests of it are ours, also those of an earlier control plane.

    Attributes:
        late: Told of messages whose request, one of ours, is over.
        welcome: Done when the kernel said that it saw our subscription (ipykernel 7).
        foreign: Use by others.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.late: Overhear | None = None
        self._numbers = itertools.count(1)
        self._under_way: dict[str, Exchange] = {}
        self.welcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.foreign = ForeignRequests()

    def new_id(self) -> str:
        """Return an id for a request of ours that is no cell."""
        return f"{self._name}-{time.time_ns():x}-{next(self._numbers)}"

    def open(self, msg_id: str, channel: str, overhear: Overhear | None = None) -> Exchange:
        """Wait from now on for what belongs to a request.

        Args:
            msg_id: Of the request.
            channel: On which its reply comes.
            overhear: Told of each iopub message that belongs to it, before `idle` is done; must not block.
        """
        exchange = self._under_way[msg_id] = Exchange(msg_id, channel, overhear)
        return exchange

    def close(self, exchange: Exchange) -> None:
        """Expect nothing more of a request."""
        self._under_way.pop(exchange.id, None)

    def give_up(self) -> None:
        """Nothing will be heard any more: whoever waits for a reply or its `idle` gets InterruptedRunError."""
        for exchange in self._under_way.values():
            _interrupt(exchange.reply)
            _interrupt(exchange.idle)
        self._under_way.clear()

    def hear(self, channel: str, message: Message) -> None:
        """Give a message to whom it concerns."""
        exchange = self._under_way.get(message.parent_id)
        if channel != "iopub":
            if exchange is not None and channel == exchange.channel:
                _resolve(exchange.reply, message.content())
        elif exchange is not None:
            self._overheard(exchange, message)
        elif message.type == "iopub_welcome":
            _resolve(self.welcome, None)
        elif message.parent_session != self._name:
            self._of_others(message)
        elif self.late is not None:
            self.late(message)
        if exchange is not None and exchange.over:
            self.close(exchange)

    def _overheard(self, exchange: Exchange, message: Message) -> None:
        exchange.heard += 1
        if exchange.overhear is not None:
            exchange.overhear(message)
        if message.is_status("idle"):
            _resolve(exchange.idle, None)
            if exchange.channel == "shell":
                self.foreign.settle()

    def _of_others(self, message: Message) -> None:
        if message.type == "status" and message.parent_id:
            self.foreign.note(str(message.content().get("execution_state")), message.parent_id, time.time())


def _interrupt(future: asyncio.Future[Any]) -> None:
    if not future.done():
        future.set_exception(InterruptedRunError("The daemon has let go of the kernel."))
        future.exception()  # so that one for which nobody waits is not reported as forgotten


def _resolve(future: asyncio.Future[Any], value: Mapping[str, Any] | None) -> None:
    if not future.done():
        future.set_result(value)

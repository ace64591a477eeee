"""The channels of one kernel for one Jupyter front end: its own sockets. Imports zmq: import it lazily.

The sockets are always read, so a slow front end never holds the kernel up; what waits for it is bounded by its
`Mailbox`. A subscription takes effect some time after the connect, so the channels are given out when something was
heard: no `idle` of a first request is missed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from supervisord_py.errors import InvalidInputError, OverloadedError
from supervisord_py.kernels import connection_file as connection_files
from supervisord_py.kernels import wire
from supervisord_py.kernels.zmq_sockets import KernelSockets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from supervisord_py.kernels.connection_file import Connection
    from supervisord_py.kernels.wire import Message

LIMIT_BYTES = 8 * 1024 * 1024
HEARD_SECONDS = 2.0  # how long to wait for a first sign on iopub; a kernel that cannot speak at the moment gives none
AGAIN_SECONDS = 0.05
CHANNELS = ("shell", "control", "stdin", "iopub")
OVERRUN = 8
OUTPUT = frozenset(("stream", "display_data", "update_display_data", "execute_result"))


class Mailbox:
    """What waits for one front end, `waiting_bytes` of it.

    Beyond `limit_bytes` output (streams, displays, results) is left out, and a stream message that counts it stands in
    its place; what a front end cannot do without (replies, status, errors, comms, input requests) never is. When even
    that is more than `OVERRUN` times the limit, the front end counts as gone.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.waiting: deque[Message] = deque()
        self.waiting_bytes = 0
        self._limit = limit_bytes
        self._left_out: Message | None = None  # the first that was, since the last that was not
        self._left_out_bytes = 0

    @property
    def overrun(self) -> bool:
        """True when more waits than any front end that lives would leave."""
        return self.waiting_bytes > OVERRUN * self._limit

    def put(self, message: Message) -> None:
        is_output = message.channel == "iopub" and message.type in OUTPUT
        if is_output and self.waiting_bytes + message.size > self._limit:
            self._left_out = self._left_out or message
            self._left_out_bytes += message.size
            return
        self._tell_left_out()
        self.waiting.append(message)
        self.waiting_bytes += message.size

    def take(self) -> Message | None:
        if not self.waiting:
            self._tell_left_out()
        if not self.waiting:
            return None
        message = self.waiting.popleft()
        self.waiting_bytes -= message.size
        return message

    def _tell_left_out(self) -> None:
        if self._left_out is not None:
            text = f"\n[px: {self._left_out_bytes} bytes of output were left out here: this client reads too slowly]\n"
            parent, about = wire.load(self._left_out.parts[1]), {"name": "stderr", "text": text}
            told = wire.make("stream", about, "px", "iopub", parent=parent)
            self._left_out, self._left_out_bytes = None, 0
            self.waiting.append(told)
            self.waiting_bytes += told.size


async def open_channels(connection_file: Path, *, limit_bytes: int = LIMIT_BYTES) -> Channels:
    """Open the channels of a kernel; beyond `limit_bytes` that wait for a slow front end output is left out.

    Raises OSError, ValueError: the file is gone, or is no connection file.
    """
    channels = Channels(await asyncio.to_thread(connection_files.read, connection_file), limit_bytes)
    try:
        await channels.hear_something()
    except BaseException:
        await channels.close()
        raise
    return channels


class Channels:
    """One front end's connection to a kernel; `close` it. Iterate over it for what comes, until it is closed."""

    def __init__(self, connection: Connection, limit_bytes: int) -> None:
        self._name = uuid.uuid4().hex
        self._probe = f"px-{self._name}"  # id of a request of ours: its answers reach nobody else
        self._mailbox = Mailbox(limit_bytes)
        self._news = asyncio.Event()
        self._heard = asyncio.Event()
        self._closed = False
        self._sockets = KernelSockets(connection, self._name, CHANNELS, self._take)

    async def hear_something(self) -> None:
        """Ask on shell once and on control again and again, until iopub speaks."""
        channel = "shell"
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARD_SECONDS):
                while not self._heard.is_set():
                    self.send(wire.make("kernel_info_request", {}, self._name, channel, msg_id=self._probe))
                    channel = "control"
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._heard.wait(), AGAIN_SECONDS)

    def send(self, message: Message) -> None:
        """Sign and send a front end's message on shell, control or stdin. Raises InvalidInputError, ConflictError."""
        if message.channel not in CHANNELS or message.channel == "iopub":
            hint = "shell, control or stdin"
            raise InvalidInputError(f"a message cannot be sent on channel {message.channel!r}", hint=hint)
        self._sockets.send(message)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield what comes, in order a channel. Raises OverloadedError: the front end must be gone; close it."""
        while not self._closed:
            if self._mailbox.overrun:
                waiting = f"{self._mailbox.waiting_bytes} bytes wait for a front end that does not read"
                raise OverloadedError(waiting, hint="connect again")
            found = self._mailbox.take()
            if found is None:
                self._news.clear()
                await self._news.wait()
            else:
                yield found

    def _take(self, message: Message) -> None:
        if message.channel == "iopub":
            self._heard.set()
        if message.parent_id != self._probe:
            self._mailbox.put(message)
            self._news.set()

    async def close(self) -> None:
        """Close the sockets and end the iteration. Any number of times."""
        self._closed = True
        self._news.set()
        await self._sockets.close()

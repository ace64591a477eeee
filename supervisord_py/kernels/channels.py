"""The ZMQ sockets of one client to one kernel, and those of a Jupyter front end. Imports zmq:
import this on a thread.

Not jupyter_client's own client: that sends through a bare socket, which blocks the loop when a
kernel reads nothing and hides what came in meanwhile, parses every content, and fails on
undecodable bytes. Here a reader never waits for whoever listens, so the kernel is never held up;
and it lets the loop run after every few messages, so that a flood of one kernel does not starve the
rest of the daemon.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
import zmq
import zmq.asyncio

from supervisord_py.errors import ConflictError, InvalidInputError, OverloadedError
from supervisord_py.kernels import connection_file as connection_files
from supervisord_py.kernels import wire
from supervisord_py.kernels.connection_file import Connection
from supervisord_py.kernels.wire import Message

RECONNECT_MS = 5
MESSAGES_A_TURN = 32
LIMIT_BYTES = 8 * 1024 * 1024  # that wait for a slow front end; beyond it output is left out
OVERRUN = 8  # so many times as much of what cannot be left out, and the front end counts as gone
# so often a first sign on iopub is waited for; a kernel that cannot speak at the moment gives none
HEARD_TRIES = 40
AGAIN_SECONDS = 0.05
CHANNELS = ("shell", "control", "stdin", "iopub")
OUTPUT = frozenset(("stream", "display_data", "update_display_data", "execute_result"))
GAP = "\n[px: output was left out here: this client reads too slowly]\n"
WELCOME = "iopub_welcome"  # ipykernel 7 answers each subscription to iopub with it
_KINDS = {"shell": zmq.DEALER, "control": zmq.DEALER, "stdin": zmq.DEALER, "iopub": zmq.SUB}
_log = structlog.get_logger(__name__)


class KernelSockets:
    """Connected to these channels, also to those of a kernel that is not there yet; `close` them.

    `name` is the client's identity: equal ones take over from each other (ROUTER_HANDOVER), so that
    replies under way find the next control plane. `hear` is told of every message; it must not
    block.
    """

    def __init__(
        self,
        connection: Connection,
        name: str,
        channels: Sequence[str],
        hear: Callable[[Message], None],
    ) -> None:
        self._key = connection.key.encode()
        self._hear = hear
        self._sockets: dict[str, zmq.asyncio.Socket] = {}
        for channel in channels:
            socket = self._sockets[channel] = zmq.asyncio.Context.instance().socket(_KINDS[channel])
            socket.linger = 0
            socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
            socket.setsockopt(zmq.RCVHWM, 0)  # nothing is ever dropped here
            if channel == "iopub":
                socket.setsockopt(zmq.SUBSCRIBE, b"")
            else:
                socket.setsockopt(zmq.IDENTITY, name.encode())
            socket.connect(connection.endpoint(channel))
        self._readers = [asyncio.create_task(self._read(*each)) for each in self._sockets.items()]

    def send(self, message: Message) -> None:
        """Send a message; nothing is sent once this is closed. Raises ConflictError: the kernel
        reads nothing.

        By the asyncio socket: it looks again for what came in meanwhile, which a bare send could
        hide (ZMQ_FD).
        """
        if not self._readers:
            return
        frames: Any = [wire.DELIMITER, wire.sign(self._key, message.parts), *message.parts]
        try:
            sent: Any = self._sockets[message.channel].send_multipart(frames, zmq.DONTWAIT)
            sent.result()  # done: with DONTWAIT it is sent or refused at once
        except zmq.Again as error:
            raise ConflictError(
                f"{message.type} was not sent: the kernel reads nothing, and its queue is full",
                hint="interrupt or restart it: `pxctl kernel interrupt`, `pxctl kernel restart`",
            ) from error

    async def _read(self, channel: str, socket: zmq.asyncio.Socket) -> None:
        for count in itertools.count(1):
            # without a pause of the loop where one is there already
            frames = await socket.recv_multipart()
            message = wire.from_frames(self._key, channel, frames)
            if message is None:
                _log.warning("kernel_message_dropped", channel=channel, bytes=sum(map(len, frames)))
            else:
                try:
                    self._hear(message)
                except Exception:
                    _log.exception("kernel_message_not_taken", channel=channel, type=message.type)
            if count % MESSAGES_A_TURN == 0:
                await asyncio.sleep(0)

    async def close(self) -> None:
        readers, self._readers = self._readers, []
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        for socket in self._sockets.values():
            socket.close(0)


async def open_channels(connection_file: Path, *, limit_bytes: int = LIMIT_BYTES) -> Channels:
    """Open the channels of a kernel; a subscription takes its time.

    Raises OSError, ValueError: the file is none.
    """
    channels = Channels(
        await asyncio.to_thread(connection_files.read, connection_file), limit_bytes
    )
    try:
        await channels.hear_something()
    except BaseException:
        await channels.close()
        raise
    return channels


class Channels:
    """One front end's connection to a kernel; `close` it. Iterate over it for what comes, until it
    is closed.

    What waits for a front end that reads slowly is bounded: beyond the limit output (streams,
    displays, results) is left out, which a stream message tells; replies, status, errors, comms and
    input requests never are.
    """

    def __init__(self, connection: Connection, limit_bytes: int) -> None:
        self.waiting: deque[Message] = deque()
        self.waiting_bytes = 0
        self._limit = limit_bytes
        self._has_gap = False  # the last output was left out
        self._name = uuid.uuid4().hex
        self._probe = f"px-{self._name}"  # id of a request of ours: its answers reach nobody else
        self._news = asyncio.Event()
        self._heard = asyncio.Event()
        self._closed = False
        self._sockets = KernelSockets(connection, self._name, CHANNELS, self._take)

    async def hear_something(self) -> None:
        for channel in ("shell", *["control"] * HEARD_TRIES):
            self.send(wire.make("kernel_info_request", {}, self._name, channel, msg_id=self._probe))
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_SECONDS):
                    await self._heard.wait()
                    break

    def send(self, message: Message) -> None:
        """Sign and send a front end's message on shell, control or stdin.

        Raises InvalidInputError, ConflictError.
        """
        if message.channel not in CHANNELS or message.channel == "iopub":
            hint = "shell, control or stdin"
            raise InvalidInputError(
                f"a message cannot be sent on channel {message.channel!r}", hint=hint
            )
        self._sockets.send(message)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield what comes, in order a channel.

        Raises OverloadedError: the front end must be gone; close it.
        """
        while not self._closed:
            if self.waiting_bytes > OVERRUN * self._limit:
                waiting = f"{self.waiting_bytes} bytes wait for a front end that does not read"
                raise OverloadedError(waiting, hint="connect again")
            if self.waiting:
                message = self.waiting.popleft()
                self.waiting_bytes -= message.size
                yield message
            else:
                self._news.clear()
                await self._news.wait()

    def _take(self, message: Message) -> None:
        if message.channel == "iopub":
            self._heard.set()
        if message.parent_id == self._probe:
            return
        # A kernel publishes the welcome to one subscriber to all of them. The front end of a
        # WebSocket has not subscribed to anything, and one that checks messages by the protocol 5.3
        # fails on the type.
        if message.type == WELCOME:
            return
        if message.channel == "iopub" and message.type in OUTPUT:
            had_gap, self._has_gap = self._has_gap, self.waiting_bytes + message.size > self._limit
            if had_gap and self._has_gap:
                return
            if self._has_gap:
                parent, told = wire.load(message.parts[1]), {"name": "stderr", "text": GAP}
                message = wire.make("stream", told, "px", "iopub", parent=parent)
        self.waiting.append(message)
        self.waiting_bytes += message.size
        self._news.set()

    def give_back(self, message: Message) -> None:
        """Take back the message that came last: it could not be sent on."""
        self.waiting.appendleft(message)
        self.waiting_bytes += message.size
        self._news.set()

    def rest(self) -> list[Message]:
        """Return what waits, also where it is closed."""
        messages = list(self.waiting)
        self.waiting.clear()
        self.waiting_bytes = 0
        return messages

    async def close(self) -> None:
        self._closed = True
        self._news.set()
        await self._sockets.close()

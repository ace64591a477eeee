"""The ZMQ sockets of one client to one kernel. Imports zmq, which takes a while: import this on a thread.

Not jupyter_client's own client: that sends through a bare socket, which blocks the loop when a kernel reads nothing and
hides what came in meanwhile, parses every content, and fails on undecodable bytes. Here a reader never waits for
whoever listens, so the kernel is never held up; and it lets the loop run after every few messages, so that a flood of
one kernel does not starve the rest of the daemon.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

import structlog
import zmq
import zmq.asyncio

from supervisord_py.errors import ConflictError
from supervisord_py.kernels import wire

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from supervisord_py.kernels.connection_file import Connection
    from supervisord_py.kernels.wire import Message

RECONNECT_MS = 5
MESSAGES_A_TURN = 32
_KINDS = {"shell": zmq.DEALER, "control": zmq.DEALER, "stdin": zmq.DEALER, "iopub": zmq.SUB}
_log = structlog.get_logger(__name__)


class KernelSockets:
    """Connected to these channels, also to those of a kernel that is not there yet; `close` them.

    `name` is the client's identity: equal ones take over from each other (ROUTER_HANDOVER), so that replies under way
    find the next control plane. `hear` is told of every message; it must not block.
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
        """Send a message; nothing is sent once this is closed. Raises ConflictError: the kernel reads nothing.

        By the asyncio socket: it looks again for what came in meanwhile, which a bare send could hide (ZMQ_FD).
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
            frames = await socket.recv_multipart()  # without a pause of the loop where one is there already
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
        """Close the sockets; what was not yet sent is dropped. Any number of times."""
        readers, self._readers = self._readers, []
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        for socket in self._sockets.values():
            socket.close(0)

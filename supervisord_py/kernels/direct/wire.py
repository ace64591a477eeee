"""The sockets to one kernel. The only module here that imports zmq and jupyter_client: import it on a thread.

Law: a reader never waits for whoever listens, so the kernel is never held up; and it lets the loop run after every few
messages, however many wait, so that a flood of one kernel does not starve the rest of the daemon. Messages whose
signature does not fit are dropped.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import TYPE_CHECKING, Any

import structlog
import zmq
import zmq.asyncio
from jupyter_client.session import DELIM, Session

from supervisord_py.kernels.direct import message
from supervisord_py.kernels.direct.line import NotSentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisord_py.kernels.direct.message import Message
    from supervisord_py.kernels.direct.place import Connection

    Hear = Callable[[str, Message], None]

RECONNECT_MS = 5
MESSAGES_A_TURN = 32
_log = structlog.get_logger(__name__)
_kinds = {"shell": zmq.DEALER, "control": zmq.DEALER, "stdin": zmq.DEALER, "iopub": zmq.SUB}


def session_for(connection: Connection, name: str) -> Session:
    """Return who signs and reads the messages of one client, called `name`."""
    return Session(key=connection.key.encode(), signature_scheme=connection.scheme, session=name, username="pxd")


def connect(connection: Connection, channel: str, identity: bytes, *, backlog: int = 0) -> zmq.asyncio.Socket:
    """Return a socket to one channel of a kernel; it connects by itself as soon as the kernel is there.

    Args:
        connection: To whom.
        channel: shell, control, stdin or iopub.
        identity: By which the kernel knows who asks; equal ones take over from each other (ROUTER_HANDOVER).
        backlog: Messages that may wait to be read; 0 is no bound, so that nothing is ever dropped here.
    """
    socket = zmq.asyncio.Context.instance().socket(_kinds[channel])
    socket.linger = 0
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RCVHWM, backlog)
    if channel == "iopub":
        socket.setsockopt(zmq.SUBSCRIBE, b"")
    else:
        socket.setsockopt(zmq.IDENTITY, identity)
    socket.connect(connection.endpoint(channel))
    return socket


def unsign(session: Session, frames: list[bytes]) -> list[bytes] | None:
    """Return the parts behind a signature that fits, else None."""
    try:
        at = frames.index(DELIM)
        signature, parts = frames[at + 1], frames[at + 2 :]
    except (ValueError, IndexError):
        return None
    if not hmac.compare_digest(signature, session.sign(parts[: message.BUFFERS])):
        return None
    return parts


class Wire:
    """Shell, control and iopub of one kernel.

    Args:
        connection: To whom.
        name: Session of our messages and identity of our sockets; the same after a restart of the control plane, so
            that replies under way find the new one.
        hear: Told of every message, with its channel; must not block.
        trace: Log types and sizes of all messages.
    """

    def __init__(self, connection: Connection, name: str, hear: Hear, *, trace: bool = False) -> None:
        self._session = session_for(connection, name)
        self._hear = hear
        self._trace = trace
        channels = ("iopub", "shell", "control")
        self._sockets = {channel: connect(connection, channel, name.encode()) for channel in channels}
        self._readers = [asyncio.create_task(self._read(channel)) for channel in channels]

    def send(
        self,
        channel: str,
        kind: str,
        content: Mapping[str, Any],
        *,
        msg_id: str,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Send a request of ours.

        Raises:
            NotSentError: The queue to the kernel is full, or this is closed.
        """
        if not self._readers:
            raise NotSentError(f"{kind} was not sent: the connection to the kernel is closed")
        header = {**self._session.msg_header(kind), "msg_id": msg_id}
        made = self._session.msg(kind, content=dict(content), header=header, metadata=dict(metadata or {}))
        frames = self._session.serialize(made)
        if self._trace:
            _log.info("kernel_message", way="sent", channel=channel, type=kind, bytes=sum(map(len, frames)))
        try:
            # By the asyncio socket: it looks again for what came in meanwhile, which a bare send could hide (ZMQ_FD).
            sent: Any = self._sockets[channel].send_multipart(frames, zmq.DONTWAIT)
            sent.result()  # done: with DONTWAIT it is sent or refused at once
        except zmq.Again as error:
            raise NotSentError(
                f"{kind} was not sent: the kernel reads nothing, and its queue is full",
                hint="interrupt or restart it: `pxctl kernel interrupt`, `pxctl kernel restart`",
            ) from error

    async def close(self) -> None:
        """Close the sockets; what was not yet sent is dropped. Any number of times."""
        readers, self._readers = self._readers, []
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        for socket in self._sockets.values():
            socket.close(0)

    async def _read(self, channel: str) -> None:
        socket, count = self._sockets[channel], 0
        while True:
            # A message that is there already is given without a pause of the loop.
            frames = await socket.recv_multipart()
            self._take(channel, frames)
            count += 1
            if count % MESSAGES_A_TURN == 0:
                await asyncio.sleep(0)

    def _take(self, channel: str, frames: list[bytes]) -> None:
        parts = unsign(self._session, frames)
        heard = message.read(parts) if parts is not None else None
        if heard is None:
            _log.warning("kernel_message_dropped", channel=channel, bytes=sum(map(len, frames)))
            return
        if self._trace:
            _log.info("kernel_message", way="got", channel=channel, type=heard.type, bytes=heard.size)
        try:
            self._hear(channel, heard)
        except Exception:
            _log.exception("kernel_message_not_taken", channel=channel, type=heard.type)

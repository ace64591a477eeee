"""The sockets of one kernel, and the requests under way on them. Imports zmq and jupyter_client: import it on a thread.

Not jupyter_client's own client: that sends through a bare socket, which blocks the loop when a kernel reads nothing and
hides what came in meanwhile, parses every content, and fails on undecodable bytes. Here a reader never waits for
whoever listens, so the kernel is never held up; and it lets the loop run after every few messages, so that a flood of
one kernel does not starve the rest of the daemon. What comes is given to the request that it belongs to by its parent's
id; a request is over when its reply and its `idle` were seen, in either order: they come on different sockets.
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog
import zmq
import zmq.asyncio
from jupyter_client.session import DELIM, Session

from supervisord_py.errors import ConflictError, InterruptedRunError
from supervisord_py.kernels.websocket_frames import ForeignRequests, cell_mark, execute_content

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from supervisord_py.kernels.backend import ExecuteRequest
    from supervisord_py.kernels.connection_file import Connection

HEADER, PARENT, METADATA, CONTENT, BUFFERS = range(5)
"""Places in the parts of a message behind delimiter and signature (Jupyter messaging, the wire protocol)."""
RECONNECT_MS = 5
MESSAGES_A_TURN = 32
AGAIN_SECONDS = 0.05
UNANSWERED_SECONDS = 1.0
"""An unanswered request waits in the queue of the socket: another one is only for a kernel that bound twice."""
_KINDS = {"shell": zmq.DEALER, "control": zmq.DEALER, "stdin": zmq.DEALER, "iopub": zmq.SUB}
_log = structlog.get_logger(__name__)


class NotSentError(ConflictError):
    """A request was not sent: the kernel has not read what was sent before, or the connection is closed."""


class Message:
    """A message as it came: `parts` are bytes; the headers are read at once, the content where somebody wants it."""

    __slots__ = ("parent_id", "parent_session", "parts", "type")

    def __init__(self, kind: str, parent: Mapping[str, Any], parts: list[bytes]) -> None:
        self.type = kind
        self.parent_id = str(parent.get("msg_id") or "")
        self.parent_session = str(parent.get("session") or "")
        self.parts = parts

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(len(part) for part in self.parts)

    def content(self) -> dict[str, Any]:
        """Return the content; {} where it is no JSON object."""
        return load(self.parts[CONTENT])

    def is_status(self, state: str) -> bool:
        """Say whether it tells of this execution state."""
        return self.type == "status" and self.content().get("execution_state") == state


def load(text: bytes) -> dict[str, Any]:
    """Return a JSON object; {} for everything else.

    Kernels write what is left of an undecodable file name as its byte: no UTF-8, and no reason to lose a reply.
    """
    try:
        found = json.loads(text.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read(session: Session, frames: list[bytes]) -> Message | None:
    """Return the message in some frames; None where the signature does not fit, or it is none."""
    try:
        at = frames.index(DELIM)
        signature, parts = frames[at + 1], frames[at + 2 :]
    except (ValueError, IndexError):
        return None
    if len(parts) < BUFFERS or not hmac.compare_digest(signature, session.sign(parts[:BUFFERS])):
        return None
    kind = load(parts[HEADER]).get("msg_type")
    return Message(kind, load(parts[PARENT]), parts) if isinstance(kind, str) else None


def session_for(connection: Connection, name: str) -> Session:
    """Return who signs and reads the messages of one client, called `name`."""
    return Session(key=connection.key.encode(), session=name, username="pxd")


def connect(connection: Connection, channel: str, identity: bytes) -> zmq.asyncio.Socket:
    """Return a socket to shell, control, stdin or iopub; it connects by itself as soon as the kernel is there.

    By its identity a kernel knows who asks; equal ones take over from each other (ROUTER_HANDOVER).
    """
    socket = zmq.asyncio.Context.instance().socket(_KINDS[channel])
    socket.linger = 0
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    socket.setsockopt(zmq.RCVHWM, 0)  # nothing is ever dropped here
    if channel == "iopub":
        socket.setsockopt(zmq.SUBSCRIBE, b"")
    else:
        socket.setsockopt(zmq.IDENTITY, identity)
    socket.connect(connection.endpoint(channel))
    return socket


async def receive(socket: zmq.asyncio.Socket, take: Callable[[list[bytes]], None]) -> None:
    """Give frames away as they come, for ever; a message that is there already is given without a pause of the loop."""
    for count in itertools.count(1):
        take(await socket.recv_multipart())
        if count % MESSAGES_A_TURN == 0:
            await asyncio.sleep(0)


def send_now(socket: zmq.asyncio.Socket, frames: list[bytes]) -> None:
    """Send, or raise `zmq.Again` at once where the queue is full.

    By the asyncio socket: it looks again for what came in meanwhile, which a bare send could hide (ZMQ_FD).
    """
    sent: Any = socket.send_multipart(frames, zmq.DONTWAIT)
    sent.result()  # done: with DONTWAIT it is sent or refused at once


class Request:
    """A request of ours under way; `on_output` is told of each iopub message of it, and must not block."""

    def __init__(self, msg_id: str, channel: str, on_output: Callable[[Message], None] | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.id = msg_id
        self.channel = channel
        self.reply: asyncio.Future[dict[str, Any]] = loop.create_future()  # its content
        self.idle: asyncio.Future[None] = loop.create_future()  # all output was sent, or nobody can say so any more
        self.on_output = on_output
        self.heard = 0  # messages of its output that came so far

    @property
    def is_complete(self) -> bool:
        """All output of it was heard."""
        return self.idle.done() and self.idle.exception() is None

    def give_up(self) -> None:
        """Nothing will be heard any more: whoever waits for it gets InterruptedRunError."""
        for future in (self.reply, self.idle):
            if not future.done():
                future.set_exception(InterruptedRunError("The daemon has let go of the kernel."))
                future.exception()  # so that one for which nobody waits is not reported as forgotten


class KernelClient:
    """Shell, control and iopub of one kernel; `close` it.

    Session and identity follow from `instance`, the same after a restart of the control plane, so that replies under
    way find the new one, and cells of an earlier one are known as ours. `late` is told of messages whose request, one
    of ours, is over; `seen` is what was heard while it was waited for, as a clause.
    """

    def __init__(self, connection: Connection, instance: str, *, trace: bool = False) -> None:
        self.connection = connection
        self.late: Callable[[Message], None] | None = None
        self.foreign = ForeignRequests()
        self.seen = "it does not answer"
        self._name = f"px-{instance}"
        self._session = session_for(connection, self._name)
        self._trace = trace
        self._numbers = itertools.count(1)
        self._under_way: dict[str, Request] = {}
        self._welcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        channels = ("iopub", "shell", "control")
        self._sockets = {channel: connect(connection, channel, self._name.encode()) for channel in channels}
        self._readers = [
            asyncio.create_task(receive(socket, partial(self._take, channel)))
            for channel, socket in self._sockets.items()
        ]

    # -- what is sent ------------------------------------------------------------------------------------------------

    def expect(
        self, msg_id: str, on_output: Callable[[Message], None] | None = None, channel: str = "shell"
    ) -> Request:
        request = self._under_way[msg_id] = Request(msg_id, channel, on_output)
        return request

    def forget(self, request: Request) -> None:
        """Expect nothing more of a request."""
        self._under_way.pop(request.id, None)

    def ask(self, channel: str, kind: str, content: Mapping[str, Any] | None = None) -> Request:
        """Send a request that is no cell; where it cannot be sent, its reply just never comes."""
        request = self.expect(f"{self._name}-{time.time_ns():x}-{next(self._numbers)}", channel=channel)
        try:
            self.send(channel, kind, content or {}, msg_id=request.id)
        except NotSentError:
            self.forget(request)
        return request

    def send_cell(self, request: ExecuteRequest, *, recorded_there: bool) -> None:
        """Send a cell; `recorded_there` tells the kernel to write its files. Raises NotSentError."""
        content = execute_content(request.code, store_history=request.store_history)
        metadata = cell_mark(request) if recorded_there else {}
        self.send("shell", "execute_request", content, msg_id=request.cell_id, metadata=metadata)

    def send(
        self,
        channel: str,
        kind: str,
        content: Mapping[str, Any],
        *,
        msg_id: str,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Send a message; NotSentError: the queue to the kernel is full, or this is closed."""
        if not self._readers:
            raise NotSentError(f"{kind} was not sent: the connection to the kernel is closed")
        header = {**self._session.msg_header(kind), "msg_id": msg_id}
        made = self._session.msg(kind, content=dict(content), header=header, metadata=dict(metadata or {}))
        frames = self._session.serialize(made)
        self._note("sent", channel, kind, frames)
        try:
            send_now(self._sockets[channel], frames)
        except zmq.Again as error:
            raise NotSentError(
                f"{kind} was not sent: the kernel reads nothing, and its queue is full",
                hint="interrupt or restart it: `pxctl kernel interrupt`, `pxctl kernel restart`",
            ) from error

    async def wait_ready(self) -> None:
        """Return when it answered on shell, and its iopub was heard.

        A kernel_info_request is queued before the kernel binds and goes out the moment it does. iopub counts as heard
        by a welcome (ipykernel 7) or by the `idle` of such a request; a subscription may arrive after that idle was
        sent, so the request is sent again until one comes through.
        """
        asked: list[Request] = []
        try:
            while True:
                answered = any(each.reply.done() for each in asked)
                if answered and (self._welcome.done() or any(each.idle.done() for each in asked)):
                    return
                asked.append(self.ask("shell", "kernel_info_request"))
                missing: set[asyncio.Future[Any]] = {each.reply for each in asked}
                if answered:
                    self.seen = "it answers, but its output channel was not heard"
                    missing = {self._welcome, *(each.idle for each in asked)}
                patience = AGAIN_SECONDS if answered else UNANSWERED_SECONDS
                await asyncio.wait(missing, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in asked:
                self.forget(each)

    async def close(self, *, give_up: bool = True) -> None:
        """Close the sockets; what was not yet sent is dropped, and whoever still waits is told, with `give_up`."""
        if give_up:
            for request in self._under_way.values():
                request.give_up()
            self._under_way.clear()
        readers, self._readers = self._readers, []
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        for socket in self._sockets.values():
            socket.close(0)

    # -- what comes --------------------------------------------------------------------------------------------------

    def _take(self, channel: str, frames: list[bytes]) -> None:
        message = read(self._session, frames)
        if message is None:
            _log.warning("kernel_message_dropped", channel=channel, bytes=sum(map(len, frames)))
            return
        self._note("got", channel, message.type, frames)
        try:
            self.hear(channel, message)
        except Exception:
            _log.exception("kernel_message_not_taken", channel=channel, type=message.type)

    def hear(self, channel: str, message: Message) -> None:
        """Give a message to whom it concerns."""
        request = self._under_way.get(message.parent_id)
        if channel != "iopub":
            if request is not None and channel == request.channel and not request.reply.done():
                request.reply.set_result(message.content())
        elif request is not None:
            request.heard += 1
            if request.on_output is not None:
                request.on_output(message)
            if message.is_status("idle"):
                if not request.idle.done():
                    request.idle.set_result(None)
                if request.channel == "shell":
                    self.foreign.settle()
        elif message.type == "iopub_welcome":
            if not self._welcome.done():
                self._welcome.set_result(None)
        elif message.parent_session != self._name:
            if message.type == "status" and message.parent_id:
                self.foreign.note(str(message.content().get("execution_state")), message.parent_id, time.time())
        elif self.late is not None:
            self.late(message)
        if request is not None and request.reply.done() and request.idle.done():
            self.forget(request)

    def _note(self, way: str, channel: str, kind: str, frames: list[bytes]) -> None:
        if self._trace:
            _log.info("kernel_message", way=way, channel=channel, type=kind, bytes=sum(map(len, frames)))

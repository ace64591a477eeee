"""The channels of one kernel for one Jupyter front end: its own sockets. Imports zmq: import it lazily.

The sockets are always read, so a slow front end never holds the kernel up; what waits for it is bounded by its
`Mailbox`. Messages are signed on their way in and checked on their way out. A subscription takes effect some time after
the connect, so the channels are given out when something was heard: no `idle` of a first request is missed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import zmq
from msgspec import Struct

from supervisord_py.errors import InvalidInputError, OverloadedError
from supervisord_py.kernels import connection_file as connection_files
from supervisord_py.kernels import kernel_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from supervisord_py.kernels.connection_file import Connection
    from supervisord_py.kernels.kernel_client import Message

    Delivery = tuple[str, dict[str, Any], list[bytes]]

LIMIT_BYTES = 8 * 1024 * 1024
HEARD_SECONDS = 2.0  # how long to wait for a first sign on iopub; a kernel that cannot speak at the moment gives none
AGAIN_SECONDS = 0.05
CHANNELS = ("shell", "control", "stdin", "iopub")
_PARTS = ("header", "parent_header", "metadata", "content")
OVERRUN = 8
OUTPUT = frozenset(("stream", "display_data", "update_display_data", "execute_result"))


class Pending(Struct):
    """A message that waits, and its channel; or the gap that it begins, of so many `dropped_bytes` of output."""

    channel: str
    message: Message
    dropped_bytes: int = 0


class Mailbox:
    """What waits for one front end, `waiting_bytes` of it.

    Beyond `limit_bytes` output (streams, displays, results) is left out, and a gap that counts it stands in its place;
    what a front end cannot do without (replies, status, errors, comms, input requests) never is. When even that is more
    than `OVERRUN` times the limit, the front end counts as gone.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.waiting_bytes = 0
        self._limit = limit_bytes
        self._waiting: deque[Pending] = deque()

    @property
    def overrun(self) -> bool:
        """True when more waits than any front end that lives would leave."""
        return self.waiting_bytes > OVERRUN * self._limit

    def put(self, channel: str, message: Message) -> None:
        """Take a message, or count it into a gap."""
        is_output = channel == "iopub" and message.type in OUTPUT
        if not is_output or self.waiting_bytes + message.size <= self._limit:
            self._waiting.append(Pending(channel, message))
            self.waiting_bytes += message.size
            return
        last = self._waiting[-1] if self._waiting else None
        if last is not None and last.dropped_bytes and last.message.parent_id == message.parent_id:
            last.dropped_bytes += message.size
        else:
            self._waiting.append(Pending(channel, message, message.size))

    def take(self) -> Pending | None:
        """Return what comes next, None when nothing waits."""
        found = self._waiting.popleft() if self._waiting else None
        if found is not None and not found.dropped_bytes:
            self.waiting_bytes -= found.message.size
        return found


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
    """One front end's connection to a kernel; `close` it.

    Iterate over it for what comes: `(channel, message, buffers)`, the message with `header`, `parent_header`,
    `metadata`, `content`, `msg_id`, `msg_type`, JSON values only. The iteration ends with `close`, not with the kernel.
    """

    def __init__(self, connection: Connection, limit_bytes: int) -> None:
        name = uuid.uuid4().hex
        self._session = kernel_client.session_for(connection, name)
        self._mailbox = Mailbox(limit_bytes)
        self._news = asyncio.Event()
        self._heard = asyncio.Event()
        self._probe = f"px-{name}"
        self._closed = False
        self._sockets = {channel: kernel_client.connect(connection, channel, name.encode()) for channel in CHANNELS}
        self._readers = [
            asyncio.create_task(kernel_client.receive(socket, partial(self._take, channel)))
            for channel, socket in self._sockets.items()
        ]

    async def hear_something(self) -> None:
        """Ask on shell once and on control again and again, until iopub speaks; its answers reach nobody else."""
        channel = "shell"
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARD_SECONDS):
                while not self._heard.is_set():
                    header = {**self._session.msg_header("kernel_info_request"), "msg_id": self._probe}
                    empty: dict[str, Any] = {"parent_header": {}, "metadata": {}, "content": {}}
                    await self.send(channel, {"header": header, **empty})
                    channel = "control"
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._heard.wait(), AGAIN_SECONDS)

    async def send(self, channel: str, msg: Mapping[str, Any], buffers: Sequence[bytes] = ()) -> None:
        """Sign and send a front end's message on shell, control or stdin. Raises InvalidInputError, OverloadedError."""
        if channel not in CHANNELS or channel == "iopub":
            raise InvalidInputError(f"a message cannot be sent on channel {channel!r}", hint="shell, control or stdin")
        if wrong := [name for name in _PARTS if not isinstance(msg.get(name), dict)]:
            raise InvalidInputError(f"a message needs {', '.join(_PARTS)} as objects; wrong: {', '.join(wrong)}")
        frames = [*self._session.serialize(dict(msg)), *buffers]
        if self._closed:
            return
        try:
            kernel_client.send_now(self._sockets[channel], frames)
        except zmq.Again as error:
            raise OverloadedError("the kernel reads nothing, and its queue is full", hint="interrupt it") from error

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        """Yield what comes, in order a channel. Raises OverloadedError: the front end must be gone; close it."""
        while not self._closed:
            if self._mailbox.overrun:
                raise OverloadedError(
                    f"{self._mailbox.waiting_bytes} bytes wait for a front end that does not read", hint="connect again"
                )
            found = self._mailbox.take()
            if found is None:
                self._news.clear()
                await self._news.wait()
            elif found.dropped_bytes:
                yield self._tell_gap(found)
            else:
                yield found.channel, _document(found.message.parts), found.message.parts[kernel_client.BUFFERS :]

    async def close(self) -> None:
        """Close the sockets and end the iteration. Any number of times."""
        self._closed = True
        self._news.set()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for socket in self._sockets.values():
            socket.close(0)

    def _take(self, channel: str, frames: list[bytes]) -> None:
        heard = kernel_client.read(self._session, frames)
        if heard is None:
            return
        if channel == "iopub":
            self._heard.set()
        if heard.parent_id != self._probe:
            self._mailbox.put(channel, heard)
            self._news.set()

    def _tell_gap(self, gap: Pending) -> Delivery:
        """Return the stream message that stands for what was left out."""
        header = self._session.msg_header("stream")
        header["date"] = header["date"].isoformat()
        text = f"\n[px: {gap.dropped_bytes} bytes of output were left out here: this client reads too slowly]\n"
        parent = kernel_client.load(gap.message.parts[kernel_client.PARENT])
        told = {"header": header, "parent_header": parent, "metadata": {}, "content": {"name": "stderr", "text": text}}
        return "iopub", {**told, "msg_id": header["msg_id"], "msg_type": "stream"}, []


def _document(parts: list[bytes]) -> dict[str, Any]:
    told = {name: kernel_client.load(part) for name, part in zip(_PARTS, parts, strict=False)}
    return {**told, "msg_id": told["header"].get("msg_id"), "msg_type": told["header"].get("msg_type")}

"""A kernel's websocket that comes back: frames in, frames out, and the truth about every break.

Law: messages are handed on one by one, in order, and the next one is read when the last was dealt with, so that a fast
server waits for us and not our memory for it. After a break the socket is opened again, with backoff, while the server
still has the kernel; whether anything was lost in between cannot be seen from here, so each break is told.
TCP_QUICKACK is set before each read: servers without TCP_NODELAY hold their next frame back until the last one is
acknowledged, which costs 40 ms a message otherwise (tcp(7): the flag is not permanent).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, Protocol

import aiohttp
import structlog

from supervisord_py.errors import ConfigError, PxError, UnknownUnitError
from supervisord_py.kernels.backend import KernelGoneError
from supervisord_py.kernels.gateway import wire

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from supervisord_py.kernels.gateway.client import GatewayClient

FIRST_WAIT_SECONDS = 0.1
LONGEST_WAIT_SECONDS = 5.0
GIVE_UP_SECONDS = 60.0
"""How long a server may be away before its kernel counts as gone."""
CONNECT_SECONDS = 10.0
_LARGE = 1024 * 1024
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)
_UNSENT = "Cannot write to closing transport"
"""What aiohttp says before it writes; anything else may come after."""
_log = structlog.get_logger(__name__)


class Listener(Protocol):
    """Who hears what comes."""

    @property
    def breaks(self) -> int:
        """How often `broke` was called."""

    def deaf(self) -> AbstractContextManager[None]:
        """While this lasts nothing is read."""

    async def heard(self, message: wire.Message) -> None:
        """Deal with a message; the next one is read afterwards."""

    def broke(self) -> None:
        """The connection broke; it is being opened again."""

    async def back(self) -> None:
        """It is open again."""

    def gone(self, why: str) -> None:
        """It will not come back: the kernel is lost. Said once, and last."""


class KernelSocket:
    """The channels of one kernel at one server."""

    def __init__(self, client: GatewayClient, kernel: str, session: str, listener: Listener, *, trace: bool) -> None:
        self._client = client
        self._kernel = kernel
        self._session = session
        self._listener = listener
        self._trace = trace
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._open = asyncio.Event()
        self._gone: str | None = None
        self._reader: asyncio.Task[None] | None = None

    async def open(self, seconds: float) -> None:
        """Connect for the first time.

        Raises:
            PxError: The server refuses, does not answer, or has no such kernel.
        """
        self._take(await self._client.connect(self._kernel, self._session, seconds))
        self._reader = asyncio.create_task(self._read(), name=f"websocket of kernel {self._kernel}")

    async def send(self, message: wire.Message) -> int:
        """Send a message once; during a break as soon as the connection is there again.

        Returns how many breaks there had been when it was sent.

        Raises:
            KernelGoneError: It will not come back.
        """
        while True:
            connection = await self._connected()
            breaks = self._listener.breaks
            if await self._try_to_send(connection, message):
                self._note("out", message)
                return breaks

    async def _try_to_send(self, connection: aiohttp.ClientWebSocketResponse, message: wire.Message) -> bool:
        """Send a message; False when nothing of it can have left."""
        try:
            if connection.protocol == wire.V1:
                await connection.send_bytes(wire.pack_v1(message))
            else:
                await self._send_json(connection, wire.pack_json(message))
        except (aiohttp.ClientError, OSError) as error:
            if self._socket is connection and self._gone is None:
                self._open.clear()  # the reader is about to see the break
            if _UNSENT in str(error):
                return False
            # It may have arrived. A cell is never sent twice: whoever waits for it sees the break and asks the server.
            _log.info("gateway_send_broke", kernel=self._kernel, type=message.type)
        return True

    async def _connected(self) -> aiohttp.ClientWebSocketResponse:
        while True:
            await self._open.wait()
            if self._gone is not None:
                raise KernelGoneError(self._gone)
            if self._socket is not None and not self._socket.closed:
                return self._socket
            self._open.clear()  # the reader is about to see the break

    def give_up(self, why: str) -> None:
        """The kernel is lost: whoever waits to send something hears of it."""
        self._gone = self._gone or why
        self._open.set()

    async def close(self) -> None:
        """Let go of the connection; the kernel goes on living."""
        self._gone = self._gone or "the connection to the kernel's server was closed"
        self._open.set()
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._reader.cancel()
            await asyncio.wait([self._reader])
        await self._drop()

    # -- reading -----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        while True:
            await self._read_until_it_breaks()
            with self._listener.deaf():
                await self._drop()
                self._listener.broke()
                why = await self._connect_again()
            if why is not None:
                self._gone = why
                self._open.set()
                self._listener.gone(why)
                return
            await self._listener.back()

    async def _read_until_it_breaks(self) -> None:
        connection = self._socket
        if connection is None:
            return
        while True:
            self._acknowledge_at_once(connection)
            try:
                frame = await connection.receive()
            except (aiohttp.ClientError, OSError):
                return
            if frame.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                with self._listener.deaf():
                    await self._hand_on(connection, frame.data)
            elif frame.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR):
                return

    async def _hand_on(self, connection: aiohttp.ClientWebSocketResponse, frame: str | bytes) -> None:
        is_v1 = connection.protocol == wire.V1
        try:
            # A message of megabytes takes the parser long enough to be felt by everybody else on the loop.
            large = len(frame) > _LARGE
            message = await asyncio.to_thread(_unpack, frame, is_v1) if large else _unpack(frame, is_v1)
        except ValueError as error:
            _log.warning("gateway_frame_unreadable", kernel=self._kernel, bytes=len(frame), error=str(error))
            return
        self._note("in", message, len(frame))
        await self._listener.heard(message)

    def _acknowledge_at_once(self, connection: aiohttp.ClientWebSocketResponse) -> None:
        raw = connection.get_extra_info("socket")
        if _QUICKACK is not None and raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)

    # -- breaks ------------------------------------------------------------------------------------------------------

    async def _connect_again(self) -> str | None:
        """Open the socket again; return why that is in vain."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + GIVE_UP_SECONDS
        wait = FIRST_WAIT_SECONDS
        while True:
            try:
                if await self._client.model(self._kernel) is None:
                    return "its server does not know it any more"
                self._take(await self._client.connect(self._kernel, self._session, CONNECT_SECONDS))
            except UnknownUnitError:
                return "its server does not know it any more"
            except ConfigError as error:
                return error.detail
            except PxError as error:
                if loop.time() + wait > give_up_at:
                    return error.detail
            else:
                return None
            await asyncio.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT_SECONDS)

    def _take(self, connection: aiohttp.ClientWebSocketResponse) -> None:
        raw = connection.get_extra_info("socket")
        if raw is not None:
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._open.set()

    async def _drop(self) -> None:
        connection, self._socket = self._socket, None
        if self._gone is None:
            self._open.clear()
        if connection is not None:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                await connection.close()

    @staticmethod
    async def _send_json(connection: aiohttp.ClientWebSocketResponse, frame: str | bytes) -> None:
        if isinstance(frame, bytes):
            await connection.send_bytes(frame)
        else:
            await connection.send_str(frame)

    def _note(self, way: str, message: wire.Message, size: int | None = None) -> None:
        if self._trace:
            _log.info(
                "kernel_message", kernel=self._kernel, way=way, channel=message.channel, type=message.type, bytes=size
            )


def _unpack(frame: str | bytes, is_v1: bool) -> wire.Message:
    return wire.unpack_v1(frame) if is_v1 and isinstance(frame, bytes) else wire.unpack_json(frame)

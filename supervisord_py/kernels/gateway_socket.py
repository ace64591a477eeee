"""A kernel's websocket: frames in, frames out. A connection that breaks is opened again once, for the same session.

Messages are handed on one by one, in order, and the next one is read when the last was dealt with, so that a fast
server waits for us and not our memory for it. TCP_QUICKACK is set before each read: servers without TCP_NODELAY hold
their next frame back until the last one is acknowledged, which costs 40 ms a message otherwise (tcp(7): the flag is not
permanent).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import TYPE_CHECKING

import aiohttp
import structlog

from supervisord_py.errors import PxError
from supervisord_py.kernels.backend import KernelGoneError
from supervisord_py.kernels.gateway_client import UNKNOWN_THERE
from supervisord_py.kernels.websocket_frames import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from supervisord_py.kernels.gateway_client import GatewayClient
    from supervisord_py.kernels.websocket_frames import Message

CONNECT_SECONDS = 10.0
_LARGE = 1024 * 1024
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)
_log = structlog.get_logger(__name__)


class KernelSocket:
    """The channels of one kernel at one server.

    `hear` deals with a message, the next one is read afterwards; `on_back` is told when the connection is open again
    after a break, `on_gone`, once, why it will not come back. `breaks`: how often it broke.
    """

    def __init__(
        self,
        client: GatewayClient,
        kernel: str,
        session: str,
        *,
        hear: Callable[[Message], Awaitable[None]],
        on_back: Callable[[], Awaitable[None]],
        on_gone: Callable[[str], None],
        trace: bool,
    ) -> None:
        self.breaks = 0
        self._client, self._kernel, self._session = client, kernel, session
        self._hear, self._on_back, self._on_gone = hear, on_back, on_gone
        self._trace = trace
        self._waits_since: float | None = None
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._open = asyncio.Event()
        self._gone: str | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def silent_seconds(self) -> float:
        """For how long the server has said nothing while somebody listened."""
        return 0.0 if self._waits_since is None else time.monotonic() - self._waits_since

    async def open(self, seconds: float) -> None:
        """Connect for the first time; raises PxError: the server refuses, does not answer, has no such kernel."""
        self._socket = await self._client.connect(self._kernel, self._session, seconds)
        self._open.set()
        self._reader = asyncio.create_task(self._read(), name=f"websocket of kernel {self._kernel}")

    async def send(self, message: Message) -> int:
        """Send a message once; during a break as soon as the connection is there again.

        Returns how many breaks there had been when it was sent. Raises KernelGoneError: it will not come back.
        """
        await self._open.wait()
        if self._gone is not None or self._socket is None:
            raise KernelGoneError(self._gone or UNKNOWN_THERE)
        breaks, frame = self.breaks, pack(message, self._socket.protocol)
        try:
            await (self._socket.send_bytes(frame) if isinstance(frame, bytes) else self._socket.send_str(frame))
        except (aiohttp.ClientError, OSError):
            # It may have arrived, and a cell is never sent twice: whoever waits for it hears of the break.
            _log.info("gateway_send_broke", kernel=self._kernel, type=message.type)
        self._note("out", message)
        return breaks

    def give_up(self, why: str) -> None:
        """The kernel is lost: whoever waits to send something hears of it."""
        self._gone = self._gone or why
        self._open.set()

    async def close(self) -> None:
        """Let go of the connection; the kernel goes on living."""
        self.give_up("the connection to the kernel's server was closed")
        if self._reader is not None and self._reader is not asyncio.current_task():
            self._reader.cancel()
            await asyncio.wait([self._reader])
        await self._drop()

    async def _read(self) -> None:
        while True:
            await self._read_until_it_breaks()
            self._waits_since = None
            self.breaks += 1
            await self._drop()
            try:
                if await self._client.model(self._kernel) is None:
                    return self._on_gone(UNKNOWN_THERE)
                self._socket = await self._client.connect(self._kernel, self._session, CONNECT_SECONDS)
            except PxError as error:
                return self._on_gone(error.detail)
            self._open.set()
            await self._on_back()

    async def _read_until_it_breaks(self) -> None:
        connection = self._socket
        while connection is not None:
            raw = connection.get_extra_info("socket")
            if _QUICKACK is not None and raw is not None:
                with contextlib.suppress(OSError):
                    raw.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 1)
            self._waits_since = time.monotonic()
            try:
                frame = await connection.receive()
            except (aiohttp.ClientError, OSError):
                return
            self._waits_since = None
            if frame.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                await self._hand_on(frame.data, connection.protocol)
            elif frame.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR):
                return

    async def _hand_on(self, frame: str | bytes, protocol: str | None) -> None:
        try:
            # A message of megabytes takes the parser long enough to be felt by everybody else on the loop.
            large = len(frame) > _LARGE
            message = await asyncio.to_thread(unpack, frame, protocol) if large else unpack(frame, protocol)
        except ValueError as error:
            _log.warning("gateway_frame_unreadable", kernel=self._kernel, bytes=len(frame), error=str(error))
            return
        self._note("in", message, len(frame))
        await self._hear(message)

    async def _drop(self) -> None:
        connection, self._socket = self._socket, None
        if self._gone is None:
            self._open.clear()
        if connection is not None:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                await connection.close()

    def _note(self, way: str, message: Message, size: int | None = None) -> None:
        if self._trace:
            _log.info(
                "kernel_message", kernel=self._kernel, way=way, channel=message.channel, type=message.type, bytes=size
            )

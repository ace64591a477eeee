"""`…/channels`: a WebSocket between Jupyter's clients and the ZMQ channels of a session's kernel.

The socket belongs to the session, not to one life of its kernel. When the kernel goes, the client is told `restarting`
or `dead`; when it comes again, the same socket goes on with it, and what the client sent meanwhile waits. Nothing is
sent to a kernel before its output can be heard (`open_channels` sees to that). A client that does not read holds up
neither the kernel nor us: the channels bound what waits for it.
"""

from __future__ import annotations

import asyncio
import importlib
import secrets
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import WSCloseCode, WSMsgType, web

from supervisord_py.api.context import cancel_and_wait
from supervisord_py.api.jupyter_rest import session_by_uuid, with_message
from supervisord_py.api.streams import until_closing
from supervisord_py.errors import OverloadedError, PxError, UnknownUnitError
from supervisord_py.kernels.session import SessionState
from supervisord_py.kernels.websocket_frames import V1, Message, pack, request, unpack

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from supervisord_py.api.context import Call
    from supervisord_py.kernels.channels import Channels

_PARTS = ("header", "parent_header", "metadata", "content")
_TOUCH_SECONDS = 20.0
_OVER = frozenset({SessionState.STOPPED, SessionState.FAILED})
_log = structlog.get_logger(__name__)


@with_message
async def channels(call: Call) -> web.StreamResponse:
    """Join a kernel for as long as the client stays and the session lives."""
    view = session_by_uuid(call)
    socket = web.WebSocketResponse(
        protocols=(V1,),
        heartbeat=call.context.config.stream_heartbeat_seconds,
        max_msg_size=call.context.config.max_body_bytes,
        compress=False,
    )
    await socket.prepare(call.request)
    call.live.channels[view.id] += 1
    try:
        await _Bridge(call, socket, view.id).run()
    finally:
        call.live.channels[view.id] -= 1
    return socket


class _Bridge:
    """One client and the kernel of one session."""

    def __init__(self, call: Call, socket: web.WebSocketResponse, session_id: str) -> None:
        self._call = call
        self._kernels = call.context.kernels
        self._socket = socket
        self._session_id = session_id
        self._client = call.request.query.get("session_id") or secrets.token_hex(8)
        self._joined: asyncio.Future[Channels] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Carry messages both ways until the client goes, the session ends, or the daemon closes."""
        unit = f"kernel:{self._session_id}"
        with closing(self._call.context.events.subscribe(unit=unit)) as news:
            beat = self._call.context.config.stream_heartbeat_seconds
            self._news = until_closing(aiter(news), self._call.live.closing, beat)
            closed = self._call.live.closing.wait()
            works: tuple[Coroutine[Any, Any, Any], ...] = (self._upwards(), self._lives(), self._stay_used(), closed)
            tasks = [asyncio.create_task(work) for work in works]
            try:
                ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    task.result()
            finally:
                for task in tasks:
                    await cancel_and_wait(task)
                await self._news.aclose()
        code = WSCloseCode.GOING_AWAY if self._call.live.closing.is_set() else WSCloseCode.OK
        with suppress(ConnectionError):
            await self._socket.close(code=code)

    # -- from the client ------------------------------------------------------------------------------------------

    async def _upwards(self) -> None:
        """Send on what the client says."""
        async for item in self._socket:
            if item.type not in {WSMsgType.TEXT, WSMsgType.BINARY}:
                return
            try:
                message = _read(item.data, self._socket.ws_protocol)
                joined = await asyncio.shield(self._joined)
                parts = (message.header, message.parent, message.metadata, message.content)
                await joined.send(message.channel, dict(zip(_PARTS, parts, strict=True)), message.buffers)
            except (ValueError, PxError) as error:
                _log.warning("jupyter_message_refused", session=self._session_id, detail=str(error))
                continue
            self._touch()

    # -- from the kernel ------------------------------------------------------------------------------------------

    async def _lives(self) -> None:
        """Serve one life of the kernel after the other."""
        while True:
            handle = self._kernels.handle(self._session_id)
            if handle is not None and handle.connection_file is not None and not handle.died.done():
                try:
                    await self._one_life(handle.connection_file, handle.died)
                except (OSError, ValueError) as error:  # its connection file is gone with it: the client asks again
                    _log.info("jupyter_channels_lost", session=self._session_id, detail=str(error))
                    return
                if self._joined.done():  # else somebody waits on it, for the next life then
                    self._joined = asyncio.get_running_loop().create_future()
            if not await self._comes_again():
                return

    async def _one_life(self, connection_file: Path, died: asyncio.Future[Any]) -> None:
        module = await asyncio.to_thread(importlib.import_module, "supervisord_py.kernels.channels")
        joined: Channels = await module.open_channels(connection_file)
        self._joined.set_result(joined)
        downwards = asyncio.create_task(self._downwards(joined))
        try:
            await asyncio.wait({downwards, asyncio.shield(died)}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            downwards.cancel()
            await asyncio.shield(joined.close())
            (result,) = await asyncio.gather(downwards, return_exceptions=True)
        if isinstance(result, Exception):
            raise result

    async def _downwards(self, joined: Channels) -> None:
        """Send on what the kernel says; a client that cannot follow loses its socket, never the kernel."""
        try:
            async for channel, parts, buffers in joined:
                told = (parts["header"], parts["parent_header"], parts["metadata"], parts["content"])
                await self._send(Message(channel, *told, tuple(buffers)))
        except OverloadedError as error:
            _log.warning("jupyter_client_too_slow", session=self._session_id, detail=error.detail)
            await self._socket.close(code=WSCloseCode.TRY_AGAIN_LATER, message=b"too slow")

    async def _comes_again(self) -> bool:
        """Tell the client that the kernel is gone, and wait for its next life; False when there will be none."""
        is_told = False
        while not self._socket.closed:
            state, handle = self._state(), self._kernels.handle(self._session_id)
            if state is None or state in _OVER:
                await self._tell("dead")
                return False
            lives = handle is not None and not handle.died.done()
            if not is_told and (lives or state is SessionState.STARTING):
                await self._tell("restarting")
                is_told = True
            if lives:
                return True
            if await anext(self._news, None) is None:
                return False
        return False

    def _state(self) -> SessionState | None:
        with suppress(UnknownUnitError):
            return self._kernels.find(self._session_id).state
        return None

    async def _tell(self, state: str) -> None:
        content = {"execution_state": state}
        await self._send(request("status", content, secrets.token_hex(16), self._client, "iopub"))

    async def _send(self, message: Message) -> None:
        framed = pack(message, self._socket.ws_protocol)
        if isinstance(framed, str):
            await self._socket.send_str(framed)
        else:
            await self._socket.send_bytes(framed)

    # -- neither --------------------------------------------------------------------------------------------------

    async def _stay_used(self) -> None:
        """Count the open socket as use: nobody wants a kernel to go idle under an open notebook."""
        while True:
            self._touch()
            await asyncio.sleep(_TOUCH_SECONDS)

    def _touch(self) -> None:
        with suppress(UnknownUnitError):
            self._kernels.touch(self._session_id)


def _read(frame: str | bytes, protocol: str | None) -> Message:
    """Return a client's message.

    Raises:
        ValueError: It is none.
    """
    message = unpack(frame, protocol, channel="shell")
    if not message.type:
        raise ValueError("this is no Jupyter message: it has no msg_type")
    return message

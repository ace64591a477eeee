"""Jupyter's REST API and WebSockets over our kernels, so that JupyterLab with `--gateway-url`
joins.

Only kernels with ZMQ channels are shown: others cannot be joined. One that is made here has a
session of its own.

`…/channels` belongs to the session, not to one life of its kernel: when the kernel goes, the client
is told `restarting` or `dead`; when it comes again, the same socket goes on with it, and what the
client sent meanwhile waits. A client that does not read holds up neither the kernel nor us: the
channels bound what waits for it. One whose socket is lost, and that comes back by the same
`session_id`, gets what it missed (`jupyter_seats.py`).
"""

from __future__ import annotations

import asyncio
import importlib
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import WSCloseCode, WSMsgType, web

from supervisord_py import __version__
from supervisord_py.api.context import ApiCall
from supervisord_py.api.jupyter_seats import OpenSocket, Seat, SeatKey
from supervisord_py.api.schemas import JupyterKernel
from supervisord_py.api.streams import first_of, rfc3339, until_closing
from supervisord_py.api.units import stop_kernel
from supervisord_py.errors import OverloadedError, PxError, UnknownUnitError
from supervisord_py.kernels.live_session import SessionView
from supervisord_py.kernels.session import BackendName, Owner, SessionState, StartRequest
from supervisord_py.kernels.wire import V1, Message, make, pack, unpack

if TYPE_CHECKING:
    # zmq, which only who opens channels pays for
    from supervisord_py.kernels.channels import Channels

DEFAULT_SPEC = "python3"
_SPEC_MEMBERS = ("argv", "display_name", "language", "env", "interrupt_mode", "metadata")
_LIVING = {
    SessionState.PREPARING: "starting",
    SessionState.STARTING: "starting",
    SessionState.IDLE: "idle",
    SessionState.BUSY: "busy",
    SessionState.UNRESPONSIVE: "busy",
}
"""What Jupyter calls the states of those that can be joined."""
_OVER = frozenset({SessionState.STOPPED, SessionState.FAILED})
_TOUCH_SECONDS = 20.0
_log = structlog.get_logger(__name__)


def joinable(call: ApiCall) -> list[SessionView]:
    sessions = call.context.kernels.snapshot()
    return [
        view for view in sessions if view.state in _LIVING and view.backend is BackendName.DIRECT
    ]


def session_by_uuid(call: ApiCall) -> SessionView:
    wanted = call.request.match_info["uuid"]
    if found := [view for view in joinable(call) if view.key.jupyter_id == wanted]:
        return found[0]
    raise UnknownUnitError(
        f"Kernel does not exist: {wanted[:80]}", hint="GET /api/kernels lists those that live"
    )


def model(call: ApiCall, view: SessionView) -> dict[str, Any]:
    handle = call.context.kernels.handle(view.id)
    state = _LIVING.get(view.state, "dead")
    if state == "idle" and handle is not None and handle.foreign_busy:
        state = "busy"
    return {
        "id": view.key.jupyter_id,
        "name": view.kernelspec or DEFAULT_SPEC,
        "last_activity": rfc3339(view.last_used or view.started_at or time.time()),
        "execution_state": state,
        "connections": call.live.channels[view.id],
    }


async def version(call: ApiCall) -> dict[str, Any]:
    """Answer with who serves this API."""
    return {"version": __version__, "server": "pxd"}


async def list_specs(call: ApiCall) -> dict[str, Any]:
    """Answer with the kernelspecs."""
    documents = {
        name: spec_document(name, spec)
        for name, spec in (await call.context.kernels.specs()).items()
    }
    default = DEFAULT_SPEC if DEFAULT_SPEC in documents else next(iter(documents), None)
    return {"default": default, "kernelspecs": documents}


async def show_spec(call: ApiCall) -> dict[str, Any]:
    """Answer with one kernelspec."""
    name, specs = call.request.match_info["name"], await call.context.kernels.specs()
    if name not in specs:
        raise UnknownUnitError(
            f"Kernel spec {name[:80]!r} not found", hint=f"known: {', '.join(sorted(specs))}"
        )
    return spec_document(name, specs[name])


def spec_document(name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return Jupyter's document of a kernelspec; pictures are not served."""
    wanted = {member: spec[member] for member in _SPEC_MEMBERS if member in spec}
    return {
        "name": name,
        "spec": {"argv": [], "env": {}, "metadata": {}, **wanted},
        "resources": {},
    }


async def list_kernels(call: ApiCall) -> list[Any]:
    """Answer with the kernels that can be joined, ours included."""
    return [model(call, view) for view in joinable(call)]


async def begin(call: ApiCall, body: JupyterKernel) -> dict[str, Any]:
    """Start a kernel in a session of its own."""
    # Front ends send folders of their own machine, or paths below a root that we do not know: a
    # hint, no order.
    env = body.env or {}
    wanted = [
        Path(path)
        for path in (env.get("KERNEL_WORKING_DIR"), body.path)
        if path and os.path.isabs(path)
    ]
    folders = [path if path.is_dir() else path.parent for path in wanted]
    request = StartRequest(
        name=f"jupyter-{secrets.token_hex(4)}",
        cwd=next((str(folder) for folder in folders if folder.is_dir()), None),
        kernelspec=body.name,
        backend=BackendName.DIRECT,
        owner=Owner.JUPYTER_API,
        env=env,
    )
    _, view = await call.context.kernels.start(request)
    return model(call, view)


async def show_kernel(call: ApiCall) -> dict[str, Any]:
    """Answer with one kernel."""
    return model(call, session_by_uuid(call))


async def end(call: ApiCall) -> web.StreamResponse:
    """End a kernel; 204 once nothing of it is left. What is left is named."""
    await stop_kernel(call.context, session_by_uuid(call))
    return web.Response(status=204)


async def interrupt(call: ApiCall) -> web.StreamResponse:
    """Interrupt what the kernel does, whoever asked for it."""
    view = session_by_uuid(call)
    handle = call.context.kernels.handle(view.id)
    if view.running is not None:
        await call.context.kernels.interrupt(view.id)
    elif handle is not None:
        await handle.interrupt()
    return web.Response(status=204)


async def restart(call: ApiCall) -> dict[str, Any]:
    """Replace the kernel; its WebSockets stay and are told."""
    session = session_by_uuid(call)
    call.mark_begun()  # the old kernel goes first
    return model(call, await call.context.kernels.restart(session.id))


async def channels(call: ApiCall) -> web.StreamResponse:
    """Join a kernel for as long as the client stays and the session lives."""
    view, config = session_by_uuid(call), call.context.config
    socket = web.WebSocketResponse(
        protocols=(V1,),
        heartbeat=config.stream_heartbeat_seconds,
        max_msg_size=config.max_body_bytes,
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
    def __init__(self, call: ApiCall, socket: web.WebSocketResponse, session_id: str) -> None:
        self._live = call.live
        self._kernels = call.context.kernels
        self._socket = socket
        self._session_id = session_id
        named = call.request.query.get("session_id")
        self._client = named or secrets.token_hex(8)
        # whoever has no name cannot come back
        self._key = SeatKey(session_id, self._client) if named else None
        self._joined: asyncio.Future[Channels] = asyncio.get_running_loop().create_future()
        self._news = until_closing(
            call.context.events.subscribe(unit=f"kernel:{session_id}"), call.live.closing
        )

    async def run(self) -> None:
        """Carry messages both ways until the client goes, the session ends, or the daemon
        closes.
        """
        if self._key is None:
            await self._carry(OpenSocket())
            return
        place = await self._live.seats.enter(self._key)
        try:
            await self._carry(place)
        finally:
            self._live.seats.leave(self._key, place)

    async def _carry(self, place: OpenSocket) -> None:
        async with aclosing(self._news):
            ends = (self._live.closing.wait(), place.must_leave.wait())
            await first_of(self._upwards(), self._lives(), self._stay_used(), *ends)
        with suppress(ConnectionError):
            await self._socket.close(
                code=WSCloseCode.GOING_AWAY if self._live.closing.is_set() else WSCloseCode.OK
            )

    async def _upwards(self) -> None:
        async for item in self._socket:
            if item.type not in {WSMsgType.TEXT, WSMsgType.BINARY}:
                return
            try:
                message = unpack(item.data, self._socket.ws_protocol, channel="shell")
                if not message.type:
                    raise ValueError("this is no Jupyter message: it has no msg_type")
                (await asyncio.shield(self._joined)).send(message)
            except (ValueError, RecursionError, PxError) as error:
                _log.warning("jupyter_message_refused", session=self._session_id, detail=str(error))

    async def _lives(self) -> None:
        """Serve one life of the kernel after the other; between them the client is told that it
        is gone.
        """
        is_told = not await self._give_last_words()
        while not self._socket.closed:
            handle, state = self._kernels.handle(self._session_id), None
            with suppress(UnknownUnitError):
                state = self._kernels.find(self._session_id).state
            if handle is not None and handle.died.done():
                handle = None
            if not is_told and (
                handle is not None or state in {SessionState.PREPARING, SessionState.STARTING}
            ):
                await self._tell("restarting")
                is_told = True
            if handle is not None and handle.connection_file is not None:
                try:
                    await self._one_life(handle.connection_file, handle.died)
                # its connection file is gone with it: the client asks again
                except (OSError, ValueError) as error:
                    _log.info("jupyter_channels_lost", session=self._session_id, detail=str(error))
                    return
                if self._joined.done():  # else somebody waits on it, for the next life then
                    self._joined = asyncio.get_running_loop().create_future()
                is_told = False
            elif state is None or state in _OVER:
                await self._tell("dead")
                return
            elif await anext(self._news, None) is None:
                return

    async def _one_life(self, connection_file: Path, died: asyncio.Future[Any]) -> None:
        seat = None if self._key is None else self._live.seats.take(self._key)
        if seat is not None and seat.died is not died:  # of an earlier life
            await asyncio.shield(seat.channels.close())
            seat = None
        if seat is None:
            module = await asyncio.to_thread(
                importlib.import_module, "supervisord_py.kernels.channels"
            )
            seat = Seat(await module.open_channels(connection_file), died)
        self._joined.set_result(seat.channels)
        is_over = False
        try:
            await first_of(self._downwards(seat.channels), asyncio.shield(died))
            is_over = True
        finally:
            # Where the kernel lives and the socket is lost, the client may come back.
            if self._key is None or is_over or self._live.closing.is_set() or died.done():
                await asyncio.shield(seat.channels.close())
            else:
                self._live.seats.keep(self._key, seat)

    async def _give_last_words(self) -> bool:
        """Send what a kernel said whose end the client has missed; say whether there was one."""
        seat = None if self._key is None else self._live.seats.take(self._key)
        if seat is None or self._key is None:
            return False
        if not seat.died.done():
            self._live.seats.keep(self._key, seat)
            return False
        for message in seat.channels.rest():
            await self._send(message)
        await asyncio.shield(seat.channels.close())
        return True

    async def _downwards(self, joined: Channels) -> None:
        """Send on what the kernel says; a client that cannot follow loses its socket, never the
        kernel.
        """
        try:
            async for message in joined:
                try:
                    await self._send(message)
                except BaseException:
                    joined.give_back(message)
                    raise
        except OverloadedError as error:
            _log.warning("jupyter_client_too_slow", session=self._session_id, detail=error.detail)
            await self._socket.close(code=WSCloseCode.TRY_AGAIN_LATER, message=b"too slow")

    async def _tell(self, state: str) -> None:
        await self._send(make("status", {"execution_state": state}, self._client, "iopub"))

    async def _send(self, message: Message) -> None:
        framed = pack(message, self._socket.ws_protocol)
        await (
            self._socket.send_str(framed)
            if isinstance(framed, str)
            else self._socket.send_bytes(framed)
        )

    async def _stay_used(self) -> None:
        """Count the open socket as use: nobody wants a kernel to go idle under an open notebook."""
        while True:
            with suppress(UnknownUnitError):
                self._kernels.touch(self._session_id)
            await asyncio.sleep(_TOUCH_SECONDS)

"""A server of kernels that does what a test tells it to: to be slow, to refuse, to break off, to answer nonsense."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import WSMsgType, web

from supervisord_py.kernels import websocket_frames as wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

SPECS = {"default": "python3", "kernelspecs": {"python3": {"name": "python3", "spec": {"language": "python"}}}}


@dataclass(slots=True)
class FakeServer:
    """What it does, and what it was asked."""

    answers: dict[str, tuple[int, str]] = field(default_factory=dict)  # `METHOD /path` to status and body, first of all
    asked: list[str] = field(default_factory=list)  # `METHOD /path` of each request
    headers: dict[str, str] = field(default_factory=dict)  # of the last one
    state: str | None = "idle"  # `execution_state` of its kernel; None: it has no such kernel
    v1: bool = False  # it knows the v1 subprotocol
    is_mute: bool = False  # it lets websockets wait for ever
    started: list[str] = field(default_factory=list)  # ids of the kernels that were asked for
    on_execute: Callable[[FakeServer, wire.Message], Awaitable[None]] | None = None
    before_info: Callable[[FakeServer], Awaitable[None]] | None = None  # before it answers a kernel_info_request
    sockets: list[web.WebSocketResponse] = field(default_factory=list)
    executed: list[str] = field(default_factory=list)  # codes of the execute_requests that came
    url: str = ""
    _running: set[asyncio.Task[None]] = field(default_factory=set)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer anything."""
        self.asked.append(f"{request.method} {request.path}")
        self.headers = dict(request.headers)
        key = f"{request.method} {request.path}"
        if key in self.answers:
            status, body = self.answers[key]
            headers = {"Location": body} if status in range(300, 400) else {}
            return web.Response(status=status, text=body, headers=headers)
        if request.path.endswith("/channels"):
            return await self._channels(request)
        match key:
            case "GET /api":
                return web.json_response({"version": "1"})
            case "GET /api/kernelspecs":
                return web.json_response(SPECS)
            case "POST /api/kernels":
                body = await request.json()
                self.started.append(body["kernel_id"])
                self.state = self.state or "idle"
                return web.json_response({"id": body["kernel_id"], "execution_state": "starting"}, status=201)
        return self._kernel(request)

    def _kernel(self, request: web.Request) -> web.StreamResponse:
        if self.state is None:
            return web.json_response({"message": "Kernel does not exist"}, status=404)
        if request.method == "DELETE" and request.path.endswith(tuple(self.started[-1:]) or ""):
            self.state = None
        if request.method == "GET":
            return web.json_response({"id": request.path.rpartition("/")[2], "execution_state": self.state})
        return web.Response(status=204)

    async def _channels(self, request: web.Request) -> web.StreamResponse:
        if self.state is None:
            return web.Response(status=404)
        if self.is_mute:
            await asyncio.Event().wait()
        channel = web.WebSocketResponse(protocols=(wire.V1,) if self.v1 else (), max_msg_size=0)
        await channel.prepare(request)
        self.sockets.append(channel)
        async for frame in channel:
            if frame.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                await self._hear(wire.unpack(frame.data, channel.ws_protocol))
        with suppress(ValueError):
            self.sockets.remove(channel)
        return channel

    async def _hear(self, message: wire.Message) -> None:
        if message.type == "kernel_info_request":
            if self.before_info is not None:
                await self.before_info(self)
            await self.say("kernel_info_reply", {"language_info": {"name": "python"}}, to=message, channel="shell")
            await self.say("status", {"execution_state": "idle"}, to=message)
        elif message.content.get("silent"):
            await self.say("execute_reply", {"status": "ok", "user_expressions": {}}, to=message, channel="shell")
        else:
            self.executed.append(str(message.content["code"]))
            if self.on_execute is not None:
                self._running.add(asyncio.create_task(self.on_execute(self, message)))

    async def say(
        self, kind: str, content: dict[str, Any], *, to: wire.Message | None = None, channel: str = "iopub"
    ) -> None:
        """Send a message to everybody."""
        parent = to.header if to is not None else {}
        message = wire.Message(channel, {"msg_type": kind, "msg_id": "f"}, parent, {}, content)
        for each in list(self.sockets):
            frame = wire.pack(message, each.ws_protocol)
            await (each.send_bytes(frame) if isinstance(frame, bytes) else each.send_str(frame))

    async def end_cell(self, message: wire.Message) -> None:
        """Say that a cell went well."""
        await self.say("execute_reply", {"status": "ok", "execution_count": 1}, to=message, channel="shell")
        await self.say("status", {"execution_state": "idle"}, to=message)

    async def end(self) -> None:
        """End what it still does, and all connections."""
        for channel in list(self.sockets):
            await channel.close()
        for each in self._running:
            each.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def cut(self) -> None:
        """Break all connections off without a word."""
        sockets, self.sockets[:] = list(self.sockets), []
        for each in sockets:
            transport = each._req.transport if each._req is not None else None
            if transport is not None:
                transport.abort()
        await asyncio.sleep(0)  # a turn of the loop, in which the transports close


@asynccontextmanager
async def fake_server(**how: Any) -> AsyncIterator[FakeServer]:
    """Serve on loopback."""
    server = FakeServer(**how)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await server.end()
        await runner.cleanup()


async def answer_and_hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes) -> None:
    """Be a server that says these bytes, whatever it is asked."""
    await reader.readline()
    writer.write(answer)
    await writer.drain()
    writer.close()

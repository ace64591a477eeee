"""A server of kernels that does what a test tells it to: to be slow, to refuse, to break off."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

from supervisord_py.kernels import wire

SPECS = {"default": "python3", "kernelspecs": {"python3": {"name": "python3", "spec": {"language": "python"}}}}


@dataclass(slots=True)
class FakeServer:
    """What it does, and what it was asked."""

    answers: dict[str, tuple[int, str]] = field(default_factory=dict)  # `METHOD /path` to status and body, first of all
    asked: list[str] = field(default_factory=list)  # `METHOD /path` of each request
    headers: dict[str, str] = field(default_factory=dict)  # of the last one
    state: str | None = "idle"  # `execution_state` of its kernel; None: it has no such kernel
    is_mute: bool = False  # it lets websockets wait for ever
    on_execute: Callable[[FakeServer, wire.Message], Awaitable[None]] | None = None
    before_info: Callable[[FakeServer], Awaitable[None]] | None = None  # before it answers a kernel_info_request
    sockets: list[web.WebSocketResponse] = field(default_factory=list)
    executed: list[str] = field(default_factory=list)  # codes of the execute_requests that came
    url: str = ""
    _running: set[asyncio.Task[None]] = field(default_factory=set)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer anything."""
        key = f"{request.method} {request.path}"
        self.asked.append(key)
        self.headers = dict(request.headers)
        if key in self.answers:
            status, body = self.answers[key]
            return web.Response(status=status, text=body)
        if request.path.endswith("/channels"):
            return await self._channels(request)
        match key:
            case "GET /api":
                return web.json_response({"version": "1"})
            case "GET /api/kernelspecs":
                return web.json_response(SPECS)
            case "POST /api/kernels":
                body = await request.json()
                return web.json_response({"id": body["kernel_id"], "execution_state": "starting"}, status=201)
        if self.state is None:
            return web.json_response({"message": "Kernel does not exist"}, status=404)
        if request.method == "DELETE":
            self.state = None
        if request.method == "GET":
            return web.json_response({"id": request.path.rpartition("/")[2], "execution_state": self.state})
        return web.Response(status=204)

    async def _channels(self, request: web.Request) -> web.StreamResponse:
        if self.state is None:
            return web.Response(status=404)
        if self.is_mute:
            await asyncio.Event().wait()
        channel = web.WebSocketResponse(max_msg_size=0)
        await channel.prepare(request)
        self.sockets.append(channel)
        async for frame in channel:
            if frame.type is WSMsgType.TEXT:
                await self._hear(wire.unpack(frame.data, None))
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
        frame = wire.pack(wire.make(kind, content, "server", channel, parent=to.header if to else {}), None)
        for each in list(self.sockets):
            await each.send_str(str(frame))

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

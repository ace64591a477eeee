"""The way to one instance: pooled HTTP connections that are never older than the tool keeps them.

aiohttp's parser and its reader of a body, but not its client, which costs more than all else that a warm call passes.

Law: a request is sent once. One whose connection broke before an answer may have been worked on: a tool that dies of a
request would otherwise get the same one again, from the backlog, in its next life. So a pooled connection is given up
long before a server's own keep-alive ends (uvicorn, hypercorn and node: 5 s, gunicorn: 2 s), which costs a connect on
the loopback, a tenth of a millisecond.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

from supervisord_py.tools.schema import differences

IDLE_SECONDS = 1.0
_CANCEL_SECONDS = 1.0
NOT_OFFERED = frozenset({404, 405, 501})
BROKEN = (aiohttp.ClientError, HttpProcessingError, OSError)
"""What `Upstream.send` and reading an answer raise: no answer, half of one, or one that is not HTTP."""


class Answer:
    """An answer whose head is read; `async with` it, or `close` it, which pools the connection if it was read whole."""

    def __init__(
        self, upstream: Upstream, connection: ResponseHandler, head: Any, content: aiohttp.StreamReader
    ) -> None:
        self.status: int = head.code
        self.headers: Mapping[str, str] = head.headers
        self.content = content
        self._upstream = upstream
        self._connection: ResponseHandler | None = connection

    async def read_up_to(self, limit: int) -> tuple[bytes, bool]:
        """Read at most `limit` bytes and a little; say whether that was all."""
        parts, size = list[bytes](), 0
        while part := await self.content.readany():
            parts.append(part)
            size += len(part)
            if size > limit:
                return b"".join(parts), False
        return b"".join(parts), True

    def close(self) -> None:
        if self._connection is not None:
            self._upstream.put_back(self._connection)
            self._connection = None

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Upstream:
    """HTTP to one instance on 127.0.0.1:port. Made where a loop runs; `close` it with the instance."""

    def __init__(self, port: int) -> None:
        self.is_closed = False
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._connections: set[ResponseHandler] = set()  # all that are open
        self._idle: list[tuple[float, ResponseHandler]] = []  # since when; the longest unused first
        self._timer: asyncio.TimerHandle | None = None

    async def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        before_write: Callable[[], None] | None = None,
    ) -> Answer:
        """Send a request and return the answer with its head read. Raises one of BROKEN.

        `before_write` is called once a connection is there, right before the first byte is written to it.
        """
        lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self._port}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if method == "POST":
            lines.append(f"Content-Length: {len(body)}")
        head = "\r\n".join((*lines, "", "")).encode(errors="surrogateescape")
        connection = await self._connection()
        try:
            if (transport := connection.transport) is None:
                raise aiohttp.ServerDisconnectedError
            if before_write is not None:
                before_write()
            transport.writelines((head, body))
            while True:
                message, content = await connection.read()
                if message.code >= 200:  # those below only say that the answer is to come
                    return Answer(self, connection, message, content)
        except BaseException:
            self._give_up(connection)
            raise

    async def _connection(self) -> ResponseHandler:
        """Return a connection that nobody else uses: the one used last, or a new one."""
        while self._idle:
            since, connection = self._idle.pop()
            is_sound = connection.is_connected() and not connection.should_close  # it closed, or said more than asked
            if is_sound and self._loop.time() - since < IDLE_SECONDS:
                return connection
            self._give_up(connection)
        if not self.is_closed:
            made = self._loop.create_connection(lambda: ResponseHandler(self._loop), "127.0.0.1", self._port)
            connection = (await made)[1]
            self._connections.add(connection)
            connection.set_response_params(read_until_eof=True, auto_decompress=False)
        if self.is_closed:
            self.close()
            raise ConnectionResetError("the instance has ended")
        return connection

    def put_back(self, connection: ResponseHandler) -> None:
        """Pool a connection, unless its answer was not read to the end, or the request not taken."""
        transport = connection.transport
        if transport is None or transport.get_write_buffer_size() or connection.should_close:
            self._give_up(connection)
            return
        self._idle.append((self._loop.time(), connection))
        if self._timer is None:
            self._timer = self._loop.call_later(IDLE_SECONDS, self._give_up_old)

    def _give_up_old(self) -> None:
        self._timer, until = None, self._loop.time() - IDLE_SECONDS
        while self._idle and self._idle[0][0] <= until:
            self._give_up(self._idle.pop(0)[1])
        if self._idle:
            self._timer = self._loop.call_at(self._idle[0][0] + IDLE_SECONDS, self._give_up_old)

    def _give_up(self, connection: ResponseHandler) -> None:
        self._connections.discard(connection)
        if connection.transport is not None:
            connection.transport.abort()

    async def healthz(self) -> int:
        """Return the status of `GET /healthz`; 0: nobody listens, or the answer is not HTTP."""
        try:
            async with await self.send("GET", "/healthz") as answer:
                await answer.read_up_to(_MAX_BYTES)
                return answer.status
        except BROKEN:
            return 0

    async def cancel(self, run_id: str) -> bool:
        """Ask the tool to give up a run. False when it does not offer that, or does not answer within a second."""
        try:
            async with asyncio.timeout(_CANCEL_SECONDS), await self.send("POST", f"/cancel?run_id={run_id}") as answer:
                return answer.status not in NOT_OFFERED
        except (*BROKEN, TimeoutError):
            return False

    def close(self) -> None:
        """Break off what is under way."""
        self.is_closed = True
        for connection in tuple(self._connections):
            self._give_up(connection)


SHOWN = 20
_SECONDS = 10.0
_MAX_BYTES = 4 * 1024 * 1024


async def schema_drift(upstream: Upstream, manifest: Any) -> tuple[str, ...]:
    """Ask a ready tool for `/schema` and return where it differs from its manifest; empty when it agrees.

    One that does not answer, or not with JSON, differs as a whole; one without `/schema` (404), or that could not be
    asked, in nothing.
    """
    try:
        async with asyncio.timeout(_SECONDS), await upstream.send("GET", "/schema") as answer:
            if answer.status == 404:
                return ()
            if answer.status != 200:
                return (f"/: GET /schema answered {answer.status}",)
            raw, _ = await answer.read_up_to(_MAX_BYTES)
        served = json.loads(raw)
    except (*BROKEN, ValueError) as error:
        if isinstance(error, ConnectionRefusedError) or upstream.is_closed:
            return ()  # the question was never put: nothing is known
        return (f"/: GET /schema gave no JSON ({type(error).__name__})",)
    found = differences(manifest, served)
    return tuple(found[:SHOWN] + ([f"… and {len(found) - SHOWN} more"] if len(found) > SHOWN else []))

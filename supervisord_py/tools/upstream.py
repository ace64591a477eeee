"""The way to one instance: pooled HTTP connections that are never older than the tool keeps them.

aiohttp's parser and its reader of a body, but not its client, which costs more than all else that a
warm call passes.

Law: a request is sent once. One whose connection broke before an answer may have been worked on: a
tool that dies of a request would otherwise get the same one again, from the backlog, in its next
life. So a pooled connection is given up long before a server's own keep-alive ends (uvicorn,
hypercorn and node: 5 s, gunicorn: 2 s), which costs a connect on the loopback, a tenth of a
millisecond.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from yarl import URL

from supervisord_py.tools.content_coding import Decoders
from supervisord_py.tools.schema import differences

IDLE_SECONDS = 1.0
IDLE_BESIDE_SECONDS = 0.02  # while other requests are under way
_CANCEL_SECONDS = 1.0
NOT_OFFERED = frozenset({404, 405, 501})
BROKEN = (aiohttp.ClientError, HttpProcessingError, OSError)
"""What `Upstream.send` and reading an answer raise: no answer, half of one, or one that is not
HTTP.
"""
LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "::1", "0.0.0.0"})  # noqa: S104  # recognised, not bound
_BODY_HEADERS = frozenset({"content-type", "content-length"})


class RedirectError(aiohttp.ClientError):
    """A redirect that is not followed; the text is the end of a sentence about the answer."""


class Call(NamedTuple):
    """One request to a tool."""

    method: str
    path: str  # with its query
    body: bytes = b""
    headers: Mapping[str, str] = {}


def redirected(call: Call, port: int, status: int, location: str | None) -> Call:
    """Return the request that a redirect asks for (RFC 9110 section 15.4).

    307 and 308 repeat the request. 301, 302 and 303 ask for a result with GET, as browsers take
    them; to the same path with or without a slash at its end they would lose the input.

    Raises RedirectError if it leads out of the tool, loses the input, or is none.
    """
    said = f"answered {status} to {call.method} {call.path}"
    if status not in {301, 302, 303, 307, 308} or not location:
        raise RedirectError(f"{said}, which is no answer")
    here = URL.build(scheme="http", host="127.0.0.1", port=port).join(URL(call.path, encoded=True))
    try:
        there = here.join(URL(location))
        is_within = there.scheme == "http" and there.host in LOCAL_HOSTS and there.port == port
    except ValueError:
        is_within = False
    if not is_within:
        raise RedirectError(f"{said}, which leads out of the tool, to {location[:200]}")
    path = there.raw_path_qs
    if call.method == "GET" or status in {307, 308}:
        return call._replace(path=path)
    if there.raw_path.rstrip("/") == here.raw_path.rstrip("/"):
        raise RedirectError(f"{said}, which leads to GET {path}: the input would be lost")
    headers = {
        name: value for name, value in call.headers.items() if name.lower() not in _BODY_HEADERS
    }
    return Call("GET", path, b"", headers)


class Answer:
    """An answer whose head is read; `async with` it, or `close` it, which pools the connection
    if it was read whole.
    """

    def __init__(
        self,
        upstream: Upstream,
        connection: ResponseHandler,
        head: Any,
        content: aiohttp.StreamReader,
    ) -> None:
        self.status: int = head.code
        self.headers: Mapping[str, str] = head.headers
        self.content_encoding: str | None = self.headers.get("Content-Encoding")
        self._content = content
        self._decoded: AsyncIterator[bytes] | None = None  # once the body is read, if it is encoded
        self._upstream = upstream
        self._connection: ResponseHandler | None = connection

    async def read_up_to(self, limit: int) -> tuple[bytes, bool]:
        """Read at most `limit` bytes and a little, decoded; say whether that was all.

        Raises one of BROKEN.
        """
        parts, size = list[bytes](), 0
        if self.content_encoding is not None:
            async for part in self.chunks():
                parts.append(part)
                size += len(part)
                if size > limit:
                    return b"".join(parts), False
            return b"".join(parts), True
        while part := await self._content.readany():
            parts.append(part)
            size += len(part)
            if size > limit:
                return b"".join(parts), False
        return b"".join(parts), True

    def chunks(self) -> AsyncIterator[bytes]:
        """Return what is left of the body, as it comes, decoded.

        Raises ContentCodingError if it cannot be.
        """
        if self.content_encoding is None:
            return self._content.iter_any()
        if self._decoded is None:
            self._decoded = self._decode(Decoders(self.content_encoding))
        return self._decoded

    async def _decode(self, decoders: Decoders) -> AsyncIterator[bytes]:
        async for chunk in self._content.iter_any():
            for piece in decoders.decode(chunk):
                yield piece
        decoders.finish()

    async def discard(self, limit: int) -> None:
        """Read the body as it is, so that the connection can be used again; no more than `limit`
        bytes.
        """
        size = 0
        while size <= limit and (part := await self._content.readany()):
            size += len(part)

    def close(self) -> None:
        if self._connection is not None:
            self._upstream.put_back(self._connection)
            self._connection = None

    async def __aenter__(self) -> Answer:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


class Upstream:
    """HTTP to one instance on 127.0.0.1:port.

    Made where a loop runs; `close` it with the instance.
    """

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

        `before_write` is called once a connection is there, right before the first byte is written
        to it.
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

    async def fetch(self, call: Call) -> Answer:
        """Send a request, and follow a redirect within the tool once.

        Raises one of BROKEN, RedirectError of them.
        """
        answer = await self.send(*call)
        if 300 <= answer.status < 400:
            return (await self.follow(call, answer))[1]
        return answer

    async def follow(self, call: Call, answer: Answer) -> tuple[Call, Answer]:
        """Return the request that a redirect asks for, and the answer to it; `answer` is closed.

        Raises RedirectError if it leads elsewhere or to another redirect; one of BROKEN.
        """
        async with answer:
            await answer.discard(_MAX_BYTES)
        onward = redirected(call, self._port, answer.status, answer.headers.get("Location"))
        last = await self.send(*onward)
        if 300 <= last.status < 400:
            last.close()
            raise RedirectError(
                f"answered {answer.status} to {call.method} {call.path}, and {last.status} there "
                "again"
            )
        return onward, last

    async def _connection(self) -> ResponseHandler:
        """Return a connection that nobody else uses: the one used last, or a new one."""
        while self._idle:
            since, connection = self._idle.pop()
            # it closed, or said more than asked
            is_sound = connection.is_connected() and not connection.should_close
            if is_sound and self._loop.time() - since < IDLE_SECONDS:
                return connection
            self._give_up(connection)
        if not self.is_closed:
            made = self._loop.create_connection(
                lambda: ResponseHandler(self._loop), "127.0.0.1", self._port
            )
            connection = (await made)[1]
            self._connections.add(connection)
            connection.set_response_params(read_until_eof=True, auto_decompress=False)
        if self.is_closed:
            self.close()
            raise ConnectionResetError("the instance has ended")
        return connection

    def put_back(self, connection: ResponseHandler) -> None:
        """Pool a connection, unless its answer was not read to the end, or the request not
        taken.
        """
        transport = connection.transport
        if transport is None or transport.get_write_buffer_size() or connection.should_close:
            self._give_up(connection)
            return
        idle = (self._loop.time(), connection)
        self._idle.append(idle)
        if len(self._connections) > len(self._idle):
            # A server that works on one connection at a time takes the next one only when this one
            # is closed.
            self._loop.call_later(IDLE_BESIDE_SECONDS, self._give_up_idle, idle)
        if self._timer is None:
            self._timer = self._loop.call_later(IDLE_SECONDS, self._give_up_old)

    def _give_up_idle(self, idle: tuple[float, ResponseHandler]) -> None:
        if idle in self._idle:  # not used meanwhile
            self._idle.remove(idle)
            self._give_up(idle[1])

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

    async def healthz(self, seconds: float) -> int:
        """Return the status of `GET /healthz`; 0: nobody listens, no answer in that time, or it is
        not HTTP.

        A redirect is followed once within the tool; the status of one that is not is returned.
        """
        call = Call("GET", "/healthz")
        try:
            async with asyncio.timeout(seconds):
                answer = await self.send(*call)
                status = answer.status
                if 300 <= status < 400:
                    with contextlib.suppress(RedirectError):
                        _, answer = await self.follow(call, answer)
                        status = answer.status
                async with answer:
                    await answer.discard(_MAX_BYTES)
                return status
        except (*BROKEN, TimeoutError):
            return 0

    async def cancel(self, run_id: str) -> bool:
        """Ask the tool to give up a run.

        False when it does not offer that, or does not answer within a second.
        """
        try:
            call = Call("POST", f"/cancel?run_id={run_id}")
            async with asyncio.timeout(_CANCEL_SECONDS), await self.fetch(call) as answer:
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
    """Ask a ready tool for `/schema` and return where it differs from its manifest; empty when it
    agrees.

    One that answers with something else than JSON differs as a whole; one without `/schema` (404),
    or that could not be asked, in nothing. Neither does one that gives no answer in time: that is
    about its life, not about its schema.
    """
    try:
        async with (
            asyncio.timeout(_SECONDS),
            await upstream.fetch(Call("GET", "/schema")) as answer,
        ):
            if answer.status == 404:
                return ()
            if answer.status != 200:
                return (f"/: GET /schema answered {answer.status}",)
            raw, _ = await answer.read_up_to(_MAX_BYTES)
        served = json.loads(raw)
    except (*BROKEN, ValueError) as error:
        if isinstance(error, TimeoutError | ConnectionRefusedError) or upstream.is_closed:
            return ()  # the question was never put: nothing is known
        return (f"/: GET /schema gave no JSON ({type(error).__name__})",)
    found = differences(manifest, served)
    return tuple(
        found[:SHOWN] + ([f"… and {len(found) - SHOWN} more"] if len(found) > SHOWN else [])
    )

"""The aiohttp application: what happens to every request, whichever route it takes.

Who is asking is established; the request gets an id; a body over its limit is refused unread; the
route's access, query, body and idempotency are honoured; every failure becomes a problem document
(RFC 9457), whoever raised it: we, aiohttp, or a bug, which is told as kind `internal` with the id
of its request and nothing else. A failure after the answer began breaks the connection off, so that
a truncated answer can never look complete.
"""

from __future__ import annotations

import asyncio
import errno
import math
import re
import secrets
import select
import socket
from collections.abc import Coroutine
from functools import partial
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler
from yarl import URL

from supervisord_py import errors
from supervisord_py.api.auth import admit_bearer, foreigner
from supervisord_py.api.bodies import (
    MAX_COST_OF_ORDER,
    BodyBudget,
    check_values,
    discard,
    too_large,
)
from supervisord_py.api.context import ApiCall, ApiConfig, ApiContext, Live
from supervisord_py.api.listening import Listener
from supervisord_py.api.routes import ROUTES, Answer, Route, handler_of
from supervisord_py.api.schemas import read_body, read_query
from supervisord_py.api.streams import NDJSON, PROBLEM, SSE, frame, json_answer, json_bytes
from supervisord_py.errors import PxError
from supervisord_py.process.supervisor import SHORT, no_descriptors

_log = structlog.get_logger(__name__)

TCP_CONNECTIONS = 128
FIRST_REQUEST_SECONDS = 10.0
# between an answer and the next request that is here already: far more than it takes
IDLE_SECONDS = 0.1
JUPYTER = "/jupyter"
_REQUEST_ID: web.RequestKey[str] = web.RequestKey("px.request_id", str)
_ROUTE: web.RequestKey[str] = web.RequestKey("px.route", str)
_ANSWER: web.RequestKey[web.StreamResponse] = web.RequestKey("px.answer", web.StreamResponse)
_ASCII_HEADERS = (
    "Accept", "Accept-Language", "Authorization", "Content-Encoding", "Idempotency-Key",
    "Last-Event-ID", "Traceparent", "Tracestate", "Upgrade", "Sec-WebSocket-Key",
    "Sec-WebSocket-Version", "Sec-WebSocket-Protocol", "Sec-WebSocket-Extensions",
)  # fmt: skip
"""Headers that are read here, or passed on to a tool.

In others any byte may stand: they are not looked at.
"""
_ACCEPTABLE_ID = re.compile(r"[\x21-\x7e]{1,128}")
_CLIENT_GONE = 499
_ODD_PATHS = frozenset({errno.ENAMETOOLONG, errno.ELOOP, errno.EILSEQ})


class UnknownRouteError(PxError, kind="unknown_route", title="No such route", status=404):
    """The API has no such path."""


class MethodNotAllowedError(
    PxError, kind="method_not_allowed", title="Method not allowed", status=405, exit_code=2
):
    """The path is there, the method is not; `allow` lists those that are."""


async def serve(context: ApiContext, *listeners: socket.socket | None) -> web.AppRunner:
    """Serve every route of the table on sockets that are bound, until the runner that is returned
    is cleaned up.

    Requests under way then have the `drain_seconds` of the context. A client that goes away cancels
    its request.
    """
    config = context.config
    live = Live(config.drain_seconds, BodyBudget(config.max_body_bytes))
    app = web.Application(client_max_size=config.max_body_bytes)
    for route in ROUTES:
        app.router.add_route(route.method, route.path, _endpoint(route, context, live))

    context.events.listeners.add(live.units.count)
    app.on_response_prepare.append(_stamp)
    app.on_shutdown.append(live.end_streams)
    app.on_cleanup.append(live.finish)
    runner = _Runner(app, config, live)
    await runner.setup()
    for listening in listeners:
        if listening is not None:
            await Listener(runner, listening).start()
    return runner


class _Runner(web.AppRunner):
    def __init__(self, app: web.Application, config: ApiConfig, live: Live) -> None:
        super().__init__(app, shutdown_timeout=config.drain_seconds)
        self._config, self._live = config, live

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        answer: Any = _answer_every_failure(made.request_handler, self._config, self._live)

        def routed(
            message: RawRequestMessage, payload: Any, protocol: _Connection, *rest: Any
        ) -> web.BaseRequest:
            protocol.asked += 1
            if protocol.is_tcp or message.path.startswith("/px/"):
                path = routed_path(message.path, is_tcp=protocol.is_tcp)
                message = message._replace(path=path, url=URL(path, encoded=True))
            return made.request_factory(message, payload, protocol, *rest)

        return _Server(answer, request_factory=routed, handler_cancellation=True)  # type: ignore[arg-type] # its protocol


class _Server(web.Server):
    def __call__(self) -> RequestHandler:
        # Bodies are decompressed in bodies.py, which also sees whether they are whole.
        options: dict[str, Any] = {"access_log": None, "auto_decompress": False}
        return _Connection(self, loop=asyncio.get_running_loop(), **options)


class _Connection(RequestHandler):
    """One connection. Of the loopback listener there are TCP_CONNECTIONS at most; none may stay
    silent for long.

    Where there are too many, the oldest one that has not shown the token gives way, so that
    strangers who hold connections open cannot keep the token's owner out.
    """

    is_tcp = False
    is_admitted = False  # a request on it had the token
    asked = 0  # requests that began
    answered = 0  # requests whose answer is complete
    refusal: PxError | None = None  # of all requests: the peer of the Unix socket may not ask
    has_said_all = False  # the client has closed its side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        self.is_tcp = connection.family != socket.AF_UNIX
        if not self.is_tcp:
            self.refusal = foreigner(connection)
            return
        server: Any = self._manager
        others = [each for each in server.connections if each.is_tcp and each.transport is not None]
        if len(others) > TCP_CONNECTIONS:
            # `server.connections` has them in the order in which they came.
            strangers = (each for each in others if not each.is_admitted)
            next(strangers, self).force_close()
        self._loop.call_later(FIRST_REQUEST_SECONDS, self._end_unless_asked)

    def _end_unless_asked(self) -> None:
        if not self.asked:
            self.force_close()

    def eof_received(self) -> bool:  # type: ignore[override] # True: go on writing
        """Answer a client that has said all and still reads (`nc -N`): on one that is gone,
        poll(2) sees a hang-up.
        """
        if self.is_tcp or self.transport is None:
            return False
        looking = select.poll()
        looking.register(self.transport.get_extra_info("socket").fileno(), 0)
        self.has_said_all = True
        self.close_when_idle()
        return not looking.poll(0)

    def count_answer(self) -> None:
        self.answered += 1
        self.close_when_idle()

    def close_when_idle(self) -> None:
        """Close once a client that says no more has all answers: requests may wait that came in
        one piece.
        """
        if self.has_said_all and self.answered == self.asked:
            self._loop.call_later(IDLE_SECONDS, self._close_if_idle, self.asked)

    def _close_if_idle(self, asked: int) -> None:
        if self.transport is None or not self.asked == asked == self.answered:
            return
        if self.transport.get_write_buffer_size():
            self.close_when_idle()
        else:
            self.force_close()


def routed_path(path: str, *, is_tcp: bool) -> str:
    """Return the path by which the table of routes knows it; `path` may end in a query.

    Jupyter's clients know one place for their API, `/api/kernels` and its like: on the loopback
    listener these paths mean Jupyter's. Ours is behind `/px/api/…` there, and so it is on the Unix
    socket, too; Jupyter's has the prefix `/jupyter` on both.
    """
    bare, question, query = path.partition("?")
    if bare.startswith("/px/api/"):
        bare = bare.removeprefix("/px")
    elif is_tcp and (
        bare in {"/api", "/api/"} or f"{bare}/".startswith(("/api/kernelspecs/", "/api/kernels/"))
    ):
        bare = JUPYTER + bare
    return bare + question + query


def _answer_every_failure(handler: Any, config: ApiConfig, live: Live) -> Any:
    async def answer(request: web.Request) -> web.StreamResponse:
        given = request.headers.get("X-Request-Id")
        request[_REQUEST_ID] = (
            given if given and _ACCEPTABLE_ID.fullmatch(given) else secrets.token_hex(8)
        )
        status = _CLIENT_GONE
        asker: Any = request.protocol
        try:
            try:
                if asker.refusal is not None:
                    raise asker.refusal
                if asker.is_tcp:
                    token = (
                        request.query.get("token")
                        if request.path.startswith(f"{JUPYTER}/")
                        else None
                    )
                    admit_bearer(request.headers, config.tcp, token)
                    asker.is_admitted = True
                _check_headers(request)
                if (request.content_length or 0) > config.max_body_bytes:
                    raise too_large(config.max_body_bytes)
                response: web.StreamResponse = await handler(request)
            except Exception as error:
                response = await _fail(request, error, config)
            status = response.status
            # the answer must have gone out before the connection counts as idle
            if asker.has_said_all:
                await response.prepare(request)
                await response.write_eof()
            if asker.is_tcp and not asker.is_admitted:
                response.force_close()
            return response
        finally:
            asker.count_answer()
            live.requests[request.get(_ROUTE, "unmatched"), status] += 1

    return answer


def _check_headers(request: web.Request) -> None:
    """Refuse bytes that are not ASCII in the headers that count.

    Raises BadRequestError, with the header's name.
    """
    if b"".join([value for _, value in request.raw_headers]).isascii():
        return  # as nearly always, and one look is quicker than a dozen
    for name in _ASCII_HEADERS:
        value = request.headers.get(name)
        if value is not None and not value.isascii():
            detail = f"The header {name} has characters that are not ASCII."
            raise errors.BadRequestError(
                detail, hint="a header's value is printable ASCII (RFC 9110, 5.5)"
            )


def _endpoint(route: Route, context: ApiContext, live: Live) -> Any:
    usual, schema = route.answers()[0]
    rules, method, name = set(route.rules.split()), route.method, f"{route.method} {route.path}"
    begins = "begins" in rules or (method != "GET" and "always" not in rules)

    def respond(found: Answer) -> web.StreamResponse:
        if isinstance(found, web.StreamResponse):
            return found
        status, document = found if isinstance(found, tuple) else (usual, found)
        if isinstance(document, dict) and schema != "-":
            document = {"schema": schema, **document}
        return json_answer(document, status=status)

    async def endpoint(request: web.Request) -> web.StreamResponse:
        request[_ROUTE] = name
        if begins and context.control.stopping:
            raise errors.ShuttingDownError(
                "The daemon is stopping and takes no new work.", hint="pxctl daemon start"
            )
        held = live.bodies.hold()
        going_on: asyncio.Task[Answer] | None = None
        try:
            call = ApiCall(request, context, live, held)
            headers, handler = request.headers, handler_of(route.handler)
            given = (
                {}
                if "lenient" in rules or not request.query_string
                else read_query(handler.query, request.query)
            )
            if handler.body is not None:
                body = await call.body()
                await check_values(body, MAX_COST_OF_ORDER)
                given["body"] = read_body(handler.body, body)
            key = headers.get("Idempotency-Key") if method == "POST" else None
            begin = partial(handler.answer, call, **given)
            work: Coroutine[Any, Any, Answer]
            if key is None or ("resumes" in rules and headers.get("Last-Event-ID")):
                work = begin()
            else:
                from supervisord_py.api.idempotency import answer_once  # which few ask for

                work = answer_once(
                    call, key, begin, respond, streams="streams" in rules, marks="marks" in rules
                )
            if "outlives" in rules:
                going_on = live.detach(work)
                found = await asyncio.shield(going_on)
            else:
                found = await work
            return found if isinstance(found, web.StreamResponse) else respond(found)
        finally:
            # Whoever still refers to the request, in an error's traceback for example, must not
            # keep its body.
            discard(request)
            if going_on is None or going_on.done():
                held.release()
            else:
                going_on.add_done_callback(lambda _: held.release())

    return endpoint


async def _stamp(request: web.Request, response: web.StreamResponse) -> None:
    request[_ANSWER] = response
    response.headers["X-Request-Id"] = request[_REQUEST_ID]
    response.headers["Server"] = "pxd"


async def _fail(request: web.Request, error: Exception, config: ApiConfig) -> web.StreamResponse:
    request_id: str = request[_REQUEST_ID]
    begun: web.StreamResponse | None = request.get(_ANSWER)
    if isinstance(error, web.HTTPException):
        error = _error_of_http(error, request.path, config)
    elif isinstance(error, (HttpProcessingError, web.RequestPayloadError)):
        hint = "send the body as its Content-Encoding, Transfer-Encoding and Content-Length say"
        why = str(error).strip().splitlines()[-1][:200]
        error = errors.BadRequestError(f"The body cannot be read: {why}.", hint=hint)
    elif begun is None and (odd := _error_of_input(error)) is not None:
        _log.warning(
            "input_refused", request_id=request_id, path=request.path[:200], error=repr(error)[:500]
        )
        error = odd
    elif begun is None and isinstance(error, OSError) and error.errno in SHORT:
        # Whatever the handler wanted to open: a file, a socket, or a module that it loads at its
        # first call.
        _log.warning(
            "too_few_descriptors",
            request_id=request_id,
            path=request.path[:200],
            error=repr(error)[:500],
        )
        error = no_descriptors("answer this request")
    elif not isinstance(error, PxError) and (
        begun is None or not isinstance(error, ConnectionError)
    ):
        _log.exception(
            "request_failed", request_id=request_id, method=request.method, path=request.path
        )
        detail = f"The daemon made a mistake in request {request_id}; its log says more."
        error = errors.InternalError(
            detail, hint=f"look for {request_id} in the daemon's log, and please report it"
        )
    if isinstance(error, PxError) and request.path.startswith(f"{JUPYTER}/"):
        error.extra.setdefault("message", error.detail)  # which Jupyter's clients look for
    if begun is None:
        assert isinstance(error, PxError)
        return _problem_response(error, request_id)
    if isinstance(error, PxError):  # else the client went away in the middle of its answer
        _log.warning(
            "answer_broken_off", request_id=request_id, path=request.path, error=str(error)
        )
        if begun.content_type in {SSE, NDJSON} and begun.content_length is None:
            # The last item, whatever half an item stands before it.
            rest = b"\n\n" if begun.content_type == SSE else b"\n"
            problem = {**error.problem(), "request_id": request_id}
            await begun.write(rest + frame(begun.content_type, problem, event="problem"))
    if request.transport is not None:
        request.transport.close()  # no proper end: it looks complete to nobody
    return begun


def _error_of_http(refusal: web.HTTPException, path: str, config: ApiConfig) -> PxError:
    if isinstance(refusal, web.HTTPNotFound):
        return UnknownRouteError(
            f"There is no route {path[:200]!r}.", hint="see: GET /api/openapi.json"
        )
    if isinstance(refusal, web.HTTPMethodNotAllowed):
        allowed = sorted(refusal.allowed_methods)
        detail = f"{path[:200]!r} does not answer to {refusal.method[:20]}."
        return MethodNotAllowedError(detail, hint=f"use {' or '.join(allowed)}", allow=allowed)
    if isinstance(refusal, web.HTTPRequestEntityTooLarge):
        return too_large(config.max_body_bytes)
    error = errors.BadRequestError(f"The request was refused: {refusal.reason}.")
    error.status = refusal.status
    return error


def _error_of_input(error: Exception) -> PxError | None:
    """Return the refusal for what no route looks for, and the system or Python then refuses; None
    for a bug of ours.

    A text may hold what no path, no process and no ledger takes, a number may be larger than a
    machine's.
    """
    why = None
    if isinstance(error, UnicodeError):
        why = "A text in the request cannot be written as UTF-8 (half of a surrogate pair)."
    elif isinstance(error, ValueError) and "embedded null" in str(error):
        why = "A text in the request has a NUL character, which no path and no argument may have."
    elif isinstance(error, OSError) and error.errno in _ODD_PATHS:
        why = f"A path in the request cannot be used: {error.strerror}."
    elif isinstance(error, RecursionError):
        why = "A value in the request is nested too deep."
    elif isinstance(error, OverflowError):
        why = "A number in the request is too large."
    return None if why is None else errors.BadRequestError(why, hint="see: GET /api/openapi.json")


def _problem_response(error: PxError, request_id: str) -> web.Response:
    """Return the answer for an error; a body that was refused unread also ends the connection."""
    headers: dict[str, str] = {}
    retry = error.extra.get(
        "retry_after_seconds", 1.0 if isinstance(error, errors.OverloadedError) else None
    )
    if retry is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry)))
    if isinstance(error, MethodNotAllowedError):
        headers["Allow"] = ", ".join(error.extra["allow"])
    body = json_bytes({**error.problem(), "request_id": request_id})
    response = web.Response(status=error.status, body=body, headers=headers, content_type=PROBLEM)
    if isinstance(error, errors.TooLargeError):
        response.force_close()
    return response

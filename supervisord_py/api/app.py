"""The aiohttp application: what happens to every connection and every request, whichever route it takes.

A connection is identified once, by its peer's credentials; one of the loopback listener must ask something soon. A
request gets an id; who is asking is established; a body over its limit is refused unread; the route's access, query,
body and idempotency are honoured; every failure becomes a problem document (RFC 9457), whoever raised it: we, aiohttp,
or a bug, which is told as kind `internal` with the id of its request and nothing else. A failure after the answer
began breaks the connection off, so that a truncated answer can never look complete.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import secrets
import socket
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest
from yarl import URL

from supervisord_py.api.auth import LocalPeer, admit_bearer, admit_local, peer_credentials
from supervisord_py.api.context import ApiCall, ApiConfig, ApiContext
from supervisord_py.api.live import Counts, Live
from supervisord_py.api.routes import ROUTES, Access, Route, handler_of
from supervisord_py.api.schemas import read_body, read_query
from supervisord_py.api.streams import NDJSON, PROBLEM, SSE, frame, json_bytes
from supervisord_py.errors import (
    EXIT_USAGE,
    BadRequestError,
    ForbiddenError,
    InternalError,
    OverloadedError,
    PxError,
    ShuttingDownError,
    TooLargeError,
)

_log = structlog.get_logger(__name__)

LIVE: web.AppKey[Live] = web.AppKey("live", Live)
_CONFIG: web.AppKey[ApiConfig] = web.AppKey("config", ApiConfig)
JUPYTER = "/jupyter"
MAX_BODY = "tools.max_body_bytes"
_REQUEST_ID: web.RequestKey[str] = web.RequestKey("px.request_id", str)
_ANSWER: web.RequestKey[web.StreamResponse] = web.RequestKey("px.answer", web.StreamResponse)
_ACCEPTABLE_ID = re.compile(r"[\x21-\x7e]{1,128}")
_CLIENT_GONE = 499


class UnknownRouteError(PxError, kind="unknown_route", title="No such route", status=404):
    """The API has no such path."""


class MethodNotAllowedError(
    PxError, kind="method_not_allowed", title="Method not allowed", status=405, exit_code=EXIT_USAGE
):
    """The path is there, the method is not; `allow` lists those that are."""


def build_app(context: ApiContext) -> web.Application:
    """Return the application with every route of the table. Serve it with `build_runner`."""
    live = Live(Counts())
    app = web.Application(
        middlewares=[_answer_every_failure(context, live)], client_max_size=context.config.max_body_bytes
    )
    app[LIVE], app[_CONFIG] = live, context.config
    for route in ROUTES:
        app.router.add_route(route.method, route.path, _endpoint(route, context, live))

    async def watching(_: web.Application) -> AsyncIterator[None]:
        context.events.listeners.add(live.counts.count)
        yield
        context.events.listeners.discard(live.counts.count)
        await live.finish()

    async def end_streams(_: web.Application) -> None:
        live.end_streams(context.config.drain_seconds)

    app.on_response_prepare.append(_stamp)
    app.cleanup_ctx.append(watching)
    app.on_shutdown.append(end_streams)
    return app


def build_runner(app: web.Application, *, shutdown_seconds: float = 5.0) -> web.AppRunner:
    """Return the runner that serves `app`: a client that goes away cancels its request, broken HTTP gets a problem.

    `app`: from `build_app`; `shutdown_seconds`: how long requests under way may take when the runner is cleaned up.
    """
    return _Runner(app, shutdown_timeout=shutdown_seconds, access_log=None)


class _Runner(web.AppRunner):
    """An AppRunner whose connections are ours."""

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()

        def through(message: RawRequestMessage, payload: Any, protocol: _Connection, *rest: Any) -> BaseRequest:
            protocol.has_asked = True
            path = message.path
            if protocol.peer is None or path.startswith("/px/"):
                path = routed_path(path, is_tcp=protocol.peer is None)
                message = message._replace(path=path, url=URL(path, encoded=True))
            return made.request_factory(message, payload, protocol, *rest)

        server = _Server(made.request_handler, request_factory=through, handler_cancellation=True)  # type: ignore[arg-type] # its protocol is ours
        server.config = self.app[_CONFIG]
        return server


def routed_path(path: str, *, is_tcp: bool) -> str:
    """Return the path by which the table of routes knows it; `path` may end in a query.

    Jupyter's clients know one place for their API, `/api/kernels` and its like: on the loopback listener these paths
    mean Jupyter's. Ours is behind `/px/api/…` there, and so it is on the Unix socket, too; Jupyter's has the prefix
    `/jupyter` on both.
    """
    bare, question, query = path.partition("?")
    if bare.startswith("/px/api/"):
        bare = bare.removeprefix("/px")
    elif is_tcp and (bare in {"/api", "/api/"} or f"{bare}/".startswith(("/api/kernelspecs/", "/api/kernels/"))):
        bare = JUPYTER + bare
    return bare + question + query


class _Server(web.Server):
    """Makes the connections."""

    config: ApiConfig

    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=asyncio.get_running_loop(), access_log=None)  # type: ignore[arg-type] # None: we log ourselves


class _Connection(RequestHandler):
    """One connection. What cannot be parsed never reaches the application, so its problem is made here."""

    peer: LocalPeer | None = None  # who is at the other end of a Unix socket; None on the loopback listener
    refusal: ForbiddenError | None = None  # what every request of that peer is answered with
    has_asked = False  # there was a request: it may stay

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Identify the peer; let in so many by TCP, for so long without a request."""
        connection: socket.socket = transport.get_extra_info("socket")
        server: Any = self._manager
        super().connection_made(transport)
        if connection.family == socket.AF_UNIX:
            try:
                self.peer = peer_credentials(connection)
                admit_local(self.peer, os.geteuid())
            except (OSError, ForbiddenError) as error:
                self.refusal = error if isinstance(error, ForbiddenError) else ForbiddenError("The peer is gone.")
                self.peer = self.peer or LocalPeer(-1, None)
            return
        if sum(one.peer is None for one in server.connections) > server.config.tcp_connections:
            self.force_close()
        else:
            self._loop.call_later(server.config.first_request_seconds, self._end_unless_asked)

    def _end_unless_asked(self) -> None:
        if not self.has_asked:
            self.force_close()

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer for bytes that are no request; break off an answer that failed half-way."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer broke off half-way")
        request_id = secrets.token_hex(8)
        if status >= web.HTTPInternalServerError.status_code:
            error: PxError = internal_error(request_id)
            _log.error("connection_failed", request_id=request_id, exc_info=exc)
        else:
            said = next(iter((message or "").strip().splitlines()), "it cannot be parsed")
            error = BadRequestError(f"This is no valid HTTP request: {said[:200]}.", hint="speak HTTP/1.1")
            error.status = status
        response = problem_response(error, request_id)
        response.headers["X-Request-Id"] = request_id
        response.force_close()
        return response


def _answer_every_failure(context: ApiContext, live: Live) -> Any:
    @web.middleware
    async def answer(request: web.Request, handler: Any) -> web.StreamResponse:
        given = request.headers.get("X-Request-Id")
        request[_REQUEST_ID] = given if given and _ACCEPTABLE_ID.fullmatch(given) else secrets.token_hex(8)
        status = _CLIENT_GONE
        try:
            try:
                response: web.StreamResponse = await handler(request)
            except Exception as error:
                response = await _fail(request, error, context.config)
            status = response.status
            return response
        finally:
            resource = request.match_info.route.resource
            name = "unmatched" if resource is None else f"{request.method} {resource.canonical}"
            live.requests[name, status] += 1

    return answer


def _endpoint(route: Route, context: ApiContext, live: Live) -> Any:
    async def endpoint(request: web.Request) -> web.StreamResponse:
        _admit(request, context.config)
        if context.control.stopping and route.access is Access.CHANGE:
            raise ShuttingDownError("The daemon is stopping and takes no new work.", hint="pxctl daemon start")
        call, headers, handler = ApiCall(request, context, live), request.headers, handler_of(route.handler)
        given = {} if route.lenient or not request.query_string else read_query(handler.query, request.query)
        if handler.body is not None:
            given["body"] = read_body(handler.body, await request.read())
        answer = partial(handler.answer, call, **given)
        key = headers.get("Idempotency-Key") if route.method == "POST" else None
        if key is None or (route.resumes and headers.get("Last-Event-ID")):
            work = answer()
        else:
            from supervisord_py.api.idempotency import answer_once  # which few ask for

            work = answer_once(call, key, answer, streams=route.streams)
        return await (live.outlive_client(work) if route.outlives else work)

    return endpoint


def _admit(request: web.Request, config: ApiConfig) -> None:
    """Let the request in. Raises ForbiddenError: who asks may not; TooLargeError: its body is over the limit."""
    connection = request.protocol
    if isinstance(connection, _Connection) and connection.peer is not None:
        if connection.refusal is not None:
            raise connection.refusal.fresh()
    else:
        token = request.query.get("token") if request.path.startswith(f"{JUPYTER}/") else None
        admit_bearer(request.headers, config.tcp, token)
    if (request.content_length or 0) > config.max_body_bytes:
        raise too_large(config)


async def _stamp(request: web.Request, response: web.StreamResponse) -> None:
    request[_ANSWER] = response
    response.headers["X-Request-Id"] = request[_REQUEST_ID]
    response.headers["Server"] = "pxd"


async def _fail(request: web.Request, error: Exception, config: ApiConfig) -> web.StreamResponse:
    """Answer with the problem of an error, or break the answer off that began."""
    request_id, begun = request[_REQUEST_ID], request.get(_ANSWER)
    if isinstance(error, ConnectionError) and begun is not None:
        raise error  # the client went away in the middle of its answer
    if isinstance(error, web.HTTPException):
        error = _error_of_http(error, request.path, config)
        try:
            _admit(request, config)  # what there is not is told to whom we serve only
        except ForbiddenError as refusal:
            error = refusal
    elif isinstance(error, (HttpProcessingError, web.RequestPayloadError)):
        hint = "send the body as its Content-Encoding, Transfer-Encoding and Content-Length say"
        error = BadRequestError(f"The body cannot be read: {str(error).strip().splitlines()[-1][:200]}.", hint=hint)
    elif not isinstance(error, PxError):
        _log.exception("request_failed", request_id=request_id, method=request.method, path=request.path)
        error = internal_error(request_id)
    if request.path.startswith(f"{JUPYTER}/"):
        error.extra.setdefault("message", error.detail)  # which Jupyter's clients look for
    if begun is None:
        return problem_response(error, request_id)
    _log.warning("answer_broken_off", request_id=request_id, path=request.path, error=str(error))
    if begun.content_type in {SSE, NDJSON} and begun.content_length is None:
        # The last item, whatever half an item stands before it. The stream has no proper end, and looks complete to
        # nobody.
        rest = b"\n\n" if begun.content_type == SSE else b"\n"
        problem = {**error.problem(), "request_id": request_id}
        await begun.write(rest + frame(begun.content_type, problem, event="problem"))
    raise ConnectionError("the answer broke off half-way") from error


def internal_error(request_id: str) -> InternalError:
    """Make the error that stands for an unexpected exception, without a word of it."""
    return InternalError(
        f"The daemon made a mistake in request {request_id}; its log says more.",
        hint=f"look for {request_id} in the daemon's log, and please report it",
    )


def too_large(config: ApiConfig) -> TooLargeError:
    """Make the error for a body over its limit."""
    return TooLargeError(
        f"The body is over the limit of {config.max_body_bytes} bytes.",
        hint=f"raise the setting {MAX_BODY}, or send less",
        limit_bytes=config.max_body_bytes,
        setting=MAX_BODY,
    )


def _error_of_http(refusal: web.HTTPException, path: str, config: ApiConfig) -> PxError:
    """Turn aiohttp's own refusals into ours."""
    if isinstance(refusal, web.HTTPNotFound):
        return UnknownRouteError(f"There is no route {path[:200]!r}.", hint="see: GET /api/openapi.json")
    if isinstance(refusal, web.HTTPMethodNotAllowed):
        allowed = sorted(refusal.allowed_methods)
        detail = f"{path[:200]!r} does not answer to {refusal.method[:20]}."
        return MethodNotAllowedError(detail, hint=f"use {' or '.join(allowed)}", allow=allowed)
    if isinstance(refusal, web.HTTPRequestEntityTooLarge):
        return too_large(config)
    error = BadRequestError(f"The request was refused: {refusal.reason}.")
    error.status = refusal.status
    return error


def problem_response(error: PxError, request_id: str) -> web.Response:
    """Return the answer for an error; a body that was refused unread also ends the connection."""
    headers: dict[str, str] = {}
    retry = error.extra.get("retry_after_seconds", 1.0 if isinstance(error, OverloadedError) else None)
    if retry is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry)))
    if isinstance(error, MethodNotAllowedError):
        headers["Allow"] = ", ".join(error.extra["allow"])
    body = json_bytes({**error.problem(), "request_id": request_id})
    response = web.Response(status=error.status, body=body, headers=headers, content_type=PROBLEM)
    if isinstance(error, TooLargeError):
        response.force_close()
    return response

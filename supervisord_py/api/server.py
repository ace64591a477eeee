"""The aiohttp application: what happens to every request, whichever route it takes.

In order: it gets an id; who is asking is established; a body over its limit is refused unread; the route's access,
parameters and idempotency are honoured; every failure becomes a problem document. A failure after the answer began
breaks the connection off, so that a truncated answer can never look complete.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import hdrs, web
from aiohttp.web_protocol import RequestHandler
from yarl import URL

from supervisord_py.api.call import Call, Live, cancel_and_wait
from supervisord_py.api.doors import JUPYTER, Door, routed_path
from supervisord_py.api.idempotency import answer_once
from supervisord_py.api.metrics import watch_events
from supervisord_py.api.negotiation import NDJSON, SSE
from supervisord_py.api.parameters import read_arguments
from supervisord_py.api.peers import identify
from supervisord_py.api.problems import (
    broken_http,
    error_from_http,
    internal_error,
    problem_document,
    problem_response,
    too_large,
)
from supervisord_py.api.route import Access, Ends, Query, Route
from supervisord_py.api.routes import ROUTES
from supervisord_py.api.streams import ndjson_line, sse_frame
from supervisord_py.errors import PxError, ShuttingDownError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp.http import RawRequestMessage
    from aiohttp.web_request import BaseRequest

    from supervisord_py.api.context import ApiContext

_log = structlog.get_logger(__name__)

Endpoint = Callable[[web.Request], Awaitable[web.StreamResponse]]
LIVE: web.AppKey[Live] = web.AppKey("live", Live)
_REQUEST_ID: web.RequestKey[str] = web.RequestKey("px.request_id", str)
_ANSWER: web.RequestKey[web.StreamResponse] = web.RequestKey("px.answer", web.StreamResponse)
_ACCEPTABLE_ID = re.compile(r"[\x21-\x7e]{1,128}")
_UNMATCHED = "unmatched"
_CLIENT_GONE = 499
_QUIET: dict[str, Any] = {"access_log": None}
"""We log answers ourselves, with the id of the request."""


def build_app(context: ApiContext) -> web.Application:
    """Return the application with every route of the table. Serve it with `build_runner`."""
    live = Live()
    app = web.Application(
        middlewares=[_answer_every_failure(context, live)],
        client_max_size=context.config.max_body_bytes,
    )
    app[LIVE] = live
    for route in ROUTES:
        endpoint = _endpoint(route, context, live)
        app.router.add_route(route.method, route.path, endpoint, expect_handler=_invite_body(context))
    app.on_response_prepare.append(_stamp)
    app.cleanup_ctx.append(_watching(context, live))
    app.on_shutdown.append(_end_streams)
    return app


def build_runner(app: web.Application, *, shutdown_seconds: float = 5.0) -> web.AppRunner:
    """Return the runner that serves `app`: a client that goes away cancels its request, broken HTTP gets a problem.

    Args:
        app: From `build_app`.
        shutdown_seconds: How long requests under way may take when the runner is cleaned up.
    """
    return _Runner(app, shutdown_timeout=shutdown_seconds, access_log=None)


class _Runner(web.AppRunner):
    """An AppRunner whose connections are ours."""

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _Server(
            made.request_handler,
            request_factory=_through_its_door(made.request_factory),
            handler_cancellation=True,
        )


def _through_its_door(make: Callable[..., BaseRequest]) -> Callable[..., BaseRequest]:
    """Have requests made with the path that the table of routes knows."""

    def through(message: RawRequestMessage, payload: Any, protocol: RequestHandler, *rest: Any) -> BaseRequest:
        path = routed_path(message.path, _door(protocol))
        if path != message.path:
            message = message._replace(path=path, url=URL(path, encoded=True))
        return make(message, payload, protocol, *rest)

    return through


def _door(protocol: RequestHandler) -> Door:
    connection = None if protocol.transport is None else protocol.transport.get_extra_info("socket")
    return Door.TCP if connection is not None and connection.family != socket.AF_UNIX else Door.UNIX


class _Server(web.Server):
    """Makes connections that tell broken HTTP apart in our words."""

    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=asyncio.get_running_loop(), **_QUIET)


class _Connection(RequestHandler):
    """One connection. What cannot be parsed never reaches the application, so its problem is made here."""

    __slots__ = ()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer for bytes that are no request; break off an answer that failed half-way."""
        if request.writer.output_size > 0:
            raise ConnectionError("the answer broke off half-way")
        request_id = secrets.token_hex(8)
        error: PxError = broken_http(status, message or "")
        if status >= web.HTTPInternalServerError.status_code:
            error = internal_error(request_id)
            _log.error("connection_failed", request_id=request_id, exc_info=exc)
        response = problem_response(error, request_id)
        response.headers["X-Request-Id"] = request_id
        response.force_close()
        return response


def _answer_every_failure(context: ApiContext, live: Live) -> Any:
    @web.middleware
    async def answer(request: web.Request, handler: Endpoint) -> web.StreamResponse:
        request[_REQUEST_ID] = _accept_id(request.headers.get("X-Request-Id"))
        status = _CLIENT_GONE
        try:
            response = await _attempt(request, handler, context)
            status = response.status
            return response
        finally:
            live.requests[_route_name(request), status] += 1

    return answer


async def _attempt(request: web.Request, handler: Endpoint, context: ApiContext) -> web.StreamResponse:
    config = context.config
    try:
        _admit(request, context)
        return await handler(request)
    except PxError as error:
        return await _fail(request, error)
    except web.HTTPException as refusal:
        return await _fail(
            request, error_from_http(refusal, request.path, (config.max_body_bytes, config.max_body_setting))
        )
    except Exception as error:
        if isinstance(error, ConnectionError) and _ANSWER in request:
            raise  # the client went away in the middle of its answer
        _log.exception("request_failed", request_id=request[_REQUEST_ID], method=request.method, path=request.path)
        return await _fail(request, internal_error(request[_REQUEST_ID]))


def _admit(request: web.Request, context: ApiContext) -> None:
    transport = request.transport
    connection = None if transport is None else transport.get_extra_info("socket")
    given = request.query.get("token") if request.path.startswith(f"{JUPYTER}/") else None
    identify(connection, request.headers, context.config.tcp, query_token=given)
    if _is_too_large(request, context):
        raise too_large(context.config.max_body_bytes, context.config.max_body_setting)


def _is_too_large(request: web.Request, context: ApiContext) -> bool:
    length = request.content_length
    return length is not None and length > context.config.max_body_bytes


async def _fail(request: web.Request, error: PxError) -> web.StreamResponse:
    begun = request.get(_ANSWER)
    if begun is None:
        return problem_response(error, request[_REQUEST_ID])
    _log.warning("answer_broken_off", request_id=request[_REQUEST_ID], path=request.path, error=str(error))
    if begun.content_type in {SSE, NDJSON} and begun.content_length is None:
        await begun.write(_last_words(begun.content_type, problem_document(error, request[_REQUEST_ID])))
    raise ConnectionError("the answer broke off half-way") from error


def _last_words(media: str, problem: dict[str, Any]) -> bytes:
    """Return the problem as the last item of a stream, whatever half an item stands before it.

    The stream still ends without its proper end, so that it looks complete to nobody.
    """
    return b"\n\n" + sse_frame(problem, event="problem") if media == SSE else b"\n" + ndjson_line(problem)


def _endpoint(route: Route, context: ApiContext, live: Live) -> Endpoint:
    async def endpoint(request: web.Request) -> web.StreamResponse:
        if context.control.stopping and route.access is Access.CHANGE:
            raise ShuttingDownError("The daemon is stopping and takes no new work.", hint="pxctl daemon start")
        arguments = read_arguments(route.parameters, _pairs(route, request))
        call = Call(request, context, live, arguments)
        work = answer_once(route, call) if route.method == hdrs.METH_POST else route.answer(call)
        if route.ends is Ends.BY_ITSELF:
            return await live.outlive_client(work)
        return await work

    return endpoint


def _pairs(route: Route, request: web.Request) -> list[tuple[str, str]]:
    pairs = list(request.query.items())
    if route.query is Query.DECLARED_ONLY:
        return pairs
    declared = {parameter.name for parameter in route.parameters}
    return [pair for pair in pairs if pair[0] in declared]


def _invite_body(context: ApiContext) -> Callable[[web.Request], Awaitable[None]]:
    async def invite(request: web.Request) -> None:
        expected = request.headers.get(hdrs.EXPECT, "").lower()
        if expected == "100-continue" and not _is_too_large(request, context) and request.version >= (1, 1):
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            # What goes out before the head of the answer is no part of it.
            request.writer.output_size = 0

    return invite


async def _stamp(request: web.Request, response: web.StreamResponse) -> None:
    request[_ANSWER] = response
    response.headers["X-Request-Id"] = request[_REQUEST_ID]
    response.headers["Server"] = "pxd"


def _watching(context: ApiContext, live: Live) -> Callable[[web.Application], AsyncIterator[None]]:
    async def watching(_: web.Application) -> AsyncIterator[None]:
        task = asyncio.create_task(watch_events(context.events, live))
        yield
        await cancel_and_wait(task)
        await live.finish()

    return watching


async def _end_streams(app: web.Application) -> None:
    app[LIVE].closing.set()


def _accept_id(given: str | None) -> str:
    if given is not None and _ACCEPTABLE_ID.fullmatch(given):
        return given
    return secrets.token_hex(8)


def _route_name(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return _UNMATCHED if resource is None else f"{request.method} {resource.canonical}"

"""The aiohttp application: what happens to every request, whichever route it takes.

Who is asking is established; the request gets an id; a body over its limit is refused unread; the route's access,
query, body and idempotency are honoured; every failure becomes a problem document (RFC 9457), whoever raised it: we,
aiohttp, or a bug, which is told as kind `internal` with the id of its request and nothing else. A failure after the
answer began breaks the connection off, so that a truncated answer can never look complete.
"""

from __future__ import annotations

import asyncio
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
from supervisord_py.api.context import ApiCall, ApiConfig, ApiContext, Live
from supervisord_py.api.routes import ROUTES, Answer, Route, handler_of
from supervisord_py.api.schemas import read_body, read_query
from supervisord_py.api.streams import NDJSON, PROBLEM, SSE, frame, json_answer, json_bytes
from supervisord_py.errors import PxError

_log = structlog.get_logger(__name__)

TCP_CONNECTIONS = 128
FIRST_REQUEST_SECONDS = 10.0
BACKLOG = 1024  # while the control plane restarts, clients wait here; the kernel caps it at net.core.somaxconn
JUPYTER = "/jupyter"
MAX_BODY = "tools.max_body_bytes"
_REQUEST_ID: web.RequestKey[str] = web.RequestKey("px.request_id", str)
_ROUTE: web.RequestKey[str] = web.RequestKey("px.route", str)
_ANSWER: web.RequestKey[web.StreamResponse] = web.RequestKey("px.answer", web.StreamResponse)
_ACCEPTABLE_ID = re.compile(r"[\x21-\x7e]{1,128}")
_CLIENT_GONE = 499


class UnknownRouteError(PxError, kind="unknown_route", title="No such route", status=404):
    """The API has no such path."""


class MethodNotAllowedError(PxError, kind="method_not_allowed", title="Method not allowed", status=405, exit_code=2):
    """The path is there, the method is not; `allow` lists those that are."""


async def serve(context: ApiContext, *listeners: socket.socket | None) -> web.AppRunner:
    """Serve every route of the table on sockets that are bound, until the runner that is returned is cleaned up.

    Requests under way then have the `drain_seconds` of the context. A client that goes away cancels its request.
    """
    config = context.config
    live = Live(config.drain_seconds)
    app = web.Application(client_max_size=config.max_body_bytes)
    for route in ROUTES:
        app.router.add_route(route.method, route.path, _endpoint(route, context, live))

    context.events.listeners.add(live.count)
    app.on_response_prepare.append(_stamp)
    app.on_shutdown.append(live.end_streams)
    app.on_cleanup.append(live.finish)
    runner = _Runner(app, config, live)
    await runner.setup()
    for listener in listeners:
        if listener is not None:  # serving calls listen(2) again, which sets the backlog anew
            await web.SockSite(runner, listener, backlog=BACKLOG).start()
    return runner


class _Runner(web.AppRunner):
    def __init__(self, app: web.Application, config: ApiConfig, live: Live) -> None:
        super().__init__(app, shutdown_timeout=config.drain_seconds)
        self._config, self._live = config, live

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        answer: Any = _answer_every_failure(made.request_handler, self._config, self._live)

        def routed(message: RawRequestMessage, payload: Any, protocol: _Connection, *rest: Any) -> web.BaseRequest:
            protocol.has_asked = True
            if protocol.is_tcp or message.path.startswith("/px/"):
                path = routed_path(message.path, is_tcp=protocol.is_tcp)
                message = message._replace(path=path, url=URL(path, encoded=True))
            return made.request_factory(message, payload, protocol, *rest)

        return _Server(answer, request_factory=routed, handler_cancellation=True)  # type: ignore[arg-type] # its protocol


class _Server(web.Server):
    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=asyncio.get_running_loop(), access_log=None)  # type: ignore[arg-type] # None: none


class _Connection(RequestHandler):
    """One connection. Of the loopback listener there are so many, and none that asks nothing for long."""

    is_tcp = has_asked = False
    refusal: PxError | None = None  # of all requests: who is at the other end of the Unix socket may not ask

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        self.is_tcp = connection.family != socket.AF_UNIX
        if not self.is_tcp:
            self.refusal = foreigner(connection)
        server: Any = self._manager
        if self.is_tcp and sum(each.is_tcp for each in server.connections) > TCP_CONNECTIONS:
            self.force_close()
        elif self.is_tcp:
            self._loop.call_later(FIRST_REQUEST_SECONDS, self._end_unless_asked)

    def _end_unless_asked(self) -> None:
        if not self.has_asked:
            self.force_close()

    def eof_received(self) -> bool:  # type: ignore[override] # True: go on writing
        """Answer a client that has said all and still reads (`nc -N`): on one that is gone, poll(2) sees a hang-up."""
        if self.is_tcp or self.transport is None:
            return False
        looking = select.poll()
        looking.register(self.transport.get_extra_info("socket").fileno(), 0)
        self.close()  # after the answer
        return not looking.poll(0)


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


def _answer_every_failure(handler: Any, config: ApiConfig, live: Live) -> Any:
    async def answer(request: web.Request) -> web.StreamResponse:
        given = request.headers.get("X-Request-Id")
        request[_REQUEST_ID] = given if given and _ACCEPTABLE_ID.fullmatch(given) else secrets.token_hex(8)
        status = _CLIENT_GONE
        try:
            try:
                asker: Any = request.protocol
                if asker.refusal is not None:
                    raise asker.refusal
                if asker.is_tcp:
                    token = request.query.get("token") if request.path.startswith(f"{JUPYTER}/") else None
                    admit_bearer(request.headers, config.tcp, token)
                if (request.content_length or 0) > config.max_body_bytes:
                    raise _too_large(config)
                response: web.StreamResponse = await handler(request)
            except Exception as error:
                response = await _fail(request, error, config)
            status = response.status
            return response
        finally:
            live.requests[request.get(_ROUTE, "unmatched"), status] += 1

    return answer


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
            raise errors.ShuttingDownError("The daemon is stopping and takes no new work.", hint="pxctl daemon start")
        call, headers, handler = ApiCall(request, context, live), request.headers, handler_of(route.handler)
        given = {} if "lenient" in rules or not request.query_string else read_query(handler.query, request.query)
        if handler.body is not None:
            given["body"] = read_body(handler.body, await request.read())
        key = headers.get("Idempotency-Key") if method == "POST" else None
        begin = partial(handler.answer, call, **given)
        work: Coroutine[Any, Any, Answer]
        if key is None or ("resumes" in rules and headers.get("Last-Event-ID")):
            work = begin()
        else:
            from supervisord_py.api.idempotency import answer_once  # which few ask for

            work = answer_once(call, key, begin, respond, streams="streams" in rules)
        found = await (asyncio.shield(live.detach(work)) if "outlives" in rules else work)
        return found if isinstance(found, web.StreamResponse) else respond(found)

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
    elif not isinstance(error, PxError) and (begun is None or not isinstance(error, ConnectionError)):
        _log.exception("request_failed", request_id=request_id, method=request.method, path=request.path)
        detail = f"The daemon made a mistake in request {request_id}; its log says more."
        error = errors.InternalError(detail, hint=f"look for {request_id} in the daemon's log, and please report it")
    if isinstance(error, PxError) and request.path.startswith(f"{JUPYTER}/"):
        error.extra.setdefault("message", error.detail)  # which Jupyter's clients look for
    if begun is None:
        assert isinstance(error, PxError)
        return _problem_response(error, request_id)
    if isinstance(error, PxError):  # else the client went away in the middle of its answer
        _log.warning("answer_broken_off", request_id=request_id, path=request.path, error=str(error))
        if begun.content_type in {SSE, NDJSON} and begun.content_length is None:
            # The last item, whatever half an item stands before it.
            rest = b"\n\n" if begun.content_type == SSE else b"\n"
            problem = {**error.problem(), "request_id": request_id}
            await begun.write(rest + frame(begun.content_type, problem, event="problem"))
    if request.transport is not None:
        request.transport.close()  # no proper end: it looks complete to nobody
    return begun


def _too_large(config: ApiConfig) -> errors.TooLargeError:
    detail = f"The body is over the limit of {config.max_body_bytes} bytes."
    hint = f"raise the setting {MAX_BODY}, or send less"
    return errors.TooLargeError(detail, hint=hint, limit_bytes=config.max_body_bytes, setting=MAX_BODY)


def _error_of_http(refusal: web.HTTPException, path: str, config: ApiConfig) -> PxError:
    if isinstance(refusal, web.HTTPNotFound):
        return UnknownRouteError(f"There is no route {path[:200]!r}.", hint="see: GET /api/openapi.json")
    if isinstance(refusal, web.HTTPMethodNotAllowed):
        allowed = sorted(refusal.allowed_methods)
        detail = f"{path[:200]!r} does not answer to {refusal.method[:20]}."
        return MethodNotAllowedError(detail, hint=f"use {' or '.join(allowed)}", allow=allowed)
    if isinstance(refusal, web.HTTPRequestEntityTooLarge):
        return _too_large(config)
    error = errors.BadRequestError(f"The request was refused: {refusal.reason}.")
    error.status = refusal.status
    return error


def _problem_response(error: PxError, request_id: str) -> web.Response:
    """Return the answer for an error; a body that was refused unread also ends the connection."""
    headers: dict[str, str] = {}
    retry = error.extra.get("retry_after_seconds", 1.0 if isinstance(error, errors.OverloadedError) else None)
    if retry is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry)))
    if isinstance(error, MethodNotAllowedError):
        headers["Allow"] = ", ".join(error.extra["allow"])
    body = json_bytes({**error.problem(), "request_id": request_id})
    response = web.Response(status=error.status, body=body, headers=headers, content_type=PROBLEM)
    if isinstance(error, errors.TooLargeError):
        response.force_close()
    return response

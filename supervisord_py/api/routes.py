"""The one table of routes. What is not here does not exist; what is here is described by `/api/openapi.json`.

A row is method and path, handler, answers, and what else holds. The handler is `module.function` of this package: its
docstring says what the route does, its keyword parameters are those of the query, and `body` is what is sent (a `Body`
must say nothing; without it, it is not looked at). It returns a document, whose schema and status are those of the
first answer; a status and a document; or a response. Its module is imported by the first request, for starting is what
users wait for.
An answer is `[STATUS ]SCHEMA` or `[STATUS ]MEDIA` with 200 where no status stands: `-` is JSON of no schema; `ndjson`,
`sse`, `raw`, `ipynb`, `text` are media; `nothing` and `websocket` have no body.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Coroutine
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple, get_type_hints

import msgspec
from aiohttp import web


class Access(StrEnum):
    """What a route needs. Every one needs the daemon's own user, root, or on TCP the token.

    `CHANGE` is refused while the daemon stops; `LIFE` steers the stop itself and is not; `READ` never changes anything.
    """

    READ = "read"
    CHANGE = "change"
    LIFE = "life"


READ, CHANGE, LIFE = Access.READ, Access.CHANGE, Access.LIFE
Answer = web.StreamResponse | dict[str, Any] | list[Any] | tuple[int, dict[str, Any]]
_STARTED = "px.kernel/1, 201 px.kernel/1, ndjson, sse, 204 nothing"
_RAN = "px.exec/1, ndjson, sse, 204 nothing"
_QUEUED = "202 px.execution/1, px.execution/1"


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One row."""

    method: str
    path: str  # with `{name}` parts
    handler: str
    returns: str
    access: Access
    outlives: bool = False  # the work goes on when the client goes away before the answer
    streams: bool = False  # the answer to a POST is a stream: it is not kept for replay under an Idempotency-Key
    resumes: bool = False  # a POST with Last-Event-ID does nothing again, under whatever key: it is told the rest
    lenient: bool = False  # query parameters that the row does not know are passed over

    def answers(self) -> list[tuple[int, str]]:
        """Return status and schema or medium of each answer."""
        words = (one.split(" ") for one in self.returns.split(", "))
        return [(int(given[0]) if given else 200, word) for *given, word in words]


class Handler(NamedTuple):
    """A function that answers, and what it takes of a request: the Struct of its query, the type of its body."""

    answer: Callable[..., Coroutine[Any, Any, Answer]]
    query: type[msgspec.Struct]
    body: Any  # None: there is none


@cache
def handler_of(name: str) -> Handler:
    """Return the handler that a row names."""
    module, _, function = name.partition(".")
    answer = getattr(importlib.import_module(f"supervisord_py.api.{module}"), function)
    types = get_type_hints(answer, include_extras=True)
    given = inspect.signature(answer).parameters.values()
    fields = [(one.name, types[one.name], one.default) for one in given if one.kind is one.KEYWORD_ONLY]
    # A parameter that is called like a word of Python's has an underscore behind it.
    query = msgspec.defstruct("Query", fields, forbid_unknown_fields=True, rename=lambda name: name.rstrip("_"))
    return Handler(answer, query, types.get("body"))


def _row(name: str, handler: str, returns: str, **more: Any) -> Route:
    method, _, path = name.partition(" ")
    default = {"access": READ if method == "GET" else CHANGE}
    return Route(method=method, path=path, handler=handler, returns=returns, **{**default, **more})


def _work(name: str, handler: str, returns: str, **more: Any) -> Route:
    return _row(name, handler, returns, outlives=True, **more)


def _jupyter(name: str, function: str, returns: str, **more: Any) -> Route:
    """Return a row of Jupyter's API: whoever made the request, what it begins goes on without the client."""
    method, _, path = name.partition(" ")
    handler, outlives = f"jupyter_server.{function}", method != "GET"
    return _row(f"{method} /jupyter/api{path}", handler, returns, outlives=outlives, lenient=True, **more)


ROUTES = (
    _row("GET /api/health", "daemon.health", "px.health/1", access=CHANGE),
    _row("GET /api/status", "status.status", "px.status/1"),
    _row("GET /api/events", "logs.events", "ndjson, sse"),
    _row("GET /api/metrics", "metrics.metrics", "text"),
    _row("GET /api/openapi.json", "openapi.openapi", "-"),
    _row("GET /api/doctor", "doctor.doctor", "px.doctor/1"),
    _row("GET /api/config", "daemon.show_config", "px.config/1"),
    _row("GET /api/daemon", "daemon.show_daemon", "px.daemon/1"),
    _work("POST /api/daemon/reload", "daemon.reload", "px.reload/1"),
    _work("POST /api/daemon/restart", "daemon.restart", "202 px.daemon-wish/1"),
    _work("POST /api/daemon/stop", "daemon.stop", "202 px.daemon-wish/1", access=LIFE),
    # --
    _row("GET /api/units", "status.list_units", "px.units/1"),
    _work("POST /api/units/start", "status.change", "px.start-units/1"),
    _work("POST /api/units/stop", "status.change", "px.stop-units/1"),
    _work("POST /api/units/restart", "status.change", "px.restart-units/1"),
    _row("GET /api/units/{u}/logs", "logs.unit_logs", "raw, ndjson, sse"),
    _row("GET /api/units/{u}/wait", "status.wait", "px.wait/1"),
    _row("GET /api/units/{u}/why", "why.why", "px.why/1"),
    # --
    _row("GET /api/launcher/state", "tools.launcher_state", "-"),
    _row("GET /api/tools", "tools.list_tools", "px.tools/1"),
    _row("GET /api/tools/{t}", "tools.show_tool", "px.tool/1"),
    _row("POST /api/tools/{t}/run", "tools.run", "-"),
    _row("POST /api/tools/{t}/stream", "tools.run", "sse, ndjson", streams=True),
    _row("GET /api/tools/{t}/lease", "tools.lease", "ndjson", access=CHANGE),
    _work("POST /api/tools/{t}/start", "tools.change", "px.start/1, 202 px.start/1"),
    _work("POST /api/tools/{t}/stop", "tools.change", "px.stop/1, 202 px.stop/1"),
    _work("POST /api/tools/new", "tools.new", "201 px.tool/1"),
    _work("POST /api/tools/add", "tools.add", "201 px.tool/1"),
    _work("DELETE /api/tools/{t}", "tools.remove", "px.removed/1"),
    _row("POST /api/tools/{t}/validate", "tools.validate", "px.validation/1"),
    _row("POST /api/tools/{t}/debug", "tools.debug", "px.debug/1"),
    _row("POST /api/tools/{t}/sync", "tools.sync", "ndjson", streams=True),
    _work("PUT /api/tools/{t}/pin", "tools.pin", "px.pin/1"),
    _work("DELETE /api/tools/{t}/pin", "tools.unpin", "px.pin/1"),
    # --
    _row("GET /api/kernels", "kernels.list_kernels", "px.kernels/1"),
    _work("POST /api/kernels", "kernels.begin", _STARTED, resumes=True),
    _row("GET /api/kernels/{k}", "kernels.show_kernel", "px.kernel/1"),
    _work("DELETE /api/kernels/{k}", "kernels.change", "px.stop/1, 202 px.stop/1"),
    _work("POST /api/kernels/{k}/stop", "kernels.change", "px.stop/1, 202 px.stop/1"),
    _work("POST /api/kernels/{k}/start", "kernels.change", "px.start/1, 202 px.start/1"),
    _work("POST /api/kernels/{k}/restart", "kernels.restart", "px.kernel/1"),
    _work("POST /api/kernels/{k}/interrupt", "kernels.interrupt", "px.interrupt/1"),
    _row("POST /api/kernels/{k}/use", "kernels.use", "px.kernel/1"),
    _row("POST /api/kernels/{k}/execute", "kernels.execute", _RAN, resumes=True),
    _row("GET /api/kernels/{k}/cells", "kernels.list_cells", "px.cells/1"),
    _row("GET /api/kernels/{k}/cells/{id}/output", "kernels.cell_output", "raw"),
    _row("GET /api/kernels/{k}/artifacts/{id}", "kernels.artifact", "raw"),
    _row("GET /api/kernels/{k}/notebook", "kernels.notebook", "ipynb"),
    _row("GET /api/capabilities", "kernels.capabilities", "px.capabilities/1"),
    _row("GET /api/kernelspecs", "jupyter_server.list_specs", "-"),
    # --
    _jupyter("GET ", "version", "-"),
    _jupyter("GET /kernelspecs", "list_specs", "-"),
    _jupyter("GET /kernelspecs/{name}", "show_spec", "-"),
    _jupyter("GET /kernels", "list_kernels", "-"),
    _jupyter("POST /kernels", "begin", "201 -"),
    _jupyter("GET /kernels/{uuid}", "show_kernel", "-"),
    _jupyter("DELETE /kernels/{uuid}", "end", "204 nothing"),
    _jupyter("POST /kernels/{uuid}/interrupt", "interrupt", "204 nothing"),
    _jupyter("POST /kernels/{uuid}/restart", "restart", "-"),
    _jupyter("GET /kernels/{uuid}/channels", "channels", "101 websocket", access=CHANGE),
    # --
    _row("GET /api/pipes", "pipes.list_pipes", "px.pipes/1"),
    _work("POST /api/pipes", "pipes.add_pipe", "201 px.pipe/1"),
    _work("POST /api/pipes/new", "pipes.new_pipe", "201 px.pipe/1"),
    _row("GET /api/pipes/queue", "pipes.queue", "px.queue/1"),
    _row("GET /api/pipes/{p}", "pipes.show_pipe", "px.pipe/1"),
    _work("DELETE /api/pipes/{p}", "pipes.remove_pipe", "px.removed/1"),
    _row("POST /api/pipes/{p}/run", "pipes.run_pipe", _QUEUED),
    _work("POST /api/pipes/{p}/enable", "pipes.enable", "px.pipe/1"),
    _work("POST /api/pipes/{p}/disable", "pipes.disable", "px.pipe/1"),
    _work("POST /api/pipes/{p}/config", "pipes.configure", "px.pipe/1"),
    _work("POST /api/pipes/{p}/cancel", "pipes.cancel_pipe", "px.executions/1"),
    _row("POST /api/pipes/{p}/validate", "pipes.validate", "px.pipe-validation/1", access=READ),
    _row("GET /api/pipes/{p}/next", "pipes.next_runs", "px.next/1"),
    _row("GET /api/executions", "pipes.list_executions", "px.executions/1"),
    _row("GET /api/pipes/{p}/executions", "pipes.list_executions", "px.executions/1"),
    _row("GET /api/pipes/{p}/executions/{id}", "pipes.show_execution", "px.execution/1"),
    _row("GET /api/executions/{id}", "pipes.show_execution", "px.execution/1"),
    _work("POST /api/pipes/{p}/executions/{id}/cancel", "pipes.cancel", "px.execution/1"),
    _work("POST /api/pipes/{p}/executions/{id}/retry", "pipes.retry", "202 px.execution/1"),
    _row("GET /api/pipes/{p}/executions/{id}/output", "pipes.output", "raw"),
    _row("GET /api/pipes/{p}/executions/{id}/tail", "pipes.tail", "sse, ndjson"),
    _work("POST /api/events/{name}", "pipes.publish_event", "202 px.event-claims/1"),
)

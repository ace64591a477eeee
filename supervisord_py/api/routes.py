"""The one table of routes. What is not here does not exist; what is here is described by
`/api/openapi.json`.

A row is method and path, handler, answers, and what else holds. The handler is `module.function` of
this package, whose module is imported by the first request (D66): its docstring says what the route
does, its keyword parameters are those of the query, `body` is what is sent (a `Body` must say
nothing; without it, it is not looked at). It returns a document, whose schema and status are those
of the first answer; a status and a document; or a response. An answer is `[STATUS ]SCHEMA` or
`[STATUS ]MEDIA`: `-` is JSON of no schema, `nothing` and `websocket` have no body.

What else holds are words: `outlives`: the work goes on when the client goes away before the answer.
`streams`: the answer to a POST is a stream, not kept for replay under an Idempotency-Key.
`resumes`: a POST with Last-Event-ID does nothing again, under whatever key: it is told the rest.
`lenient`: query parameters that the handler does not know are passed over. `begins`: refused while
the daemon stops, as is everything but GET that does not say `always`. `marks`: the handler calls
`ApiCall.mark_begun` right before its work can have an effect; a failure before that leaves an
Idempotency-Key free.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Coroutine
from functools import cache
from http import HTTPStatus
from typing import Any, NamedTuple, get_type_hints

import msgspec
from aiohttp import web

from supervisord_py import __version__
from supervisord_py.api.context import ApiCall
from supervisord_py.api.streams import JSON, NDJSON, PROBLEM, RAW, SSE

Answer = web.StreamResponse | dict[str, Any] | list[Any] | tuple[int, dict[str, Any]]
_STARTED = "px.kernel/1, 201 px.kernel/1, ndjson, sse, 204 nothing"
_RAN = "px.exec/1, ndjson, sse, 204 nothing"
_QUEUED = "202 px.execution/1, px.execution/1"


class Route(NamedTuple):
    name: str  # method and path, with `{name}` parts
    handler: str
    returns: str
    rules: str = ""

    @property
    def method(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def path(self) -> str:
        return self.name.partition(" ")[2]

    def answers(self) -> list[tuple[int, str]]:
        """Return status and schema or medium of each answer."""
        words = (one.split(" ") for one in self.returns.split(", "))
        return [(int(given[0]) if given else 200, word) for *given, word in words]


class Handler(NamedTuple):
    """A function that answers, and what it takes of a request: the Struct of its query, the type
    of its body.
    """

    answer: Callable[..., Coroutine[Any, Any, Answer]]
    query: type[msgspec.Struct]
    body: Any  # None: there is none


@cache
def handler_of(name: str) -> Handler:
    module, _, function = name.partition(".")
    answer = getattr(importlib.import_module(f"supervisord_py.api.{module}"), function)
    types = get_type_hints(answer, include_extras=True)
    given = inspect.signature(answer).parameters.values()
    fields = [
        (one.name, types[one.name], one.default) for one in given if one.kind is one.KEYWORD_ONLY
    ]
    # A parameter that is called like a word of Python's has an underscore behind it.
    query = msgspec.defstruct(
        "Query", fields, forbid_unknown_fields=True, rename=lambda name: name.rstrip("_")
    )
    return Handler(answer, query, types.get("body"))


ROUTES = (
    Route("GET /api/health", "daemon.health", "px.health/1", "begins"),
    Route("GET /api/status", "status.status", "px.status/1"),
    Route("GET /api/events", "logs.events", "ndjson, sse"),
    Route("GET /api/metrics", "metrics.metrics", "text"),
    Route("GET /api/openapi.json", "routes.openapi", "-"),
    Route("GET /api/doctor", "daemon.doctor", "px.doctor/1"),
    Route("GET /api/config", "daemon.show_config", "px.config/1"),
    Route("GET /api/daemon", "daemon.show_daemon", "px.daemon/1"),
    Route("POST /api/daemon/reload", "daemon.reload", "px.reload/1", "outlives"),
    Route("POST /api/daemon/restart", "daemon.restart", "202 px.daemon-wish/1", "outlives"),
    Route("POST /api/daemon/stop", "daemon.stop", "202 px.daemon-wish/1", "outlives always"),
    # --
    Route("GET /api/units", "status.list_units", "px.units/1"),
    Route("POST /api/units/start", "status.change", "px.start-units/1", "outlives"),
    Route("POST /api/units/stop", "status.change", "px.stop-units/1", "outlives"),
    Route("POST /api/units/restart", "status.change", "px.restart-units/1", "outlives"),
    Route("GET /api/units/{u}/logs", "logs.unit_logs", "raw, ndjson, sse"),
    Route("GET /api/units/{u}/wait", "status.wait", "px.wait/1"),
    Route("GET /api/units/{u}/why", "status.why", "px.why/1"),
    # --
    Route("GET /api/launcher/state", "tools.launcher_state", "-"),
    Route("GET /api/tools", "tools.list_tools", "px.tools/1"),
    Route("GET /api/tools/{t}", "tools.show_tool", "px.tool/1"),
    Route("POST /api/tools/{t}/run", "tools.run", "-", "marks"),
    Route("POST /api/tools/{t}/stream", "tools.run", "sse, ndjson", "streams marks"),
    Route("GET /api/tools/{t}/lease", "tools.lease", "ndjson", "begins"),
    Route("POST /api/tools/{t}/start", "tools.change", "px.start/1, 202 px.start/1", "outlives"),
    Route("POST /api/tools/{t}/stop", "tools.change", "px.stop/1, 202 px.stop/1", "outlives"),
    Route("POST /api/tools/new", "tools.new", "201 px.tool/1", "outlives"),
    Route("POST /api/tools/add", "tools.add", "201 px.tool/1", "outlives"),
    Route("DELETE /api/tools/{t}", "tools.remove", "px.removed/1", "outlives"),
    Route("POST /api/tools/{t}/validate", "tools.validate", "px.validation/1"),
    Route("POST /api/tools/{t}/debug", "tools.debug", "px.debug/1"),
    Route("POST /api/tools/{t}/sync", "tools.sync", "ndjson", "streams"),
    Route("PUT /api/tools/{t}/pin", "tools.pin", "px.pin/1", "outlives"),
    Route("DELETE /api/tools/{t}/pin", "tools.unpin", "px.pin/1", "outlives"),
    # --
    Route("GET /api/kernels", "kernels.list_kernels", "px.kernels/1"),
    Route("POST /api/kernels", "kernels.begin", _STARTED, "outlives resumes"),
    Route("GET /api/kernels/{k}", "kernels.show_kernel", "px.kernel/1"),
    Route("DELETE /api/kernels/{k}", "kernels.stop", "px.stop/1, 202 px.stop/1", "outlives"),
    Route("POST /api/kernels/{k}/stop", "kernels.stop", "px.stop/1, 202 px.stop/1", "outlives"),
    Route("POST /api/kernels/{k}/restart", "kernels.restart", "px.kernel/1", "outlives"),
    Route("POST /api/kernels/{k}/interrupt", "kernels.interrupt", "px.interrupt/1", "outlives"),
    Route("POST /api/kernels/{k}/use", "kernels.use", "px.kernel/1"),
    Route("POST /api/kernels/{k}/execute", "kernels.execute", _RAN, "resumes marks"),
    Route("GET /api/kernels/{k}/cells", "kernels.list_cells", "px.cells/1"),
    Route("GET /api/kernels/{k}/cells/{id}/output", "kernels.cell_output", "raw"),
    Route("GET /api/kernels/{k}/artifacts/{id}", "kernels.artifact", "raw"),
    Route("GET /api/kernels/{k}/notebook", "kernels.notebook", "ipynb"),
    Route("GET /api/capabilities", "kernels.capabilities", "px.capabilities/1"),
    Route("GET /api/kernelspecs", "jupyter_server.list_specs", "-"),
    # --
    Route("GET /jupyter/api", "jupyter_server.version", "-", "lenient"),
    Route("GET /jupyter/api/kernelspecs", "jupyter_server.list_specs", "-", "lenient"),
    Route("GET /jupyter/api/kernelspecs/{name}", "jupyter_server.show_spec", "-", "lenient"),
    Route("GET /jupyter/api/kernels", "jupyter_server.list_kernels", "-", "lenient"),
    Route("POST /jupyter/api/kernels", "jupyter_server.begin", "201 -", "outlives lenient"),
    Route("GET /jupyter/api/kernels/{uuid}", "jupyter_server.show_kernel", "-", "lenient"),
    Route(
        "DELETE /jupyter/api/kernels/{uuid}",
        "jupyter_server.end",
        "204 nothing",
        "outlives lenient",
    ),
    Route(
        "POST /jupyter/api/kernels/{uuid}/interrupt",
        "jupyter_server.interrupt",
        "204 nothing",
        "outlives lenient",
    ),
    Route(
        "POST /jupyter/api/kernels/{uuid}/restart",
        "jupyter_server.restart",
        "-",
        "outlives lenient",
    ),
    Route(
        "GET /jupyter/api/kernels/{uuid}/channels",
        "jupyter_server.channels",
        "101 websocket",
        "begins lenient",
    ),
    # --
    Route("GET /api/pipes", "pipes.list_pipes", "px.pipes/1"),
    Route("POST /api/pipes", "pipes.add_pipe", "201 px.pipe/1", "outlives"),
    Route("POST /api/pipes/new", "pipes.new_pipe", "201 px.pipe/1", "outlives"),
    Route("GET /api/pipes/queue", "pipes.queue", "px.queue/1"),
    Route("GET /api/pipes/{p}", "pipes.show_pipe", "px.pipe/1"),
    Route("DELETE /api/pipes/{p}", "pipes.remove_pipe", "px.removed/1", "outlives"),
    Route("POST /api/pipes/{p}/run", "pipes.run_pipe", _QUEUED, "marks"),
    Route("POST /api/pipes/{p}/enable", "pipes.enable", "px.pipe/1", "outlives"),
    Route("POST /api/pipes/{p}/disable", "pipes.enable", "px.pipe/1", "outlives"),
    Route("POST /api/pipes/{p}/config", "pipes.configure", "px.pipe/1", "outlives"),
    Route("POST /api/pipes/{p}/cancel", "pipes.cancel_pipe", "px.executions/1", "outlives"),
    Route("POST /api/pipes/{p}/validate", "pipes.validate", "px.pipe-validation/1", "always"),
    Route("GET /api/pipes/{p}/next", "pipes.next_runs", "px.next/1"),
    Route("GET /api/executions", "pipes.list_executions", "px.executions/1"),
    Route("GET /api/pipes/{p}/executions", "pipes.list_executions", "px.executions/1"),
    Route("GET /api/pipes/{p}/executions/{id}", "pipes.show_execution", "px.execution/1"),
    Route("GET /api/executions/{id}", "pipes.show_execution", "px.execution/1"),
    Route(
        "POST /api/pipes/{p}/executions/{id}/cancel", "pipes.cancel", "px.execution/1", "outlives"
    ),
    Route(
        "POST /api/pipes/{p}/executions/{id}/retry",
        "pipes.retry",
        "202 px.execution/1",
        "outlives marks",
    ),
    Route("GET /api/pipes/{p}/executions/{id}/output", "pipes.output", "raw"),
    Route("GET /api/pipes/{p}/executions/{id}/tail", "pipes.tail", "sse, ndjson"),
    Route("POST /api/events/{name}", "pipes.publish_event", "202 px.event-claims/1", "outlives"),
)

# -- the OpenAPI 3.1 description, made from the table, so that it cannot disagree with it ----------

_MEDIA = {
    "ndjson": NDJSON,
    "sse": SSE,
    "raw": RAW,
    "ipynb": "application/x-ipynb+json",
    "text": "text/plain",
}
_TEXT = {"type": "string"}
_PROBLEM_MEMBERS = (
    "type",
    "title",
    "status",
    "kind",
    "detail",
    "hint",
    "unit",
    "exit_code",
    "request_id",
)


async def openapi(_: ApiCall) -> dict[str, Any]:
    """Answer with the description of the table of routes."""
    bodies = list(
        dict.fromkeys(body for it in ROUTES if (body := handler_of(it.handler).body) is not None)
    )
    references, schemas = msgspec.json.schema_components(
        bodies, ref_template="#/components/schemas/{name}"
    )
    body_schemas = dict(zip(bodies, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, body_schemas)
    problem = {"schema": {"type": "object", "required": _PROBLEM_MEMBERS}}
    described = {
        "description": "What every failure is answered with (RFC 9457).",
        "content": {PROBLEM: problem},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pxd",
            "version": __version__,
            "description": "It is explained in pxd-api(7).",
        },
        "servers": [{"url": "http://px", "description": "curl --unix-socket $SOCK http://px/…"}],
        "paths": paths,
        "components": {"schemas": schemas, "responses": {"Problem": described}},
    }


def _first_paragraph(docstring: str) -> str:
    return " ".join(docstring.partition("\n\n")[0].split())


def _operation(route: Route, bodies: dict[Any, Any]) -> dict[str, Any]:
    words = [
        word.strip("{}").replace(".", "_")
        for word in route.path.split("/")
        if word and word != "api"
    ]
    handler = handler_of(route.handler)
    parameters = [("path", part, _TEXT) for part in re.findall("{(.+?)}", route.path)]
    for field in msgspec.structs.fields(handler.query):
        schema = msgspec.json.schema(field.type)
        schema = next((it for it in schema.get("anyOf", ()) if it != {"type": "null"}), schema)
        parameters.append(("query", field.encode_name, schema))
    operation: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *words]),
        "summary": _first_paragraph(handler.answer.__doc__ or ""),
        "parameters": [
            {"name": name, "in": place, "required": place == "path", "schema": schema}
            for place, name, schema in parameters
        ],
        "responses": {**_answers(route), "default": {"$ref": "#/components/responses/Problem"}},
    }
    if handler.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {JSON: {"schema": bodies[handler.body]}},
        }
    return operation


def _answers(route: Route) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for status, word in route.answers():
        answer = answers.setdefault(str(status), {"description": HTTPStatus(status).phrase})
        if word in {"nothing", "websocket"}:
            continue
        schema: dict[str, Any] = {} if word == "-" else _TEXT
        if word not in _MEDIA and word != "-":
            schema = {
                "type": "object",
                "required": ["schema"],
                "properties": {"schema": {"const": word}},
            }
        answer.setdefault("content", {})[_MEDIA.get(word, JSON)] = {"schema": schema}
    return answers

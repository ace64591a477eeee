"""The OpenAPI 3.1 description of the API, made from the route table, so that it cannot disagree with it."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from supervisord_py.api.negotiation import JSON, NDJSON, PROBLEM, PROMETHEUS, SSE
from supervisord_py.api.route import Body, Route
from supervisord_py.errors import PxError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from supervisord_py.api.parameters import Parameter
    from supervisord_py.api.route import Returned

_PATH_PARTS = {
    "t": "name of a tool, with or without `tool:`",
    "u": "a unit: `x` where unambiguous, or `tool:x`",
    "k": "a kernel's session: its id, or its name where only one has it",
    "id": "id of a cell, an artifact or an execution",
    "uuid": "`jupyter_id` of a kernel",
    "name": "name of a kernelspec, or of an event",
    "p": "name of a pipe, with or without `pipe:`",
}
_WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.SWITCHING_PROTOCOLS})
_TEXT_MEDIA = frozenset({NDJSON, SSE, PROMETHEUS})


def openapi_document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """Describe the routes."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "pxd",
            "version": version,
            "description": "HTTP/1.1 and JSON on the daemon's Unix socket. Errors are RFC 9457 problem documents.",
        },
        "servers": [{"url": "http://px", "description": "curl --unix-socket $SOCK http://px/…"}],
        "paths": paths,
        "components": {
            "schemas": {"Problem": _problem_schema()},
            "responses": {"Problem": _problem_answer()},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "On the loopback TCP listener only."}
            },
        },
        "security": [{}, {"token": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "tags": [_tag(route.path)],
        "parameters": [*_path_parameters(route), *map(_query_parameter, route.parameters), *_headers(route)],
        "responses": {**_successes(route.returned), "default": {"$ref": "#/components/responses/Problem"}},
        "x-access": route.access.value,
    }
    if route.body is not Body.NONE:
        schema = {"type": "object"} if route.body is Body.OBJECT else {}
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": schema}}}
    return operation


def _operation_id(route: Route) -> str:
    words = [word.strip("{}").replace(".", "_") for word in route.path.split("/") if word and word != "api"]
    return "_".join([route.method.lower(), *words])


def _tag(path: str) -> str:
    noun = path.removeprefix("/").removeprefix("api/").partition("/")[0]
    return noun.partition(".")[0]


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {
            "name": part,
            "in": "path",
            "required": True,
            "description": _PATH_PARTS[part],
            "schema": {"type": "string"},
        }
        for part in route.path_parts
    ]


def _query_parameter(parameter: Parameter) -> dict[str, Any]:
    schema = parameter.schema()
    if parameter.repeated:
        schema = {"type": "array", "items": schema}
    return {
        "name": parameter.name,
        "in": "query",
        "required": False,
        "description": parameter.summary,
        "schema": schema,
    }


def _headers(route: Route) -> list[dict[str, Any]]:
    names = {"X-Request-Id": "echoed; made where it is missing"}
    if route.method == "POST":
        names["Idempotency-Key"] = "the same key, route and body are answered once and replayed after that"
    if any(one.media == SSE for one in route.returned):
        names["Last-Event-ID"] = "resume a stream after this id"
    return [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in names.items()
    ]


def _successes(returned: Iterable[Returned]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for one in returned:
        answer = answers.setdefault(str(one.status), {"description": one.description})
        if one.status not in _WITHOUT_BODY:
            answer.setdefault("content", {})[one.media] = {"schema": _schema(one)}
    return answers


def _schema(returned: Returned) -> dict[str, Any]:
    if returned.media in _TEXT_MEDIA:
        return {"type": "string"}
    if returned.media != JSON:
        return {"type": "string", "contentMediaType": returned.media}
    if returned.schema is None:
        return {}
    return {"type": "object", "required": ["schema"], "properties": {"schema": {"const": returned.schema}}}


def _problem_answer() -> dict[str, Any]:
    return {
        "description": "A problem document (RFC 9457).",
        "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }


def _problem_schema() -> dict[str, Any]:
    text = {"type": ["string", "null"]}
    return {
        "type": "object",
        "required": ["type", "title", "status", "kind", "detail", "hint", "unit", "exit_code", "request_id"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer", "minimum": HTTPStatus.BAD_REQUEST.value, "maximum": 599},
            "kind": {"type": "string", "examples": sorted(_kinds(PxError))},
            "detail": {"type": "string"},
            "hint": text,
            "unit": text,
            "exit_code": {"type": "integer", "description": "what pxctl exits with"},
            "request_id": {"type": "string"},
        },
    }


def _kinds(root: type[PxError]) -> set[str]:
    return {root.kind}.union(*(_kinds(branch) for branch in root.__subclasses__()))

"""The OpenAPI 3.1 description of the API, made from the route table, so that it cannot disagree with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from supervisord_py.api.context import ApiCall
from supervisord_py.api.routes import ROUTES, Route, handler_of
from supervisord_py.api.streams import JSON, NDJSON, PROBLEM, RAW, SSE

_MEDIA = {"ndjson": NDJSON, "sse": SSE, "raw": RAW, "ipynb": "application/x-ipynb+json", "text": "text/plain"}
_TEXT, _TEXT_OR_NONE = {"type": "string"}, {"type": ["string", "null"]}
_PROBLEM_DOCUMENT = {
    "description": "What every failure is answered with (RFC 9457); more members say what is particular.",
    "type": "object",
    "properties": {
        **dict.fromkeys(("type", "title", "kind", "detail", "request_id"), _TEXT),
        **dict.fromkeys(("hint", "unit"), _TEXT_OR_NONE),
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "exit_code": {"type": "integer", "description": "what pxctl exits with"},
    },
}


async def openapi(call: ApiCall) -> dict[str, Any]:
    """Answer with the description of the table of routes."""
    return openapi_document(ROUTES, call.context.control.facts.version)


def openapi_document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    bodies = list(dict.fromkeys(body for it in routes if (body := handler_of(it.handler).body) is not None))
    described, schemas = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    body_schemas = dict(zip(bodies, described, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, body_schemas)
    problem = {"description": "A problem document.", "content": {PROBLEM: {"schema": _PROBLEM_DOCUMENT}}}
    token = {"type": "http", "scheme": "bearer", "description": "On the loopback TCP listener only."}
    return {
        "openapi": "3.1.0",
        "info": {"title": "pxd", "version": version, "description": "Errors are problem documents; see pxd-api(7)."},
        "servers": [{"url": "http://px", "description": "curl --unix-socket $SOCK http://px/…"}],
        "paths": paths,
        "components": {"schemas": schemas, "responses": {"Problem": problem}, "securitySchemes": {"token": token}},
        "security": [{}, {"token": []}],
    }


def _operation(route: Route, bodies: dict[Any, Any]) -> dict[str, Any]:
    words = [word.strip("{}").replace(".", "_") for word in route.path.split("/") if word and word != "api"]
    handler = handler_of(route.handler)
    parameters = [("path", part, _TEXT) for part in re.findall("{(.+?)}", route.path)]
    for field in msgspec.structs.fields(handler.query):
        schema = msgspec.json.schema(field.type)
        schema = next((it for it in schema.get("anyOf", ()) if it != {"type": "null"}), schema)
        parameters.append(("query", field.encode_name, schema))
    headers = {"X-Request-Id": True, "Idempotency-Key": route.method == "POST", "Last-Event-ID": "sse" in route.returns}
    parameters += [("header", name, _TEXT) for name, is_read in headers.items() if is_read]
    operation: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *words]),
        "summary": (handler.answer.__doc__ or "").partition("\n")[0],
        "tags": [words[0].partition("_")[0] if words else "jupyter"],
        "parameters": [
            {"name": name, "in": place, "required": place == "path", "schema": schema}
            for place, name, schema in parameters
        ],
        "responses": {**_answers(route), "default": {"$ref": "#/components/responses/Problem"}},
    }
    if handler.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": bodies[handler.body]}}}
    return operation


def _answers(route: Route) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for status, word in route.answers():
        answer = answers.setdefault(str(status), {"description": HTTPStatus(status).phrase})
        if word in {"nothing", "websocket"}:
            continue
        schema: dict[str, Any] = {} if word == "-" else _TEXT
        if word not in _MEDIA and word != "-":
            schema = {"type": "object", "required": ["schema"], "properties": {"schema": {"const": word}}}
        answer.setdefault("content", {})[_MEDIA.get(word, JSON)] = {"schema": schema}
    return answers

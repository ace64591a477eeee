"""The OpenAPI 3.1 description of the API, made from the route table, so that it cannot disagree with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any

import msgspec

from supervisord_py.api.context import ApiCall
from supervisord_py.api.routes import ROUTES, Route, handler_of
from supervisord_py.api.streams import JSON, NDJSON, PROBLEM, RAW, SSE

_MEDIA = {"ndjson": NDJSON, "sse": SSE, "raw": RAW, "ipynb": "application/x-ipynb+json", "text": "text/plain"}
_REF = "#/components/schemas/{name}"


async def openapi(call: ApiCall) -> dict[str, Any]:
    """Answer with the description of the table of routes."""
    return openapi_document(ROUTES, call.context.control.facts.version)


class ProblemDocument(msgspec.Struct, kw_only=True):
    """What every failure is answered with (RFC 9457); more members say what is particular."""

    type: str
    title: str
    status: Annotated[int, msgspec.Meta(ge=400, le=599)]
    kind: str
    detail: str
    hint: str | None
    unit: str | None
    exit_code: Annotated[int, msgspec.Meta(description="what pxctl exits with")]
    request_id: str


def openapi_document(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """Describe the routes."""
    taken = (handler_of(route.handler).body for route in routes)
    bodies = [ProblemDocument, *dict.fromkeys(body for body in taken if body is not None)]
    described, schemas = msgspec.json.schema_components(bodies, ref_template=_REF)
    body_schemas = dict(zip(bodies, described, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, body_schemas)
    problem = {"description": "A problem document (RFC 9457).",
               "content": {PROBLEM: {"schema": {"$ref": _REF.format(name="ProblemDocument")}}}}  # fmt: skip
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
    parameters = [_parameter("path", part, {"type": "string"}) for part in re.findall("{(.+?)}", route.path)]
    handler = handler_of(route.handler)
    for field in msgspec.structs.fields(handler.query):
        schema = msgspec.json.schema(field.type)
        schema = next((it for it in schema.get("anyOf", ()) if it != {"type": "null"}), schema)
        parameters.append(_parameter("query", field.encode_name, schema))
    headers = ["X-Request-Id"]
    headers += ["Idempotency-Key"] if route.method == "POST" else []
    headers += ["Last-Event-ID"] if "sse" in route.returns else []
    parameters += [_parameter("header", name, {"type": "string"}) for name in headers]
    operation: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *words]),
        "summary": (handler.answer.__doc__ or "").partition("\n")[0],
        "tags": [words[0].partition("_")[0] if words else "jupyter"],
        "parameters": parameters,
        "responses": {**_answers(route), "default": {"$ref": "#/components/responses/Problem"}},
    }
    if handler.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": bodies[handler.body]}}}
    return operation


def _parameter(place: str, name: str, schema: Any) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": schema}


def _answers(route: Route) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for status, word in route.answers():
        answer = answers.setdefault(str(status), {"description": HTTPStatus(status).phrase})
        if word in {"nothing", "websocket"}:
            continue
        schema: dict[str, Any] = {} if word == "-" else {"type": "string"}
        if word not in _MEDIA and word != "-":
            schema = {"type": "object", "required": ["schema"], "properties": {"schema": {"const": word}}}
        answer.setdefault("content", {})[_MEDIA.get(word, JSON)] = {"schema": schema}
    return answers

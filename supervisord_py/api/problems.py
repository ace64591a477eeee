"""Every failure becomes one problem document (RFC 9457), whoever raised it: us, aiohttp, or a bug.

A bug is told to the client as kind `internal` with the id of its request and nothing else; the traceback goes to the
log under the same id.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from aiohttp import web

from supervisord_py.api.json_text import json_bytes
from supervisord_py.api.negotiation import PROBLEM
from supervisord_py.errors import (
    EXIT_FAILED,
    EXIT_USAGE,
    BadRequestError,
    ForbiddenError,
    OverloadedError,
    PxError,
    TooLargeError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_DEFAULT_RETRY_SECONDS = 1.0


class UnknownRouteError(PxError):
    """The API has no such path."""

    kind = "unknown_route"
    title = "No such route"
    status = 404
    exit_code = EXIT_FAILED


class MethodNotAllowedError(PxError):
    """The path is there, the method is not; `allow` lists those that are."""

    kind = "method_not_allowed"
    title = "Method not allowed"
    status = 405
    exit_code = EXIT_USAGE


class InternalError(PxError):
    """A bug of ours. The log has the traceback under `request_id`."""

    kind = "internal"
    title = "Internal error"
    status = 500


def internal_error(request_id: str) -> InternalError:
    """Make the error that stands for an unexpected exception, without a word of it."""
    return InternalError(
        f"The daemon made a mistake in request {request_id}; its log says more.",
        hint=f"look for {request_id} in the daemon's log, and please report it",
    )


def error_from_http(refusal: web.HTTPException, path: str, limit: tuple[int, str]) -> PxError:
    """Turn aiohttp's own refusals into ours. `limit` is the body limit in bytes and the setting's name."""
    match refusal:
        case web.HTTPNotFound():
            return UnknownRouteError(f"There is no route {path[:200]!r}.", hint="see: GET /api/openapi.json")
        case web.HTTPMethodNotAllowed():
            allowed = sorted(refusal.allowed_methods)
            return MethodNotAllowedError(
                f"{path[:200]!r} does not answer to {refusal.method[:20]}.",
                hint=f"use {' or '.join(allowed)}",
                allow=allowed,
            )
        case web.HTTPRequestEntityTooLarge():
            return too_large(*limit)
        case _:
            return _other(refusal)


def too_large(limit_bytes: int, setting: str) -> TooLargeError:
    """Make the error for a body over its limit."""
    return TooLargeError(
        f"The body is over the limit of {limit_bytes} bytes.",
        hint=f"raise the setting {setting}, or send less",
        limit_bytes=limit_bytes,
        setting=setting,
    )


def broken_http(status: int, message: str) -> PxError:
    """Make the error for bytes that are no HTTP request."""
    first_line = message.strip().splitlines()[0] if message.strip() else "it cannot be parsed"
    error = BadRequestError(f"This is no valid HTTP request: {first_line[:200]}.", hint="speak HTTP/1.1")
    error.status = status
    return error


def _other(refusal: web.HTTPException) -> PxError:
    if refusal.status == web.HTTPForbidden.status_code:
        return ForbiddenError(refusal.reason)
    error: PxError = BadRequestError(f"The request was refused: {refusal.reason}.")
    if refusal.status >= web.HTTPInternalServerError.status_code:
        error = InternalError(f"The request failed: {refusal.reason}.")
    error.status = refusal.status
    return error


def problem_document(error: PxError, request_id: str) -> dict[str, Any]:
    """Return the problem document, with the id of the request that it is about."""
    return {**error.problem(), "request_id": request_id}


def problem_headers(error: PxError) -> Mapping[str, str]:
    """Return Retry-After where asking again makes sense, and Allow for a wrong method."""
    headers: dict[str, str] = {}
    retry = error.extra.get("retry_after_seconds")
    if retry is None and isinstance(error, OverloadedError):
        retry = _DEFAULT_RETRY_SECONDS
    if retry is not None:
        headers["Retry-After"] = str(max(1, math.ceil(retry)))
    if isinstance(error, MethodNotAllowedError):
        headers["Allow"] = ", ".join(error.extra["allow"])
    return headers


def problem_response(error: PxError, request_id: str) -> web.Response:
    """Return the answer for an error; a body that was refused unread also ends the connection."""
    body = json_bytes(problem_document(error, request_id), default=str)
    response = web.Response(status=error.status, body=body, headers=problem_headers(error), content_type=PROBLEM)
    if isinstance(error, TooLargeError):
        response.force_close()
    return response

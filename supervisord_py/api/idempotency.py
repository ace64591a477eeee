"""`Idempotency-Key` on POST: one request, one effect, however often it is sent (DESIGN law 11).

The ledger knows the key before the work begins. A finished answer is replayed; where it is under way, died with its
control plane, was a stream or too long to keep, the key is refused with 409, and with another request with 422. An
answer that says that nothing was begun is forgotten, so that the same key may try again.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import sqlite3
import time
from collections.abc import Callable, Coroutine
from operator import methodcaller
from typing import Any

from aiohttp import web

from supervisord_py import errors
from supervisord_py.api.context import ApiCall
from supervisord_py.api.routes import Answer
from supervisord_py.api.streams import PROBLEM, json_bytes
from supervisord_py.errors import PxError
from supervisord_py.ledger.store import Ledger

CUT_OFF = 0  # status of a row whose control plane ended before the answer did (set at the opening of the ledger)
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_KEPT_BYTES = 1024 * 1024  # of an answer
_NOT_KEPT = "application/x-px-not-kept"
_CLAIM = """INSERT INTO idempotency (key, route, body_digest, created_at) VALUES (?, ?, ?, ?)
    ON CONFLICT (key, route) DO NOTHING"""
_LOOK = "SELECT body_digest, status, content_type, body FROM idempotency WHERE key = ? AND route = ?"
_KEEP = "UPDATE idempotency SET status = ?, content_type = ?, body = ? WHERE key = ? AND route = ?"
_FORGET = "DELETE FROM idempotency WHERE key = ? AND route = ?"

NOTHING_BEGUN = frozenset({
    "bad_request", "ambiguous_name", "forbidden", "unknown_unit", "too_large", "invalid_input", "config_error",
    "overloaded", "start_failed", "readiness_timeout", "shutdown", "keeper_lost",
})  # fmt: skip
"""Kinds of failure that leave no effect behind: asking again under the same key is no repetition."""


class UnknownOutcomeError(errors.ConflictError, kind="interrupted_outcome_unknown", title="The outcome is not known"):
    """The control plane died between the beginning of the work and its record."""


async def claim(ledger: Ledger, key: str, route: str, digest: str) -> tuple[Any, ...] | None:
    """Claim a key for a request with a body of that digest; None: go on, it was free. `route` is method and path.

    Else returns digest, status, content type and body of the first answer; a status of None: it is worked on.
    Raises LedgerDegradedError: the disk takes nothing, so a second request could not be told from the first.
    """

    def run(connection: sqlite3.Connection) -> tuple[Any, ...] | None:
        is_free = connection.execute(_CLAIM, (key, route, digest, time.time())).rowcount == 1
        return None if is_free else tuple(connection.execute(_LOOK, (key, route)).fetchone())

    return await ledger.call(run)


async def answer_once(
    call: ApiCall,
    key: str,
    begin: Callable[[], Coroutine[Any, Any, Answer]],
    respond: Callable[[Answer], web.StreamResponse],
    *,
    streams: bool,
) -> web.StreamResponse:
    """Respond with what comes of the work (`streams`: not kept for replay); what was done before is not begun."""
    if not _KEY.fullmatch(key):
        raise errors.BadRequestError("The Idempotency-Key must be 1 to 255 visible ASCII letters.", hint="use a UUID")
    request, ledger = call.request, call.context.ledger
    name = f"{request.method} {request.path}"
    digest = hashlib.sha256(request.query_string.encode() + b"\0" + await call.body()).hexdigest()
    if (known := await claim(ledger, key, name, digest)) is not None:
        return _again(digest, *known)
    sql, outcome = _KEEP, tuple[Any, ...]()
    try:
        response = respond(await begin())
        body = response.body if isinstance(response, web.Response) and not streams else None
        outcome = response.status, _NOT_KEPT, b""
        if isinstance(body, bytes | bytearray) and len(body) <= _KEPT_BYTES:
            outcome = response.status, response.content_type, bytes(body)
        return response
    except BaseException as error:
        failure = error if isinstance(error, PxError) else errors.InternalError("The first request failed by a bug.")
        if isinstance(error, asyncio.CancelledError | ConnectionError):
            failure = errors.CancelledRunError("The client of the first request with this Idempotency-Key went away.")
        outcome = failure.status, PROBLEM, json_bytes(failure.problem())
        if failure.kind in NOTHING_BEGUN:
            sql, outcome = _FORGET, ()
        raise
    finally:
        await ledger.write(methodcaller("execute", sql, (*outcome, key, name)))


def _again(
    digest: str, first_digest: str, status: int | None, content_type: str | None, body: bytes | None
) -> web.Response:
    """Answer a request whose key was used before as the first one was answered. Raises PxError: it cannot be so."""
    if first_digest != digest:
        detail = "This Idempotency-Key was used for another request."
        raise errors.InvalidInputError(detail, hint="use a new key for a new request", errors=[])
    first = "the first request with this Idempotency-Key"
    if status is None:
        raise errors.ConflictError(f"Still under way: {first}.", hint="wait for it, then ask again")
    if status == CUT_OFF:
        detail = f"The daemon was interrupted during {first}; whether it took effect is not known."
        raise UnknownOutcomeError(detail, hint="look with: pxctl status, pxctl events; then use a new key")
    if content_type == _NOT_KEPT:
        detail = f"{status} was the answer to {first}; streams and long answers are not kept."
        raise errors.ConflictError(detail, hint="use a new key to do it again")
    headers = {"Idempotent-Replayed": "true", "Content-Type": content_type or ""}
    return web.Response(status=status, body=body or b"", headers=headers)

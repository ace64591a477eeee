"""`Idempotency-Key` on POST: one request, one effect, however often it is sent (DESIGN law 11).

The ledger knows the key before the work begins. A finished answer is replayed. A key is refused
with 409 while its request is under way, when the outcome of that request is not known, and when its
answer was a stream or too long to keep; with another request it is refused with 422. Only a request
that was refused before it could have an effect leaves its key free. An outcome is not known when
the request may have begun and then broke off with the daemon, the control plane or the keeper.
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
from supervisord_py.ledger.schema import readable_rows
from supervisord_py.ledger.store import Ledger

CUT_OFF = 0  # status of a row whose request may have begun and whose outcome is not known
UNKNOWN_KIND = "interrupted_outcome_unknown"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_KEPT_BYTES = 1024 * 1024  # of an answer
_NOT_KEPT = "application/x-px-not-kept"
_CLAIM = """INSERT INTO idempotency (key, route, body_digest, created_at) VALUES (?, ?, ?, ?)
    ON CONFLICT (key, route) DO NOTHING"""
_LOOK = (
    "SELECT body_digest, status, content_type, body FROM idempotency WHERE key = ? AND route = ?"
)
_KEEP = "UPDATE idempotency SET status = ?, content_type = ?, body = ? WHERE key = ? AND route = ?"
_FORGET = "DELETE FROM idempotency WHERE key = ? AND route = ?"
_UNCLAIM = (
    "DELETE FROM idempotency WHERE key = ? AND route = ? AND status IS NULL AND created_at = ?"
)

REFUSED = frozenset({
    "bad_request", "ambiguous_name", "forbidden", "unknown_unit", "too_large", "invalid_input",
    "config_error", "overloaded",
})  # fmt: skip
"""Kinds with which every handler refuses a request as it stands, before it does anything that it
does not mark.
"""
NOT_STARTED = REFUSED | {
    "conflict", "start_failed", "readiness_timeout", "timed_out", "cancelled", "shutdown",
    "keeper_lost", "ledger_degraded", "ledger_unavailable",
}  # fmt: skip
"""Kinds that leave the key free where the handler marks the beginning (rule `marks`) and did not
come to it.

Not `interrupted`: the work may go on behind an answer that was cut off because the control plane is
replaced.
"""
OUTCOME_UNKNOWN = frozenset({
    "shutdown", "keeper_lost", "interrupted", "ledger_degraded", "ledger_unavailable", UNKNOWN_KIND,
})  # fmt: skip
"""Kinds with which work that is under way is cut off: they do not say whether it took effect."""


class UnknownOutcomeError(
    errors.ConflictError, kind=UNKNOWN_KIND, title="The outcome is not known"
):
    """The first request may have begun, and broke off before its outcome was recorded."""


async def claim(ledger: Ledger, key: str, route: str, digest: str) -> tuple[Any, ...] | None:
    """Claim a key for a request with a body of that digest; None: go on, it was free. `route` is
    method and path.

    Else returns digest, status, content type and body of the first answer; a status of None: it is
    worked on. Raises LedgerDegradedError: the disk takes nothing, so a second request could not be
    told from the first.
    """

    now = time.time()

    def run(connection: sqlite3.Connection) -> tuple[Any, ...] | None:
        is_free = connection.execute(_CLAIM, (key, route, digest, now)).rowcount == 1
        if is_free:
            return None
        rows, _ = readable_rows(connection, _LOOK, (key, route))
        # Of an answer that cannot be read any more only this is known: the request was made.
        return rows[0] if rows else (digest, CUT_OFF, None, None)

    try:
        return await ledger.call(run)
    except BaseException:
        # The caller is not told whether the claim was committed. Nothing was begun, so it must not
        # stay: otherwise the key would count as under way for ever. What is posted takes effect
        # after the claim, if that still does.
        ledger.post(methodcaller("execute", _UNCLAIM, (key, route, now)))
        raise


async def answer_once(
    call: ApiCall,
    key: str,
    begin: Callable[[], Coroutine[Any, Any, Answer]],
    respond: Callable[[Answer], web.StreamResponse],
    *,
    streams: bool,
    marks: bool,
) -> web.StreamResponse:
    """Respond with what comes of the work, or as the first request with this key was answered.

    `streams`: the answer is not kept for replay. `marks`: the handler calls `ApiCall.mark_begun`.
    """
    if not _KEY.fullmatch(key):
        raise errors.BadRequestError(
            "The Idempotency-Key must be 1 to 255 visible ASCII letters.", hint="use a UUID"
        )
    request, ledger = call.request, call.context.ledger
    name = f"{request.method} {request.path}"
    digest = hashlib.sha256(request.query_string.encode() + b"\0" + await call.body()).hexdigest()
    known = await claim(ledger, key, name, digest)
    if known is not None:
        return _again(digest, *known)
    # Whatever ends this in a way that is not named below leaves the outcome unknown.
    kept: tuple[int, str, bytes] | None = (CUT_OFF, PROBLEM, b"")
    try:
        response = respond(await begin())
        kept = _kept_response(response, streams=streams)
        return response
    except BaseException as error:
        kept = _kept_failure(call, error, marks=marks)
        raise
    finally:
        if kept is None:
            await ledger.write(methodcaller("execute", _FORGET, (key, name)))
        else:
            await ledger.write(methodcaller("execute", _KEEP, (*kept, key, name)))


def _kept_response(response: web.StreamResponse, *, streams: bool) -> tuple[int, str, bytes]:
    """Return status, content type and body to keep of an answer."""
    body = response.body if isinstance(response, web.Response) and not streams else None
    if isinstance(body, bytes | bytearray) and len(body) <= _KEPT_BYTES:
        return response.status, response.content_type, bytes(body)
    return response.status, _NOT_KEPT, b""


def _kept_failure(
    call: ApiCall, error: BaseException, *, marks: bool
) -> tuple[int, str, bytes] | None:
    """Return status, content type and body to keep of a failed request; None: it had no effect,
    forget its key.
    """
    if isinstance(error, asyncio.CancelledError | ConnectionError):
        # A handler is cancelled when its client goes away, and when the control plane ends.
        if call.live.closing.is_set():
            return CUT_OFF, PROBLEM, b""
        failure: PxError = errors.CancelledRunError(
            "The client of the first request with this Idempotency-Key went away.",
            hint="use a new key to do it again",
        )
        return failure.status, PROBLEM, json_bytes(failure.problem())
    failure = (
        error
        if isinstance(error, PxError)
        else errors.InternalError("The first request failed by a bug.")
    )
    free_kinds = NOT_STARTED if marks else REFUSED
    if failure.kind in free_kinds and not call.has_begun:
        return None
    if failure.kind in OUTCOME_UNKNOWN:
        return CUT_OFF, PROBLEM, b""
    return failure.status, PROBLEM, json_bytes(failure.problem())


def _again(
    digest: str, first_digest: str, status: int | None, content_type: str | None, body: bytes | None
) -> web.Response:
    """Answer a request whose key was used before as the first one was answered.

    Raises PxError: it cannot be so.
    """
    if first_digest != digest:
        detail = "This Idempotency-Key was used for another request."
        raise errors.InvalidInputError(detail, hint="use a new key for a new request", errors=[])
    first = "the first request with this Idempotency-Key"
    if status is None:
        raise errors.ConflictError(f"Still under way: {first}.", hint="wait for it, then ask again")
    if status == CUT_OFF:
        detail = f"{first[0].upper()}{first[1:]} was cut off; whether it took effect is not known."
        raise UnknownOutcomeError(
            detail, hint="look with: pxctl status, pxctl events; then use a new key"
        )
    if content_type == _NOT_KEPT:
        detail = f"{status} was the answer to {first}; streams and long answers are not kept."
        raise errors.ConflictError(detail, hint="use a new key to do it again")
    headers = {"Idempotent-Replayed": "true", "Content-Type": content_type or ""}
    return web.Response(status=status, body=body or b"", headers=headers)

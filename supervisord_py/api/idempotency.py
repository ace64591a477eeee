"""`Idempotency-Key` on POST: one request, one effect, however often it is sent (DESIGN law 11).

The ledger knows the key before the work begins. A finished answer is replayed; one under way, one whose outcome died
with an earlier control plane, and one that was a stream or too long to keep are refused with 409; the same key with
another request is 422. An answer that says that nothing was begun is forgotten, so that the same key may try again.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aiohttp import web

from supervisord_py.api.json_text import json_bytes
from supervisord_py.api.negotiation import PROBLEM
from supervisord_py.api.problems import InternalError
from supervisord_py.errors import BadRequestError, CancelledRunError, ConflictError, InvalidInputError, PxError
from supervisord_py.ledger import idempotency as records
from supervisord_py.ledger.idempotency import Done, InFlight, Interrupted, Mismatch, New

if TYPE_CHECKING:
    from supervisord_py.api.call import Call
    from supervisord_py.api.route import Route


_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_NOT_KEPT = "application/x-px-not-kept"

NOTHING_BEGUN = frozenset(
    {
        "bad_request",
        "ambiguous_name",
        "forbidden",
        "unknown_unit",
        "too_large",
        "invalid_input",
        "config_error",
        "overloaded",
        "start_failed",
        "readiness_timeout",
        "shutdown",
        "keeper_lost",
    }
)
"""Kinds of failure that leave no effect behind: asking again under the same key is no repetition."""


class UnknownOutcomeError(ConflictError):
    """The control plane died between the beginning of the work and its record."""

    kind = "interrupted_outcome_unknown"
    title = "The outcome is not known"


async def answer_once(route: Route, call: Call) -> web.StreamResponse:
    """Answer, unless the request's key says that this was done before.

    Raises:
        ConflictError: It is under way, its outcome is unknown, or its answer was not kept.
        InvalidInputError: The key belongs to another request.
        BadRequestError: The key is no key.
    """
    key = call.request.headers.get("Idempotency-Key")
    if key is None or (route.resumes and call.request.headers.get("Last-Event-ID")):
        return await route.answer(call)
    if not _KEY.fullmatch(key):
        raise BadRequestError("The Idempotency-Key must be 1 to 255 visible ASCII characters.", hint="use a UUID")
    ledger, name = call.context.ledger, f"{route.method} {call.request.path}"
    digest = hashlib.sha256(call.request.query_string.encode() + b"\0" + await call.request.read()).hexdigest()
    match await records.begin(ledger, key, name, digest, time.time()):
        case New():
            return await _first_time(route, call, key, name)
        case Done() as done:
            return _replay(done)
        case InFlight():
            raise ConflictError(
                "A request with this Idempotency-Key is still under way.", hint="wait for it, then ask again"
            )
        case Interrupted():
            raise UnknownOutcomeError(
                "The daemon was interrupted during the first request with this Idempotency-Key; whether it took effect "
                "is not known.",
                hint="look with: pxctl status, pxctl events; then use a new key",
            )
        case Mismatch():
            raise InvalidInputError(
                "This Idempotency-Key was used for another request.", hint="use a new key for a new request", errors=[]
            )


async def _first_time(route: Route, call: Call, key: str, name: str) -> web.StreamResponse:
    ledger = call.context.ledger
    copy = Copy(call.context.config.idempotency_body_bytes)
    outcome: Done | None = _failure(InternalError("The first request with this Idempotency-Key failed by a bug."))
    try:
        response = await route.answer(replace(call, copy=copy))
        outcome = _kept(route, response, copy)
        return response
    except PxError as error:
        outcome = None if error.kind in NOTHING_BEGUN else _failure(error)
        raise
    except (asyncio.CancelledError, ConnectionError):
        outcome = _failure(CancelledRunError("The client of the first request with this Idempotency-Key went away."))
        raise
    finally:
        if outcome is None:
            await records.abandon(ledger, key, name)
        else:
            await records.complete(ledger, key, name, outcome)


def _failure(error: PxError) -> Done:
    return Done(error.status, PROBLEM, json_bytes(error.problem(), default=str))


def _kept(route: Route, response: web.StreamResponse, copy: Copy) -> Done:
    if not copy.status and isinstance(response, web.Response) and isinstance(response.body, bytes | bytearray):
        copy.begin(response.status, response.content_type)
        copy.chunk(bytes(response.body))
    if route.streams or copy.too_long or not copy.status:
        return Done(response.status, _NOT_KEPT, b"")
    return Done(copy.status, copy.content_type, bytes(copy.body))


def _replay(done: Done) -> web.Response:
    if done.content_type == _NOT_KEPT:
        raise ConflictError(
            f"The first request with this Idempotency-Key was answered with {done.status}; streams and long "
            "answers are not kept.",
            hint="use a new key to do it again",
        )
    headers = {"Idempotent-Replayed": "true", "Content-Type": done.content_type}
    return web.Response(status=done.status, body=done.body, headers=headers)


@dataclass(slots=True)
class Copy:
    """Keeps what goes to the client, up to a limit. Given to whoever writes the answer piece by piece."""

    limit: int
    status: int = 0
    content_type: str = ""
    body: bytearray = field(default_factory=bytearray)
    too_long: bool = False

    def begin(self, status: int, content_type: str) -> None:
        """Note the head of the answer."""
        self.status, self.content_type = status, content_type

    def chunk(self, piece: bytes) -> None:
        """Note a piece of the body; nothing is kept of an answer over the limit."""
        if len(self.body) + len(piece) > self.limit:
            self.too_long = True
            self.body.clear()
        if not self.too_long:
            self.body += piece

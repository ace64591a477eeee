"""A tool's answer on a client's connection: the one door between the API's routes and a run.

Backpressure goes through: the tool is read only as fast as the client reads. A client that goes away cancels the run.
A stream that breaks off raises out of here, and the server must break its own connection off as well: a clean end would
say that it is complete.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from supervisord_py.errors import BadRequestError, TooLargeError
from supervisord_py.tools.serving import answers
from supervisord_py.tools.serving.runs import JsonInput, OpaqueInput, Running, RunRequest, run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from supervisord_py.tools.serving.launcher import Launcher

_FORWARDED = (
    "Accept",
    "Accept-Language",
    "Idempotency-Key",
    "Last-Event-ID",
    "Traceparent",
    "Tracestate",
    "X-Request-Id",
)
"""An allow-list: credentials for the daemon are none of the tool's business."""
_UNSAID = frozenset({"application/x-www-form-urlencoded", "application/octet-stream"})
"""What curl and aiohttp say when they were told nothing: JSON if it looks like JSON."""
MAX_SECONDS = 1e9
_FOR_EVER = -1.0


class AnswerTee(Protocol):
    """Hears what goes to the client."""

    def begin(self, status: int, content_type: str) -> None:
        """The answer begins."""

    def chunk(self, data: bytes) -> None:
        """A part of its body."""


async def forward(
    launcher: Launcher, request: web.Request, name: str, *, streaming: bool, tee: AnswerTee | None = None
) -> web.StreamResponse:
    """Run a tool for an HTTP request and answer it.

    Raises:
        PxError: before the answer has begun; afterwards where a stream broke off.
    """
    launcher.catalog.get(name)  # an unknown tool is 404 whatever else is wrong
    asked = RunRequest(
        content=await _content(launcher, request, name),
        streaming=streaming,
        timeout_seconds=_seconds(request, "timeout"),
        keep_alive=_seconds(request, "keep_alive"),
        headers={key: request.headers[key] for key in _FORWARDED if key in request.headers},
        request_id=request.headers.get("X-Request-Id"),
    )
    async with run(launcher, name, asked) as running:
        return await _answer(request, running, tee)


def _seconds(request: web.Request, name: str) -> float | None:
    text = request.query.get(name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if (0 <= value <= MAX_SECONDS and (value > 0 or name == "keep_alive")) or (
        name == "keep_alive" and value == _FOR_EVER
    ):
        return value
    allowed = "0, a number of seconds, or -1 for ever" if name == "keep_alive" else "a positive number of seconds"
    raise BadRequestError(f"The parameter {name}={text!r} is not {allowed}.", hint=f"Ask with ?{name}=30, for example.")


async def _content(launcher: Launcher, request: web.Request, name: str) -> JsonInput | OpaqueInput:
    limit = launcher.config.max_body_bytes
    size = request.content_length
    if (size or 0) > limit:
        raise _too_large(name, limit)
    content_type = request.headers.get("Content-Type", "")
    kind = answers.media_type(content_type)
    if not kind or answers.is_json(kind):
        return _json_input(await _whole(request, name, limit), name)
    if kind in _UNSAID:
        raw = await _whole(request, name, limit)
        return _json_input(raw, name) if raw.lstrip()[:1] in {b"{", b"["} else OpaqueInput(raw, content_type)
    if size is None or request.content.at_eof():
        return OpaqueInput(await _whole(request, name, limit), content_type)
    return OpaqueInput(request.content.iter_any(), content_type, size)


def _json_input(raw: bytes, name: str) -> JsonInput:
    if not raw.strip():
        return JsonInput({}, b"{}")
    try:
        return JsonInput(json.loads(raw, parse_constant=_no_number), raw)
    except (ValueError, RecursionError) as error:
        why = str(error) if isinstance(error, ValueError) else "it is nested too deeply"
        raise BadRequestError(
            f"The input for tool:{name} is not JSON: {why}.",
            hint="Send one JSON document, encoded in UTF-8.",
            unit=f"tool:{name}",
        ) from error


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number in JSON")


async def _whole(request: web.Request, name: str, limit: int) -> bytes:
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise _too_large(name, limit) from error
    if len(raw) > limit:
        raise _too_large(name, limit)
    return raw


def _too_large(name: str, limit: int) -> TooLargeError:
    return TooLargeError(
        f"The body for tool:{name} is larger than {limit} bytes.",
        hint="Raise the setting tools.max_body_bytes, or give the tool a path instead.",
        unit=f"tool:{name}",
        limit_bytes=limit,
        setting="tools.max_body_bytes",
    )


async def _answer(request: web.Request, running: Running, tee: AnswerTee | None) -> web.StreamResponse:
    headers = {**running.answer.headers, "X-Px-Run-Id": running.run_id}
    if running.cold_start_ms is not None:
        headers["X-Px-Cold-Start"] = str(running.cold_start_ms)
    if tee is not None:
        tee.begin(running.answer.status, headers.get("Content-Type", ""))
    match running.answer:
        case answers.WholeAnswer(status, _, body):
            if tee is not None:
                tee.chunk(body)
            return web.Response(status=status, headers=headers, body=body)
        case answers.StreamedAnswer(status, _, chunks):
            return await _relay(request, web.StreamResponse(status=status, headers=headers), chunks, tee)


async def _relay(
    request: web.Request, response: web.StreamResponse, chunks: AsyncIterator[bytes], tee: AnswerTee | None
) -> web.StreamResponse:
    await response.prepare(request)
    async for chunk in chunks:
        await response.write(chunk)
        if tee is not None:
            tee.chunk(chunk)
    await response.write_eof()
    return response

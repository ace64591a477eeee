"""What goes out: JSON, frames of SSE and NDJSON, times, and answers that go on without outliving
anyone.

A slow reader stalls only its own task: what it misses is dropped where it was buffered (the
subscription to events, the segments of output), and a gap marker takes its place.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from supervisord_py.api.context import ApiCall
from supervisord_py.errors import ShuttingDownError
from supervisord_py.ledger.table import to_text

T = TypeVar("T")
JSON = "application/json"
PROBLEM = "application/problem+json"
NDJSON = "application/x-ndjson"
SSE = "text/event-stream"
RAW = "application/octet-stream"
SSE_HEARTBEAT = b": still here\n\n"
BUFFER_BYTES = 1024 * 1024  # for a slow reader of a stream, before its source is held back
_ENCODER = msgspec.json.Encoder(enc_hook=str)
_TIMES = frozenset({
    "started_at", "queued_at", "finished_at", "ended_at", "ready_at", "not_before", "context_start",
    "context_end", "last_used", "last_run", "last_success", "next_run", "created_at", "at",
})  # fmt: skip
"""Members that are Unix seconds within and RFC 3339 outside."""


def rfc3339(moment: float | None) -> str | None:
    """Write Unix seconds as RFC 3339 UTC with milliseconds; None stays None."""
    return None if moment is None else to_text(moment)


def uptime_seconds(started_at: float) -> float:
    return round(max(0.0, time.time() - started_at), 3)


def pick(value: Any, *names: str) -> dict[str, Any]:
    """Return some attributes of an object, or all of a Struct's, as members of a document: times
    as RFC 3339.
    """
    return {
        name: rfc3339(getattr(value, name)) if name in _TIMES else getattr(value, name)
        for name in names or value.__struct_fields__
    }


def json_bytes(document: Any) -> bytes:
    """Write a document as compact JSON in UTF-8; what is no number is null, half of a surrogate
    pair its escape.
    """
    try:
        return _ENCODER.encode(document)
    # half a pair, or a whole number over 64 bits
    except (UnicodeEncodeError, OverflowError, ValueError):
        plain = json.loads(
            json.dumps(msgspec.to_builtins(document, enc_hook=str)), parse_constant=lambda _: None
        )
        return json.dumps(plain, allow_nan=False, separators=(",", ":")).encode()


def json_answer(document: Any, *, status: int = 200) -> web.Response:
    return web.Response(status=status, body=json_bytes(document), content_type=JSON)


def raw_answer(page: Any, **more: Any) -> web.Response:
    """Return a page of output (`data`, `offset`, `total_bytes`, `complete`) as bytes that no
    browser interprets.
    """
    facts = {
        "X-Offset": page.offset,
        "X-Total-Bytes": page.total_bytes,
        "X-Complete": page.complete,
        **more,
    }
    headers = {name: str(it).lower() for name, it in facts.items()}
    headers |= {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return web.Response(body=page.data, content_type=RAW, headers=headers)


def choose(call: ApiCall, *offered: str) -> str:
    """Return the first of `offered` that `Accept` names, in the order of the header; without one
    the first of all.
    """
    named = [
        part.partition(";")[0].strip().lower()
        for part in call.request.headers.get("Accept", "").split(",")
    ]
    return next((media for media in named if media in offered), offered[0])


def frame(
    media: str, document: Any, *, identifier: int | str | None = None, event: str | None = None
) -> bytes:
    """Return one line of NDJSON, or one event of SSE: JSON holds no raw line break, so one
    `data:` line is enough.
    """
    if media != SSE:
        return json_bytes(document) + b"\n"
    head = ("" if identifier is None else f"id: {identifier}\n") + (
        "" if event is None else f"event: {event}\n"
    )
    return head.encode() + b"data: " + json_bytes(document) + b"\n\n"


async def feed(
    call: ApiCall,
    media: str,
    source: AsyncGenerator[bytes, None],
    *,
    closing: asyncio.Event | None = None,
    endless: bool = False,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> web.StreamResponse:
    """Answer with what a source yields until it ends or `closing` (else the daemon's) is set; on
    SSE, signs of life.

    Nothing between us and the client may keep it back. What the source raises breaks the answer
    off. So does `closing`, unless the answer is `endless`: then its end means nothing but that the
    client has to ask again.
    """
    has_ended = False

    async def noticed() -> AsyncGenerator[bytes, None]:
        nonlocal has_ended
        async with aclosing(source) as pieces:
            async for piece in pieces:
                yield piece
        has_ended = True

    config, transport = call.context.config, call.request.transport
    if transport is not None:
        transport.set_write_buffer_limits(high=BUFFER_BYTES)
    response = web.StreamResponse(
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **headers}
    )
    response.content_type = media
    if media == SSE:
        response.charset = "utf-8"
    beat = SSE_HEARTBEAT if media == SSE else b""
    watched = source if endless else noticed()
    stream = until_closing(watched, closing or call.live.closing, config.stream_heartbeat_seconds)
    async with aclosing(stream) as items:
        await response.prepare(call.request)
        async for item in items:
            if data := beat if item is None else item:
                await response.write(data)
    if not (endless or has_ended):
        detail = (
            "The daemon stops, or its control plane is being replaced; this answer is not complete."
        )
        raise ShuttingDownError(detail, hint="ask again, from the last position that you have")
    await response.write_eof()
    return response


async def until_closing(
    source: AsyncIterator[T], closing: asyncio.Event, beat_seconds: float | None = None
) -> AsyncGenerator[T | None, None]:
    """Yield what the source yields and None after each silence; end with the source or once
    `closing` is set.
    """
    end = object()
    closed = asyncio.create_task(closing.wait())
    upcoming: asyncio.Future[Any] | None = None
    try:
        while not closing.is_set():
            if upcoming is None:
                upcoming = asyncio.ensure_future(anext(source, end))
            await asyncio.wait(
                {upcoming, closed}, timeout=beat_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if upcoming.done():
                item, upcoming = upcoming.result(), None
                if item is end:
                    return
                yield item
            elif not closed.done():
                yield None
    finally:
        await cancel_and_wait(closed)
        if upcoming is not None:
            await cancel_and_wait(upcoming)
        if isinstance(source, AsyncGenerator):
            await source.aclose()


async def first_of(*works: Awaitable[Any]) -> None:
    """Let works go on side by side until one of them ends, then end the others; what it raises
    comes through.
    """
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        for task in tasks:
            await cancel_and_wait(task)


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancel a task and wait for its end, whatever it is; a cancellation of the caller still
    gets through.
    """
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()


def said(stream: str, data: bytes, **known: Any) -> dict[str, Any]:
    """Return a document of a piece of output: `text` where the bytes are UTF-8, `base64` where
    they are not.
    """
    try:
        return {**known, "stream": stream, "text": data.decode()}
    # also of a character that was cut in two, whose other half is in the next piece
    except UnicodeDecodeError:
        return {**known, "stream": stream, "base64": base64.b64encode(data).decode()}

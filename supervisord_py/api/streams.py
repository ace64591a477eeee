"""Answers that go on: frames of SSE and NDJSON, and waiting for the next thing to send without outliving anyone.

A slow reader stalls only its own task: what it misses meanwhile is dropped where it was buffered (the event stream's
subscription, the output segments), and a gap marker takes its place. A stream ends when the client goes, when its
source ends, or when the daemon closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from aiohttp import web

from supervisord_py.api.call import cancel_and_wait
from supervisord_py.api.json_text import json_bytes, json_text
from supervisord_py.api.negotiation import SSE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Mapping

    from supervisord_py.api.call import Call

T = TypeVar("T")
SSE_HEARTBEAT = b": still here\n\n"


class Silence(Enum):
    """Nothing came for a heartbeat's time."""

    BEAT = "beat"


BEAT: Final = Silence.BEAT


def ndjson_line(document: Any) -> bytes:
    """Return one line of NDJSON."""
    return json_bytes(document) + b"\n"


def sse_frame(document: Any, *, identifier: int | str | None = None, event: str | None = None) -> bytes:
    """Return one event of a text/event-stream; JSON holds no raw line break, so one `data:` line is enough."""
    lines = [] if identifier is None else [f"id: {identifier}"]
    if event is not None:
        lines.append(f"event: {event}")
    lines.append("data: " + json_text(document))
    return ("\n".join(lines) + "\n\n").encode()


async def open_stream(call: Call, media: str, headers: Mapping[str, str] | None = None) -> web.StreamResponse:
    """Send the head of an endless answer; nothing between us and the client may keep it back."""
    transport = call.request.transport
    if transport is not None:
        transport.set_write_buffer_limits(high=call.context.config.stream_buffer_bytes)
    response = web.StreamResponse(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no", **(headers or {})})
    response.content_type = media
    if media == SSE:
        response.charset = "utf-8"
    await response.prepare(call.request)
    return response


async def until_closing(
    source: AsyncIterator[T], closing: asyncio.Event, beat_seconds: float
) -> AsyncGenerator[T | Silence, None]:
    """Yield what the source yields and BEAT after each silence; end with the source or once `closing` is set."""
    closed = asyncio.create_task(closing.wait())
    upcoming: asyncio.Task[T] | None = None
    try:
        while not closing.is_set():
            if upcoming is None:
                upcoming = asyncio.create_task(_next(source))
            await asyncio.wait({upcoming, closed}, timeout=beat_seconds, return_when=asyncio.FIRST_COMPLETED)
            if not upcoming.done():
                if not closed.done():
                    yield BEAT
                continue
            finished, upcoming = upcoming, None
            try:
                item = finished.result()
            except _SourceEndedError:
                return
            yield item
    finally:
        await cancel_and_wait(closed)
        if upcoming is not None:
            await cancel_and_wait(upcoming)
        if isinstance(source, AsyncGenerator):
            await source.aclose()


async def first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Return when the first of several waits is over; the others are given up."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            await cancel_and_wait(task)


class _SourceEndedError(Exception):
    """StopAsyncIteration cannot pass through a task (PEP 479)."""


async def _next(source: AsyncIterator[T]) -> T:
    try:
        return await anext(source)
    except StopAsyncIteration as end:
        raise _SourceEndedError from end

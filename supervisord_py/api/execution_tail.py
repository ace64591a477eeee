"""`…/executions/{id}/tail`: an execution's output from an offset to its end, live, by WebSocket, SSE or NDJSON.

The first object is `start`, the last `done`; each `output` names its stream and place, so that who was cut off goes on
where he was: `offset`, or the Last-Event-ID of SSE, which is the end of what he has, of both streams as `OUT-ERR`. A
client that does not read stalls only its own answer: output waits in its file.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from aiohttp import WSCloseCode, web

from supervisord_py.api.call import cancel_and_wait
from supervisord_py.api.executions import execution_of
from supervisord_py.api.json_text import json_text
from supervisord_py.api.negotiation import NDJSON, SSE, choose
from supervisord_py.api.parameters import refuse_value
from supervisord_py.api.pipe_documents import Decoder
from supervisord_py.api.streams import BEAT, SSE_HEARTBEAT, ndjson_line, open_stream, sse_frame, until_closing
from supervisord_py.pipes.output import FollowOutput, OutputStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from supervisord_py.api.call import Call
    from supervisord_py.pipes.output import FollowItem

Document = dict[str, Any]
_BOTH = (OutputStream.STDOUT, OutputStream.STDERR)
_SEEN = re.compile(r"[0-9]{1,18}(-[0-9]{1,18})?")


async def tail(call: Call) -> web.StreamResponse:
    """Follow an execution; who asks for an upgrade gets a WebSocket."""
    execution = await execution_of(call)
    source = _documents(call, execution.id, _seen(call))
    if call.request.headers.get("Upgrade", "").lower() == "websocket":
        return await _by_websocket(call, source)
    return await _by_stream(call, source)


async def _documents(call: Call, execution: int, seen: tuple[int, ...]) -> AsyncGenerator[Document, None]:
    """Yield what is to be told, to the end, without what was seen."""
    wanted = call.arguments.text("stream")
    streams = _BOTH if wanted is None else (OutputStream(wanted),)
    ends = {stream: seen[at] if at < len(seen) else 0 for at, stream in enumerate(streams)}
    behind = dict(zip(streams[1:], seen[1:], strict=False))  # the room begins the others at 0
    decoder = Decoder()
    async with aclosing(call.context.pipes.follow(execution, streams, seen[0])) as items:
        async for item in items:
            rest = _unseen(item, behind)
            document = None if rest is None else decoder.event(rest)
            if document is None:
                continue
            if document["event"] == "done":
                for left in decoder.rest():
                    yield _marked(left, ends)
            yield _marked(document, ends)


def _unseen(item: FollowItem, behind: Mapping[OutputStream, int]) -> FollowItem | None:
    if not isinstance(item, FollowOutput):
        return item
    passed = max(0, behind.get(item.stream, 0) - item.offset)
    return item._replace(offset=item.offset + passed, data=item.data[passed:]) if passed < len(item.data) else None


def _marked(document: Document, ends: dict[OutputStream, int]) -> Document:
    """Add to a piece of output how far all streams were told: what a client comes back with."""
    if document["event"] != "output":
        return document
    ends[OutputStream(document["stream"])] = document["end"]
    return {**document, "seen": "-".join(map(str, ends.values()))}


def _seen(call: Call) -> tuple[int, ...]:
    seen = call.request.headers.get("Last-Event-ID")
    if seen is None:
        return (call.arguments.integer("offset") or 0,)
    if not _SEEN.fullmatch(seen):
        raise refuse_value("Last-Event-ID", seen, "the id of the last event")
    return tuple(map(int, seen.split("-")))


async def _by_stream(call: Call, source: AsyncGenerator[Document, None]) -> web.StreamResponse:
    media = choose(call.wanted, (SSE, NDJSON))
    response = await open_stream(call, media)
    beat = call.context.config.stream_heartbeat_seconds
    async with aclosing(until_closing(source, call.live.closing, beat)) as items:
        async for item in items:
            with suppress(ConnectionResetError):
                await response.write(_frame(media, item if isinstance(item, dict) else None))
    return response


def _frame(media: str, document: Document | None) -> bytes:
    """Return one frame; None is a sign of life."""
    if document is None:
        return SSE_HEARTBEAT if media == SSE else b"\n"
    if media != SSE:
        return ndjson_line(document)
    return sse_frame(document, identifier=document.get("seen"), event=document["event"])


async def _by_websocket(call: Call, source: AsyncGenerator[Document, None]) -> web.StreamResponse:
    beat = call.context.config.stream_heartbeat_seconds
    socket = web.WebSocketResponse(heartbeat=beat, compress=False)
    await socket.prepare(call.request)
    hears = asyncio.create_task(_until_gone(socket))
    tells = asyncio.create_task(_tell(call, socket, source))
    try:
        await asyncio.wait({hears, tells}, return_when=asyncio.FIRST_COMPLETED)
        if tells.done():
            tells.result()
    finally:
        await cancel_and_wait(tells)
        code = WSCloseCode.GOING_AWAY if call.live.closing.is_set() else WSCloseCode.OK
        with suppress(ConnectionError):
            await socket.close(code=code)
        await cancel_and_wait(hears)
    return socket


async def _tell(call: Call, socket: web.WebSocketResponse, source: AsyncGenerator[Document, None]) -> None:
    beat = call.context.config.stream_heartbeat_seconds
    with suppress(ConnectionError):
        async with aclosing(until_closing(source, call.live.closing, beat)) as items:
            async for item in items:
                if item is not BEAT:
                    await socket.send_str(json_text(item))


async def _until_gone(socket: web.WebSocketResponse) -> None:
    """Read on: nothing the client says matters but that it goes."""
    async for _ in socket:
        continue

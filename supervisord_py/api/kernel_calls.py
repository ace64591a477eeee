"""`POST /api/kernels/{k}/execute`: runs cells, and tells what becomes of them as one document or as a stream.

Law: a call ends with its client, by the ladder of the room. It does not end with the control plane: when that is
replaced, the call is left to the room, its cells run on in their kernel, and their output stays where it is.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

from supervisord_py.api.call import cancel_and_wait, json_answer
from supervisord_py.api.call_feed import CallFeed
from supervisord_py.api.caller import caller_instance
from supervisord_py.api.kernel_documents import call_document
from supervisord_py.api.kernel_orders import Order, read_call
from supervisord_py.api.negotiation import JSON, NDJSON, SSE, choose
from supervisord_py.api.streams import BEAT, SSE_HEARTBEAT, ndjson_line, open_stream, sse_frame, until_closing
from supervisord_py.errors import InterruptedRunError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aiohttp import web

    from supervisord_py.api.call import Call
    from supervisord_py.kernels.cell import CallEvent, CallResult

_DRAIN_SHARE = 0.8
"""Of what requests get when the control plane is replaced: the rest is for telling that it is."""


async def execute(call: Call) -> web.StreamResponse:
    """Run cells in a session, which is made where there is none of that name."""
    arrived_at = asyncio.get_running_loop().time()
    order = await read_call(
        call.context.kernels,
        call.path("k").removeprefix("kernel:"),
        await call.body(),
        arrived_at=arrived_at,
        caller=caller_instance(call.request),
    )
    media = choose(call.wanted, (JSON, NDJSON, SSE))
    return await _stream(call, order, media) if media != JSON else await _answer(call, order)


async def _answer(call: Call, order: Order) -> web.StreamResponse:
    async with _running(call, order, _ignore) as (work, given_up):
        giving_up = asyncio.create_task(given_up.wait())
        await asyncio.wait({work, giving_up}, return_when=asyncio.FIRST_COMPLETED)
        await cancel_and_wait(giving_up)
        result = _result(work)
    response = json_answer(await _finished(call, order, result))
    if result.cold_start_ms is not None:
        response.headers["X-Px-Cold-Start"] = str(result.cold_start_ms)
    return response


async def _stream(call: Call, order: Order, media: str) -> web.StreamResponse:
    """Tell what happens as it happens. What fails before anything happened has an answer with its own status."""
    feed = CallFeed(call.context.config.cells_dir)
    async with _running(call, order, feed.tell) as (work, given_up):
        work.add_done_callback(lambda _: feed.close())
        await feed.begun()
        if work.done():
            _result(work)
        response = await open_stream(call, media)
        beat_seconds = call.context.config.stream_heartbeat_seconds
        async with aclosing(until_closing(feed.documents(), given_up, beat_seconds)) as documents:
            async for document in documents:
                if document is not BEAT:
                    await response.write(_frame(document, media))
                elif media == SSE:
                    await response.write(SSE_HEARTBEAT)
        result = _result(work)
    done = {"event": "done", "result": await _finished(call, order, result)}
    await response.write(_frame(done, media))
    await response.write_eof()
    return response


async def _finished(call: Call, order: Order, result: CallResult) -> dict[str, Any]:
    context = call.context
    limits = context.kernels.config.output
    return await order.finish(call_document(result), result, context.config.cells_dir, limits)


def _frame(document: Any, media: str) -> bytes:
    return sse_frame(document, event=document["event"]) if media == SSE else ndjson_line(document)


@asynccontextmanager
async def _running(
    call: Call, order: Order, tell: Callable[[CallEvent], None]
) -> AsyncIterator[tuple[asyncio.Task[CallResult], asyncio.Event]]:
    """Run the call for as long as the block lasts: whoever leaves early cancels it, unless we are being replaced.

    The event is set when the time for an orderly end is over and the call is to be left.
    """
    work = asyncio.create_task(call.context.kernels.execute(order.request, tell))
    given_up = asyncio.Event()
    patience = asyncio.create_task(_lose_patience(call, work, given_up))
    try:
        yield work, given_up
    finally:
        await cancel_and_wait(patience)
        if not work.done():
            if call.live.closing.is_set():
                call.live.leave(work)
            else:
                await cancel_and_wait(work)


async def _lose_patience(call: Call, work: asyncio.Task[CallResult], given_up: asyncio.Event) -> None:
    await call.live.closing.wait()
    await asyncio.wait({work}, timeout=call.context.config.drain_seconds * _DRAIN_SHARE)
    given_up.set()


def _result(work: asyncio.Task[CallResult]) -> CallResult:
    """Return what came of a call.

    Raises:
        PxError: It never ran, or was cut off.
        InterruptedRunError: It goes on without us.
    """
    if not work.done():
        raise InterruptedRunError(
            "The control plane is being replaced; the running cell goes on in its kernel, later ones are not run.",
            hint="pxctl kernel list; its output stays at /api/kernels/ID/cells",
        )
    return work.result()


def _ignore(_: CallEvent) -> None:
    pass

"""Work on a session whose course is told to its client: events as they happen, `done` with what came of it at last.

Law: what fails before anything happened has an answer with its own status; later, the problem is the last item. When
the control plane is replaced, the work is given a part of the time that requests get, and then left to the room. Each
server-sent event has an id, and a request with `Last-Event-ID` is told the rest, whatever else it says.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web

from supervisord_py.api.call import cancel_and_wait
from supervisord_py.api.call_feed import START, CallFeed, read_place
from supervisord_py.api.held_calls import HeldCall
from supervisord_py.api.negotiation import SSE, choose
from supervisord_py.api.parameters import refuse_value
from supervisord_py.api.streams import BEAT, SSE_HEARTBEAT, ndjson_line, open_stream, sse_frame, until_closing
from supervisord_py.errors import PxError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from supervisord_py.api.call import Call
    from supervisord_py.api.call_feed import StreamPlace
    from supervisord_py.errors import InterruptedRunError
    from supervisord_py.kernels.cell import CallEvent

T = TypeVar("T")
RESUME_SECONDS = 5.0
"""How long a call told as server-sent events waits for a client that was cut off."""
_DRAIN_SHARE = 0.8
"""Of what requests get when the control plane is replaced: the rest is for telling that it is."""
_DONE = "done"
_SEEN = re.compile("(?P<call>[0-9a-f]{16}):(?P<place>.*)")


@asynccontextmanager
async def running(call: Call, work: Coroutine[Any, Any, T]) -> AsyncIterator[tuple[asyncio.Task[T], asyncio.Event]]:
    """Run the work while the block lasts. Who leaves early cancels it, unless we are replaced.

    The event is set when the time for an orderly end is over and the work is to be left.
    """
    task = asyncio.create_task(work)
    try:
        async with _patience(call, task) as given_up:
            yield task, given_up
    finally:
        if not task.done():
            if call.live.closing.is_set():
                call.live.leave(task)
            else:
                await cancel_and_wait(task)


@asynccontextmanager
async def _patience(call: Call, work: asyncio.Task[Any]) -> AsyncIterator[asyncio.Event]:
    given_up = asyncio.Event()
    losing = asyncio.create_task(_lose_patience(call, work, given_up))
    try:
        yield given_up
    finally:
        await cancel_and_wait(losing)


async def _lose_patience(call: Call, work: asyncio.Task[Any], given_up: asyncio.Event) -> None:
    await call.live.closing.wait()
    await asyncio.wait({work}, timeout=call.context.config.drain_seconds * _DRAIN_SHARE)
    given_up.set()


def came_of(work: asyncio.Task[T], interrupted: InterruptedRunError) -> T:
    """Return what came of the work.

    Raises:
        PxError: It failed, or was cut off.
        InterruptedRunError: The given one: it goes on without us.
    """
    if not work.done():
        raise interrupted
    return work.result()


async def tell(
    call: Call,
    media: str,
    work: Callable[[Callable[[CallEvent], None]], Coroutine[Any, Any, dict[str, Any]]],
    *,
    interrupted: InterruptedRunError,
    ends_with_client: bool,
) -> web.StreamResponse:
    """Run work and answer with a stream of `media` of what happens.

    Args:
        call: The request.
        media: NDJSON or SSE.
        work: Given what takes its events; returns the document of `done`.
        interrupted: What is said where it goes on without us.
        ends_with_client: It is cancelled when its client goes away, and does not come back where it can.

    Raises:
        PxError: It failed.
    """
    feed = CallFeed(call.context.config.cells_dir)
    task = asyncio.create_task(work(feed.tell))
    task.add_done_callback(lambda _: feed.close())
    hold_seconds = RESUME_SECONDS if media == SSE else 0.0
    held = HeldCall(call.request.path, feed, task, interrupted, ends_with_client, hold_seconds)
    return await _follow(call, media, held, START)


async def resume(call: Call, seen: str) -> web.StreamResponse:
    """Answer with the rest of the stream whose event `seen` is the last that the client has.

    Raises:
        UnknownUnitError: It is not there any more.
        BadRequestError: That is no such id.
    """
    media = choose(call.wanted, (SSE,))
    found = _SEEN.fullmatch(seen)
    place = None if found is None else read_place(found["place"])
    if found is not None and found["place"] == _DONE:
        return web.Response(status=web.HTTPNoContent.status_code)  # what tells clients of SSE not to come back
    if found is None or place is None:
        raise refuse_value("Last-Event-ID", seen, "the id of the last event")
    return await _follow(call, media, call.live.held.find(found["call"], call.request.path), place)


async def _follow(call: Call, media: str, held: HeldCall, place: StreamPlace) -> web.StreamResponse:
    async with call.live.held.followed(held), _patience(call, held.work) as given_up:
        try:
            await held.feed.begun()
            if place == START and held.work.done():
                held.work.result()  # where it failed, its problem is the answer
            response = await open_stream(call, media)
            await _tell_rest(call, response, held, place, given_up)
            done = {"event": "done", "result": came_of(held.work, held.interrupted)}
        except PxError:
            held.is_told = True
            raise
        await response.write(_frame(media, done, f"{held.id}:{_DONE}"))
        await response.write_eof()
        held.is_told = True
    return response


async def _tell_rest(
    call: Call, response: web.StreamResponse, held: HeldCall, place: StreamPlace, given_up: asyncio.Event
) -> None:
    beat_seconds, media = call.context.config.stream_heartbeat_seconds, response.content_type
    async with aclosing(until_closing(held.feed.documents(place), given_up, beat_seconds)) as told:
        async for item in told:
            if item is not BEAT:
                await response.write(_frame(media, item[0], f"{held.id}:{item[1]}"))
            elif media == SSE:
                await response.write(SSE_HEARTBEAT)


def _frame(media: str, document: dict[str, Any], identifier: str) -> bytes:
    if media == SSE:
        return sse_frame(document, identifier=identifier, event=document["event"])
    return ndjson_line(document)

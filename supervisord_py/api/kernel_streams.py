"""Work on a session whose course is told to its client: events as they happen, `done` with what came of it at last.

Law: what fails before anything happened has an answer with its own status; later, the problem is the last item. When
the control plane is replaced, the work is given a part of the time that requests get, and then left to the room.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from supervisord_py.api.call import cancel_and_wait
from supervisord_py.api.call_feed import CallFeed
from supervisord_py.api.negotiation import SSE
from supervisord_py.api.route import Ends
from supervisord_py.api.streams import BEAT, SSE_HEARTBEAT, ndjson_line, open_stream, sse_frame, until_closing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from aiohttp import web

    from supervisord_py.api.call import Call
    from supervisord_py.errors import InterruptedRunError

T = TypeVar("T")
_DRAIN_SHARE = 0.8
"""Of what requests get when the control plane is replaced: the rest is for telling that it is."""


@asynccontextmanager
async def running(
    call: Call, work: Coroutine[Any, Any, T], ends: Ends
) -> AsyncIterator[tuple[asyncio.Task[T], asyncio.Event]]:
    """Run the work while the block lasts. Who leaves early cancels it, unless we are replaced or it ends by itself.

    The event is set when the time for an orderly end is over and the work is to be left.
    """
    task = asyncio.create_task(work)
    given_up = asyncio.Event()
    patience = asyncio.create_task(_lose_patience(call, task, given_up))
    try:
        yield task, given_up
    finally:
        await cancel_and_wait(patience)
        if not task.done():
            if ends is Ends.BY_ITSELF or call.live.closing.is_set():
                call.live.leave(task)
            else:
                await cancel_and_wait(task)


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


class ToldWork:
    """Answers with a stream of `media`. Give `tell` to the work, then `follow` it, then `finish`."""

    def __init__(self, call: Call, media: str) -> None:
        self._call = call
        self._media = media
        self._feed = CallFeed(call.context.config.cells_dir)
        self.tell = self._feed.tell

    async def follow(self, work: asyncio.Task[Any], given_up: asyncio.Event) -> web.StreamResponse:
        """Tell what happens until the work is over or is given up.

        Raises:
            PxError: It failed before anything happened, so that the answer has not begun.
        """
        work.add_done_callback(lambda _: self._feed.close())
        await self._feed.begun()
        if work.done():
            work.result()
        response = await open_stream(self._call, self._media)
        beat_seconds = self._call.context.config.stream_heartbeat_seconds
        async with aclosing(until_closing(self._feed.documents(), given_up, beat_seconds)) as documents:
            async for document in documents:
                if document is not BEAT:
                    await response.write(self._frame(document))
                elif self._media == SSE:
                    await response.write(SSE_HEARTBEAT)
        return response

    async def finish(self, response: web.StreamResponse, result: dict[str, Any]) -> web.StreamResponse:
        """Tell what came of it, and end the answer."""
        await response.write(self._frame({"event": "done", "result": result}))
        await response.write_eof()
        return response

    def _frame(self, document: Any) -> bytes:
        return sse_frame(document, event=document["event"]) if self._media == SSE else ndjson_line(document)

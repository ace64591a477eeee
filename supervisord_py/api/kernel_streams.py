"""Work on a session whose course is told to its client: events as they happen, `done` with what came of it at last.

Laws:
- Telling never waits. What a cell gives stays in its files until a follower has room for it; only events are kept here,
  of which a call has a handful for each cell.
- What fails before anything happened has an answer with its own status; later, the problem is the last item.
- When the control plane is replaced, the work is given a part of the time that requests get, then left to the room.
- Each server-sent event has an id; a request with `Last-Event-ID` is told the rest, and runs nothing again. Who does
  not come back in time has left: what ends with its client is cancelled then.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import NamedTuple

from aiohttp import web
from msgspec.structs import asdict

from supervisord_py.api.context import ApiCall
from supervisord_py.api.live import Document, HeldCall, Work, cancel_and_wait
from supervisord_py.api.schemas import refuse_value
from supervisord_py.api.streams import JSON, SSE, Decoder, feed, frame, json_answer, until_closing
from supervisord_py.errors import InterruptedRunError, UnknownUnitError
from supervisord_py.kernels.cell import (
    CallEvent,
    CellDone,
    CellResult,
    CellStarted,
    KernelStarting,
    Queued,
    RungClimbed,
)
from supervisord_py.kernels.cell_files import CellLog, OutputGoneError, Record, as_event
from supervisord_py.kernels.follow import Piece, Position, follow

RESUME_SECONDS = 5.0  # how long a call told as server-sent events waits for a client that was cut off
_SEEN = re.compile("(?P<call>[0-9a-f]{16}):(?:done|([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,18})-(-1|[0-9]{1,18}))")


class StreamPlace(NamedTuple):
    """How much was told: events of the call; of the cell that runs, bytes of its streams, and its last record."""

    events: int = 0
    out: int = 0
    err: int = 0
    record: int = -1


async def tell(
    call: ApiCall, media: str, work: Work, interrupted: Callable[[], InterruptedRunError], *, ends_with_client: bool
) -> web.StreamResponse:
    """Run work; answer with what came of it, or with a stream of what happens. See HeldCall for the arguments.

    `work` is given what takes its events, and returns the last document. Raises PxError: it failed.
    """
    hold_seconds = RESUME_SECONDS if media == SSE else 0.0
    held = HeldCall(
        call.live,
        call.request.path,
        work,
        interrupted,
        drain_seconds=call.context.config.drain_seconds,
        ends_with_client=ends_with_client,
        hold_seconds=hold_seconds,
    )
    return await _follow(call, media, held, StreamPlace())


async def resume(call: ApiCall, seen: str) -> web.StreamResponse:
    """Answer with the rest of the stream whose event `seen` is the last that the client has."""
    found = _SEEN.fullmatch(seen)
    if found is None:
        raise refuse_value("Last-Event-ID", seen, "must be the id of the last event")
    if found[2] is None:
        return web.Response(status=web.HTTPNoContent.status_code)  # what tells clients of SSE not to come back
    held = call.live.held.get(found["call"])
    if held is None or held.path != call.request.path:
        raise UnknownUnitError(
            "The stream to be resumed is not there any more; nothing was run again.",
            hint="what its cells gave is at GET /api/kernels/{k}/cells; run again without Last-Event-ID",
        )
    return await _follow(call, SSE, held, StreamPlace(*map(int, found.groups()[1:])))


async def _follow(call: ApiCall, media: str, held: HeldCall, place: StreamPlace) -> web.StreamResponse:
    async with held.followed():
        if media == JSON:
            await asyncio.wait({held.work, held.patience}, return_when=asyncio.FIRST_COMPLETED)
            answer = json_answer(document := held.result())
            held.is_told = True
            if (cold := document.get("cold_start_ms")) is not None:
                answer.headers["X-Px-Cold-Start"] = str(cold)
            return answer
        while not held.events and not held.news.is_closed:
            await held.news.after(held.news.rings)
        if place == StreamPlace() and held.work.done():
            held.work.result()  # where it failed, its problem is the answer
        response = await feed(call, media, _frames(call, media, held, place), closing=asyncio.Event())
        held.is_told = True
        return response


async def _frames(call: ApiCall, media: str, held: HeldCall, place: StreamPlace) -> AsyncGenerator[bytes, None]:
    async with aclosing(until_closing(_documents(call, held, place), held.given_up)) as items:
        async for item in items:
            if item is not None:
                at = "-".join(map(str, item[0]))
                yield frame(media, item[1], identifier=f"{held.id}:{at}", event=item[1]["event"])
    done = {"event": "done", "result": held.result()}
    yield frame(media, done, identifier=f"{held.id}:done", event="done")


async def _documents(
    call: ApiCall, held: HeldCall, place: StreamPlace
) -> AsyncGenerator[tuple[StreamPlace, Document], None]:
    """Yield what is to be told from a place on up to the end of the call, each with the place behind it.

    A cell's end is told when its files were read to their end; what else happens meanwhile, as soon as it does.
    """
    events, told, record = place.events, [place.out, place.err], place.record
    edges = [event for event in held.events[:events] if isinstance(event, CellDone | CellStarted)]
    started = edges[-1] if edges and isinstance(edges[-1], CellStarted) else None
    items: AsyncGenerator[Piece | Record, None] | None = None
    upcoming: asyncio.Task[Piece | Record | None] | None = None
    decoder = Decoder(in_order=True)
    try:
        while True:
            rings, over = held.news.rings, held.news.is_closed
            for event in held.events[events:]:
                if started is not None and isinstance(event, CellDone | CellStarted):
                    break
                events += 1
                if isinstance(event, CellStarted):
                    started, told, record = event, [0, 0], -1
                yield StreamPlace(events, told[0], told[1], record), event_document(event)
            if started is None:
                if over:
                    return
                await held.news.after(rings)
                continue
            if items is None:
                log = CellLog(call.context.config.cells_dir / started.session_id, started.id)
                items = follow(log, held.bell(started.id), Position(told[0], told[1], record))
            upcoming = upcoming or asyncio.create_task(_next(items))
            ring = asyncio.create_task(held.news.after(rings))
            await asyncio.wait({upcoming} if over else {upcoming, ring}, return_when=asyncio.FIRST_COMPLETED)
            await cancel_and_wait(ring)
            if not upcoming.done():
                continue
            item, upcoming = upcoming.result(), None
            found = decoder.rest() if item is None else []
            if isinstance(item, Piece):
                found = decoder.take(item.stream, item.offset, item.data)
            elif item is not None:
                record = max(record, item.offset)
                found = [] if (document := as_event(item)) is None else [document]
            for given in found:
                if "event" not in given:
                    told[given["stream"] == "stderr"] += given["end"] - given["offset"]
                yield StreamPlace(events, told[0], told[1], record), {"event": "output", "id": started.id, **given}
            if item is None:
                items = started = None
    finally:
        if upcoming is not None:
            await cancel_and_wait(upcoming)
        if items is not None:
            await items.aclose()


async def _next(items: AsyncGenerator[Piece | Record, None]) -> Piece | Record | None:
    """Return the next item; None at the end, also where the files of the cell are gone or never were."""
    with suppress(OutputGoneError):
        return await anext(items, None)
    return None


def event_document(event: CallEvent) -> Document:
    """Return an event of a call as its followers are told it."""
    match event:
        case Queued():
            return {"event": "queued", **asdict(event)}
        case KernelStarting():
            return {"event": "starting", "kernel": event.session_id, "interpreter": event.interpreter}
        case CellStarted(session_id=kernel):
            known = asdict(event)
            del known["session_id"]
            return {"event": "cell_started", **known, "kernel": kernel}
        case RungClimbed():
            return {"event": "rung", "id": event.id, **asdict(event.step)}
        case CellDone():
            return {"event": "cell_done", "cell": cell_document(event.result)}
    return {"event": "notice", **asdict(event)}


def cell_document(cell: CellResult) -> Document:
    """Return what came of one cell."""
    return {**asdict(cell), "duration": cell.duration_seconds}

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
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

from aiohttp import web

from supervisord_py.api.context import ApiCall, Document, HeldCall
from supervisord_py.api.schemas import refuse_value
from supervisord_py.api.streams import JSON, SSE, Decoder, feed, frame, json_answer
from supervisord_py.errors import UnknownUnitError
from supervisord_py.kernels.cell_files import READ_BYTES, CellLog, Piece, Reading, as_event

LOOK_SECONDS = 0.05  # how often a cell's files are looked at for those who follow it
_EDGES = frozenset({"cell_started", "cell_done"})
RESUME_SECONDS = 5.0  # how long a call told as server-sent events waits for a client that was cut off
_SEEN = re.compile("(?P<call>[0-9a-f]{16}):(?:done|([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,18})-(-1|[0-9]{1,18}))")


class StreamPlace(NamedTuple):
    """How much was told: events of the call; of the cell that runs, bytes of its streams, and its last record."""

    events: int = 0
    out: int = 0
    err: int = 0
    record: int = -1


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
    return await tell(call, SSE, held, StreamPlace(*map(int, found.groups()[1:])))


_BEGINNING = StreamPlace()


async def tell(call: ApiCall, media: str, held: HeldCall, place: StreamPlace = _BEGINNING) -> web.StreamResponse:
    """Answer with what came of work, or with a stream of what happens, from a place on. Raises PxError: it failed."""
    async with held.followed(RESUME_SECONDS if media == SSE else 0.0):
        if media == JSON:
            ends: set[asyncio.Future[Any]] = {held.work, call.live.given_up}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            answer = json_answer(document := held.result())
            held.is_told = True
            if (cold := document.get("cold_start_ms")) is not None:
                answer.headers["X-Px-Cold-Start"] = str(cold)
            return answer
        await held.until_more(0)
        if place == _BEGINNING and held.work.done():
            held.work.result()  # where it failed, its problem is the answer
        response = await feed(call, media, _frames(call, media, held, place), closing=asyncio.Event())
        held.is_told = True
        return response


async def _frames(call: ApiCall, media: str, held: HeldCall, place: StreamPlace) -> AsyncGenerator[bytes, None]:
    """Yield what is to be told from a place on: what happens, and what came of it at last.

    A cell's end is told when its files were read to their end; what else happens meanwhile, as soon as it does.
    """
    events, told, record = place.events, [place.out, place.err], place.record
    edges = [event for event in held.events[:events] if event["event"] in _EDGES]
    started = edges[-1] if edges and edges[-1]["event"] == "cell_started" else None
    reading: Reading | None = None
    decoder = Decoder()

    def told_now(document: Document) -> bytes:
        at = "-".join(map(str, (events, told[0], told[1], record)))
        return frame(media, document, identifier=f"{held.id}:{at}", event=document["event"])

    while not call.live.given_up.done() and (started or events < len(held.events) or not held.work.done()):
        for event in held.events[events:]:
            if started is not None and event["event"] in _EDGES:
                break
            events += 1
            if event["event"] == "cell_started":
                started, told, record = event, [0, 0], -1
            yield told_now(event)
        if started is None:
            await held.until_more(events)
            continue
        if reading is None:
            log = CellLog(call.context.config.cells_dir / started["kernel"], started["id"])
            reading = Reading(log, *told, span_bytes=READ_BYTES)
            await held.until_more(events, LOOK_SECONDS)  # most cells are over by then, and one look is enough
        has_ended = events < len(held.events) or held.work.done()
        found = await asyncio.to_thread(reading.pieces, record)
        is_last = reading.ended or (has_ended and not found)
        for item in [*found, None] if is_last else found:
            if isinstance(item, Piece):
                documents = decoder.take(item.stream, item.offset, item.data)
            elif item is not None:
                record = max(record, item.offset)
                documents = [] if (document := as_event(item)) is None else [document]
            else:
                documents = decoder.rest()
            for document in documents:
                if "event" not in document:
                    told[document["stream"] == "stderr"] += document["end"] - document["offset"]
                yield told_now({"event": "output", "id": started["id"], **document})
        if is_last:
            reading = started = None
        elif not found:
            await held.until_more(events, LOOK_SECONDS)
    yield frame(media, {"event": "done", "result": held.result()}, identifier=f"{held.id}:done", event="done")

"""`GET /api/events`: what happened, from the ledger and then as it happens, without a hole in between.

The subscription is made before anything is read, so that nothing can fall between the past and the present. Ids grow;
`Last-Event-ID` or `after` names the last one that the client has.
"""

from __future__ import annotations

from contextlib import aclosing, closing
from typing import TYPE_CHECKING

from aiohttp import web

from supervisord_py.api.negotiation import NDJSON, SSE, choose
from supervisord_py.api.parameters import refuse_value
from supervisord_py.api.streams import BEAT, SSE_HEARTBEAT, ndjson_line, open_stream, sse_frame, until_closing
from supervisord_py.errors import UnknownUnitError
from supervisord_py.ledger.events import Event
from supervisord_py.process.events import EventGap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisord_py.api.call import Call

_DEFAULT_LIMIT = 1000
_LARGEST_ID = 2**63 - 1


async def events(call: Call) -> web.StreamResponse:
    """Answer with past events, and with `follow` go on with those to come."""
    unit = _unit(call)
    after = _after(call)
    media = choose(call.wanted, (NDJSON, SSE))
    if call.arguments.flag("follow"):
        return await _follow(call, unit, after, media)
    body = b"".join(_frame(event, media) for event in await _past(call, unit, after))
    return web.Response(body=body, content_type=media, headers={"Cache-Control": "no-store"})


def _unit(call: Call) -> str | None:
    """Resolve the unit; one that is gone from the catalog still has a past under its full name."""
    wanted = call.arguments.text("unit")
    if wanted is None:
        return None
    try:
        return call.resolve_unit(wanted)
    except UnknownUnitError:
        if ":" in wanted:
            return wanted
        raise


def _after(call: Call) -> int | None:
    given = call.arguments.integer("after")
    if given is not None:
        return given
    resumed = call.request.headers.get("Last-Event-ID", "")
    if not resumed:
        return None
    if not (resumed.isascii() and resumed.isdigit() and int(resumed[:20]) <= _LARGEST_ID):
        raise refuse_value("Last-Event-ID", resumed, "the id of an event")
    return int(resumed)


async def _past(call: Call, unit: str | None, after: int | None) -> Sequence[Event]:
    limit = call.arguments.integer("limit") or _DEFAULT_LIMIT
    if after is None:
        return await call.context.events.latest(unit=unit, limit=limit)
    return await call.context.events.history(after, unit=unit, limit=limit)


async def _follow(call: Call, unit: str | None, after: int | None, media: str) -> web.StreamResponse:
    config = call.context.config
    recent: Sequence[Event] = ()
    if after is None and call.arguments.integer("limit"):
        known = call.context.events.last_id
        recent = await _past(call, unit, None)
        after = recent[-1].id if recent else known
    with closing(call.context.events.subscribe(after, unit=unit)) as subscription:
        response = await open_stream(call, media)
        for event in recent:
            await response.write(_frame(event, media))
        stream = until_closing(aiter(subscription), call.live.closing, config.stream_heartbeat_seconds)
        async with aclosing(stream) as items:
            async for item in items:
                if item is not BEAT:
                    await response.write(_frame(item, media))
                elif media == SSE:
                    await response.write(SSE_HEARTBEAT)
        await response.write_eof()
    return response


def _frame(item: Event | EventGap, media: str) -> bytes:
    document = item.document()
    if media != SSE:
        return ndjson_line(document)
    match item:
        case Event():
            return sse_frame(document, identifier=item.id, event=item.event)
        case EventGap():
            return sse_frame(document, event="gap")

"""`GET /api/events`: what happened, from the ledger and then as it happens, without a hole in between.

The subscription is made before anything is read, so that nothing can fall between the past and the present. Ids grow;
`Last-Event-ID` or `after` names the last one that the client has.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from aiohttp import web

from supervisord_py.api.schemas import last_id
from supervisord_py.api.streams import NDJSON, SSE, choose, frame, open_stream, send_all
from supervisord_py.api.units import unit_named
from supervisord_py.errors import UnknownUnitError
from supervisord_py.ledger.events import Event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from supervisord_py.api.context import Call
    from supervisord_py.api.schemas import EventsQuery
    from supervisord_py.process.events import EventGap

_DEFAULT_LIMIT = 1000


async def events(call: Call, query: EventsQuery) -> web.StreamResponse:
    """Answer with past events, and with `follow` go on with those to come."""
    unit, stream = query.unit, call.context.events
    if unit is not None:
        try:
            unit = unit_named(call, unit).unit
        except UnknownUnitError:
            if ":" not in unit:  # one that is gone from the catalog still has a past under its full name
                raise
    after = last_id(call.request.headers) if query.after is None else query.after
    media = choose(call, NDJSON, SSE)

    def framed(item: Event | EventGap) -> bytes:
        if isinstance(item, Event):
            return frame(media, item.document(), identifier=item.id, event=item.event)
        return frame(media, item.document(), event="gap")

    past: Sequence[Event] = ()
    known = stream.last_id
    if after is None and (query.limit or not query.follow):
        past = await stream.latest(unit=unit, limit=query.limit or _DEFAULT_LIMIT)
    elif after is not None and not query.follow:
        past = await stream.history(after, unit=unit, limit=query.limit or _DEFAULT_LIMIT)
    if not query.follow:
        body = b"".join(map(framed, past))
        return web.Response(body=body, content_type=media, headers={"Cache-Control": "no-store"})
    if after is None and query.limit:
        after = past[-1].id if past else known
    with closing(stream.subscribe(after, unit=unit)) as subscription:
        response = await open_stream(call, media)
        await response.write(b"".join(map(framed, past)))
        await send_all(call, response, aiter(subscription), framed)
        await response.write_eof()
    return response

"""`GET /api/units/{u}/logs` and `GET /api/events`: what was said and what happened, and then as it goes on.

Every item carries the position by which a client can come back: `next_position` or the event's `id`, which are
`Last-Event-ID` on SSE.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Annotated, Any, NamedTuple

from aiohttp import web
from msgspec import Meta

from supervisord_py.api import schemas as s
from supervisord_py.api.context import ApiCall
from supervisord_py.api.streams import NDJSON, RAW, SSE, choose, feed, frame, rfc3339, said
from supervisord_py.api.units import unit_named
from supervisord_py.errors import UnknownUnitError
from supervisord_py.ledger.pipes import ExecutionFilter
from supervisord_py.pipes.output import FollowOutput, OutputStream
from supervisord_py.pipes.room import Pipes
from supervisord_py.process.events import Event, EventGap
from supervisord_py.process.logs import Chunk, Cursor, LogReader, Output, Stream

_LINES_BYTES = 1024 * 1024  # of an execution's output: the last lines are looked for in so much of its end
_NEXT_SECONDS = 1.0  # who follows a pipe hears of its next execution within this time
_DEFAULT_EVENTS = 1000


async def unit_logs(
    call: ApiCall,
    *,
    follow: bool = False,
    since: s.Moment | None = None,
    stream: s.Stream | None = None,
    lines: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None,
    cursor: s.Position | None = None,
) -> web.StreamResponse:
    """Answer with the unit's output; with `follow` go on for as long as the client stays."""
    unit, cursor = _unit_of(call), s.last_id(call.request.headers) if cursor is None else cursor
    asked = _Asked(stream, follow, lines, s.moment_of("since", since, time.time()), cursor)
    if unit.startswith("pipe:"):
        source = _of_pipe(call.context.pipes, unit.removeprefix("pipe:"), asked)
    else:
        source = _of_unit(LogReader.of(call.context.placement.log_dir, unit), asked)
    media = choose(call, RAW, NDJSON, SSE)
    return await feed(call, media, _frames(media, source), endless=follow)


class _Asked(NamedTuple):
    stream: str | None
    follow: bool
    lines: int | None
    since: float | None
    cursor: int | None


def _unit_of(call: ApiCall) -> str:
    """Return the unit named; what is no unit, or none any more, but has a log goes by its full name."""
    given = call.request.match_info["u"]
    try:
        return unit_named(call).unit
    except UnknownUnitError:
        with suppress(ValueError):  # it would lead elsewhere
            if given.partition(":")[2] and LogReader.of(call.context.placement.log_dir, given).folder.is_dir():
                return given
        raise


async def _of_unit(reader: LogReader, asked: _Asked) -> AsyncGenerator[Output, None]:
    """Yield what is stored at the moment of the request, a bounded piece at a time, and then what comes."""
    only = None if asked.stream is None else Stream[asked.stream.upper()]
    since, cursor = asked.since, asked.cursor
    end = await asyncio.to_thread(reader.end)
    if cursor is None:
        cursor = await asyncio.to_thread(reader.start if since is None else lambda: reader.since(since))
    if asked.lines is not None:
        items = await asyncio.to_thread(reader.tail_lines, asked.lines, only) if asked.lines else []
        for item in items:
            if item.end > cursor:
                yield item
        if asked.follow and not items:  # where it goes on, should the answer break off before anything comes
            yield Chunk(time.time(), only or Stream.STDOUT, end, b"", 0)
        cursor = max([end, *(item.end for item in items[-1:])])
    if asked.follow:
        async for item in reader.follow(cursor, only):
            yield item
    at, before = Cursor(cursor), None
    while at.position < end and at != before:
        before = at
        found, at = await asyncio.to_thread(reader.read, before, stream=only)
        for item in found:
            yield item


async def _of_pipe(pipes: Pipes, pipe: str, asked: _Asked) -> AsyncGenerator[Output, None]:
    """Yield the output of a pipe's newest execution, with `follow` of those that come, by offsets in files."""
    known, streams = 0, [each for each in (OutputStream.STDOUT, OutputStream.STDERR) if asked.stream in {None, each}]
    while True:
        found, _ = await pipes.executions(ExecutionFilter(pipe=pipe, since=asked.since, limit=1))
        for newest in found if found and found[0].id != known else ():
            begins = [0 if known else await _begin(pipes, newest.id, each, asked) for each in streams]
            known = newest.id
            if asked.follow and not newest.status.is_final:
                async with aclosing(pipes.follow(known, streams, *begins)) as items:
                    async for item in items:
                        if isinstance(item, FollowOutput):
                            yield Chunk(time.time(), Stream[item.stream.upper()], item.offset, item.data, known)
                continue
            for each, begin in zip(streams, begins, strict=True):
                at = begin
                while (page := await pipes.output(known, each, at)).data:
                    yield Chunk(newest.finished_at or time.time(), Stream[each.upper()], at, page.data, known)
                    at += len(page.data)
        if not asked.follow:
            return
        await asyncio.sleep(_NEXT_SECONDS)


async def _begin(pipes: Pipes, number: int, stream: OutputStream, asked: _Asked) -> int:
    if asked.lines is None:
        return asked.cursor or 0
    end = (await pipes.output(number, stream, 0, 0)).total_bytes
    begin = max(0, end - _LINES_BYTES)
    last = (await pipes.output(number, stream, begin, _LINES_BYTES)).data.splitlines(keepends=True)
    return end - sum(map(len, last[-asked.lines :] if asked.lines else []))


async def _frames(media: str, source: AsyncGenerator[Output, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(source) as items:
        async for item in items:
            if isinstance(item, Chunk) and media == RAW:
                yield item.data
                continue
            known: dict[str, Any] = {"position": item.position, "next_position": item.end}
            if isinstance(item, Chunk):
                known |= {"time": rfc3339(item.time), "instance": item.instance}
                yield frame(media, said(item.stream.name.lower(), item.data, **known), identifier=item.end)
            elif media != RAW:
                yield frame(media, {"gap_bytes": item.lost_bytes, **known}, identifier=item.end)


async def events(
    call: ApiCall,
    *,
    follow: bool = False,
    unit: str | None = None,
    after: s.Position | None = None,
    limit: Annotated[int, Meta(ge=1, le=100_000)] | None = None,
) -> web.StreamResponse:
    """Answer with past events, and with `follow` go on with those to come."""
    stream = call.context.events
    if unit is not None:
        try:
            unit = unit_named(call, unit).unit
        except UnknownUnitError:
            if ":" not in unit:  # one that is gone from the catalog still has a past under its full name
                raise
    after = s.last_id(call.request.headers) if after is None else after
    media = choose(call, NDJSON, SSE)

    def framed(item: Event | EventGap) -> bytes:
        if isinstance(item, Event):
            return frame(media, item.document(), identifier=item.id, event=item.event)
        return frame(media, item.document(), event="gap")

    known, most = stream.last_id, limit or _DEFAULT_EVENTS
    past: list[Event] = []
    if after is None and (limit or not follow):
        past = await stream.latest(unit=unit, limit=most)
        after = past[-1].id if past else known
    elif after is not None and not follow:
        past = await stream.history(after, unit=unit, limit=most)
    body = b"".join(map(framed, past))
    if not follow:
        return web.Response(body=body, content_type=media, headers={"Cache-Control": "no-store"})
    news = stream.subscribe(after, unit=unit)  # before the head goes out: no hole in between

    async def told() -> AsyncGenerator[bytes, None]:
        yield body
        async for item in news:
            yield framed(item)

    async with aclosing(news):
        return await feed(call, media, told(), endless=True)

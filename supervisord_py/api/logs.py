"""`GET /api/units/{u}/logs` and `GET /api/events`: what was said and what happened, and then as it
goes on.

Every item carries the position by which a client can come back: `next_position` or the event's
`id`, which are `Last-Event-ID` on SSE.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Annotated, Any, NamedTuple

from aiohttp import web
from msgspec import Meta, structs

from supervisord_py.api import schemas as s
from supervisord_py.api.context import ApiCall
from supervisord_py.api.streams import NDJSON, RAW, SSE, choose, feed, frame, rfc3339, said
from supervisord_py.api.units import is_glob, resolve, resolve_one, unit_named, units_named
from supervisord_py.config.documents import nearest
from supervisord_py.errors import BadRequestError, InvalidInputError, UnknownUnitError
from supervisord_py.ledger.pipes import ExecutionFilter
from supervisord_py.pipes.output import FollowOutput, OutputStream
from supervisord_py.pipes.room import Pipes
from supervisord_py.process.event_words import FAILED, WORDS, EventFilter, words_named
from supervisord_py.process.events import Event, EventRange, EventStream, Item
from supervisord_py.process.logs import Chunk, Cursor, LogReader, Output, Stream

# of an execution's output: the last lines are looked for in so much of its end
_LINES_BYTES = 1024 * 1024
_NEXT_SECONDS = 1.0  # who follows a pipe hears of its next execution within this time
_DEFAULT_EVENTS = 1000
_KINDS = frozenset({"tool", "kernel", "pipe"})
_DAEMON = "pxd"  # what stands for the daemon itself where units are named
_MILLISECOND = 0.001
_PIECE_BYTES = 64 * 1024


async def unit_logs(
    call: ApiCall,
    *,
    follow: bool = False,
    since: s.Moment | None = None,
    stream: s.Stream | None = None,
    lines: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None,
    cursor: s.Position | None = None,
    cwd: s.Folder | None = None,
) -> web.StreamResponse:
    """Answer with the unit's output; with `follow` go on for as long as the client stays."""
    unit, cursor = (
        _unit_of(call, cwd),
        s.last_id(call.request.headers) if cursor is None else cursor,
    )
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


def _unit_of(call: ApiCall, cwd: str | None) -> str:
    """Return the unit named; what is no unit, or none any more, but has a log goes by its full
    name.
    """
    given = call.request.match_info["u"]
    try:
        return unit_named(call, cwd=cwd).unit
    except UnknownUnitError:
        with suppress(ValueError):  # it would lead elsewhere
            if (
                given.partition(":")[2]
                and LogReader.of(call.context.placement.log_dir, given).folder.is_dir()
            ):
                return given
        raise


async def _of_unit(reader: LogReader, asked: _Asked) -> AsyncGenerator[Output, None]:
    """Yield what is stored at the moment of the request, a bounded piece at a time, and then
    what comes.
    """
    only = None if asked.stream is None else Stream[asked.stream.upper()]
    since, cursor = asked.since, asked.cursor
    end = await asyncio.to_thread(reader.end)
    if cursor is None:
        cursor = await asyncio.to_thread(
            reader.start if since is None else lambda: reader.since(since)
        )
    if asked.lines is not None:
        items = await asyncio.to_thread(reader.tail_lines, asked.lines, only) if asked.lines else []
        for item in items:
            if item.end > cursor:
                yield item
        # where it goes on, should the answer break off before anything comes
        if asked.follow and not items:
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
    """Yield the output of a pipe's newest execution, with `follow` of those that come, by
    offsets in files.
    """
    known, streams = (
        0,
        [
            each
            for each in (OutputStream.STDOUT, OutputStream.STDERR)
            if asked.stream in {None, each}
        ],
    )
    while True:
        found, _ = await pipes.executions(ExecutionFilter(pipe=pipe, since=asked.since, limit=1))
        for newest in found if found and found[0].id != known else ():
            begins = [
                0 if known else await _begin(pipes, newest.id, each, asked) for each in streams
            ]
            known = newest.id
            if asked.follow and not newest.status.is_final:
                async with aclosing(pipes.follow(known, streams, *begins)) as items:
                    async for item in items:
                        if isinstance(item, FollowOutput):
                            yield Chunk(
                                time.time(),
                                Stream[item.stream.upper()],
                                item.offset,
                                item.data,
                                known,
                            )
                continue
            for each, begin in zip(streams, begins, strict=True):
                at = begin
                while (page := await pipes.output(known, each, at)).data:
                    yield Chunk(
                        newest.finished_at or time.time(),
                        Stream[each.upper()],
                        at,
                        page.data,
                        known,
                    )
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
                yield frame(
                    media, said(item.stream.name.lower(), item.data, **known), identifier=item.end
                )
            elif media != RAW:
                yield frame(media, {"gap_bytes": item.lost_bytes, **known}, identifier=item.end)


async def events(
    call: ApiCall,
    *,
    follow: bool = False,
    unit: tuple[str, ...] = (),
    event: tuple[str, ...] = (),
    failed: bool = False,
    since: s.Moment | None = None,
    until: s.Moment | None = None,
    after: s.Position | None = None,
    before: s.Position | None = None,
    limit: Annotated[int, Meta(ge=1, le=s.LONGEST)] | None = None,
    cwd: s.Folder | None = None,
) -> web.StreamResponse:
    """Answer with past events, and with `follow` go on with those to come.

    Without `since`, `after` and `limit` it is the newest 1,000. X-Complete says whether there are
    others.
    """
    stream = call.context.events
    after = s.last_id(call.request.headers) if after is None else after
    if follow and (until is not None or before is not None):
        raise BadRequestError(
            "What is followed has no end.", hint="leave out follow, or until and before"
        )
    names, globs = await _named_units(call, unit, follow=follow, cwd=cwd)
    wanted = structs.replace(
        _wanted_events(event, failed, since, until), units=names, unit_globs=globs
    )
    news = stream.subscribe(wanted=wanted)  # before anything is read: no hole in between
    async with aclosing(news):
        ids = await _range_of_events(
            stream,
            wanted,
            follow=follow,
            has_since=since is not None,
            after=after,
            before=before,
            limit=limit,
        )
        media = choose(call, NDJSON, SSE)
        past = stream.between(ids, wanted)
        frames = _event_frames(media, past, news if follow else None)
        complete = {} if follow else {"X-Complete": str(ids.is_complete).lower()}
        return await feed(call, media, frames, endless=follow, headers=complete)


def _wanted_events(
    words: Sequence[str], failed: bool, since: str | None, until: str | None
) -> EventFilter:
    """Read which events are asked for, of whatever unit.

    Raises InvalidInputError: no event has such a word.
    """
    meant, unknown = words_named(words)
    if unknown is not None:
        near = nearest(unknown, WORDS)
        hint = f"did you mean {near!r}?" if near else "see: EVENTS in pxctl(1)"
        raise InvalidInputError.at("/event", f"no event is called {unknown!r}", hint)
    now = time.time()
    last = s.moment_of("until", until, now)
    return EventFilter(
        words=meant if words else None,
        journals=FAILED if failed else (),
        since=s.moment_of("since", since, now),
        # Times are shown to the millisecond, and the one that is shown is to count.
        until=None if last is None else last + _MILLISECOND,
    )


async def _named_units(
    call: ApiCall, patterns: Sequence[str], *, follow: bool, cwd: str | None
) -> tuple[frozenset[str | None], tuple[str, ...]]:
    """Return full names and globs of them; None is the daemon itself.

    Raises UnknownUnitError: no unit of the present or of the past is called so; AmbiguousNameError:
    several are.
    """
    names: set[str | None] = set()
    globs: list[str] = []
    for pattern in patterns:
        if is_glob(pattern) and not await _is_exact(call, pattern):
            # A unit that comes later fits it as well.
            globs.append(pattern if ":" in pattern else f"*:{pattern}")
            continue
        try:
            names.add(unit_named(call, pattern, cwd=cwd).unit)
        except UnknownUnitError:
            if pattern == _DAEMON:
                names.add(None)
            elif follow and pattern.partition(":")[0] in _KINDS:
                names.add(pattern)  # one that is still to come
            else:
                # One that is gone from the catalog still has a past.
                names.add(resolve_one(pattern, await call.context.events.units()))
    return frozenset(names), tuple(globs)


async def _is_exact(call: ApiCall, pattern: str) -> bool:
    """Say whether a pattern is a name with a bracket in it.

    Raises UnknownUnitError: nothing is called so or fits.
    """
    try:
        views = units_named(call, [pattern], cwd=None)
    except UnknownUnitError:
        resolve([pattern], await call.context.events.units())
        return False
    return any(pattern in (view.unit, view.name) for view in views)


async def _range_of_events(
    stream: EventStream,
    wanted: EventFilter,
    *,
    follow: bool,
    has_since: bool,
    after: int | None,
    before: int | None,
    limit: int | None,
) -> EventRange:
    """Return which past events are asked for, by their ids."""
    if after is not None:
        if follow:
            return EventRange(min(after, stream.last_id), stream.last_id, is_complete=True)
        ids = await stream.oldest(after, limit or _DEFAULT_EVENTS, wanted)
        if before is not None and before - 1 <= ids.upto:
            return EventRange(after, before - 1, is_complete=True)
        return ids
    if limit is not None:
        return await stream.newest(limit, wanted, before)
    if has_since:
        upto = stream.last_id if before is None else before - 1
        return EventRange(0, upto, is_complete=True)
    if follow:
        return EventRange(stream.last_id, stream.last_id, is_complete=True)
    return await stream.newest(_DEFAULT_EVENTS, wanted, before)


async def _event_frames(
    media: str, past: AsyncGenerator[Item, None], news: AsyncGenerator[Item, None] | None
) -> AsyncGenerator[bytes, None]:
    """Yield what was, then what comes.

    The past is told in pieces of many events: each piece is a write.
    """
    piece = bytearray()
    last_id = 0
    async with aclosing(past):
        async for item in past:
            piece += _event_frame(media, item)
            last_id = item.id if isinstance(item, Event) else last_id
            if len(piece) >= _PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
    yield bytes(piece)
    if news is not None:
        async for item in news:
            # What came while the past was read is in both.
            if not isinstance(item, Event) or item.id > last_id:
                yield _event_frame(media, item)


def _event_frame(media: str, item: Item) -> bytes:
    if isinstance(item, Event):
        return frame(media, item.document(), identifier=item.id, event=item.event)
    return frame(media, item.document(), event="gap")

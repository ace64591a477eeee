"""`GET /api/units/{u}/logs`: a unit's output as raw bytes, NDJSON or SSE; followed across rotation and restarts.

Bytes are kept as they came; text is made of them here, when someone looks. Every item carries the position by which
a client can come back: `cursor`, or `Last-Event-ID` on SSE.
"""

from __future__ import annotations

import asyncio
import codecs
import time
from base64 import b64encode
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from supervisord_py.api.schemas import last_id, moment_of
from supervisord_py.api.streams import NDJSON, RAW, SSE, choose, frame, open_stream, rfc3339, send_all
from supervisord_py.api.units import unit_named
from supervisord_py.errors import UnknownUnitError
from supervisord_py.ledger.pipe_history import ExecutionFilter
from supervisord_py.pipes.output import FollowOutput, OutputStream
from supervisord_py.process.logs import Chunk, Cursor, Gap, LogReader, Output, Stream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from aiohttp import web

    from supervisord_py.api.context import Call
    from supervisord_py.api.schemas import LogsQuery
    from supervisord_py.pipes.room import Pipes

_STREAMS = {"stdout": Stream.STDOUT, "stderr": Stream.STDERR}
_LINES_BYTES = 1024 * 1024  # of an execution's output: the last lines are looked for in so much of its end
_NEXT_SECONDS = 1.0  # who follows a pipe hears of its next execution within this time


class _Stored(NamedTuple):
    """What is stored at the moment of the request: from `begin` up to `end`, or exactly `items` where lines count."""

    begin: int
    end: int
    items: tuple[Output, ...] | None


async def unit_logs(call: Call, query: LogsQuery) -> web.StreamResponse:
    """Answer with the unit's output; with `follow` go on for as long as the client stays."""
    since = moment_of("since", query.since, time.time())
    cursor = last_id(call.request.headers) if query.cursor is None else query.cursor
    only = _STREAMS.get(query.stream or "")
    media = choose(call, RAW, NDJSON, SSE)
    frames = Frames(media, query.encoding)
    unit = _unit_of(call)
    if unit.startswith("pipe:"):
        response = await open_stream(call, media)
        source = _of_pipe(call, unit.removeprefix("pipe:"), query, since, cursor)
        await send_all(call, response, source, frames.of)
        return await _end(response, frames)
    reader = LogReader.of(call.context.placement.log_dir, unit)
    stored = await asyncio.to_thread(_look, reader, cursor, since, query.lines, only)
    response = await open_stream(call, media, {"X-Cursor": str(stored.end)})
    async for item in _stored(call, reader, stored, only):
        if data := frames.of(item):
            await response.write(data)
    if query.follow:
        await send_all(call, response, reader.follow(stored.end, only), frames.of)
    return await _end(response, frames)


async def _end(response: web.StreamResponse, frames: Frames) -> web.StreamResponse:
    if rest := frames.rest():
        await response.write(rest)
    await response.write_eof()
    return response


def _unit_of(call: Call) -> str:
    """Return the unit named; what is no unit, or none any more, but has a log goes by its full name."""
    given = call.path("u")
    try:
        return unit_named(call).unit
    except UnknownUnitError:
        with suppress(ValueError):  # it would lead elsewhere
            if given.partition(":")[2] and LogReader.of(call.context.placement.log_dir, given).folder.is_dir():
                return given
        raise


# -- pipes: what their newest execution wrote ------------------------------------------------------------------------


async def _of_pipe(
    call: Call, pipe: str, query: LogsQuery, since: float | None, cursor: int | None
) -> AsyncGenerator[Output, None]:
    """Yield the output of a pipe's newest execution; with `follow` go on with it, and with those that come.

    It lies in files of the execution: positions are offsets in those.
    """
    pipes, known = call.context.pipes, 0
    streams = [OutputStream(name) for name in _STREAMS if query.stream in {None, name}]
    while True:
        found = (await pipes.executions(ExecutionFilter(pipe=pipe, since=since, limit=1))).executions
        for newest in found if found and found[0].id != known else ():
            begins = [0 if known else await _begin(pipes, newest.id, each, query.lines, cursor) for each in streams]
            known = newest.id
            if query.follow and not newest.status.is_final:
                async with aclosing(pipes.follow(known, streams, *begins)) as items:
                    async for item in items:
                        if isinstance(item, FollowOutput):
                            yield Chunk(time.time(), _STREAMS[item.stream], item.offset, item.data, known)
                continue
            for stream, begin in zip(streams, begins, strict=True):
                at = begin
                while (page := await pipes.output(known, stream, at)).data:
                    yield Chunk(newest.finished_at or time.time(), _STREAMS[stream], at, page.data, known)
                    at += len(page.data)
        if not query.follow:
            return
        await asyncio.sleep(_NEXT_SECONDS)


async def _begin(pipes: Pipes, number: int, stream: OutputStream, lines: int | None, cursor: int | None) -> int:
    """Return where what was asked for begins in a stream of an execution."""
    if lines is None:
        return cursor or 0
    end = (await pipes.output(number, stream, 0, 0)).total_bytes
    begin = max(0, end - _LINES_BYTES)
    last = (await pipes.output(number, stream, begin, _LINES_BYTES)).data.splitlines(keepends=True)
    return end - sum(map(len, last[-lines:] if lines else []))


# -- the other units: what is stored --------------------------------------------------------------------------------


def _look(
    reader: LogReader, cursor: int | None, since: float | None, lines: int | None, only: Stream | None
) -> _Stored:
    end = reader.end()
    if cursor is None:
        cursor = reader.start() if since is None else reader.since(since)
    items: tuple[Output, ...] | None = None
    if lines is not None:
        items = tuple(item for item in (reader.tail_lines(lines, only) if lines else []) if item.end > cursor)
    return _Stored(cursor, max(cursor, end), items)


async def _stored(call: Call, reader: LogReader, stored: _Stored, only: Stream | None) -> AsyncIterator[Output]:
    """Yield what is stored, read a bounded piece at a time, and not a byte beyond its end."""
    items: tuple[Output, ...] = stored.items or ()
    cursor, at_end = Cursor(stored.begin), stored.items is not None
    while True:
        for item in items:
            if isinstance(item, Chunk) and item.position < stored.end < item.end:
                yield msgspec.structs.replace(item, data=item.data[: stored.end - item.position])
            elif item.position < stored.end:
                yield item
        if at_end or cursor.position >= stored.end or call.live.closing.is_set():
            return
        batch = await asyncio.to_thread(reader.read, cursor, stream=only)
        items, cursor, at_end = batch.items, batch.cursor, batch.at_end


class Frames:
    """Turns output into the frames of one answer.

    Text is decoded per stream, so that a character cut in two by the end of a chunk comes out whole with the next one.
    """

    def __init__(self, media: str, encoding: str = "text") -> None:
        self._media = media
        self._encoding = encoding
        self._decoders: dict[Stream, codecs.IncrementalDecoder] = {}

    def of(self, item: Output) -> bytes:
        """Return the frame of one item; empty when there is nothing to say yet."""
        if self._media == RAW:
            return item.data if isinstance(item, Chunk) else b""
        if isinstance(item, Gap):
            lost = {"gap_bytes": item.lost_bytes, "position": item.position}
            return self.rest() + self._frame(lost, item.end)
        if self._encoding == "base64":
            return self._chunk(item, "base64", b64encode(item.data).decode(), item.end)
        decoder = self._decoders.get(item.stream)
        if decoder is None:
            decoder = self._decoders[item.stream] = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(item.data)
        # What the decoder holds back is not sent yet, so a client that comes back must get it again.
        return self._chunk(item, "text", text, item.end - len(decoder.getstate()[0])) if text else b""

    def rest(self) -> bytes:
        """Return what a final, incomplete character leaves; afterwards nothing is held back."""
        ends = [(stream, decoder.decode(b"", final=True)) for stream, decoder in self._decoders.items()]
        self._decoders.clear()
        return b"".join(
            self._frame({"stream": stream.name.lower(), "text": text}, None) for stream, text in ends if text
        )

    def _chunk(self, chunk: Chunk, member: str, content: str, end: int) -> bytes:
        document = {
            "time": rfc3339(chunk.time),
            "stream": chunk.stream.name.lower(),
            member: content,
            "position": chunk.position,
            "instance": chunk.instance,
        }
        return self._frame(document, end)

    def _frame(self, document: dict[str, Any], cursor: int | None) -> bytes:
        if cursor is not None:
            document["next_position"] = cursor
        return frame(self._media, document, identifier=cursor)

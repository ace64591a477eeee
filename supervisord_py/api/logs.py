"""`GET /api/units/{u}/logs`: a unit's output as raw bytes, NDJSON or SSE; followed across rotation and restarts.

Bytes are kept as they came; text is made of them here, when someone looks. Every item carries the position by which
a client can come back: `cursor`, or `Last-Event-ID` on SSE.
"""

from __future__ import annotations

import asyncio
import codecs
import time
from base64 import b64encode
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from supervisord_py.api.negotiation import NDJSON, RAW, SSE, choose
from supervisord_py.api.parameters import refuse_value
from supervisord_py.api.streams import BEAT, SSE_HEARTBEAT, ndjson_line, open_stream, sse_frame, until_closing
from supervisord_py.api.times import parse_since, rfc3339
from supervisord_py.ledger.pipe_history import ExecutionFilter
from supervisord_py.pipes.output import FollowOutput, OutputStream
from supervisord_py.process.logs import Chunk, Cursor, Gap, LogReader, Output, Stream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from aiohttp import web

    from supervisord_py.api.call import Call
    from supervisord_py.pipes.room import Pipes

_STREAMS = {"stdout": Stream.STDOUT, "stderr": Stream.STDERR}
_LARGEST_POSITION = 2**63 - 1
_LINES_BYTES = 1024 * 1024
"""Of an execution's output: the last lines are looked for in so much of its end."""
_NEXT_SECONDS = 1.0
"""Who follows a pipe hears of its next execution within this time."""


@dataclass(frozen=True, slots=True)
class _Wish:
    """What the client asked for, after all checks. `lines` is None for no bound."""

    stream: Stream | None
    cursor: int | None
    since: float | None
    lines: int | None


@dataclass(frozen=True, slots=True)
class _Stored:
    """What is stored at the moment of the request: from `begin` up to `end`, or exactly `items` where lines count."""

    begin: int
    end: int
    items: tuple[Output, ...] | None


async def unit_logs(call: Call) -> web.StreamResponse:
    """Answer with the unit's output; with `follow` go on for as long as the client stays."""
    unit = call.unit()
    wish = _wish(call)
    if unit.startswith("pipe:"):
        return await _pipe_logs(call, unit.removeprefix("pipe:"), wish)
    reader = LogReader.of(call.context.placement.log_dir, unit)
    stored = await asyncio.to_thread(_look, reader, wish)
    media = choose(call.wanted, (RAW, NDJSON, SSE))
    response = await open_stream(call, media, {"X-Cursor": str(stored.end)})
    frames = Frames(media, call.arguments.text("encoding") or "text")
    async for item in _stored(call, reader, stored, wish):
        await _write(response, frames.of(item))
    if call.arguments.flag("follow"):
        await _follow(call, response, reader.follow(stored.end, wish.stream), frames)
    await _write(response, frames.rest())
    await response.write_eof()
    return response


# -- pipes: what their newest execution wrote ------------------------------------------------------------------------


async def _pipe_logs(call: Call, pipe: str, wish: _Wish) -> web.StreamResponse:
    """Answer with the output of a pipe's newest execution; with `follow` go on with it, and with those that come.

    It lies in files of the execution: positions are offsets in those.
    """
    media, beat = choose(call.wanted, (RAW, NDJSON, SSE)), call.context.config.stream_heartbeat_seconds
    response = await open_stream(call, media)
    frames = Frames(media, call.arguments.text("encoding") or "text")
    async with aclosing(until_closing(_of_pipe(call, pipe, wish), call.live.closing, beat)) as items:
        async for item in items:
            await _write(response, frames.beat() if item is BEAT else frames.of(item))
    await _write(response, frames.rest())
    await response.write_eof()
    return response


async def _of_pipe(call: Call, pipe: str, wish: _Wish) -> AsyncGenerator[Chunk, None]:
    pipes, follows, known = call.context.pipes, call.arguments.flag("follow"), 0
    streams = [OutputStream(name) for name, each in _STREAMS.items() if wish.stream in {None, each}]
    while True:
        found = (await pipes.executions(ExecutionFilter(pipe=pipe, since=wish.since, limit=1))).executions
        for newest in found if found and found[0].id != known else ():
            begins = [0 if known else await _begin(pipes, newest.id, each, wish) for each in streams]
            known = newest.id
            if follows and not newest.status.is_final:
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
        if not follows:
            return
        await asyncio.sleep(_NEXT_SECONDS)


async def _begin(pipes: Pipes, number: int, stream: OutputStream, wish: _Wish) -> int:
    """Return where what was asked for begins in a stream of an execution."""
    if wish.lines is None:
        return wish.cursor or 0
    end = (await pipes.output(number, stream, 0, 0)).total_bytes
    begin = max(0, end - _LINES_BYTES)
    lines = (await pipes.output(number, stream, begin, _LINES_BYTES)).data.splitlines(keepends=True)
    return end - sum(map(len, lines[-wish.lines :] if wish.lines else []))


def _wish(call: Call) -> _Wish:
    arguments = call.arguments
    wanted, since_text = arguments.text("stream"), arguments.text("since")
    since = None
    if since_text is not None:
        try:
            since = parse_since(since_text, time.time())
        except ValueError as error:
            raise refuse_value("since", since_text, "a time like 2026-01-31T12:00:00Z or an age like 10m") from error
    cursor = arguments.integer("cursor")
    resumed = call.request.headers.get("Last-Event-ID", "")
    if cursor is None and resumed:
        cursor = _position(resumed)
    return _Wish(_STREAMS[wanted] if wanted else None, cursor, since, arguments.integer("lines"))


def _position(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:20]) <= _LARGEST_POSITION):
        raise refuse_value("Last-Event-ID", text, "the id of the last item")
    return int(text)


def _look(reader: LogReader, wish: _Wish) -> _Stored:
    end = reader.end()
    if wish.cursor is not None:
        begin = wish.cursor
    else:
        begin = reader.start() if wish.since is None else reader.since(wish.since)
    items: tuple[Output, ...] | None = None
    if wish.lines is not None:
        last = reader.tail_lines(wish.lines, wish.stream) if wish.lines else []
        items = tuple(item for item in last if item.end > begin)
    return _Stored(begin, max(begin, end), items)


async def _stored(call: Call, reader: LogReader, stored: _Stored, wish: _Wish) -> AsyncIterator[Output]:
    """Yield what is stored, read a bounded piece at a time, and not a byte beyond its end."""
    items: tuple[Output, ...] = stored.items or ()
    cursor, at_end = Cursor(stored.begin), stored.items is not None
    while True:
        for item in items:
            if item.position < stored.end:
                yield _cut(item, stored.end)
        if at_end or cursor.position >= stored.end or call.live.closing.is_set():
            return
        batch = await asyncio.to_thread(reader.read, cursor, stream=wish.stream)
        items, cursor, at_end = batch.items, batch.cursor, batch.at_end


def _cut(item: Output, end: int) -> Output:
    if isinstance(item, Chunk) and item.end > end:
        return msgspec.structs.replace(item, data=item.data[: end - item.position])
    return item


async def _follow(call: Call, response: web.StreamResponse, source: AsyncIterator[Output], frames: Frames) -> None:
    beat_seconds = call.context.config.stream_heartbeat_seconds
    async with aclosing(until_closing(source, call.live.closing, beat_seconds)) as items:
        async for item in items:
            await _write(response, frames.beat() if item is BEAT else frames.of(item))


async def _write(response: web.StreamResponse, frame: bytes) -> None:
    if frame:
        await response.write(frame)


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
        match item, self._media:
            case Chunk(), "application/octet-stream":
                return item.data
            case Gap(), "application/octet-stream":
                return b""
            case Chunk(), _:
                return self._chunk(item)
            case Gap(), _:
                rest = self.rest()
                return rest + self._frame({"gap_bytes": item.lost_bytes, "position": item.position}, item.end)

    def rest(self) -> bytes:
        """Return what a final, incomplete character leaves; afterwards nothing is held back."""
        ends = [(stream, decoder.decode(b"", final=True)) for stream, decoder in self._decoders.items()]
        self._decoders.clear()
        return b"".join(
            self._frame({"stream": stream.name.lower(), "text": text}, None) for stream, text in ends if text
        )

    def beat(self) -> bytes:
        """Return what keeps a silent stream alive."""
        return SSE_HEARTBEAT if self._media == SSE else b""

    def _chunk(self, chunk: Chunk) -> bytes:
        if self._encoding == "base64":
            return self._frame(_document(chunk, "base64", b64encode(chunk.data).decode()), chunk.end)
        decoder = self._decoders.get(chunk.stream)
        if decoder is None:
            decoder = self._decoders[chunk.stream] = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(chunk.data)
        # What the decoder holds back is not sent yet, so a client that comes back must get it again.
        return self._frame(_document(chunk, "text", text), chunk.end - len(decoder.getstate()[0])) if text else b""

    def _frame(self, document: dict[str, Any], cursor: int | None) -> bytes:
        if cursor is not None:
            document["next_position"] = cursor
        return ndjson_line(document) if self._media == NDJSON else sse_frame(document, identifier=cursor)


def _document(chunk: Chunk, member: str, content: str) -> dict[str, Any]:
    return {
        "time": rfc3339(chunk.time),
        "stream": chunk.stream.name.lower(),
        member: content,
        "position": chunk.position,
        "instance": chunk.instance,
    }

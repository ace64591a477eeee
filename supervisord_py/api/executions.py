"""`…/executions…`: the ledger's rows, their output in pages and live, and their end.

The tail is told by WebSocket, SSE or NDJSON. Its first object is `start`, the last `done`; each `output` names its
stream and place, so that who was cut off goes on where he was: `offset`, or the Last-Event-ID of SSE, which is the end
of what he has, of both streams as `OUT-ERR`. A client that does not read stalls only its own answer: output waits in
its file.
"""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

from aiohttp import WSCloseCode, web

from supervisord_py.api.context import cancel_and_wait
from supervisord_py.api.names import is_glob, resolve_one
from supervisord_py.api.schemas import moment_of, refuse_value
from supervisord_py.api.streams import (
    BEAT,
    NDJSON,
    SSE,
    SSE_HEARTBEAT,
    Decoder,
    choose,
    frame,
    json_answer,
    json_bytes,
    open_stream,
    pick,
    raw_answer,
    until_closing,
)
from supervisord_py.errors import UnknownUnitError
from supervisord_py.ledger.pipe_history import ExecutionFilter
from supervisord_py.pipes.output import FollowOutput, OutputStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from supervisord_py.api.context import Call
    from supervisord_py.api.schemas import (
        AllExecutionsQuery,
        ExecutionsQuery,
        FinalQuery,
        OutputQuery,
        TailQuery,
    )
    from supervisord_py.ledger.pipe_executions import Execution

Document = dict[str, Any]
_ACCEPTED = 202
_SEEN = re.compile(r"[0-9]{1,18}(-[0-9]{1,18})?")


def execution_document(execution: Execution) -> Document:
    """Return one execution as lists show it: no blobs."""
    plan, usage = execution.plan, execution.usage
    return {
        **pick(execution, "id", "pipe_name", "status", "trigger", "position", "queued_at", "started_at"),
        **pick(execution, "finished_at", "duration_ms", "exit_code", "error_type", "error_message", "pid"),
        **pick(execution, "agent", "model", "provider", "preset_id", "retry_of", "retry_count"),
        "tokens": usage.total_tokens or None,
        "cost": usage.cost if usage.total_tokens or usage.cost else None,
        "usage": usage,
        **pick(execution, "group", "queue_wait_ms", "not_before", "signal", "trigger_event", "trigger_key"),
        **pick(execution, "context_start", "context_end", "api_port", "output_dir", "incomplete", "session_path"),
        **pick(execution, "stdout_bytes", "stderr_bytes", "invalid_utf8", "truncated", "agent_version", "instance"),
        "timeout_seconds": execution.timeout_seconds,
        "timeout_wanted_seconds": plan.wanted_seconds,
        "warnings": plan.warnings,
    }


def whole_document(execution: Execution) -> Document:
    """Return one execution with all that its row holds."""
    return {
        "schema": "px.execution/1",
        **execution_document(execution),
        **pick(execution, "stdout", "stderr", "rendered_prompt", "plan"),
        "preset_snapshot": execution.preset,
    }


def pipe_name(call: Call) -> str:
    """Return the pipe that `{p}` names, `pipe:x` and `x` alike; a glob must mean one."""
    name = call.path("p").removeprefix("pipe:")
    if not is_glob(name):
        return name
    known = [f"pipe:{view.name}" for view in call.context.pipes.snapshot()]
    return resolve_one(f"pipe:{name}", known).removeprefix("pipe:")


async def list_executions(call: Call, query: ExecutionsQuery) -> web.StreamResponse:
    """Answer with executions of one pipe, newest first; also of one that is gone, whose rows stay."""
    name = pipe_name(call)
    document = await _page(call, name, query)
    if not document["executions"]:
        call.context.pipes.get(name)
    return json_answer(document)


async def list_all(call: Call, query: AllExecutionsQuery) -> web.StreamResponse:
    """Answer with executions of all pipes, newest first."""
    return json_answer(await _page(call, query.pipe and query.pipe.removeprefix("pipe:"), query))


async def _page(call: Call, pipe: str | None, query: ExecutionsQuery) -> Document:
    now = time.time()
    wanted = ExecutionFilter(
        pipe=pipe,
        statuses=tuple(query.status),
        since=moment_of("since", query.since, now),
        until=moment_of("until", query.until, now),
        before_id=query.cursor,
        limit=query.limit,
    )
    page = await call.context.pipes.executions(wanted)
    executions = [execution_document(each) for each in page.executions]
    return {"schema": "px.executions/1", "executions": executions, "next_cursor": page.next_cursor}


async def _execution_of(call: Call) -> Execution:
    """Return the execution that the path names, which must be one of its pipe, where it names one.

    Raises UnknownUnitError: there is no such execution.
    """
    text = call.path("id")
    if not (text.isascii() and text.isdigit() and len(text) < 19):  # what SQLite holds
        raise UnknownUnitError(f"There is no execution {text[:40]!r}.", hint="pxctl pipe runs")
    pipe = pipe_name(call) if "p" in call.request.match_info else None
    return await call.context.pipes.execution(int(text), pipe=pipe)


async def show_execution(call: Call, query: FinalQuery) -> web.StreamResponse:
    """Answer with one execution and all that its row holds; with `wait`, once it is final."""
    number, room = (await _execution_of(call)).id, call.context.pipes
    return json_answer(whole_document(await (room.wait(number) if query.wait else room.execution(number, blobs=True))))


async def cancel(call: Call) -> web.StreamResponse:
    """Cancel an execution in any state; answer once nothing of it is left."""
    cancelled = await call.context.pipes.cancel((await _execution_of(call)).id)
    return json_answer({"schema": "px.execution/1", **execution_document(cancelled)})


async def retry(call: Call) -> web.StreamResponse:
    """Queue the same again as a new row that names this one."""
    again = await call.context.pipes.retry((await _execution_of(call)).id)
    return json_answer({"schema": "px.execution/1", **execution_document(again)}, status=_ACCEPTED)


async def output(call: Call, query: OutputQuery) -> web.StreamResponse:
    """Answer with a page of one stream, as raw bytes; an empty page is the end for now."""
    execution, stream = await _execution_of(call), query.stream or OutputStream.STDOUT
    page = await call.context.pipes.output(execution.id, stream, query.offset, query.limit)
    return raw_answer(page, **{"X-Truncated": page.truncated})


# -- live -------------------------------------------------------------------------------------------------------------


async def tail(call: Call, query: TailQuery) -> web.StreamResponse:
    """Follow an execution; who asks for an upgrade gets a WebSocket."""
    execution = await _execution_of(call)
    seen = call.request.headers.get("Last-Event-ID")
    if seen is not None and not _SEEN.fullmatch(seen):
        raise refuse_value("Last-Event-ID", seen, "must be the id of the last event")
    begin = [query.offset] if seen is None else [int(each) for each in seen.split("-")]
    source = _documents(call, execution.id, query.stream, begin)
    if call.request.headers.get("Upgrade", "").lower() == "websocket":
        return await _by_websocket(call, source)
    media = choose(call, SSE, NDJSON)
    response = await open_stream(call, media)
    beat_seconds = call.context.config.stream_heartbeat_seconds
    async with aclosing(until_closing(source, call.live.closing, beat_seconds)) as items:
        async for item in items:
            with suppress(ConnectionResetError):
                if isinstance(item, dict):
                    await response.write(frame(media, item, identifier=item.get("seen"), event=item["event"]))
                else:
                    await response.write(SSE_HEARTBEAT if media == SSE else b"\n")
    return response


async def _documents(
    call: Call, execution: int, only: OutputStream | None, begin: list[int]
) -> AsyncGenerator[Document, None]:
    """Yield what is to be told, to the end, without what was seen: `begin` has the end of it for each stream.

    Each piece of output says as `seen` how far all streams were told: what a client comes back with.
    """
    streams = (OutputStream.STDOUT, OutputStream.STDERR) if only is None else (only,)
    ends = {stream.value: begin[at] if at < len(begin) else 0 for at, stream in enumerate(streams)}
    decoder = Decoder()
    async with aclosing(call.context.pipes.follow(execution, streams, *ends.values())) as items:
        async for item in items:
            if isinstance(item, FollowOutput):
                pieces = decoder.take(item.stream.value, item.offset, item.data)
            else:
                pieces = decoder.rest() if item.word == "done" else []
            for piece in pieces:
                ends[piece["stream"]] = piece["end"]
                yield {**piece, "seen": "-".join(map(str, ends.values()))}
            if not isinstance(item, FollowOutput):
                yield {"event": item.word, "execution": execution_document(item.execution)}


async def _by_websocket(call: Call, source: AsyncGenerator[Document, None]) -> web.StreamResponse:
    beat_seconds = call.context.config.stream_heartbeat_seconds
    socket = web.WebSocketResponse(heartbeat=beat_seconds, compress=False)
    await socket.prepare(call.request)

    async def until_gone() -> None:
        async for _ in socket:  # nothing the client says matters but that it goes
            continue

    async def tell() -> None:
        with suppress(ConnectionError):
            async with aclosing(until_closing(source, call.live.closing, beat_seconds)) as items:
                async for item in items:
                    if item is not BEAT:
                        await socket.send_str(json_bytes(item).decode())

    hears, tells = asyncio.create_task(until_gone()), asyncio.create_task(tell())
    try:
        await asyncio.wait({hears, tells}, return_when=asyncio.FIRST_COMPLETED)
        if tells.done():
            tells.result()
    finally:
        await cancel_and_wait(tells)
        code = WSCloseCode.GOING_AWAY if call.live.closing.is_set() else WSCloseCode.OK
        with suppress(ConnectionError):
            await socket.close(code=code)
        await cancel_and_wait(hears)
    return socket

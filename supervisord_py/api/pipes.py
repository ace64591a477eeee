"""`/api/pipes…`, `…/executions…`, `/api/events/{name}`: pipes, what becomes of them, and what
starts them.

The tail of an execution is told by WebSocket, SSE or NDJSON: first `start`, last `done`, and each
`output` names its stream and place. Who was cut off goes on there: by `offset`, or the
Last-Event-ID of SSE, which is the end of what he has, of both streams as `OUT-ERR`. A client that
does not read stalls its own answer only.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import Annotated, Any

from aiohttp import WSCloseCode, web
from msgspec import Meta

from supervisord_py.api import schemas as s
from supervisord_py.api import streams
from supervisord_py.api.context import ApiCall, Document
from supervisord_py.api.units import is_glob, resolve_one
from supervisord_py.errors import InvalidInputError, UnknownUnitError
from supervisord_py.ledger.pipes import (
    DEFAULT_PAGE,
    MOST_PAGE,
    ErrorType,
    Execution,
    ExecutionFilter,
    Status,
    Usage,
)
from supervisord_py.pipes.models import PipeView, PublishedEvent
from supervisord_py.pipes.output import FollowOutput, OutputStream

_SEEN = re.compile(r"[0-9]{1,18}(-[0-9]{1,18})?")
_HIDDEN = frozenset({
    "stdout", "stderr", "rendered_prompt", "plan", "preset", "progress", "start_time", "boot_id",
    "lost_bytes",
    *Usage.__struct_fields__,
})  # fmt: skip
_SHOWN = tuple(name for name in Execution.__struct_fields__ if name not in _HIDDEN)


def pipe_document(view: PipeView) -> Document:
    return {**streams.pick(view), "unit": f"pipe:{view.name}", "state": view.state}


async def list_pipes(call: ApiCall) -> Document:
    """Answer with every pipe, broken ones included."""
    return {"pipes": [pipe_document(view) for view in call.context.pipes.snapshot()]}


async def show_pipe(call: ApiCall, *, rendered: bool = False) -> Document:
    """Answer with one pipe, and with `rendered` the prompt that it would be run with now."""
    pipes, name = call.context.pipes, pipe_name(call)
    document = {**pipe_document(pipes.get(name)), "body": None, **pipes.details(name)}
    if rendered:
        document["rendered"] = await pipes.rendered(name)
    return document


async def add_pipe(call: ApiCall, body: s.Add) -> Document:
    """Install a pipe from a path, an https address or an example: disabled, checked, whole or
    not at all.
    """
    return pipe_document(await call.context.pipes.files.install(body.source, name=body.name))


async def new_pipe(call: ApiCall, body: s.NewPipe) -> Document:
    """Write a small pipe to start from."""
    return pipe_document(await call.context.pipes.files.scaffold(body.name, command=body.command))


async def remove_pipe(call: ApiCall) -> Document:
    """Cancel what runs of it, then delete its folder."""
    name = pipe_name(call)
    await call.context.pipes.files.remove(name)
    return {"unit": f"pipe:{name}", "removed": True}


async def run_pipe(call: ApiCall, body: s.RunPipe, *, wait: bool = False) -> tuple[int, Document]:
    """Queue an execution: 202 with its row, or with `wait` 200 once it is final.

    One for each of several contexts.
    """
    pipes, several = call.context.pipes, isinstance(body.context, list)
    contexts = body.context if isinstance(body.context, list) else [body.context]
    triggers = [{"context": each, "advance": bool(body.advance)} for each in contexts]
    queue = several or bool(body.queue)
    name = pipe_name(call)
    rows = await pipes.run(
        name, triggers, seconds=body.timeout, queue=queue, on_accepted=call.mark_begun
    )
    if wait:
        rows = [await pipes.wait(each.id) for each in rows]
    if several:
        document = list_document(rows)
    else:
        document = (
            whole_document(rows[0])
            if wait
            else {"schema": "px.execution/1", **execution_document(rows[0])}
        )
    return 200 if wait else 202, document


async def enable(call: ApiCall, body: s.Body) -> Document:
    """Let schedule and events start it on this machine, or keep them from it: then what waits in
    line is cancelled.
    """
    is_enabled = call.request.path.endswith("/enable")
    return pipe_document(await call.context.pipes.enable(pipe_name(call), enabled=is_enabled))


async def configure(call: ApiCall, body: dict[str, Any]) -> Document:
    """Change keys of the front matter; `null` removes one.

    The body of the file is never touched.
    """
    if not body:
        raise InvalidInputError.at(
            "", "The body names no key.", 'for example {"schedule": "every 2h"}'
        )
    return pipe_document(await call.context.pipes.files.configure(pipe_name(call), body))


async def validate(call: ApiCall) -> Document:
    """Answer with every check of one pipe: pass, warn or fail, where, and the cure."""
    name = pipe_name(call)
    checks = [it._asdict() for it in await call.context.pipes.validate(name)]
    ok = all(check["verdict"] != "fail" for check in checks)
    return {"pipe": name, "ok": ok, "checks": checks}


async def next_runs(call: ApiCall, *, count: s.Count = 5) -> Document:
    """Answer when it is due next, and why."""
    report = call.context.pipes.next(pipe_name(call), count)
    upcoming = [streams.rfc3339(each) for each in report["upcoming"]]
    return {**report, "upcoming": upcoming, "next_run": upcoming[0] if upcoming else None}


async def queue(call: ApiCall) -> Document:
    """Answer with all lines and slots."""
    groups = [
        each | {name: list(map(execution_document, each[name])) for name in ("running", "waiting")}
        for each in call.context.pipes.queue()
    ]
    return {"groups": groups}


async def cancel_pipe(call: ApiCall, body: s.Body) -> Document:
    """Cancel what runs and waits of a pipe; answer once nothing of it is left."""
    return list_document(await call.context.pipes.cancel_pipe(pipe_name(call)))


def list_document(rows: Sequence[Execution], cursor: int | None = None) -> Document:
    return {
        "schema": "px.executions/1",
        "executions": list(map(execution_document, rows)),
        "next_cursor": cursor,
    }


async def publish_event(call: ApiCall, body: s.Happening) -> Document:
    """Take an event from outside: 202 with the pipes that it starts.

    The same `key` starts each of them once.
    """
    event = PublishedEvent(call.request.match_info["name"], key=body.key, facts=body.data)
    return await call.context.pipes.publish_event(event)


def execution_document(execution: Execution) -> Document:
    """Return one execution as lists show it: no blobs."""
    # A row of an earlier version has no source.
    cost = execution.cost if execution.cost_source is not None or execution.cost else None
    return {
        **streams.pick(execution, *_SHOWN),
        "tokens": execution.total_tokens or None,
        "cost": cost,
        "usage": {**streams.pick(execution, *Usage.__struct_fields__), "cost": cost},
        "truncated": execution.lost_bytes > 0,
    }


def whole_document(execution: Execution) -> Document:
    """Return one execution with all that its row holds."""
    blobs = streams.pick(execution, "stdout", "stderr", "rendered_prompt", "plan")
    known = {**execution_document(execution), **blobs, "preset_snapshot": execution.preset}
    return {"schema": "px.execution/1", **known}


def pipe_name(call: ApiCall) -> str:
    """Return the pipe that `{p}` names, `pipe:x` and `x` alike; a glob must mean one."""
    name = call.request.match_info["p"].removeprefix("pipe:")
    if not is_glob(name):
        return name
    known = [f"pipe:{view.name}" for view in call.context.pipes.snapshot()]
    return resolve_one(f"pipe:{name}", known).removeprefix("pipe:")


async def list_executions(
    call: ApiCall,
    *,
    pipe: str | None = None,
    status: tuple[Status, ...] = (),
    error_type: tuple[ErrorType, ...] = (),
    agent: str | None = None,
    preset: str | None = None,
    since: s.Moment | None = None,
    until: s.Moment | None = None,
    limit: Annotated[int, Meta(ge=1, le=MOST_PAGE)] = DEFAULT_PAGE,
    cursor: s.Position | None = None,
) -> Document:
    """Answer with executions of all pipes or of one, newest first; also of one that is gone,
    whose rows stay.
    """
    now, named = time.time(), pipe_name(call) if "p" in call.request.match_info else None
    asked = named or (pipe and pipe.removeprefix("pipe:"))
    is_pattern = asked is not None and named is None and is_glob(asked)
    wanted = ExecutionFilter(
        pipe=None if is_pattern else asked,
        pipe_pattern=asked if is_pattern else None,
        statuses=status,
        error_types=error_type,
        agent=agent,
        preset=preset,
        since=s.moment_of("since", since, now),
        until=s.moment_of("until", until, now),
        before_id=cursor,
        limit=limit,
    )
    rows, next_cursor = await call.context.pipes.executions(wanted)
    if named is not None and not rows:
        call.context.pipes.get(named)
    return list_document(rows, next_cursor)


async def _execution_of(call: ApiCall) -> Execution:
    """Return the execution that the path names, which must be one of its pipe, where it names
    one.
    """
    text = call.request.match_info["id"]
    if not (text.isascii() and text.isdigit() and len(text) < 19):  # what SQLite holds
        raise UnknownUnitError(f"There is no execution {text[:40]!r}.", hint="pxctl pipe runs")
    pipe = pipe_name(call) if "p" in call.request.match_info else None
    return await call.context.pipes.execution(int(text), pipe=pipe)


async def show_execution(call: ApiCall, *, wait: bool = False) -> Document:
    """Answer with one execution and all that its row holds; with `wait`, once it is final."""
    number, room = (await _execution_of(call)).id, call.context.pipes
    return whole_document(await (room.wait(number) if wait else room.execution(number, blobs=True)))


async def cancel(call: ApiCall) -> Document:
    """Cancel an execution in any state; answer once nothing of it is left."""
    return execution_document(await call.context.pipes.cancel((await _execution_of(call)).id))


async def retry(call: ApiCall, body: s.RetryExecution) -> Document:
    """Queue the same again as a new row that names this one."""
    number = (await _execution_of(call)).id
    again = await call.context.pipes.retry(
        number, queue=bool(body.queue), on_accepted=call.mark_begun
    )
    return execution_document(again)


async def output(
    call: ApiCall,
    *,
    stream: OutputStream = OutputStream.STDOUT,
    offset: s.Position = 0,
    limit: s.PageBytes | None = None,
) -> web.StreamResponse:
    """Answer with a page of one stream, as raw bytes; an empty page is the end for now."""
    page = await call.context.pipes.output((await _execution_of(call)).id, stream, offset, limit)
    return streams.raw_answer(page, **{"X-Truncated": page.truncated})


async def tail(
    call: ApiCall, *, stream: OutputStream | None = None, offset: s.Position = 0
) -> web.StreamResponse:
    """Follow an execution; who asks for an upgrade gets a WebSocket."""
    execution = await _execution_of(call)
    seen = call.request.headers.get("Last-Event-ID")
    if seen is not None and not _SEEN.fullmatch(seen):
        raise s.refuse_value("Last-Event-ID", seen, "must be the id of the last event")
    begin = [offset] if seen is None else [int(each) for each in seen.split("-")]
    source = _documents(call, execution.id, stream, begin)
    if call.request.headers.get("Upgrade", "").lower() == "websocket":
        return await _by_websocket(call, source)
    media = streams.choose(call, streams.SSE, streams.NDJSON)

    async def frames() -> AsyncGenerator[bytes, None]:
        async with aclosing(source) as items:
            async for item in items:
                yield streams.frame(media, item, identifier=item.get("seen"), event=item["event"])

    return await streams.feed(call, media, frames(), endless=True)


async def _documents(
    call: ApiCall, execution: int, only: OutputStream | None, begin: list[int]
) -> AsyncGenerator[Document, None]:
    """Yield what is to be told, without what was seen: `begin`, later `seen`, is the end of that
    in each stream.
    """
    wanted = (OutputStream.STDOUT, OutputStream.STDERR) if only is None else (only,)
    ends = {stream.value: begin[at] if at < len(begin) else 0 for at, stream in enumerate(wanted)}
    async with aclosing(call.context.pipes.follow(execution, wanted, *ends.values())) as items:
        async for item in items:
            if isinstance(item, FollowOutput):
                ends[item.stream.value] = end = item.offset + len(item.data)
                place = {
                    "offset": item.offset,
                    "end": end,
                    "seen": "-".join(map(str, ends.values())),
                }
                yield streams.said(item.stream.value, item.data, event="output", **place)
            else:
                yield {"event": item.word, "execution": execution_document(item.execution)}


async def _by_websocket(
    call: ApiCall, source: AsyncGenerator[Document, None]
) -> web.StreamResponse:
    socket = web.WebSocketResponse(
        heartbeat=call.context.config.stream_heartbeat_seconds, compress=False
    )
    await socket.prepare(call.request)

    async def until_gone() -> None:
        async for _ in socket:  # nothing the client says matters but that it goes
            continue

    async def tell() -> None:
        with suppress(ConnectionError):
            async with aclosing(streams.until_closing(source, call.live.closing)) as items:
                async for item in items:
                    await socket.send_str(streams.json_bytes(item).decode())

    try:
        await streams.first_of(until_gone(), tell())
    finally:
        with suppress(ConnectionError):
            await socket.close(
                code=WSCloseCode.GOING_AWAY if call.live.closing.is_set() else WSCloseCode.OK
            )
    return socket

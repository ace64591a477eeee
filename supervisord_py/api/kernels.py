"""`/api/kernels…`, `/api/capabilities`: sessions of kernels, calls in them, and what is kept of
their cells.

A session is named by its id, or by its name where only one has it or `cwd` decides. A call ends
with its client, by the ladder of the room, but not with the control plane: then it is left to the
room, and its cells run on in their kernel.

A stream tells events as they happen, and what came of it (`done`) at last. Telling never waits:
what a cell gives stays in its files until a follower has room. What fails before anything happened
has an answer with its own status; later the problem is the last item. A request with
`Last-Event-ID` is told the rest and runs nothing again; who does not come back in time has left,
and what ends with its client is cancelled.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from aiohttp import web

from supervisord_py.api import schemas as s
from supervisord_py.api import streams
from supervisord_py.api.auth import instance_of_peer
from supervisord_py.api.bodies import check_values
from supervisord_py.api.context import ApiCall, Document, HeldCall, Told
from supervisord_py.api.routes import Answer
from supervisord_py.api.streams import JSON, NDJSON, SSE
from supervisord_py.api.units import change_unit, measure
from supervisord_py.errors import InvalidInputError, UnknownUnitError
from supervisord_py.kernels import render
from supervisord_py.kernels.cell_files import READ_BYTES, CellLog, Piece, Reading, as_event
from supervisord_py.kernels.live_session import SessionView
from supervisord_py.kernels.session import (
    BackendName,
    CallRequest,
    CallResult,
    Cell,
    CellResult,
    Owner,
    StartRequest,
)

LOOK_SECONDS = 0.05  # how often a cell's files are looked at for those who follow it
# how long a call told as server-sent events waits for a client that was cut off
RESUME_SECONDS = 5.0
_SEEN = re.compile(
    "(?P<call>[0-9a-f]{16}):(?:done|([0-9]{1,18})-([0-9]{1,18})-([0-9]{1,18})-(-1|[0-9]{1,18}))"
)
_EDGES = frozenset({"cell_started", "cell_done"})
_SOURCES = ("code", "cells", "notebook", "script")
_EXAMPLE = 'for example {"code": "1 + 1"}'
_USUAL_SPEC = "python3"


def session_of(call: ApiCall, cwd: str | None) -> SessionView:
    return call.context.kernels.find(call.request.match_info["k"].removeprefix("kernel:"), cwd)


async def kept_session_of(call: ApiCall, cwd: str | None) -> SessionView:
    """Return the session whose cells are asked for; they are kept for longer than the session is
    listed.
    """
    return await call.context.kernels.find_kept(
        call.request.match_info["k"].removeprefix("kernel:"), cwd
    )


def session_document(call: ApiCall, view: SessionView) -> dict[str, Any]:
    """Return one session; `connection_file` is there while Jupyter's own clients can join its
    kernel.
    """
    handle = call.context.kernels.handle(view.id)
    file = None if handle is None else handle.connection_file
    known = {**streams.pick(view), "unit": view.unit, "jupyter_id": view.key.jupyter_id}
    return {
        "schema": "px.kernel/1",
        **known,
        "connection_file": None if file is None else str(file),
    }


async def _measured(call: ApiCall, views: Sequence[SessionView]) -> list[dict[str, Any]]:
    stats = await measure(call.context, views)
    documents = [session_document(call, view) for view in views]
    for document in documents:
        measurement = stats.get(document["instance"])
        document["memory_bytes"] = None if measurement is None else measurement.memory_bytes
        document["memory_kind"] = None if measurement is None else measurement.memory_kind
        if measurement is not None:
            document["rss_bytes"] = measurement.stat.rss_bytes
    return documents


async def list_kernels(call: ApiCall) -> dict[str, Any]:
    """Answer with every session, remembered ones included."""
    kernels = call.context.kernels
    await kernels.look_again()
    return {"kernels": await _measured(call, kernels.snapshot()), "zygotes": kernels.zygotes()}


async def show_kernel(call: ApiCall, *, cwd: s.Folder | None = None) -> dict[str, Any]:
    """Answer with one session."""
    await call.context.kernels.look_again()
    return (await _measured(call, (await kept_session_of(call, cwd),)))[0]


async def use(call: ApiCall, *, cwd: s.Folder | None = None) -> dict[str, Any]:
    """Answer with one session, and count the question as a use: its front end lives and holds
    it.
    """
    view = session_of(call, cwd)
    call.context.kernels.touch(view.id)
    return session_document(call, call.context.kernels.find(view.id))


async def begin(call: ApiCall, body: s.StartKernel) -> Answer:
    """Start a session's kernel: 201, or 200 where it ran already or as a stream; `explain`: only
    say what would be.
    """
    if seen := call.request.headers.get("Last-Event-ID"):
        return await resume(call, seen)
    kernels = call.context.kernels
    request = StartRequest(
        name=body.name or "default",
        owner=Owner(body.owner or Owner.SESSION),
        env=body.env or {},
        arguments=tuple(body.arguments or ()),
        timeout_seconds=body.timeout,
        **_place(body),
    )
    if body.explain:
        explanation = await kernels.explain(request)
        return 200, {"schema": "px.kernel-explanation/1", **explanation.document()}
    media = streams.choose(call, JSON, NDJSON, SSE)
    if media == JSON:
        started, view = await kernels.start(request)
        return 201 if started else 200, session_document(call, view)

    async def work(told: Told) -> dict[str, Any]:
        return session_document(call, (await kernels.start(request, told))[1])

    return await tell(
        call, media, HeldCall(call.live, call.request.path, work, ends_with_client=False)
    )


def _place(body: s.Place) -> dict[str, Any]:  # the members that decide where code runs
    place = {name: getattr(body, name) for name in ("cwd", "interpreter", "kernelspec", "backend")}
    wrong = next((name for name in ("interpreter", "kernelspec") if place[name] is not None), None)
    if wrong and (body.language == "bash" or body.backend is BackendName.BASH):
        message = f"Shell cells run in bash, which no {wrong} changes."
        raise InvalidInputError.at(f"/{wrong}", message, f"leave {wrong} out")
    return {**place, "language": body.language or "python", "environ": body.environ or {}}


async def stop(
    call: ApiCall,
    *,
    cwd: s.Folder | None = None,
    timeout: s.Seconds | None = None,
    wait: bool = True,
) -> tuple[int, dict[str, Any]]:
    """End the kernel of a session; answer once nothing of it is left, or with `wait=0` at once."""
    document = await change_unit(call, "stop", session_of(call, cwd).unit, timeout, wait)
    return 200 if wait else 202, document


async def restart(call: ApiCall, *, cwd: s.Folder | None = None) -> dict[str, Any]:
    """Replace the kernel of a session; its variables are lost, and a hard failure is forgotten."""
    session = session_of(call, cwd)
    call.mark_begun()  # the old kernel goes first
    return session_document(call, await call.context.kernels.restart(session.id))


async def interrupt(
    call: ApiCall, *, cwd: s.Folder | None = None, cell: str | None = None
) -> dict[str, Any]:
    """Interrupt the running cell; asked again, go on to the next rung.

    `state` is what the session was found in.
    """
    view = session_of(call, cwd)
    running, steps = await call.context.kernels.interrupt(view.id, cell=cell)
    return {"kernel": view.id, "running": running, "steps": steps, "state": view.state}


async def execute(call: ApiCall, body: s.Execute) -> web.StreamResponse:
    """Run cells in a session, which is made where there is none of that name."""
    if seen := call.request.headers.get("Last-Event-ID"):
        return await resume(call, seen)
    arrived_at, kernels = asyncio.get_running_loop().time(), call.context.kernels
    (cells, kernelspec), place = await _cells(body), _place(body)
    if body.kernelspec is None and body.interpreter is None:
        place["kernelspec"] = kernelspec

    request = CallRequest(
        name=call.request.match_info["k"].removeprefix("kernel:"),
        owner=Owner.PER_CALL if body.per_call else Owner.SESSION,
        cells=cells,
        arrived_at=arrived_at,
        timeout_seconds=body.timeout,
        reset=bool(body.reset),
        file=body.file,
        caller=partial(instance_of_peer, call.request.get_extra_info("socket")),
        **place,
    )

    if request.reset:
        call.mark_begun()  # the old kernel goes before any cell is sent

    async def work(told: Told) -> dict[str, Any]:
        def marked(event: dict[str, Any]) -> None:
            # It is told right before the cell is sent to the kernel.
            if event["event"] == "cell_started":
                call.mark_begun()
            told(event)

        return await _finished(call, body.notebook, await kernels.execute(request, marked))

    held = HeldCall(call.live, call.request.path, work, ends_with_client=True)
    return await tell(call, streams.choose(call, JSON, NDJSON, SSE), held)


async def _cells(body: s.Execute) -> tuple[tuple[Cell, ...], str | None]:
    """Return what a body wants to run, and a notebook's kernelspec: an order, but for the usual
    one.
    """
    given = [name for name in _SOURCES if getattr(body, name) is not None]
    if len(given) != 1:
        told = " and ".join(given) or "none"
        raise InvalidInputError.at(
            "", f"The body must have one of {', '.join(_SOURCES)}, not {told}.", _EXAMPLE
        )
    if body.file is not None and body.script is None:
        raise InvalidInputError.at(
            "/file", "/file names the file of a script, and there is none.", "leave file out"
        )
    cells = tuple(
        Cell(it.code, it.title, allow_error=bool(it.allow_error)) for it in body.cells or ()
    )
    kernelspec = None
    if body.code is not None:
        cells = (Cell(body.code),)
    elif body.script is not None:
        if body.script.count("\n") > s.MOST_LINES:
            message = f"/script has more than {s.MOST_LINES:,} lines."
            raise InvalidInputError.at(
                "/script", message, "run a part of it, or put its data into a file"
            )
        cells = await asyncio.to_thread(render.cells_of_script, body.script)
    elif body.notebook is not None:
        await check_values(body.notebook.encode("utf-8", "surrogatepass"))
        cells, named = await asyncio.to_thread(render.cells_of_notebook, body.notebook)
        kernelspec = None if named == _USUAL_SPEC else named
    if len(cells) > s.MOST_CELLS:
        raise InvalidInputError.at(
            f"/{given[0]}", f"/{given[0]} has more than {s.MOST_CELLS} cells.", "run a part of it"
        )
    if not cells:
        raise InvalidInputError.at(f"/{given[0]}", f"/{given[0]} has no cell to run.", _EXAMPLE)
    return cells, kernelspec


async def _finished(call: ApiCall, sent: str | None, result: CallResult) -> dict[str, Any]:
    """Return the answer, with the executed notebook where one was sent: pictures are whole in
    it.
    """
    cells = [cell.document() for cell in result.cells]
    known = {**msgspec.structs.asdict(result), "status": result.status, "cells": cells}
    session = known.pop("session_id")
    document = {
        "schema": "px.exec/1",
        "kernel": session,
        "name": session.rpartition("-")[0],
        **known,
    }
    if sent is None:
        return document
    folder = call.context.kernels.config.cells_dir / session
    whole = render.WholeOutputs(call.context.kernels.config.output)

    def outputs_of(cell: CellResult) -> Sequence[Mapping[str, Any]]:
        log = CellLog(folder, cell.id)
        return whole.of(log) if log.exists() else cell.outputs

    notebook = await asyncio.to_thread(render.executed, sent, result.cells, outputs_of)
    if whole.cut:
        document["notices"] = (*result.notices, _cut_notice(len(whole.cut), len(cells), session))
    return {**document, "notebook": notebook}


def _cut_notice(cut: int, count: int, session: str) -> str:
    return (
        f"The notebook does not have all of what {cut} of {count} cells gave. What they printed is "
        "complete at "
        f"/api/kernels/{session}/cells/{{id}}/output."
    )


# -- what happens, as it happens -------------------------------------------------------------------

StreamPlace = tuple[int, int, int, int]
"""How much was told: events of the call; of the cell that runs, bytes of stdout and stderr, and
its last record.
"""
_BEGINNING: StreamPlace = (0, 0, 0, -1)


async def resume(call: ApiCall, seen: str) -> web.StreamResponse:
    """Answer with the rest of the stream whose event `seen` is the last that the client has."""
    found = _SEEN.fullmatch(seen)
    if found is None:
        raise s.refuse_value("Last-Event-ID", seen, "must be the id of the last event")
    if found[2] is None:
        # what tells clients of SSE not to come back
        return web.Response(status=web.HTTPNoContent.status_code)
    held = call.live.held.get(found["call"])
    if held is None or held.path != call.request.path:
        hint = (
            "what its cells gave is at GET /api/kernels/{k}/cells; run again without Last-Event-ID"
        )
        raise UnknownUnitError(
            "The stream to be resumed is gone; nothing was run again.", hint=hint
        )
    events, out, err, record = map(int, found.groups()[1:])
    return await tell(call, SSE, held, (events, out, err, record))


async def tell(
    call: ApiCall, media: str, held: HeldCall, place: StreamPlace = _BEGINNING
) -> web.StreamResponse:
    """Answer with what came of work, or with a stream of what happens, from a place on.

    Raises PxError: it failed.
    """
    async with held.followed(RESUME_SECONDS if media == SSE else 0.0):
        if media == JSON:
            ends: set[asyncio.Future[Any]] = {held.work, call.live.given_up}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            answer = streams.json_answer(held.result())
            held.is_told = True
            return answer
        await held.until_more(0)
        if place == _BEGINNING and held.work.done():
            held.work.result()  # where it failed, its problem is the answer
        response = await streams.feed(
            call, media, _frames(call, media, held, place), closing=asyncio.Event()
        )
        held.is_told = True
        return response


async def _frames(
    call: ApiCall, media: str, held: HeldCall, place: StreamPlace
) -> AsyncGenerator[bytes, None]:
    """Yield what is to be told from a place on: what happens, and what came of it at last.

    A cell's end is told when its files were read to their end; what else happens meanwhile, as soon
    as it does.
    """
    events, *told, record = place
    edges = [event for event in held.events[:events] if event["event"] in _EDGES]
    started = edges[-1] if edges and edges[-1]["event"] == "cell_started" else None
    reading: Reading | None = None

    def told_now(document: Document) -> bytes:
        at = "-".join(map(str, (events, told[0], told[1], record)))
        return streams.frame(media, document, identifier=f"{held.id}:{at}", event=document["event"])

    while not call.live.given_up.done() and (
        started or events < len(held.events) or not held.work.done()
    ):
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
            log = CellLog(call.context.kernels.config.cells_dir / started["kernel"], started["id"])
            reading = Reading(log, *told, span_bytes=READ_BYTES)
            # most cells are over by then, and one look is enough
            await held.until_more(events, LOOK_SECONDS)
        has_ended = events < len(held.events) or held.work.done()
        found = await asyncio.to_thread(reading.pieces, record)
        for item in found:
            if isinstance(item, Piece):
                told[item.stream == "stderr"] += len(item.data)
                known = {
                    "id": started["id"],
                    "offset": item.offset,
                    "end": item.offset + len(item.data),
                }
                yield told_now(streams.said(item.stream, item.data, event="output", **known))
            else:
                record = max(record, item.offset)
                if (document := as_event(item)) is not None:
                    yield told_now({"id": started["id"], **document})
        if reading.ended or (has_ended and not found):
            reading = started = None
        elif not found:
            await held.until_more(events, LOOK_SECONDS)
    yield streams.frame(
        media,
        {"event": "done", "result": held.result()},
        identifier=f"{held.id}:done",
        event="done",
    )


# -- what is kept of cells -------------------------------------------------------------------------


async def list_cells(call: ApiCall, *, cwd: s.Folder | None = None) -> dict[str, Any]:
    """Answer with the session's cells, oldest first."""
    view = await kept_session_of(call, cwd)
    rows = await call.context.kernels.cell_store.history(view.id)
    return {"kernel": view.id, "cells": [streams.pick(row) for row in rows]}


async def cell_output(
    call: ApiCall,
    *,
    cwd: s.Folder | None = None,
    offset: s.Position = 0,
    limit: s.PageBytes = 1024 * 1024,
    stream: s.Stream | None = None,
) -> web.StreamResponse:
    """Answer with a page of a cell's complete output, as it came; an empty one is the end for
    now.
    """
    session = await kept_session_of(call, cwd)
    log = CellLog(call.context.kernels.config.cells_dir / session.id, call.request.match_info["id"])
    return streams.raw_answer(await asyncio.to_thread(log.page, offset, limit, stream))


async def artifact(call: ApiCall, *, cwd: s.Folder | None = None) -> web.StreamResponse:
    """Answer with a rich output that was too large for its result."""
    folder = call.context.kernels.config.cells_dir / (await kept_session_of(call, cwd)).id
    path, mime = await asyncio.to_thread(
        render.find_artifact, folder, call.request.match_info["id"]
    )
    return web.FileResponse(
        path, headers={"Content-Type": mime, "X-Content-Type-Options": "nosniff"}
    )


async def notebook(call: ApiCall, *, cwd: s.Folder | None = None) -> web.StreamResponse:
    """Answer with the session's history as a notebook."""
    document = await call.context.kernels.export((await kept_session_of(call, cwd)).id)
    body = msgspec.json.format(streams.json_bytes(document), indent=1)
    cut = document["metadata"]["px"].get("cut", ())
    headers = {"X-Cut-Cells": str(len(cut))}  # of how many cells something is left out
    return web.Response(
        body=body, content_type="application/x-ipynb+json", charset="utf-8", headers=headers
    )


async def capabilities(call: ApiCall, *, cwd: s.Folder | None = None) -> dict[str, Any]:
    """Answer which kinds of cells this daemon offers, and why not where it does not."""
    return await call.context.kernels.capabilities(cwd)

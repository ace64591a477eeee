"""`/api/kernels…`, `/api/capabilities`, `/api/kernelspecs`: sessions of kernels and what is kept of their cells.

A session is named by its id, or by its name where only one session has it or `cwd` decides.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from aiohttp import web

from supervisord_py.api.call import json_answer
from supervisord_py.api.json_text import json_bytes
from supervisord_py.api.kernel_documents import history_document, interrupt_document, kernel_document
from supervisord_py.api.kernel_orders import read_start
from supervisord_py.api.kernel_streams import resume, tell
from supervisord_py.api.negotiation import JSON, NDJSON, RAW, SSE, choose
from supervisord_py.api.parameters import refuse_value
from supervisord_py.api.status import measure, unit_documents
from supervisord_py.errors import InterruptedRunError, SurvivorsError, TimedOutError
from supervisord_py.kernels.artifacts import find_artifact
from supervisord_py.kernels.cell_files import CellLog
from supervisord_py.kernels.room_requests import StartRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from supervisord_py.api.call import Call
    from supervisord_py.kernels.cell import CallEvent
    from supervisord_py.kernels.session import SessionView

IPYNB = "application/x-ipynb+json"
PAGE_BYTES = 1024 * 1024
_OK, _CREATED, _ACCEPTED = 200, 201, 202


def session_of(call: Call) -> SessionView:
    """Return the session that `{k}` and `cwd` mean.

    Raises:
        UnknownUnitError: There is none.
        AmbiguousNameError: Several have that name.
    """
    return call.context.kernels.find(call.path("k").removeprefix("kernel:"), _cwd(call))


def _cwd(call: Call) -> str | None:
    cwd = call.arguments.text("cwd")
    if cwd is not None and not cwd.startswith("/"):
        raise refuse_value("cwd", cwd, "an absolute path")
    return cwd


def document_of(call: Call, view: SessionView) -> dict[str, Any]:
    """Return one session, with the way to join it where there is one."""
    handle = call.context.kernels.handle(view.id)
    return kernel_document(view, None if handle is None else handle.connection_file)


async def measured_documents(call: Call, views: tuple[SessionView, ...]) -> list[dict[str, Any]]:
    """Return sessions with what their trees use now."""
    stats = await measure(call, [view.instance for view in views if view.instance is not None])
    documents = []
    for view in views:
        document = document_of(call, view)
        if view.instance is not None and view.instance in stats:
            document["rss_bytes"] = stats[view.instance].rss_bytes
        documents.append(document)
    return documents


async def list_kernels(call: Call) -> web.StreamResponse:
    """Answer with every session, remembered ones included."""
    views = call.context.kernels.snapshot()
    spares = [{"interpreter": it.interpreter, "pid": it.pid, "ready": it.ready} for it in call.context.kernels.spares()]
    documents = await measured_documents(call, views)
    return json_answer({"schema": "px.kernels/1", "kernels": documents, "spares": spares})


async def show_kernel(call: Call) -> web.StreamResponse:
    """Answer with one session."""
    document, *_ = await measured_documents(call, (session_of(call),))
    return json_answer({"schema": "px.kernel/1", **document})


async def use(call: Call) -> web.StreamResponse:
    """Answer with one session, and count the question as a use: its front end lives and holds it."""
    view = session_of(call)
    call.context.kernels.touch(view.id)
    return _kernel_answer(call, call.context.kernels.find(view.id), _OK)


async def begin(call: Call) -> web.StreamResponse:
    """Start a session's kernel: 201, or 200 where it ran already; with `explain` only say what would be started.

    As a stream, which is 200, it tells what is waited for: a build takes minutes.
    """
    if seen := call.request.headers.get("Last-Event-ID"):
        return await resume(call, seen)
    order = read_start(await call.body_if_any())
    if order.explain:
        explanation = await call.context.kernels.explain(order.request)
        return json_answer({"schema": "px.kernel-explanation/1", **explanation.document()})
    media = choose(call.wanted, (JSON, NDJSON, SSE))
    if media != JSON:
        return await _begin_telling(call, order.request, media)
    started, view = await call.context.kernels.start_or_join(order.request)
    return _kernel_answer(call, view, _CREATED if started else _OK)


async def _begin_telling(call: Call, request: StartRequest, media: str) -> web.StreamResponse:
    async def work(told: Callable[[CallEvent], None]) -> dict[str, Any]:
        _, view = await call.context.kernels.start_or_join(request, told)
        return _kernel_document(call, view)

    return await tell(call, media, work, interrupted=_interrupted(), ends_with_client=False)


def _interrupted() -> InterruptedRunError:
    return InterruptedRunError(
        "The control plane is being replaced while the kernel starts; whether it still does is not known.",
        hint="pxctl kernel list, then start it again",
    )


async def start(call: Call) -> web.StreamResponse:
    """Start the kernel of a session that is known; answer once it is ready, or with `wait=0` at once."""
    view = session_of(call)
    wish = StartRequest(name=view.id, timeout_seconds=call.arguments.number("timeout"))
    return await _answer_with_units(call, "px.start/1", view.unit, call.context.kernels.start(wish))


async def stop(call: Call) -> web.StreamResponse:
    """End the kernel of a session; answer once nothing of it is left.

    Raises:
        SurvivorsError: Something is left; it is named.
        TimedOutError: The time is over; the stop goes on.
    """
    view = session_of(call)
    return await _answer_with_units(call, "px.stop/1", view.unit, _stop(call, view), survivors=[])


async def _stop(call: Call, view: SessionView) -> None:
    seconds = call.arguments.number("timeout")
    stopping = asyncio.ensure_future(call.context.kernels.stop(view.id))
    done, _ = await asyncio.wait({stopping}, timeout=seconds)
    if not done:
        call.live.leave(stopping)
        raise TimedOutError(
            f"The stop of {view.unit} took longer than {seconds:g} s; it goes on.",
            hint="pxctl kernel list",
            unit=view.unit,
        )
    survivors = stopping.result()
    if survivors:
        pids = ", ".join(map(str, survivors))
        raise SurvivorsError(
            f"{view.unit} is not gone: pid {pids} outlived the stop.",
            hint=f"ps -fp {','.join(map(str, survivors))}",
            unit=view.unit,
            survivors=[{"pid": pid} for pid in survivors],
        )


async def restart(call: Call) -> web.StreamResponse:
    """Replace the kernel of a session; its variables are lost, and a hard failure is forgotten."""
    view = await call.context.kernels.restart(session_of(call).id)
    return _kernel_answer(call, view, _OK)


async def interrupt(call: Call) -> web.StreamResponse:
    """Interrupt the running cell; asked again, go on to the next rung. `state` is what the session was found in."""
    view = session_of(call)
    report = await call.context.kernels.interrupt(view.id, cell=call.arguments.text("cell"))
    return json_answer({**interrupt_document(report), "state": view.state.value})


def _kernel_answer(call: Call, view: SessionView, status: int) -> web.Response:
    return json_answer(_kernel_document(call, view), status=status)


def _kernel_document(call: Call, view: SessionView) -> dict[str, Any]:
    return {"schema": "px.kernel/1", **document_of(call, view)}


async def _answer_with_units(
    call: Call, schema: str, unit: str, work: Coroutine[Any, Any, Any], **members: Any
) -> web.StreamResponse:
    """Let the work go on by itself when the client goes away or does not want to wait."""
    status = _OK
    if call.arguments.flag("wait", absent=True):
        await call.live.outlive_client(work)
    else:
        call.live.detach(work)
        status = _ACCEPTED
    return json_answer({"schema": schema, "units": await unit_documents(call, [unit]), **members}, status=status)


# -- what is kept of cells ------------------------------------------------------------------------------------------


async def list_cells(call: Call) -> web.StreamResponse:
    """Answer with the session's cells, oldest first."""
    view = session_of(call)
    rows = await call.context.kernels.cells(view.id)
    cells = [history_document(row) for row in rows]
    return json_answer({"schema": "px.cells/1", "kernel": view.id, "cells": cells})


async def cell_output(call: Call) -> web.StreamResponse:
    """Answer with a page of a cell's complete output, as it came; an empty one is the end for now."""
    log = CellLog(call.context.config.cells_dir / session_of(call).id, call.path("id"))
    offset = call.arguments.integer("offset") or 0
    limit = call.arguments.integer("limit") or PAGE_BYTES
    page = await asyncio.to_thread(log.page, offset, limit, call.arguments.text("stream"))
    return _raw(page.data, {"X-Offset": page.offset, "X-Total-Bytes": page.total_bytes, "X-Complete": page.complete})


def _raw(content: bytes, facts: Mapping[str, int | bool]) -> web.Response:
    headers = {name: str(value).lower() for name, value in facts.items()}
    return web.Response(body=content, content_type=RAW, headers={**headers, "Cache-Control": "no-store"})


async def artifact(call: Call) -> web.StreamResponse:
    """Answer with a rich output that was too large for its result, or with the complete output of a cell."""
    folder = call.context.config.cells_dir / session_of(call).id
    found = await asyncio.to_thread(find_artifact, folder, call.path("id"))
    return web.FileResponse(found.path, headers={"Content-Type": found.mime, "X-Content-Type-Options": "nosniff"})


async def notebook(call: Call) -> web.StreamResponse:
    """Answer with the session's history as a notebook."""
    document = await call.context.kernels.export(session_of(call).id)
    return web.Response(body=json_bytes(document, indent=1), content_type=IPYNB, charset="utf-8")


# -- what there is --------------------------------------------------------------------------------------------------


async def capabilities(call: Call) -> web.StreamResponse:
    """Answer which kinds of cells this daemon offers, and why not where it does not."""
    report = await call.context.kernels.capabilities(_cwd(call))
    return json_answer({"schema": "px.capabilities/1", **report.document()})

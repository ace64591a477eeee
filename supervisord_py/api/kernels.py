"""`/api/kernels…`, `/api/capabilities`: sessions of kernels, calls in them, and what is kept of their cells.

A session is named by its id, or by its name where only one session has it or `cwd` decides. A call ends with its
client, by the ladder of the room; one that is told as server-sent events a moment later, for its client may come back.
It does not end with the control plane: when that is replaced, the call is left to the room, its cells run on in their
kernel, and their output stays where it is.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from aiohttp import web

from supervisord_py.api.auth import caller_instance
from supervisord_py.api.kernel_streams import came_of, cell_document, resume, running, tell
from supervisord_py.api.schemas import refuse, refuse_value
from supervisord_py.api.streams import JSON, NDJSON, SSE, choose, json_answer, json_bytes, pick, raw_answer
from supervisord_py.api.units import measure, work_document
from supervisord_py.errors import InterruptedRunError, SurvivorsError, TimedOutError
from supervisord_py.kernels.artifacts import find_artifact
from supervisord_py.kernels.cell import CallRequest, Cell
from supervisord_py.kernels.cell_files import CellLog
from supervisord_py.kernels.notebook import cells_of_script
from supervisord_py.kernels.session import BackendName, Owner, StartRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from supervisord_py.api.context import Call
    from supervisord_py.api.schemas import (
        BatchQuery,
        CellPageQuery,
        Execute,
        InterruptQuery,
        Place,
        SessionQuery,
        SessionWorkQuery,
        StartKernel,
        WorkQuery,
    )
    from supervisord_py.kernels.cell import CallEvent, CallResult, CellResult
    from supervisord_py.kernels.room import Kernels
    from supervisord_py.kernels.session import SessionView

_SOURCES = ("code", "cells", "notebook", "script")
_USUAL_SPEC = "python3"


def session_of(call: Call, query: SessionQuery | SessionWorkQuery) -> SessionView:
    """Return the session that `{k}` and `cwd` mean.

    Raises:
        UnknownUnitError: There is none.
        AmbiguousNameError: Several have that name.
    """
    return call.context.kernels.find(call.path("k").removeprefix("kernel:"), _cwd(query))


def _cwd(query: SessionQuery | SessionWorkQuery) -> str | None:
    if query.cwd is not None and not query.cwd.startswith("/"):
        raise refuse_value("cwd", query.cwd, "must be an absolute path")
    return query.cwd


def document_of(call: Call, view: SessionView) -> dict[str, Any]:
    """Return one session; `connection_file` is there while Jupyter's own clients can join its kernel."""
    handle = call.context.kernels.handle(view.id)
    file = None if handle is None else handle.connection_file
    return {
        "schema": "px.kernel/1",
        "id": view.id,
        **pick(view.key, "name", "cwd", "interpreter", "backend", "jupyter_id"),
        **pick(view, "state", "pid", "queued", "last_used", "started_at", "start_method", "cold_start_ms"),
        **pick(view, "rss_bytes", "reason", "unit", "running", "instance", "restarts", "failure", "owner"),
        **pick(view, "language", "kernelspec", "notices"),
        "connection_file": None if file is None else str(file),
    }


async def _measured(call: Call, views: Sequence[SessionView]) -> list[dict[str, Any]]:
    """Return sessions with what their trees use now."""
    stats = await measure(call.context, [view.instance for view in views if view.instance is not None])
    documents = []
    for view in views:
        document = document_of(call, view)
        if view.instance is not None and view.instance in stats:
            document["rss_bytes"] = stats[view.instance].rss_bytes
        documents.append(document)
    return documents


async def list_kernels(call: Call) -> web.StreamResponse:
    """Answer with every session, remembered ones included."""
    documents = await _measured(call, call.context.kernels.snapshot())
    for document in documents:
        del document["schema"]
    spares = [pick(spare, "interpreter", "pid", "ready") for spare in call.context.kernels.spares()]
    return json_answer({"schema": "px.kernels/1", "kernels": documents, "spares": spares})


async def show_kernel(call: Call, query: SessionQuery) -> web.StreamResponse:
    """Answer with one session."""
    return json_answer((await _measured(call, (session_of(call, query),)))[0])


async def use(call: Call, query: SessionQuery) -> web.StreamResponse:
    """Answer with one session, and count the question as a use: its front end lives and holds it."""
    view = session_of(call, query)
    call.context.kernels.touch(view.id)
    return json_answer(document_of(call, call.context.kernels.find(view.id)))


# -- starting, stopping -----------------------------------------------------------------------------------------------


async def begin(call: Call, body: StartKernel) -> web.StreamResponse:
    """Start a session's kernel: 201, or 200 where it ran already; with `explain` only say what would be started.

    As a stream, which is 200, it tells what is waited for: a build takes minutes.
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
        return json_answer({"schema": "px.kernel-explanation/1", **explanation.document()})
    media = choose(call, JSON, NDJSON, SSE)
    if media == JSON:
        started, view = await kernels.start_or_join(request)
        return json_answer(document_of(call, view), status=201 if started else 200)

    async def work(told: Callable[[CallEvent], None]) -> dict[str, Any]:
        return document_of(call, (await kernels.start_or_join(request, told))[1])

    interrupted = InterruptedRunError(
        "The control plane is being replaced while the kernel starts; whether it still does is not known.",
        hint="pxctl kernel list, then start it again",
    )
    return await tell(call, media, work, interrupted=interrupted, ends_with_client=False)


def _place(body: Place) -> dict[str, Any]:
    """Return the members that decide where code runs, by the names that both requests have for them.

    Raises:
        InvalidInputError: A Python was named for cells that run in the shell.
    """
    if body.language == "bash" or body.backend is BackendName.BASH:
        for name in ("interpreter", "kernelspec"):
            if getattr(body, name) is not None:
                message = f"Shell cells run in bash; /{name} names something else to run them."
                raise refuse(f"/{name}", message, f"leave {name} out, or send the code as python")
    place = {name: getattr(body, name) for name in ("cwd", "interpreter", "kernelspec", "backend")}
    return {**place, "language": body.language or "python", "environ": body.environ or {}}


async def start(call: Call, query: SessionWorkQuery) -> web.StreamResponse:
    """Start the kernel of a session that is known; answer once it is ready, or with `wait=0` at once."""
    document, status = await start_document(call, [session_of(call, query).id], query)
    return json_answer(document, status=status)


async def stop(call: Call, query: SessionWorkQuery) -> web.StreamResponse:
    """End the kernel of a session; answer once nothing of it is left.

    Raises:
        SurvivorsError: Something is left; it is named.
        TimedOutError: The time is over; the stop goes on.
    """
    document, status = await stop_document(call, [session_of(call, query).id], query)
    return json_answer(document, status=status)


async def start_document(
    call: Call, sessions: Sequence[str], query: WorkQuery | BatchQuery
) -> tuple[dict[str, Any], int]:
    """Start the kernel of one session; return the answer and its status."""
    [session] = sessions
    work = call.context.kernels.start(StartRequest(name=session, timeout_seconds=query.timeout))
    return await work_document(call, "px.start/1", [f"kernel:{session}"], work, query)


async def stop_document(
    call: Call, sessions: Sequence[str], query: WorkQuery | BatchQuery
) -> tuple[dict[str, Any], int]:
    """End the kernel of one session; return the answer and its status."""
    [session] = sessions
    work = _stop(call, session, query.timeout)
    document, status = await work_document(call, "px.stop/1", [f"kernel:{session}"], work, query)
    return {**document, "survivors": []}, status


async def _stop(call: Call, session: str, seconds: float | None) -> None:
    unit = f"kernel:{session}"
    stopping = asyncio.ensure_future(call.context.kernels.stop(session))
    done, _ = await asyncio.wait({stopping}, timeout=seconds)
    if not done:
        call.live.leave(stopping)
        detail = f"The stop of {unit} took longer than {seconds:g} s; it goes on."
        raise TimedOutError(detail, hint="pxctl kernel list", unit=unit)
    if survivors := stopping.result():
        raise SurvivorsError(
            f"{unit} is not gone: pid {', '.join(map(str, survivors))} outlived the stop.",
            hint=f"ps -fp {','.join(map(str, survivors))}",
            unit=unit,
            survivors=[{"pid": pid} for pid in survivors],
        )


async def restart(call: Call, query: SessionQuery) -> web.StreamResponse:
    """Replace the kernel of a session; its variables are lost, and a hard failure is forgotten."""
    return json_answer(await restart_document(call, session_of(call, query).id))


async def restart_document(call: Call, session: str) -> dict[str, Any]:
    """Replace the kernel of a session; return the answer."""
    return document_of(call, await call.context.kernels.restart(session))


async def interrupt(call: Call, query: InterruptQuery) -> web.StreamResponse:
    """Interrupt the running cell; asked again, go on to the next rung. `state` is what the session was found in."""
    view = session_of(call, query)
    report = await call.context.kernels.interrupt(view.id, cell=query.cell)
    known = {"running": report.running, "steps": report.steps, "state": view.state}
    return json_answer({"schema": "px.interrupt/1", "kernel": report.session_id, **known})


# -- calls ------------------------------------------------------------------------------------------------------------


async def execute(call: Call, body: Execute) -> web.StreamResponse:
    """Run cells in a session, which is made where there is none of that name."""
    if seen := call.request.headers.get("Last-Event-ID"):
        return await resume(call, seen)
    arrived_at = asyncio.get_running_loop().time()
    kernels = call.context.kernels
    content = await _content(kernels, body)
    place = _place(body)
    if body.kernelspec is None and body.interpreter is None:
        place["kernelspec"] = content.kernelspec
    else:
        content = content._replace(missed_spec=None)
    living = {view.pid: view.instance for view in kernels.snapshot() if view.pid is not None and view.instance}
    request = CallRequest(
        session=call.path("k").removeprefix("kernel:"),
        cells=content.cells,
        arrived_at=arrived_at,
        timeout_seconds=body.timeout,
        reset=bool(body.reset),
        per_call=bool(body.per_call),
        caller_instance=caller_instance(call.request.headers, getattr(call.request.protocol, "peer", None), living),
        **place,
    )
    interrupted = InterruptedRunError(
        "The control plane is being replaced; the running cell goes on in its kernel, later ones are not run.",
        hint="pxctl kernel list; its output stays at /api/kernels/ID/cells",
    )
    media = choose(call, JSON, NDJSON, SSE)
    if media != JSON:

        async def work(told: Callable[[CallEvent], None]) -> dict[str, Any]:
            return await _finished(call, content, await kernels.execute(request, told))

        return await tell(call, media, work, interrupted=interrupted, ends_with_client=True)
    async with running(call, kernels.execute(request, lambda _: None)) as (task, given_up):
        giving_up = asyncio.create_task(given_up.wait())
        await asyncio.wait({task, giving_up}, return_when=asyncio.FIRST_COMPLETED)
        giving_up.cancel()
        result = came_of(task, interrupted)
    response = json_answer(await _finished(call, content, result))
    if result.cold_start_ms is not None:
        response.headers["X-Px-Cold-Start"] = str(result.cold_start_ms)
    return response


class _Content(NamedTuple):
    """What is to be run, and what it says of its language.

    Attributes:
        notebook: The text that the results go back into, None where there was none.
        missed_spec: Kernelspec that the notebook names and nobody has: it runs in what a call without one gets.
    """

    cells: tuple[Cell, ...]
    notebook: str | None = None
    kernelspec: str | None = None
    missed_spec: str | None = None


async def _content(kernels: Kernels, body: Execute) -> _Content:
    given = [name for name in _SOURCES if getattr(body, name) is not None]
    if len(given) != 1:
        told = "none of them is there" if not given else f"there are {' and '.join(given)}"
        raise refuse("", f"The body must have one of {', '.join(_SOURCES)}; {told}.", 'for example {"code": "1 + 1"}')
    content = _Content(())
    match given[0]:
        case "code":
            return _Content((Cell(body.code or ""),))
        case "cells":
            content = _Content(tuple(Cell(each.code, each.title) for each in body.cells or ()))
        case "script":
            content = _Content(cells_of_script(body.script or ""))
        case "notebook":
            content = await _notebook(kernels, body.notebook or "")
    if not content.cells:
        raise refuse(f"/{given[0]}", f"/{given[0]} has no cell to run.", 'for example {"code": "1 + 1"}')
    return content


async def _notebook(kernels: Kernels, text: str) -> _Content:
    """Read a notebook. Python ones name kernelspecs of the machine they were written on: ours does where one lacks."""
    read = await asyncio.to_thread((await _notebook_module()).cells_of_notebook, text)
    if read.kernelspec in {None, _USUAL_SPEC}:
        return _Content(read.cells, text)
    if (read.language or "python").lower() == "python" and read.kernelspec not in await kernels.specs():
        return _Content(read.cells, text, missed_spec=read.kernelspec)
    return _Content(read.cells, text, read.kernelspec)


async def _notebook_module() -> Any:
    """Return the module that knows notebooks; its library is slow to import and seldom needed."""
    return await asyncio.to_thread(importlib.import_module, "supervisord_py.kernels.notebook")


async def _finished(call: Call, content: _Content, result: CallResult) -> dict[str, Any]:
    """Return the answer, with the executed notebook where one was sent: pictures are whole in it."""
    notices = list(result.notices)
    if content.missed_spec is not None:
        notices.append(
            f"The notebook names the kernelspec {content.missed_spec[:80]!r}, which is not installed here: "
            f"its cells ran in {result.interpreter} instead."
        )
    document = {
        "schema": "px.exec/1",
        "kernel": result.session_id,
        "name": result.session_id.rpartition("-")[0],
        **pick(result, "cwd", "interpreter", "backend", "variables", "status", "message", "timeout_seconds"),
        **pick(result, "clamped", "cold_start_ms", "instance"),
        "notices": notices,
        "cells": [cell_document(cell) for cell in result.cells],
    }
    if content.notebook is None:
        return document
    notebook, cells_dir = await _notebook_module(), call.context.config.cells_dir
    limits = call.context.kernels.config.output

    def outputs_of(cell: CellResult) -> Sequence[Mapping[str, Any]]:
        log = CellLog(cells_dir / result.session_id, cell.id)
        return notebook.detailed_outputs(log, limits, rich=True) if log.exists() else cell.outputs

    text = await asyncio.to_thread(notebook.executed, content.notebook, result.cells, outputs_of)
    return {**document, "notebook": text}


# -- what is kept of cells --------------------------------------------------------------------------------------------


async def list_cells(call: Call, query: SessionQuery) -> web.StreamResponse:
    """Answer with the session's cells, oldest first."""
    view = session_of(call, query)
    members = (
        "id", "title", "code", "status", "call", "ordinal", "instance", "queued_at", "started_at", "ended_at",
        "duration_seconds", "execution_count", "total_bytes", "truncated", "lossy", "error", "variables", "steps",
    )  # fmt: skip
    cells = [pick(row, *members) for row in await call.context.kernels.cells(view.id)]
    return json_answer({"schema": "px.cells/1", "kernel": view.id, "cells": cells})


async def cell_output(call: Call, query: CellPageQuery) -> web.StreamResponse:
    """Answer with a page of a cell's complete output, as it came; an empty one is the end for now."""
    log = CellLog(call.context.config.cells_dir / session_of(call, query).id, call.path("id"))
    return raw_answer(await asyncio.to_thread(log.page, query.offset, query.limit, query.stream))


async def artifact(call: Call, query: SessionQuery) -> web.StreamResponse:
    """Answer with a rich output that was too large for its result, or with the complete output of a cell."""
    folder = call.context.config.cells_dir / session_of(call, query).id
    found = await asyncio.to_thread(find_artifact, folder, call.path("id"))
    return web.FileResponse(found.path, headers={"Content-Type": found.mime, "X-Content-Type-Options": "nosniff"})


async def notebook(call: Call, query: SessionQuery) -> web.StreamResponse:
    """Answer with the session's history as a notebook."""
    document = await call.context.kernels.export(session_of(call, query).id)
    body = msgspec.json.format(json_bytes(document), indent=1)
    return web.Response(body=body, content_type="application/x-ipynb+json", charset="utf-8")


async def capabilities(call: Call, query: SessionQuery) -> web.StreamResponse:
    """Answer which kinds of cells this daemon offers, and why not where it does not."""
    report = await call.context.kernels.capabilities(_cwd(query))
    return json_answer({"schema": "px.capabilities/1", **report.document()})

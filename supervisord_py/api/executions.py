"""`…/executions…`: the ledger's rows, their output in pages, and their end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from aiohttp import web

from supervisord_py.api.call import json_answer
from supervisord_py.api.parameters import refuse_value
from supervisord_py.api.pipe_documents import execution_document, page_document, whole_execution_document
from supervisord_py.api.pipes import name_of
from supervisord_py.api.times import parse_since
from supervisord_py.errors import UnknownUnitError
from supervisord_py.ledger.pipe_executions import Status
from supervisord_py.ledger.pipe_history import DEFAULT_PAGE, ExecutionFilter
from supervisord_py.pipes.output import OutputStream

if TYPE_CHECKING:
    from supervisord_py.api.call import Call
    from supervisord_py.ledger.pipe_executions import Execution
    from supervisord_py.ledger.pipe_history import ExecutionPage

_ACCEPTED = 202


async def list_executions(call: Call) -> web.StreamResponse:
    """Answer with executions of one pipe, newest first; also of one that is gone, whose rows stay."""
    page = await _page(call, name_of(call))
    if not page.executions:
        call.context.pipes.get(name_of(call))
    return json_answer(page_document(page))


async def list_all(call: Call) -> web.StreamResponse:
    """Answer with executions of all pipes, newest first."""
    return json_answer(page_document(await _page(call, call.arguments.text("pipe"))))


async def _page(call: Call, pipe: str | None) -> ExecutionPage:
    arguments = call.arguments
    wanted = ExecutionFilter(
        pipe=None if pipe is None else pipe.removeprefix("pipe:"),
        statuses=tuple(Status(each) for each in arguments.texts("status")),
        since=_moment(call, "since"),
        until=_moment(call, "until"),
        before_id=arguments.integer("cursor"),
        limit=arguments.integer("limit") or DEFAULT_PAGE,
    )
    return await call.context.pipes.executions(wanted)


def _moment(call: Call, name: str) -> float | None:
    text = call.arguments.text(name)
    if text is None:
        return None
    try:
        return parse_since(text, time.time())
    except ValueError as error:
        raise refuse_value(name, text, "an RFC 3339 time or an age like 2h") from error


def id_of(call: Call) -> int:
    """Return the id in the path.

    Raises:
        UnknownUnitError: It is no number, so there is no such execution.
    """
    text = call.path("id")
    if not (text.isascii() and text.isdigit() and len(text) < 19):  # what SQLite holds
        raise UnknownUnitError(f"There is no execution {text[:40]!r}.", hint="pxctl pipe runs")
    return int(text)


async def execution_of(call: Call) -> Execution:
    """Return the execution that the path names, which must be one of its pipe, where it names one."""
    pipe = name_of(call) if "p" in call.request.match_info else None
    return await call.context.pipes.execution(id_of(call), pipe=pipe)


async def show_execution(call: Call) -> web.StreamResponse:
    """Answer with one execution and all that its row holds; with `wait`, once it is final."""
    execution = await execution_of(call)
    if call.arguments.flag("wait"):
        execution = await call.context.pipes.wait(execution.id)
    else:
        execution = await call.context.pipes.execution(execution.id, blobs=True)
    return json_answer({"schema": "px.execution/1", **whole_execution_document(execution)})


async def cancel(call: Call) -> web.StreamResponse:
    """Cancel an execution in any state; answer once nothing of it is left."""
    execution = await execution_of(call)
    cancelled = await call.context.pipes.cancel(execution.id)
    return json_answer({"schema": "px.execution/1", **execution_document(cancelled)})


async def retry(call: Call) -> web.StreamResponse:
    """Queue the same again as a new row that names this one."""
    execution = await execution_of(call)
    again = await call.context.pipes.retry(execution.id)
    return json_answer({"schema": "px.execution/1", **execution_document(again)}, status=_ACCEPTED)


async def output(call: Call) -> web.StreamResponse:
    """Answer with a page of one stream, as raw bytes; an empty page is the end for now."""
    execution, arguments = await execution_of(call), call.arguments
    stream = OutputStream(arguments.text("stream") or OutputStream.STDOUT)
    page = await call.context.pipes.output(
        execution.id, stream, arguments.integer("offset") or 0, arguments.integer("limit")
    )
    headers = {
        "X-Offset": str(page.offset),
        "X-Total-Bytes": str(page.total_bytes),
        "X-Complete": "true" if page.complete else "false",
        "X-Truncated": "true" if page.truncated else "false",
        "X-Content-Type-Options": "nosniff",
    }
    return web.Response(body=page.data, content_type="application/octet-stream", headers=headers)

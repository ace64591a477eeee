"""The one table of routes. What is not here does not exist; what is here is described by `/api/openapi.json`.

`returns` says what an answer is, one text a kind: `STATUS SCHEMA what`, where 200 may be left out, and in the place of
the schema `-` (JSON of no schema) or a media: `ndjson`, `sse`, `raw`, `ipynb`, `text`, `websocket`, `nothing`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from supervisord_py.api import (
    daemon,
    doctor,
    events,
    executions,
    jupyter_channels,
    jupyter_rest,
    kernels,
    logs,
    metrics,
    pipes,
    status,
    tools,
    why,
)
from supervisord_py.api import schemas as s
from supervisord_py.api.schemas import Body, Query
from supervisord_py.api.streams import json_answer

if TYPE_CHECKING:
    from supervisord_py.api.context import Call


class Access(StrEnum):
    """What a route needs. Every one needs the daemon's own user, root, or on TCP the token.

    `CHANGE` is refused while the daemon stops; `LIFE` steers the stop itself and is not; `READ` never changes anything.
    """

    READ = "read"
    CHANGE = "change"
    LIFE = "life"


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """One row.

    Attributes:
        path: With `{name}` parts.
        handler: Given the call, then the query and the body where the row names a Struct for them.
        body: None where there is none, and what is sent is not looked at; `Body` where it must say nothing.
        outlives: The work goes on when the client goes away before the answer.
        streams: The answer to a POST is a stream: it is not kept for replay under an Idempotency-Key.
        resumes: A POST with Last-Event-ID does nothing again, under whatever key: it is told the rest.
        lenient: Query parameters that the row does not know are passed over.
    """

    method: str
    path: str
    handler: Callable[..., Awaitable[web.StreamResponse]]
    access: Access
    summary: str
    returns: tuple[str, ...]
    query: type[Query] = Query
    body: Any = None
    outlives: bool = False
    streams: bool = False
    resumes: bool = False
    lenient: bool = False


async def openapi(call: Call) -> web.StreamResponse:
    """Answer with the description of this table."""
    from supervisord_py.api.openapi import openapi_document  # only who asks for it pays for it

    return json_answer(openapi_document(ROUTES, call.context.control.facts().version))


def _read(path: str, handler: Any, summary: str, *returns: str, **more: Any) -> Route:
    return Route(
        method="GET", path=path, handler=handler, summary=summary, returns=returns,
        **{"access": Access.READ, **more},
    )  # fmt: skip


def _change(name: str, handler: Any, summary: str, *returns: str, **more: Any) -> Route:
    method, path = name.split()
    return Route(
        method=method, path=path, handler=handler, summary=summary, returns=returns,
        **{"access": Access.CHANGE, **more},
    )  # fmt: skip


def _work(name: str, handler: Any, summary: str, *returns: str, **more: Any) -> Route:
    return _change(name, handler, summary, *returns, outlives=True, **more)


_ONE = "/api/pipes/{p}/executions/{id}"
_DONE = "204 nothing Last-Event-ID was that of `done`: there is nothing more"

DAEMON = (
    _read("/api/health", status.health, "Does it serve? 503 while it stops.", "px.health/1 yes", access=Access.CHANGE),
    _read("/api/status", status.status, "The daemon and every unit.", "px.status/1 status", query=s.UnitsQuery),
    _read(
        "/api/events",
        events.events,
        "What happened, and with follow what happens.",
        "ndjson one event a line",
        "sse events with ids",
        query=s.EventsQuery,
    ),
    _read("/api/metrics", metrics.metrics, "Prometheus metrics.", "text format 0.0.4"),
    _read("/api/openapi.json", openapi, "This description.", "- OpenAPI 3.1"),
    _read("/api/doctor", doctor.doctor, "Checks, each with the command that repairs it.", "px.doctor/1 checks"),
    _read("/api/config", daemon.show_config, "Effective settings with their origin.", "px.config/1 settings"),
    _read("/api/daemon", daemon.show_daemon, "Keeper, control plane, rungs.", "px.daemon/1 the daemon"),
    _work("POST /api/daemon/reload", daemon.reload, "Read settings and tools again.", "px.reload/1 what changed"),
    _work(
        "POST /api/daemon/restart",
        daemon.restart,
        "Replace the control plane and keep the children; with all=1 begin anew.",
        "202 px.daemon-wish/1 accepted",
        query=s.AllQuery,
    ),
    _work(
        "POST /api/daemon/stop",
        daemon.stop,
        "Stop every child in order, then the daemon.",
        "202 px.daemon-wish/1 accepted",
        access=Access.LIFE,
    ),
)

UNITS = (
    _read("/api/units", status.list_units, "What names and globs mean.", "px.units/1 units", query=s.NamesQuery),
    *(
        _work(
            f"POST /api/units/{verb}",
            handler,
            f"{verb.capitalize()} several units; 200 with an answer or a problem for each of them.",
            f"px.{verb}-units/1 what became of each",
            query=s.BatchQuery,
        )
        for verb, handler in (("start", status.start), ("stop", status.stop), ("restart", status.restart))
    ),
    _read(
        "/api/units/{u}/logs",
        logs.unit_logs,
        "Output; follows across rotation and restarts.",
        "raw bytes as they came; X-Cursor is where to go on",
        "ndjson one piece a line",
        "sse pieces with positions as ids",
        query=s.LogsQuery,
    ),
    _read(
        "/api/units/{u}/wait",
        status.wait,
        "Answer once the unit is ready, stopped or done; 504 when the time is over.",
        "px.wait/1 outcome",
        query=s.UntilQuery,
    ),
    _read("/api/units/{u}/why", why.why, "The causal chain that led to the unit's state.", "px.why/1 explanation"),
)

TOOLS = (
    _read("/api/launcher/state", tools.launcher_state, "The warm set, by tool.", "- by tool"),
    _read("/api/tools", tools.list_tools, "The catalog.", "px.tools/1 tools"),
    _read("/api/tools/{t}", tools.show_tool, "One tool with manifest, input schema and limits.", "px.tool/1 tool"),
    _change(
        "POST /api/tools/{t}/run",
        tools.run,
        "Run a tool once; the body is its input, the answer is the tool's own.",
        "- the tool's answer, whatever its type",
        query=s.RunQuery,
    ),
    _change(
        "POST /api/tools/{t}/stream",
        tools.stream,
        "Run a tool once; items are passed on as they come.",
        "sse the tool's events",
        "ndjson the tool's lines",
        query=s.RunQuery,
        streams=True,
    ),
    _read(
        "/api/tools/{t}/lease",
        tools.lease,
        "Hold a warm instance while the connection stays open.",
        "ndjson one line: address, port, pid",
        query=s.TimeoutQuery,
        access=Access.CHANGE,
    ),
    _work(
        "POST /api/tools/{t}/start",
        tools.start,
        "Warm a tool up.",
        "px.start/1 ready",
        "202 px.start/1 begun (wait=0)",
        query=s.WorkQuery,
    ),
    _work(
        "POST /api/tools/{t}/stop",
        tools.stop,
        "Stop a tool; 409 names what is left of it.",
        "px.stop/1 nothing is left",
        "202 px.stop/1 begun (wait=0)",
        query=s.WorkQuery,
    ),
    _work("POST /api/tools/new", tools.new, "Write a tool to start from.", "201 px.tool/1 the tool", body=s.NewTool),
    _work("POST /api/tools/add", tools.add, "Copy a tool here.", "201 px.tool/1 the tool", body=s.AddTool),
    _work(
        "DELETE /api/tools/{t}",
        tools.remove,
        "Delete a tool's folder; one that runs only with force=1.",
        "px.removed/1 it is gone",
        query=s.ForceQuery,
    ),
    _change("POST /api/tools/{t}/validate", tools.validate, "Run the twelve checks.", "px.validation/1 the report"),
    _change("POST /api/tools/{t}/debug", tools.debug, "Walk the failure table.", "px.debug/1 cases with evidence"),
    _change(
        "POST /api/tools/{t}/sync",
        tools.sync,
        "Build the tool's .venv.",
        "ndjson lines of progress; the last one has `done`, or is a problem document",
        streams=True,
    ),
    _work(
        "PUT /api/tools/{t}/pin",
        tools.pin,
        "Exempt from LRU eviction; with forever=1 from age as well.",
        "px.pin/1 pinned",
        query=s.PinQuery,
    ),
    _work("DELETE /api/tools/{t}/pin", tools.unpin, "Take a pin away.", "px.pin/1 no pin"),
)

_STOPPED = ("px.stop/1 nothing is left", "202 px.stop/1 begun (wait=0)")
KERNELS = (
    _read("/api/kernels", kernels.list_kernels, "Every session, remembered ones included.", "px.kernels/1 sessions"),
    _work(
        "POST /api/kernels",
        kernels.begin,
        "Start a session's kernel, or with `explain` say what would be started.",
        "px.kernel/1 it ran already, or the explanation (px.kernel-explanation/1)",
        "201 px.kernel/1 started",
        "ndjson one event a line, `done` with the session last",
        "sse events",
        _DONE,
        body=s.StartKernel,
        resumes=True,
    ),
    _read("/api/kernels/{k}", kernels.show_kernel, "One session.", "px.kernel/1 session", query=s.SessionQuery),
    *(
        _work(name, kernels.stop, "End its kernel; 409 names what is left.", *_STOPPED, query=s.SessionWorkQuery)
        for name in ("DELETE /api/kernels/{k}", "POST /api/kernels/{k}/stop")
    ),
    _work(
        "POST /api/kernels/{k}/start",
        kernels.start,
        "Start the kernel of a known session; forgets a hard failure.",
        "px.start/1 ready",
        "202 px.start/1 begun (wait=0)",
        query=s.SessionWorkQuery,
    ),
    _work(
        "POST /api/kernels/{k}/restart",
        kernels.restart,
        "Replace the kernel; its variables are lost.",
        "px.kernel/1 ready",
        query=s.SessionQuery,
    ),
    _work(
        "POST /api/kernels/{k}/interrupt",
        kernels.interrupt,
        "Interrupt the running cell; asked again, go on to the next rung.",
        "px.interrupt/1 the rungs so far",
        query=s.InterruptQuery,
    ),
    _change(
        "POST /api/kernels/{k}/use",
        kernels.use,
        "One session; counts as a use, and holds its place for a while.",
        "px.kernel/1 session",
        query=s.SessionQuery,
    ),
    _change(
        "POST /api/kernels/{k}/execute",
        kernels.execute,
        "Run cells in order; a client that goes away, and does not come back to its stream, cancels them.",
        "px.exec/1 what came of each cell, also of those that failed",
        "ndjson one event a line, `done` last",
        "sse events",
        _DONE,
        body=s.Execute,
        resumes=True,
    ),
    _read("/api/kernels/{k}/cells", kernels.list_cells, "Its history.", "px.cells/1 cells", query=s.SessionQuery),
    _read(
        "/api/kernels/{k}/cells/{id}/output",
        kernels.cell_output,
        "A page of a cell's complete output.",
        "raw bytes as they came; X-Offset, X-Total-Bytes, X-Complete",
        query=s.CellPageQuery,
    ),
    _read(
        "/api/kernels/{k}/artifacts/{id}",
        kernels.artifact,
        "A rich output that was too large for its result, or a cell's complete output.",
        "raw as it is; ranges are served",
        query=s.SessionQuery,
    ),
    _read(
        "/api/kernels/{k}/notebook",
        kernels.notebook,
        "The session's history as a notebook.",
        "ipynb nbformat 4.5",
        query=s.SessionQuery,
    ),
    _read(
        "/api/capabilities",
        kernels.capabilities,
        "Which kinds of cells are offered, and why not.",
        "px.capabilities/1 Python and shell cells",
        query=s.SessionQuery,
    ),
    _read("/api/kernelspecs", jupyter_rest.list_specs, "Jupyter's document of kernelspecs.", "- kernelspecs"),
)


def _jupyter(name: str, handler: Any, summary: str, returned: str, **more: Any) -> Route:
    """Return a row of Jupyter's API: whoever made the request, what it begins goes on without the client."""
    method, _, path = name.partition(" ")
    reads = method == "GET"
    return Route(
        method=method, path=f"/jupyter/api{path}", handler=handler, summary=summary, returns=(returned,),
        **{"access": Access.READ if reads else Access.CHANGE, "outlives": not reads, "lenient": True, **more},
    )  # fmt: skip


JUPYTER = (
    _jupyter("GET ", jupyter_rest.version, "Who serves Jupyter's API here.", "- version"),
    _jupyter("GET /kernelspecs", jupyter_rest.list_specs, "The kernelspecs.", "- kernelspecs"),
    _jupyter("GET /kernelspecs/{name}", jupyter_rest.show_spec, "One kernelspec.", "- kernelspec"),
    _jupyter("GET /kernels", jupyter_rest.list_kernels, "Kernels that can be joined.", "- kernels"),
    _jupyter("POST /kernels", jupyter_rest.begin, "Start a kernel in a session of its own.", "201 - kernel"),
    _jupyter("GET /kernels/{uuid}", jupyter_rest.show_kernel, "One kernel.", "- kernel"),
    _jupyter("DELETE /kernels/{uuid}", jupyter_rest.end, "End it.", "204 nothing done"),
    _jupyter("POST /kernels/{uuid}/interrupt", jupyter_rest.interrupt, "Interrupt it.", "204 nothing done"),
    _jupyter("POST /kernels/{uuid}/restart", jupyter_rest.restart, "Replace it.", "- kernel"),
    _jupyter(
        "GET /kernels/{uuid}/channels",
        jupyter_channels.channels,
        "WebSocket to its channels: JSON, or v1.kernel.websocket.jupyter.org.",
        "101 websocket messages",
        access=Access.CHANGE,
    ),
)

_PIPE = "px.pipe/1 the pipe as it is then"
_EXECUTION = "px.execution/1 the execution"
PIPES = (
    _read("/api/pipes", pipes.list_pipes, "Every pipe, broken ones included.", "px.pipes/1 pipes"),
    _work(
        "POST /api/pipes",
        pipes.add_pipe,
        "Install a pipe from a path, an https address or `example:NAME`: disabled.",
        "201 px.pipe/1 the pipe",
        body=s.AddPipe,
    ),
    _work("POST /api/pipes/new", pipes.new_pipe, "Write a pipe to start from.", "201 px.pipe/1 it", body=s.NewPipe),
    _read("/api/pipes/queue", pipes.queue, "What runs and what waits, by group.", "px.queue/1 the lines"),
    _change(
        "POST /api/pipes/schedule/preview",
        pipes.preview,
        "What a schedule means, and when it would be due.",
        "px.schedule/1 valid or not, and why",
        body=s.PreviewSchedule,
        access=Access.READ,
    ),
    _read("/api/pipes/{p}", pipes.show_pipe, "One pipe.", "px.pipe/1 the pipe", query=s.PipeQuery),
    _work(
        "DELETE /api/pipes/{p}",
        pipes.remove_pipe,
        "Cancel what runs of a pipe, then delete its folder; its executions stay in the ledger.",
        "px.removed/1 it is gone",
    ),
    _change(
        "POST /api/pipes/{p}/run",
        pipes.run_pipe,
        "Run a pipe by hand.",
        "202 px.execution/1 queued",
        "px.execution/1 final (wait=1)",
        query=s.FinalQuery,
        body=s.RunPipe,
    ),
    _work(
        "POST /api/pipes/{p}/enable",
        pipes.enable,
        "Let schedule and events start a pipe, on this machine; with `enabled: false` keep them from it.",
        _PIPE,
        body=s.EnablePipe,
    ),
    _work(
        "POST /api/pipes/{p}/disable",
        pipes.disable,
        "Keep schedule and events from starting a pipe.",
        _PIPE,
        body=Body,
    ),
    _work(
        "POST /api/pipes/{p}/config",
        pipes.configure,
        "Change keys of a pipe's front matter; null removes one.",
        _PIPE,
        body=dict[str, Any],
    ),
    _work(
        "POST /api/pipes/{p}/cancel",
        pipes.cancel_pipe,
        "Cancel what runs and waits of a pipe.",
        "px.executions/1 what was cancelled",
        body=Body,
    ),
    _change(
        "POST /api/pipes/{p}/validate",
        pipes.validate,
        "Check a pipe; nothing is run.",
        "px.pipe-validation/1 the checks",
        access=Access.READ,
    ),
    _read(
        "/api/pipes/{p}/next",
        pipes.next_runs,
        "When a pipe is due next, and why.",
        "px.next/1 the coming times",
        query=s.NextQuery,
    ),
    _read(
        "/api/executions",
        executions.list_all,
        "Executions of all pipes, newest first, without their output.",
        "px.executions/1 a page",
        query=s.AllExecutionsQuery,
    ),
    _read(
        "/api/pipes/{p}/executions",
        executions.list_executions,
        "Executions of a pipe, newest first, without their output.",
        "px.executions/1 a page",
        query=s.ExecutionsQuery,
    ),
    *(
        _read(path, executions.show_execution, "One execution with all its row holds.", _EXECUTION, query=s.FinalQuery)
        for path in (_ONE, "/api/executions/{id}")
    ),
    _work(f"POST {_ONE}/cancel", executions.cancel, "Cancel an execution in any state.", _EXECUTION),
    _work(f"POST {_ONE}/retry", executions.retry, "Queue the same again as a new row.", "202 px.execution/1 it"),
    _read(
        f"{_ONE}/output",
        executions.output,
        "A page of an execution's output.",
        "raw bytes with X-Offset, X-Total-Bytes, X-Complete, X-Truncated",
        query=s.OutputQuery,
    ),
    _read(
        f"{_ONE}/tail",
        executions.tail,
        "Follow an execution from an offset to its end; an upgrade makes it a WebSocket of the same objects.",
        "sse events with places as ids",
        "ndjson one event a line",
        query=s.TailQuery,
    ),
    _work(
        "POST /api/events/{name}",
        pipes.publish_event,
        "Tell of something that may start pipes; the same key starts each once.",
        "202 px.event-claims/1 what it starts",
        body=s.Happening,
    ),
)

ROUTES: tuple[Route, ...] = (*DAEMON, *UNITS, *TOOLS, *KERNELS, *JUPYTER, *PIPES)

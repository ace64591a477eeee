"""The one table of routes. What is not here does not exist; what is here is described by `/api/openapi.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.api import daemon, events, logs, metrics, status, tool_files, tools, units
from supervisord_py.api.call import json_answer
from supervisord_py.api.kernel_routes import JUPYTER_ROUTES, KERNEL_ROUTES
from supervisord_py.api.negotiation import JSON, NDJSON, PROMETHEUS, RAW, SSE
from supervisord_py.api.openapi import openapi_document
from supervisord_py.api.parameters import Form, Parameter
from supervisord_py.api.pipe_routes import PIPE_ROUTES
from supervisord_py.api.route import Access, Body, Ends, Returned, Route

if TYPE_CHECKING:
    from aiohttp import web

    from supervisord_py.api.call import Call

_DAY = 86400.0
_FOLLOW = Parameter("follow", Form.FLAG, "1: go on with what is to come")
_UNITS = Parameter("unit", Form.TEXT, "only these: `x`, `tool:x`, or a glob", repeated=True)
_WAIT = Parameter("wait", Form.FLAG, "0: answer at once, the work goes on")
_EVENTS = (
    _FOLLOW,
    Parameter("unit", Form.TEXT, "only what concerns this unit"),
    Parameter("after", Form.INTEGER, "only events after this id; 0 for all that is kept", maximum=2**63 - 1),
    Parameter("limit", Form.INTEGER, "at most so many past events", minimum=1, maximum=100_000),
)
_LOGS = (
    _FOLLOW,
    Parameter("since", Form.TEXT, "from this time (RFC 3339) or age (10m) on"),
    Parameter("stream", Form.TEXT, "only one of both", choices=("stdout", "stderr")),
    Parameter("lines", Form.INTEGER, "only the last so many lines", maximum=1_000_000),
    Parameter("cursor", Form.INTEGER, "from this position on", maximum=2**63 - 1),
    Parameter("encoding", Form.TEXT, "of the bytes in NDJSON and SSE", choices=("text", "base64")),
)
_RUN = (
    Parameter("timeout", Form.NUMBER, "seconds; waiting, starting and running together", maximum=_DAY * 7),
    Parameter("keep_alive", Form.NUMBER, "seconds to stay warm; 0 none, -1 for ever", minimum=-1, maximum=1e9),
)
_TIMEOUT = Parameter("timeout", Form.NUMBER, "seconds", maximum=_DAY * 7)


async def openapi(call: Call) -> web.StreamResponse:
    """Answer with the description of this table."""
    return json_answer(openapi_document(ROUTES, call.context.control.facts().version))


def _json(schema: str | None, description: str, status_code: int = 200) -> Returned:
    return Returned(description, JSON, status_code, schema)


ROUTES: tuple[Route, ...] = (
    # -- the daemon
    Route(
        "GET",
        "/api/health",
        status.health,
        Access.CHANGE,
        "Does the daemon serve? 503 while it stops.",
        (_json("px.health/1", "it serves"),),
    ),
    Route(
        "GET",
        "/api/status",
        status.status,
        Access.READ,
        "The daemon and every unit.",
        (_json("px.status/1", "status"),),
        (_UNITS,),
    ),
    Route(
        "GET",
        "/api/events",
        events.events,
        Access.READ,
        "What happened, and with follow what happens.",
        (Returned("one event a line", NDJSON), Returned("events with ids", SSE)),
        _EVENTS,
    ),
    Route(
        "GET",
        "/api/metrics",
        metrics.metrics,
        Access.READ,
        "Prometheus metrics.",
        (Returned("text format 0.0.4", PROMETHEUS),),
    ),
    Route(
        "GET",
        "/api/openapi.json",
        openapi,
        Access.READ,
        "This description.",
        (_json(None, "OpenAPI 3.1"),),
    ),
    Route(
        "GET",
        "/api/doctor",
        daemon.doctor,
        Access.READ,
        "Checks, each with the command that repairs it.",
        (_json("px.doctor/1", "checks"),),
    ),
    Route(
        "GET",
        "/api/config",
        daemon.show_config,
        Access.READ,
        "Effective settings with their origin.",
        (_json("px.config/1", "settings"),),
    ),
    Route(
        "GET",
        "/api/daemon",
        daemon.show_daemon,
        Access.READ,
        "Keeper, control plane, rungs.",
        (_json("px.daemon/1", "the daemon"),),
    ),
    Route(
        "POST",
        "/api/daemon/reload",
        daemon.reload,
        Access.CHANGE,
        "Read settings and tools again.",
        (_json("px.reload/1", "what changed"),),
        ends=Ends.BY_ITSELF,
    ),
    Route(
        "POST",
        "/api/daemon/restart",
        daemon.restart,
        Access.CHANGE,
        "Replace the control plane and keep the children; with all=1 begin anew.",
        (_json("px.daemon-wish/1", "accepted", 202),),
        (Parameter("all", Form.FLAG, "1: stop the children as well"),),
        ends=Ends.BY_ITSELF,
    ),
    Route(
        "POST",
        "/api/daemon/stop",
        daemon.stop,
        Access.LIFE,
        "Stop every child in order, then the daemon.",
        (_json("px.daemon-wish/1", "accepted", 202),),
        ends=Ends.BY_ITSELF,
    ),
    # -- units
    Route(
        "GET",
        "/api/units",
        status.list_units,
        Access.READ,
        "What names and globs mean.",
        (_json("px.units/1", "units"),),
        (Parameter("name", Form.TEXT, "`x`, `tool:x`, or a glob", repeated=True),),
    ),
    *(
        Route(
            "POST",
            f"/api/units/{verb}",
            answer,
            Access.CHANGE,
            f"{verb.capitalize()} several units; 200 with an answer or a problem for each of them.",
            (_json(f"px.{verb}-units/1", "what became of each"),),
            (Parameter("unit", Form.TEXT, "`x`, `tool:x`, or a glob", repeated=True), _TIMEOUT, _WAIT),
            ends=Ends.BY_ITSELF,
        )
        for verb, answer in (("start", units.start), ("stop", units.stop), ("restart", units.restart))
    ),
    Route(
        "GET",
        "/api/units/{u}/logs",
        logs.unit_logs,
        Access.READ,
        "Output; follows across rotation and restarts.",
        (
            Returned("bytes as they came; X-Cursor is where to go on", RAW),
            Returned("one piece a line", NDJSON),
            Returned("pieces with positions as ids", SSE),
        ),
        _LOGS,
    ),
    Route(
        "GET",
        "/api/units/{u}/wait",
        units.wait,
        Access.READ,
        "Answer once the unit is ready, stopped or done; 504 when the time is over.",
        (_json("px.wait/1", "outcome"),),
        (Parameter("for", Form.TEXT, "the goal", choices=("ready", "stopped", "done")), _TIMEOUT),
    ),
    Route(
        "GET",
        "/api/units/{u}/why",
        units.why,
        Access.READ,
        "The causal chain that led to the unit's state.",
        (_json("px.why/1", "explanation"),),
    ),
    # -- tools
    Route(
        "GET",
        "/api/launcher/state",
        tools.launcher_state,
        Access.READ,
        "The warm set, by tool.",
        (_json(None, "by tool"),),
    ),
    Route("GET", "/api/tools", tools.list_tools, Access.READ, "The catalog.", (_json("px.tools/1", "tools"),)),
    Route(
        "GET",
        "/api/tools/{t}",
        tools.show_tool,
        Access.READ,
        "One tool with manifest, input schema and limits.",
        (_json("px.tool/1", "tool"),),
    ),
    Route(
        "POST",
        "/api/tools/{t}/run",
        tools.run,
        Access.CHANGE,
        "Run a tool once; the answer is the tool's own.",
        (_json(None, "the tool's answer, whatever its type"),),
        _RUN,
        Body.ANY,
    ),
    Route(
        "POST",
        "/api/tools/{t}/stream",
        tools.stream,
        Access.CHANGE,
        "Run a tool once; items are passed on as they come.",
        (Returned("the tool's events", SSE), Returned("the tool's lines", NDJSON)),
        _RUN,
        Body.ANY,
        streams=True,
    ),
    Route(
        "GET",
        "/api/tools/{t}/lease",
        tools.lease,
        Access.CHANGE,
        "Hold a warm instance while the connection stays open.",
        (Returned("one line: address, port, pid", NDJSON),),
        (_TIMEOUT,),
    ),
    Route(
        "POST",
        "/api/tools/{t}/start",
        tools.start,
        Access.CHANGE,
        "Warm a tool up.",
        (_json("px.start/1", "ready"), _json("px.start/1", "begun (wait=0)", 202)),
        (_TIMEOUT, _WAIT),
        ends=Ends.BY_ITSELF,
    ),
    Route(
        "POST",
        "/api/tools/{t}/stop",
        tools.stop,
        Access.CHANGE,
        "Stop a tool; 409 names what is left of it.",
        (_json("px.stop/1", "nothing is left"), _json("px.stop/1", "begun (wait=0)", 202)),
        (_TIMEOUT, _WAIT),
        ends=Ends.BY_ITSELF,
    ),
    Route(
        "POST",
        "/api/tools/new",
        tool_files.new,
        Access.CHANGE,
        "Write a working tool to start from.",
        (_json("px.tool/1", "the tool", 201),),
        body=Body.OBJECT,
        ends=Ends.BY_ITSELF,
    ),
    Route(
        "POST",
        "/api/tools/add",
        tool_files.add,
        Access.CHANGE,
        "Copy a tool into the tools directory.",
        (_json("px.tool/1", "the tool", 201),),
        body=Body.OBJECT,
        ends=Ends.BY_ITSELF,
    ),
    Route(
        "DELETE",
        "/api/tools/{t}",
        tool_files.remove,
        Access.CHANGE,
        "Delete a tool's folder; one that runs only with force=1.",
        (_json("px.removed/1", "it is gone"),),
        (Parameter("force", Form.FLAG, "1: stop it first; also outside the tools directory"),),
        ends=Ends.BY_ITSELF,
    ),
    Route(
        "POST",
        "/api/tools/{t}/validate",
        tool_files.validate,
        Access.CHANGE,
        "Run the twelve checks.",
        (_json("px.validation/1", "the report"),),
    ),
    Route(
        "POST",
        "/api/tools/{t}/debug",
        tool_files.debug,
        Access.CHANGE,
        "Walk the failure table.",
        (_json("px.debug/1", "the cases, with evidence"),),
    ),
    Route(
        "POST",
        "/api/tools/{t}/sync",
        tool_files.sync,
        Access.CHANGE,
        "Build the tool's .venv.",
        (Returned("lines of progress; the last one has `done`, or is a problem document", NDJSON),),
        streams=True,
    ),
    Route(
        "PUT",
        "/api/tools/{t}/pin",
        tools.pin,
        Access.CHANGE,
        "Exempt from LRU eviction; with forever=1 from age as well.",
        (_json("px.pin/1", "pinned"),),
        (Parameter("forever", Form.FLAG, "1: exempt from age as well"),),
        ends=Ends.BY_ITSELF,
    ),
    Route(
        "DELETE",
        "/api/tools/{t}/pin",
        tools.unpin,
        Access.CHANGE,
        "Take a pin away.",
        (_json("px.pin/1", "no pin"),),
        ends=Ends.BY_ITSELF,
    ),
    *KERNEL_ROUTES,
    *JUPYTER_ROUTES,
    *PIPE_ROUTES,
)

"""The one table of routes. What is not here does not exist; what is here is described by `/api/openapi.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from supervisord_py.api import daemon, events, logs, metrics, status, tool_files, tools, units
from supervisord_py.api.call import json_answer
from supervisord_py.api.kernel_routes import JUPYTER_ROUTES, KERNEL_ROUTES
from supervisord_py.api.negotiation import JSON, NDJSON, PROMETHEUS, RAW, SSE
from supervisord_py.api.openapi import openapi_document
from supervisord_py.api.parameters import Form, Parameter
from supervisord_py.api.pipe_routes import PIPE_ROUTES
from supervisord_py.api.route import Access, Answer, Body, Ends, Returned, Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp import web

    from supervisord_py.api.call import Call

READ, CHANGE, LIFE, ALONE = Access.READ, Access.CHANGE, Access.LIFE, Ends.BY_ITSELF
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


def _route(
    name: str,
    answer: Answer,
    access: Access,
    summary: str,
    returned: str | Sequence[str | Returned],
    parameters: Sequence[Parameter] = (),
    **more: Any,
) -> Route:
    """Return one row; `name` is method and path, a text in `returned` the schema of a JSON answer and what it is."""
    method, path = name.split()
    answers = [returned] if isinstance(returned, str) else returned
    told: list[Returned] = []
    for each in answers:
        schema, _, what = each.partition(" ") if isinstance(each, str) else ("", "", "")
        told.append(_json(schema, what) if isinstance(each, str) else each)
    return Route(method, path, answer, access, summary, tuple(told), tuple(parameters), **more)


ROUTES: tuple[Route, ...] = (
    # -- the daemon
    _route(
        "GET /api/health", status.health, CHANGE, "Does the daemon serve? 503 while it stops.", "px.health/1 it serves"
    ),
    _route("GET /api/status", status.status, READ, "The daemon and every unit.", "px.status/1 status", [_UNITS]),
    _route(
        "GET /api/events",
        events.events,
        READ,
        "What happened, and with follow what happens.",
        [Returned("one event a line", NDJSON), Returned("events with ids", SSE)],
        _EVENTS,
    ),
    _route(
        "GET /api/metrics", metrics.metrics, READ, "Prometheus metrics.", [Returned("text format 0.0.4", PROMETHEUS)]
    ),
    _route("GET /api/openapi.json", openapi, READ, "This description.", [_json(None, "OpenAPI 3.1")]),
    _route(
        "GET /api/doctor", daemon.doctor, READ, "Checks, each with the command that repairs it.", "px.doctor/1 checks"
    ),
    _route(
        "GET /api/config", daemon.show_config, READ, "Effective settings with their origin.", "px.config/1 settings"
    ),
    _route("GET /api/daemon", daemon.show_daemon, READ, "Keeper, control plane, rungs.", "px.daemon/1 the daemon"),
    _route(
        "POST /api/daemon/reload",
        daemon.reload,
        CHANGE,
        "Read settings and tools again.",
        "px.reload/1 what changed",
        ends=ALONE,
    ),
    _route(
        "POST /api/daemon/restart",
        daemon.restart,
        CHANGE,
        "Replace the control plane and keep the children; with all=1 begin anew.",
        [_json("px.daemon-wish/1", "accepted", 202)],
        [Parameter("all", Form.FLAG, "1: stop the children as well")],
        ends=ALONE,
    ),
    _route(
        "POST /api/daemon/stop",
        daemon.stop,
        LIFE,
        "Stop every child in order, then the daemon.",
        [_json("px.daemon-wish/1", "accepted", 202)],
        ends=ALONE,
    ),
    # -- units
    _route(
        "GET /api/units",
        status.list_units,
        READ,
        "What names and globs mean.",
        "px.units/1 units",
        [Parameter("name", Form.TEXT, "`x`, `tool:x`, or a glob", repeated=True)],
    ),
    *(
        _route(
            f"POST /api/units/{verb}",
            answer,
            CHANGE,
            f"{verb.capitalize()} several units; 200 with an answer or a problem for each of them.",
            f"px.{verb}-units/1 what became of each",
            [Parameter("unit", Form.TEXT, "`x`, `tool:x`, or a glob", repeated=True), _TIMEOUT, _WAIT],
            ends=ALONE,
        )
        for verb, answer in (("start", units.start), ("stop", units.stop), ("restart", units.restart))
    ),
    _route(
        "GET /api/units/{u}/logs",
        logs.unit_logs,
        READ,
        "Output; follows across rotation and restarts.",
        [
            Returned("bytes as they came; X-Cursor is where to go on", RAW),
            Returned("one piece a line", NDJSON),
            Returned("pieces with positions as ids", SSE),
        ],
        _LOGS,
    ),
    _route(
        "GET /api/units/{u}/wait",
        units.wait,
        READ,
        "Answer once the unit is ready, stopped or done; 504 when the time is over.",
        "px.wait/1 outcome",
        [Parameter("for", Form.TEXT, "the goal", choices=("ready", "stopped", "done")), _TIMEOUT],
    ),
    _route(
        "GET /api/units/{u}/why",
        units.why,
        READ,
        "The causal chain that led to the unit's state.",
        "px.why/1 explanation",
    ),
    # -- tools
    _route("GET /api/launcher/state", tools.launcher_state, READ, "The warm set, by tool.", [_json(None, "by tool")]),
    _route("GET /api/tools", tools.list_tools, READ, "The catalog.", "px.tools/1 tools"),
    _route(
        "GET /api/tools/{t}",
        tools.show_tool,
        READ,
        "One tool with manifest, input schema and limits.",
        "px.tool/1 tool",
    ),
    _route(
        "POST /api/tools/{t}/run",
        tools.run,
        CHANGE,
        "Run a tool once; the answer is the tool's own.",
        [_json(None, "the tool's answer, whatever its type")],
        _RUN,
        body=Body.ANY,
    ),
    _route(
        "POST /api/tools/{t}/stream",
        tools.stream,
        CHANGE,
        "Run a tool once; items are passed on as they come.",
        [Returned("the tool's events", SSE), Returned("the tool's lines", NDJSON)],
        _RUN,
        body=Body.ANY,
        streams=True,
    ),
    _route(
        "GET /api/tools/{t}/lease",
        tools.lease,
        CHANGE,
        "Hold a warm instance while the connection stays open.",
        [Returned("one line: address, port, pid", NDJSON)],
        [_TIMEOUT],
    ),
    _route(
        "POST /api/tools/{t}/start",
        tools.start,
        CHANGE,
        "Warm a tool up.",
        ["px.start/1 ready", _json("px.start/1", "begun (wait=0)", 202)],
        [_TIMEOUT, _WAIT],
        ends=ALONE,
    ),
    _route(
        "POST /api/tools/{t}/stop",
        tools.stop,
        CHANGE,
        "Stop a tool; 409 names what is left of it.",
        ["px.stop/1 nothing is left", _json("px.stop/1", "begun (wait=0)", 202)],
        [_TIMEOUT, _WAIT],
        ends=ALONE,
    ),
    _route(
        "POST /api/tools/new",
        tool_files.new,
        CHANGE,
        "Write a working tool to start from.",
        [_json("px.tool/1", "the tool", 201)],
        body=Body.OBJECT,
        ends=ALONE,
    ),
    _route(
        "POST /api/tools/add",
        tool_files.add,
        CHANGE,
        "Copy a tool into the tools directory.",
        [_json("px.tool/1", "the tool", 201)],
        body=Body.OBJECT,
        ends=ALONE,
    ),
    _route(
        "DELETE /api/tools/{t}",
        tool_files.remove,
        CHANGE,
        "Delete a tool's folder; one that runs only with force=1.",
        "px.removed/1 it is gone",
        [Parameter("force", Form.FLAG, "1: stop it first; also outside the tools directory")],
        ends=ALONE,
    ),
    _route(
        "POST /api/tools/{t}/validate",
        tool_files.validate,
        CHANGE,
        "Run the twelve checks.",
        "px.validation/1 the report",
    ),
    _route(
        "POST /api/tools/{t}/debug",
        tool_files.debug,
        CHANGE,
        "Walk the failure table.",
        "px.debug/1 the cases, with evidence",
    ),
    _route(
        "POST /api/tools/{t}/sync",
        tool_files.sync,
        CHANGE,
        "Build the tool's .venv.",
        [Returned("lines of progress; the last one has `done`, or is a problem document", NDJSON)],
        streams=True,
    ),
    _route(
        "PUT /api/tools/{t}/pin",
        tools.pin,
        CHANGE,
        "Exempt from LRU eviction; with forever=1 from age as well.",
        "px.pin/1 pinned",
        [Parameter("forever", Form.FLAG, "1: exempt from age as well")],
        ends=ALONE,
    ),
    _route("DELETE /api/tools/{t}/pin", tools.unpin, CHANGE, "Take a pin away.", "px.pin/1 no pin", ends=ALONE),
    *KERNEL_ROUTES,
    *JUPYTER_ROUTES,
    *PIPE_ROUTES,
)

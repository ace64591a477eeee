"""The part of the table of routes that is about pipes and their executions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.api import execution_tail, executions, pipes
from supervisord_py.api.negotiation import JSON, NDJSON, RAW, SSE
from supervisord_py.api.parameters import Form, Parameter
from supervisord_py.api.route import Access, Body, Ends, Returned, Route
from supervisord_py.ledger.pipe_executions import Status
from supervisord_py.ledger.pipe_history import MOST_PAGE
from supervisord_py.pipes.output import OutputStream

if TYPE_CHECKING:
    from supervisord_py.api.route import Answer

_PAGE_MOST = 16 * 1024 * 1024
_LONGEST = 2**63 - 1
_STREAM = Parameter("stream", Form.TEXT, "of the output", choices=tuple(OutputStream))
_WAIT = Parameter("wait", Form.FLAG, "1: answer once it is final")
_FILTERS = (
    Parameter("status", Form.TEXT, "only these", choices=tuple(Status), repeated=True),
    Parameter("since", Form.TEXT, "queued at or after: RFC 3339, or an age like 2h"),
    Parameter("until", Form.TEXT, "queued before"),
    Parameter("limit", Form.INTEGER, "at most so many", minimum=1, maximum=MOST_PAGE),
    Parameter("cursor", Form.INTEGER, "next_cursor of the page before", maximum=_LONGEST),
)
_PAGE = (
    _STREAM,
    Parameter("offset", Form.INTEGER, "of the first byte", maximum=_LONGEST),
    Parameter("limit", Form.INTEGER, "at most so many bytes", minimum=1, maximum=_PAGE_MOST),
)
_TAIL = (_STREAM, Parameter("offset", Form.INTEGER, "of the first byte, with one stream", maximum=_LONGEST))
_ONE = "/api/pipes/{p}/executions/{id}"


def _json(schema: str, description: str, status: int = 200) -> Returned:
    return Returned(description, JSON, status, schema)


def _change(path: str, answer: Answer, summary: str, *returned: Returned, body: Body = Body.NONE) -> Route:
    """Make the row of a POST whose work goes on when its client goes."""
    return Route("POST", path, answer, Access.CHANGE, summary, returned, body=body, ends=Ends.BY_ITSELF)


_PIPE = _json("px.pipe/1", "the pipe as it is then")
_EXECUTION = _json("px.execution/1", "the execution")

PIPE_ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "/api/pipes",
        pipes.list_pipes,
        Access.READ,
        "Every pipe, broken ones included.",
        (_json("px.pipes/1", "pipes"),),
    ),
    _change(
        "/api/pipes",
        pipes.add_pipe,
        "Install a pipe from a path, an https address or `example:NAME`: disabled.",
        _json("px.pipe/1", "the pipe", 201),
        body=Body.OBJECT,
    ),
    _change(
        "/api/pipes/new",
        pipes.new_pipe,
        "Write a small pipe to start from.",
        _json("px.pipe/1", "the pipe", 201),
        body=Body.OBJECT,
    ),
    Route(
        "GET",
        "/api/pipes/queue",
        pipes.queue,
        Access.READ,
        "What runs and what waits, by group.",
        (_json("px.queue/1", "the lines"),),
    ),
    Route(
        "POST",
        "/api/pipes/schedule/preview",
        pipes.preview,
        Access.READ,
        "What a schedule means, and when it would be due.",
        (_json("px.schedule/1", "valid or not, and why"),),
        body=Body.OBJECT,
    ),
    Route(
        "GET",
        "/api/pipes/{p}",
        pipes.show_pipe,
        Access.READ,
        "One pipe.",
        (_json("px.pipe/1", "the pipe"),),
        (Parameter("rendered", Form.FLAG, "1: with the prompt that it would be run with now"),),
    ),
    Route(
        "DELETE",
        "/api/pipes/{p}",
        pipes.remove_pipe,
        Access.CHANGE,
        "Cancel what runs of a pipe, then delete its folder; its executions stay in the ledger.",
        (_json("px.removed/1", "it is gone"),),
        ends=Ends.BY_ITSELF,
    ),
    Route(
        "POST",
        "/api/pipes/{p}/run",
        pipes.run_pipe,
        Access.CHANGE,
        "Run a pipe by hand.",
        (_json("px.execution/1", "queued", 202), _json("px.execution/1", "final (wait=1)")),
        (_WAIT,),
        Body.OBJECT,
    ),
    _change(
        "/api/pipes/{p}/enable",
        pipes.enable,
        "Let schedule and events start a pipe, on this machine; with `enabled: false` keep them from it.",
        _PIPE,
        body=Body.OBJECT,
    ),
    _change("/api/pipes/{p}/disable", pipes.disable, "Keep schedule and events from starting a pipe.", _PIPE),
    _change(
        "/api/pipes/{p}/config",
        pipes.configure,
        "Change keys of a pipe's front matter; null removes one.",
        _PIPE,
        body=Body.OBJECT,
    ),
    _change(
        "/api/pipes/{p}/cancel",
        pipes.cancel_pipe,
        "Cancel what runs and waits of a pipe.",
        _json("px.executions/1", "what was cancelled"),
    ),
    Route(
        "POST",
        "/api/pipes/{p}/validate",
        pipes.validate,
        Access.READ,
        "Check a pipe; nothing is run.",
        (_json("px.pipe-validation/1", "the checks"),),
    ),
    Route(
        "GET",
        "/api/pipes/{p}/next",
        pipes.next_runs,
        Access.READ,
        "When a pipe is due next, and why.",
        (_json("px.next/1", "the coming times"),),
        (Parameter("count", Form.INTEGER, "of the coming times", maximum=pipes.MOST_NEXT),),
    ),
    Route(
        "GET",
        "/api/executions",
        executions.list_all,
        Access.READ,
        "Executions of all pipes, newest first, without their output.",
        (_json("px.executions/1", "a page"),),
        (*_FILTERS, Parameter("pipe", Form.TEXT, "only of this one")),
    ),
    Route(
        "GET",
        "/api/pipes/{p}/executions",
        executions.list_executions,
        Access.READ,
        "Executions of a pipe, newest first, without their output.",
        (_json("px.executions/1", "a page"),),
        _FILTERS,
    ),
    Route(
        "GET",
        _ONE,
        executions.show_execution,
        Access.READ,
        "One execution with all that its row holds.",
        (_EXECUTION,),
        (_WAIT,),
    ),
    Route(
        "GET",
        "/api/executions/{id}",
        executions.show_execution,
        Access.READ,
        "The same, whatever its pipe.",
        (_EXECUTION,),
        (_WAIT,),
    ),
    _change(f"{_ONE}/cancel", executions.cancel, "Cancel an execution in any state.", _EXECUTION),
    _change(
        f"{_ONE}/retry",
        executions.retry,
        "Queue the same again as a new row.",
        _json("px.execution/1", "the new one", 202),
    ),
    Route(
        "GET",
        f"{_ONE}/output",
        executions.output,
        Access.READ,
        "A page of an execution's output.",
        (Returned("bytes with X-Offset, X-Total-Bytes, X-Complete, X-Truncated", RAW),),
        _PAGE,
    ),
    Route(
        "GET",
        f"{_ONE}/tail",
        execution_tail.tail,
        Access.READ,
        "Follow an execution from an offset to its end; an upgrade makes it a WebSocket of the same objects.",
        (Returned("events with places as ids", SSE), Returned("one event a line", NDJSON)),
        _TAIL,
    ),
    _change(
        "/api/events/{name}",
        pipes.publish_event,
        "Tell of something that may start pipes; the same key starts each once.",
        _json("px.event-claims/1", "what it starts", 202),
        body=Body.OBJECT,
    ),
)

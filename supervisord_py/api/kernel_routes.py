"""The part of the table of routes that is about kernels: ours, and Jupyter's own API beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.api import jupyter_channels, jupyter_rest, kernel_calls, kernels
from supervisord_py.api.negotiation import JSON, NDJSON, RAW, SSE
from supervisord_py.api.parameters import Form, Parameter
from supervisord_py.api.route import Access, Body, Ends, Query, Returned, Route

if TYPE_CHECKING:
    from supervisord_py.api.route import Answer

_CWD = Parameter("cwd", Form.TEXT, "absolute; decides between sessions of one name")
_CELL = Parameter("cell", Form.TEXT, "only if this cell is the running one; what else runs is left alone")
_TIMEOUT = Parameter("timeout", Form.NUMBER, "seconds", maximum=86400.0 * 7)
_WAIT = Parameter("wait", Form.FLAG, "0: answer at once, the work goes on")
_PAGE = (
    Parameter("offset", Form.INTEGER, "of the first byte", maximum=2**63 - 1),
    Parameter("limit", Form.INTEGER, "at most so many bytes", minimum=1, maximum=16 * kernels.PAGE_BYTES),
    Parameter("stream", Form.TEXT, "only one of both, counted by itself", choices=("stdout", "stderr")),
    _CWD,
)
_STOPPED = (Returned("nothing is left", schema="px.stop/1"), Returned("begun (wait=0)", status=202, schema="px.stop/1"))
_TOLD = Returned("Last-Event-ID was that of `done`: there is nothing more", status=204)
_SESSION_ID = Parameter("session_id", Form.TEXT, "of the client")
_TOKEN = Parameter("token", Form.TEXT, "instead of the header Authorization, on the loopback listener")


def _json(schema: str | None, description: str, status_code: int = 200) -> Returned:
    return Returned(description, JSON, status_code, schema)


KERNEL_ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "/api/kernels",
        kernels.list_kernels,
        Access.READ,
        "Every session of kernels, remembered ones included.",
        (_json("px.kernels/1", "sessions"),),
    ),
    Route(
        "POST",
        "/api/kernels",
        kernels.begin,
        Access.CHANGE,
        "Start a session's kernel, or with `explain` say what would be started.",
        (
            _json("px.kernel/1", "it ran already, or the explanation (px.kernel-explanation/1)"),
            _json("px.kernel/1", "started", 201),
            Returned("one event a line, `done` with the session last", NDJSON),
            Returned("events", SSE),
            _TOLD,
        ),
        body=Body.OBJECT,
        ends=Ends.BY_ITSELF,
        resumes=True,
    ),
    Route(
        "GET",
        "/api/kernels/{k}",
        kernels.show_kernel,
        Access.READ,
        "One session.",
        (_json("px.kernel/1", "session"),),
        (_CWD,),
    ),
    Route(
        "DELETE",
        "/api/kernels/{k}",
        kernels.stop,
        Access.CHANGE,
        "End a session's kernel; 409 names what is left of it.",
        _STOPPED,
        (_CWD, _TIMEOUT, _WAIT),
        ends=Ends.BY_ITSELF,
    ),
    Route(
        "POST",
        "/api/kernels/{k}/start",
        kernels.start,
        Access.CHANGE,
        "Start the kernel of a known session; forgets a hard failure.",
        (_json("px.start/1", "ready"), _json("px.start/1", "begun (wait=0)", 202)),
        (_CWD, _TIMEOUT, _WAIT),
        ends=Ends.BY_ITSELF,
    ),
    Route(
        "POST",
        "/api/kernels/{k}/stop",
        kernels.stop,
        Access.CHANGE,
        "As DELETE.",
        _STOPPED,
        (_CWD, _TIMEOUT, _WAIT),
        ends=Ends.BY_ITSELF,
    ),
    Route(
        "POST",
        "/api/kernels/{k}/restart",
        kernels.restart,
        Access.CHANGE,
        "Replace the kernel; its variables are lost.",
        (_json("px.kernel/1", "ready"),),
        (_CWD,),
        ends=Ends.BY_ITSELF,
    ),
    Route(
        "POST",
        "/api/kernels/{k}/interrupt",
        kernels.interrupt,
        Access.CHANGE,
        "Interrupt the running cell; asked again, go on to the next rung.",
        (_json("px.interrupt/1", "the rungs so far"),),
        (_CWD, _CELL),
        ends=Ends.BY_ITSELF,
    ),
    Route(
        "POST",
        "/api/kernels/{k}/use",
        kernels.use,
        Access.CHANGE,
        "One session; counts as a use, and holds its place for a while.",
        (_json("px.kernel/1", "session"),),
        (_CWD,),
    ),
    Route(
        "POST",
        "/api/kernels/{k}/execute",
        kernel_calls.execute,
        Access.CHANGE,
        "Run cells in order; a client that goes away, and does not come back to its stream, cancels them.",
        (
            _json("px.exec/1", "what came of each cell, also of those that failed"),
            Returned("one event a line, `done` last", NDJSON),
            Returned("events", SSE),
            _TOLD,
        ),
        body=Body.OBJECT,
        resumes=True,
    ),
    Route(
        "GET",
        "/api/kernels/{k}/cells",
        kernels.list_cells,
        Access.READ,
        "The session's history.",
        (_json("px.cells/1", "cells, oldest first"),),
        (_CWD,),
    ),
    Route(
        "GET",
        "/api/kernels/{k}/cells/{id}/output",
        kernels.cell_output,
        Access.READ,
        "A page of a cell's complete output.",
        (Returned("bytes as they came; X-Offset, X-Total-Bytes, X-Complete", RAW),),
        _PAGE,
    ),
    Route(
        "GET",
        "/api/kernels/{k}/artifacts/{id}",
        kernels.artifact,
        Access.READ,
        "A rich output that was too large for its result, or a cell's complete output.",
        (Returned("as it is; ranges are served", RAW),),
        (_CWD,),
    ),
    Route(
        "GET",
        "/api/kernels/{k}/notebook",
        kernels.notebook,
        Access.READ,
        "The session's history as a notebook.",
        (Returned("nbformat 4.5", kernels.IPYNB),),
        (_CWD,),
    ),
    Route(
        "GET",
        "/api/capabilities",
        kernels.capabilities,
        Access.READ,
        "Which kinds of cells are offered, and why not.",
        (_json("px.capabilities/1", "Python and shell cells"),),
        (_CWD,),
    ),
    Route(
        "GET",
        "/api/kernelspecs",
        jupyter_rest.list_specs,
        Access.READ,
        "Jupyter's document of kernelspecs.",
        (_json(None, "kernelspecs"),),
    ),
)


def _jupyter(
    method: str, path: str, answer: Answer, summary: str, *returned: Returned, body: Body = Body.NONE
) -> Route:
    """Return a row of Jupyter's API: whoever made the request, what it begins goes on without the client."""
    reads = method == "GET"
    return Route(
        method,
        f"/jupyter/api{path}",
        answer,
        Access.READ if reads else Access.CHANGE,
        summary,
        returned,
        (_TOKEN,),
        body,
        Ends.WITH_CLIENT if reads else Ends.BY_ITSELF,
        Query.ANY,
    )


_GONE = Returned("done", status=204)

JUPYTER_ROUTES: tuple[Route, ...] = (
    _jupyter("GET", "", jupyter_rest.version, "Who serves Jupyter's API here.", _json(None, "version")),
    _jupyter("GET", "/kernelspecs", jupyter_rest.list_specs, "The kernelspecs.", _json(None, "kernelspecs")),
    _jupyter("GET", "/kernelspecs/{name}", jupyter_rest.show_spec, "One kernelspec.", _json(None, "kernelspec")),
    _jupyter("GET", "/kernels", jupyter_rest.list_kernels, "Kernels that can be joined.", _json(None, "kernels")),
    _jupyter(
        "POST",
        "/kernels",
        jupyter_rest.begin,
        "Start a kernel in a session of its own.",
        _json(None, "kernel", 201),
        body=Body.OBJECT,
    ),
    _jupyter("GET", "/kernels/{uuid}", jupyter_rest.show_kernel, "One kernel.", _json(None, "kernel")),
    _jupyter("DELETE", "/kernels/{uuid}", jupyter_rest.end, "End it.", _GONE),
    _jupyter("POST", "/kernels/{uuid}/interrupt", jupyter_rest.interrupt, "Interrupt it.", _GONE),
    _jupyter("POST", "/kernels/{uuid}/restart", jupyter_rest.restart, "Replace it.", _json(None, "kernel")),
    Route(
        "GET",
        "/jupyter/api/kernels/{uuid}/channels",
        jupyter_channels.channels,
        Access.CHANGE,
        "WebSocket to its channels: JSON, or v1.kernel.websocket.jupyter.org.",
        (Returned("messages", JSON, 101),),
        (_SESSION_ID, _TOKEN),
        query=Query.ANY,
    ),
)
